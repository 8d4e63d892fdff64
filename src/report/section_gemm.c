/* Time of GEMM against its size, per op and dtype, and the rates of every product. */
#include <math.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/page.h"
#include "src/report/row.h"
#include "src/report/tables.h"

/* The side of the square product with the same m n k. */
static double size_of(const cJSON *line) {
    return cbrt(record_number(line, "m") * record_number(line, "n") * record_number(line, "k"));
}

static struct chart_style backend_style(struct page *page, const cJSON *line) {
    const char *precision = row_precision(line);
    struct chart_style style = page_style(page, record_text(line, "backend"));
    style.dash = strcmp(precision, "tf32") == 0 ? 1 : strcmp(precision, "bf16") == 0 ? 2 : 0;
    return style;
}

static size_t find_series(struct page *page, struct chart *chart, const cJSON *line, bool square) {
    const struct row_name name = row_backend(line);
    for (size_t s = 0; s < chart->series_count; s++)
        if (strcmp(chart->series[s].name, name.text) == 0 && chart->series[s].line == square) return s;
    const size_t series = chart_series(chart, name.text, backend_style(page, line));
    if (series < chart->series_count) {
        chart->series[series].line = square;
        for (size_t s = 0; s < series; s++)
            if (strcmp(chart->series[s].name, name.text) == 0) chart->series[series].unlisted = true;
    }
    return series;
}

static void size_chart(struct page *page, const struct selection *rows, size_t number, const char *op,
                       const char *dtype) {
    struct chart chart;
    char id[64];
    snprintf(id, sizeof id, "gemm-%.4s-%.8s-%zu", op, dtype, number + 1);
    chart_open(&chart, CHART_LINES, id, "%.4s, %.8s: time against size", op, dtype);
    chart.x = (struct chart_axis){.title = "size: cube root of m n k", .kind = SCALE_LOG2};
    chart.y =
        (struct chart_axis){.title = "seconds a product, median", .kind = SCALE_LOG10, .unit = UNIT_SECONDS};
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        if (strcmp(record_text(line, "op"), op) != 0 || strcmp(record_text(line, "dtype"), dtype) != 0)
            continue;
        if (row_refused(line, NULL, 0)) continue;
        const bool square = strcmp(record_text(line, "what"), "square") == 0;
        chart_add(&chart, find_series(page, &chart, line, square),
                  (struct chart_point){size_of(line), record_number(line, "median_seconds"),
                                       record_number(line, "min_seconds"),
                                       record_number(line, "max_seconds")});
    }
    if (!chart.series_count) return;
    page_chart(
        page, &chart,
        "Lower is faster. Lines connect square products; single markers are products of a training step. "
        "Whiskers extend from the fastest to the slowest repeat.");
}

static void size_charts(struct page *page, const struct selection *rows, size_t number) {
    static const char *const dtypes[] = {"f32", "f64"}, *const ops[] = {"NN", "TN", "NT"};
    page_columns_open(page);
    for (size_t i = 0; i < 6; i++) size_chart(page, rows, number, ops[i % 3], dtypes[i / 3]);
    page_columns_close(page);
}

static void write_gemm(struct page *page) {
    struct selections machines = page_selections(page, "gemm", selection_machine);
    for (size_t i = 0; i < machines.count; i++) {
        const struct selection *rows = &machines.list[i];
        struct table table;
        page_heading(page, "%s", rows->key);
        size_charts(page, rows, i);
        tables_gemm(&table, rows);
        page_table(page, &table);
        tables_gemm_details(&table, rows);
        page_table(page, &table);
        tables_kernels(&table, rows);
        if (table_rows(&table)) {
            page_table(page, &table);
        } else {
            table_close(&table);
        }
    }
    selections_free(&machines);
}

const struct section section_gemm = {"gemm", "GEMM against size", "./train bench gemm --log FILE",
                                     .type = "gemm", .write = write_gemm};
