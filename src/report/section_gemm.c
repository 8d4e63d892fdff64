/* Rates of GEMM against its size, per op and dtype, and those of every product. */
#include <math.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/page.h"
#include "src/report/roof.h"
#include "src/report/row.h"
#include "src/report/tables.h"

/* The side of the square product with the same m n k. */
static double size_of(const cJSON *line) {
    return cbrt(record_number(line, "m") * record_number(line, "n") * record_number(line, "k"));
}

/* Backends have their colours; a backend's lines of other precisions and thread counts have other dashes. */
static struct chart_style line_style(struct page *page, const struct chart *chart, const char *name,
                                     const cJSON *line) {
    struct chart_style style = page_style(page, record_text(line, "backend"));
    for (size_t s = 0; s < chart->series_count; s++) {
        const struct chart_series *series = &chart->series[s];
        if (strcmp(series->name, name) == 0) return series->style;
        style.dash += series->style.colour == style.colour && series->style.marker == style.marker;
    }
    style.dash %= CHART_DASHES;
    return style;
}

static size_t find_series(struct page *page, struct chart *chart, const struct selection *rows,
                          const cJSON *line, bool square) {
    const struct row_name name = selection_backend(rows, line);
    for (size_t s = 0; s < chart->series_count; s++)
        if (strcmp(chart->series[s].name, name.text) == 0 && chart->series[s].line == square) return s;
    const size_t series = chart_series(chart, name.text, line_style(page, chart, name.text, line));
    if (series < chart->series_count) {
        chart->series[series].line = square;
        for (size_t s = 0; s < series; s++) /* the legend shows the one with a line */
            if (strcmp(chart->series[s].name, name.text) == 0)
                chart->series[square ? s : series].unlisted = true;
    }
    return series;
}

/* The peak of the device that computed the product. */
static void add_peak(struct page *page, struct chart *chart, const struct record *row) {
    const struct roof roof = roof_of(page->records, row);
    const size_t threads = record_count(row->line, "threads", 1u << 20, 0);
    if (row_on_gpu(row->line)) {
        chart_reference(chart, roof.peak, "peak of the GPU, %s GFLOP/s", text_short(roof.peak).text);
    } else {
        chart_reference(chart, roof.peak, "peak of %zu CPU thread%s, %s GFLOP/s", threads,
                        threads == 1 ? "" : "s", text_short(roof.peak).text);
    }
}

static void add_product(struct page *page, struct chart *chart, const struct selection *rows,
                        const cJSON *line) {
    const double rate = record_number(line, "gflops"), work = rate * record_number(line, "median_seconds");
    const bool square = strcmp(record_text(line, "what"), "square") == 0;
    chart_add(chart, find_series(page, chart, rows, line, square),
              (struct chart_point){size_of(line), rate, work / record_number(line, "max_seconds"),
                                   work / record_number(line, "min_seconds")});
}

static void size_chart(struct page *page, const struct selection *rows, size_t number, const char *op,
                       const char *dtype) {
    struct chart chart;
    char id[64];
    snprintf(id, sizeof id, "gemm-%.4s-%.8s-%zu", op, dtype, number + 1);
    chart_open(&chart, CHART_LINES, id, "%.4s, %.8s: GFLOP/s against size", op, dtype);
    chart.x = (struct chart_axis){.title = "size: cube root of m n k", .kind = SCALE_LOG2};
    chart.y = (struct chart_axis){.title = "GFLOP/s", .from_zero = true, .log_if_wide = true};
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        if (strcmp(record_text(line, "op"), op) != 0 || strcmp(record_text(line, "dtype"), dtype) != 0)
            continue;
        if (row_refused(line, NULL, 0)) continue;
        add_product(page, &chart, rows, line);
        add_peak(page, &chart, rows->rows[i]);
    }
    if (!chart.series_count) return;
    page_chart(page, &chart, "%s", "");
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
        page_note(page,
                  "Higher is faster. Lines connect square products. Markers without a line are products of "
                  "a training step. Whiskers extend from the slowest to the fastest repeat. The peak is "
                  "the measured rate of multiply-add instructions that need no memory.");
        size_charts(page, rows, i);
        tables_gemm(&table, rows);
        page_table(page, &table);
        tables_gemm_details(&table, rows);
        page_table(page, &table);
        tables_kernels(&table, rows);
        page_optional_table(page, &table);
        tables_counters_cpu(&table, rows);
        page_optional_table(page, &table);
        tables_counters_gpu(&table, rows);
        page_optional_table(page, &table);
    }
    selections_free(&machines);
}

const struct section section_gemm = {"gemm", "Speed of single products", "./train bench gemm --log FILE",
                                     .type = "gemm", .write = write_gemm};
