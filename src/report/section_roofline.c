/* The roofline of each machine and the verified products below it (Williams, Waterman, Patterson: Roofline,
   2009). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/page.h"
#include "src/report/row.h"
#include "src/report/tables.h"

/* The peak line of the same machine and device; NULL if there is none. */
static const cJSON *peak_of(const struct records *records, const struct record *product) {
    const struct record *row = NULL;
    char machine[SELECTION_TEXT], other[SELECTION_TEXT];
    selection_machine(product, machine, sizeof machine);
    while ((row = records_after(records, row, "peak"))) {
        selection_machine(row, other, sizeof other);
        if (strcmp(machine, other) == 0 &&
            strcmp(record_text(row->line, "device"), record_text(product->line, "device")) == 0)
            return row->line;
    }
    return NULL;
}

static double rate_of(const cJSON *peak, const char *dtype) {
    return record_number(peak, strcmp(dtype, "f64") == 0 ? "f64_gflops" : "f32_gflops");
}

/* flop / compulsory byte; NaN if the row has no result. */
static double intensity_of(const cJSON *line) {
    const double bytes = record_number(line, "bytes");
    if (row_refused(line, NULL, 0) || !(bytes > 0) || !(record_number(line, "gflops") > 0))
        return (double)NAN;
    return 2 * record_number(line, "m") * record_number(line, "n") * record_number(line, "k") / bytes;
}

static bool roofline_present(const struct records *records) {
    const struct record *row = NULL;
    while ((row = records_after(records, row, "gemm")))
        if (intensity_of(row->line) > 0 &&
            rate_of(peak_of(records, row), record_text(row->line, "dtype")) > 0)
            return true;
    return false;
}

/* Rows of one machine, device and dtype share a roof. */
static void roof_key(const struct record *record, char *key, size_t size) {
    char machine[SELECTION_TEXT];
    const bool cuda = strcmp(record_text(record->line, "device"), "cuda") == 0;
    selection_machine(record, machine, sizeof machine);
    snprintf(key, size, "%s, %.8s on %.300s", cuda ? "GPU" : "CPU", record_text(record->line, "dtype"),
             machine);
}

static void add_roof(struct chart *chart, double peak, double bandwidth, double low, double high) {
    const struct chart_style style = {7, 0, 0};
    const double ridge = peak / bandwidth;
    const size_t series = chart_series(chart, "roof: peak and copy bandwidth", style);
    if (series >= chart->series_count) return;
    chart->series[series].marks = false;
    low = fmin(low, ridge / 4);
    chart_add_xy(chart, series, low, low * bandwidth);
    chart_add_xy(chart, series, ridge, peak);
    chart_add_xy(chart, series, fmax(high, 4 * ridge), peak);
}

static void add_products(struct page *page, struct chart *chart, const struct selection *rows) {
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        size_t series = 0;
        if (!(intensity_of(line) > 0)) continue;
        const struct row_name name = row_backend(line);
        while (series < chart->series_count && strcmp(chart->series[series].name, name.text) != 0) series++;
        if (series == chart->series_count)
            series = chart_series(chart, name.text, page_style(page, record_text(line, "backend")));
        if (series >= chart->series_count) return;
        chart->series[series].line = false;
        chart_add_xy(chart, series, intensity_of(line), record_number(line, "gflops"));
    }
}

struct roof {
    double peak, bandwidth; /* GFLOP/s, GB/s */
};

static double roof_of(const struct cell *cell) {
    const struct roof *roof = cell->context;
    return fmin(roof->peak, intensity_of(cell->line) * roof->bandwidth);
}

static void intensity_cell(struct cell *cell) {
    cell_text(cell, "%s", text_short(intensity_of(cell->line)).text);
}

static void roof_cell(struct cell *cell) {
    cell_text(cell, "%s", text_short(roof_of(cell)).text);
}

static void share_cell(struct cell *cell) {
    cell_text(cell, "%s", text_percent(cell_number(cell, "gflops") / roof_of(cell), 0).text);
}

static const struct column roof_columns[] = {
    {"backend", COLUMN_TEXT, .cell = cell_backend},
    {"op", COLUMN_TEXT, .key = "op"},
    {"m x n x k", COLUMN_NUMBER, .cell = cell_shape},
    {"flop/byte", COLUMN_NUMBER, .cell = intensity_cell},
    {"GFLOP/s", COLUMN_NUMBER, .key = "gflops", .unit = text_short},
    {"roof", COLUMN_NUMBER, .cell = roof_cell},
    {"of the roof", COLUMN_NUMBER, .cell = share_cell},
};

static void roof_table(struct page *page, const struct selection *rows, const struct roof *roof) {
    struct table table;
    table_open(
        &table,
        "The roof of a product is the lower of peak (%s GFLOP/s) and intensity times bandwidth (%s GB/s).",
        text_short(roof->peak).text, text_short(roof->bandwidth).text);
    TABLE_COLUMNS(&table, roof_columns);
    for (size_t i = 0; i < rows->count; i++)
        if (intensity_of(rows->rows[i]->line) > 0) table_row(&table, rows->rows[i]->line, roof);
    page_table(page, &table);
}

static void roofline(struct page *page, const struct selection *rows, size_t number) {
    const cJSON *peak = peak_of(page->records, rows->rows[0]);
    const double rate = rate_of(peak, record_text(rows->rows[0]->line, "dtype"));
    const double bandwidth = record_number(peak, "copy_gbytes_per_second");
    double low = INFINITY, high = 0;
    for (size_t i = 0; i < rows->count; i++) {
        const double intensity = intensity_of(rows->rows[i]->line);
        if (!(intensity > 0)) continue;
        low = fmin(low, intensity);
        high = fmax(high, intensity);
    }
    if (!(high > 0) || !(rate > 0) || !(bandwidth > 0)) return;
    struct chart chart;
    char id[64];
    snprintf(id, sizeof id, "roofline-%zu", number + 1);
    chart_open(&chart, CHART_LINES, id, "Roofline, %.40s", rows->key);
    chart.x = (struct chart_axis){.title = "intensity: flop per compulsory byte", .kind = SCALE_LOG10};
    chart.y = (struct chart_axis){.title = "GFLOP/s", .kind = SCALE_LOG10};
    page_heading(page, "%s", rows->key);
    page_columns_open(page);
    add_roof(&chart, rate, bandwidth, low, high);
    add_products(page, &chart, rows);
    snprintf(chart.label, sizeof chart.label, "Roofline");
    page_chart(page, &chart,
               "One marker a product: the nearer to the roof, the less can be gained. Products that fit in a "
               "cache, and tf32 or bf16 on tensor cores, can lie above it.");
    roof_table(page, rows, &(struct roof){rate, bandwidth});
    page_columns_close(page);
}

static void peak_table(struct page *page) {
    struct selections all = page_selections(page, "peak", selection_machine);
    for (size_t i = 0; i < all.count; i++) {
        struct table table;
        if (all.count > 1) page_heading(page, "%s", all.list[i].key);
        tables_peak(&table, &all.list[i]);
        page_table(page, &table);
    }
    selections_free(&all);
}

static void write_roofline(struct page *page) {
    struct selections roofs = page_selections(page, "gemm", roof_key);
    peak_table(page);
    for (size_t i = 0; i < roofs.count; i++) roofline(page, &roofs.list[i], i);
    selections_free(&roofs);
}

const struct section section_roofline = {"roofline", "Roofline", "./train bench gemm --log FILE",
                                         .present = roofline_present, .write = write_roofline};
