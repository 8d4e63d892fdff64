/* The roofline of each machine and the verified products below it (Williams, Waterman, Patterson: Roofline,
   2009). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/page.h"
#include "src/report/roof.h"
#include "src/report/row.h"
#include "src/report/tables.h"

static bool roofline_present(const struct records *records) {
    const struct record *row = NULL;
    while ((row = records_after(records, row, "gemm"))) {
        const struct roof roof = roof_of(records, row);
        if (roof_limit(&roof, row->line) > 0) return true;
    }
    return false;
}

/* Rows of one machine, device, number of threads and dtype share a roof. */
static void roof_key(const struct record *record, char *key, size_t size) {
    const size_t threads = record_count(record->line, "threads", 1u << 20, 0);
    char machine[SELECTION_TEXT];
    selection_machine(record, machine, sizeof machine);
    if (strcmp(record_text(record->line, "device"), "cuda") == 0) {
        snprintf(key, size, "GPU, %.8s on %.300s", record_text(record->line, "dtype"), machine);
    } else {
        snprintf(key, size, "%zu CPU thread%s, %.8s on %.300s", threads, threads == 1 ? "" : "s",
                 record_text(record->line, "dtype"), machine);
    }
}

static void add_products(struct page *page, struct chart *chart, const struct selection *rows,
                         const struct roof *roof) {
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        size_t series = 0;
        if (!(roof_limit(roof, line) > 0)) continue;
        const struct row_name name = row_backend(line);
        while (series < chart->series_count && strcmp(chart->series[series].name, name.text) != 0) series++;
        if (series == chart->series_count)
            series = chart_series(chart, name.text, page_style(page, record_text(line, "backend")));
        if (series >= chart->series_count) return;
        chart->series[series].line = false;
        chart_add_xy(chart, series, roof_intensity(line), record_number(line, "gflops"));
    }
}

static double share_of(const struct roof *roof, const cJSON *line) {
    return record_number(line, "gflops") / roof_limit(roof, line);
}

static double share_of_peak(const struct roof *roof, const cJSON *line) {
    return record_number(line, "gflops") / roof->peak;
}

static void intensity_cell(struct cell *cell) {
    cell_text(cell, "%s", text_short(roof_intensity(cell->line)).text);
}

static void roof_cell(struct cell *cell) {
    cell_text(cell, "%s", text_short(roof_limit(cell->context, cell->line)).text);
}

static void share_cell(struct cell *cell) {
    const struct roof *roof = cell->context;
    cell_text(cell, "%s",
              roof_share(cell->line, share_of(roof, cell->line), share_of_peak(roof, cell->line)).text);
}

static void rate_cell(struct cell *cell) {
    cell_text(cell, "%s%s", text_short(cell_number(cell, "gflops")).text, cell_noise(cell->line));
}

static const struct column roof_columns[] = {
    {"backend", COLUMN_TEXT, .cell = cell_backend},
    {"op", COLUMN_TEXT, .key = "op"},
    {"m x n x k", COLUMN_NUMBER, .cell = cell_shape},
    {"flop/byte", COLUMN_NUMBER, .cell = intensity_cell},
    {"GFLOP/s", COLUMN_NUMBER, .cell = rate_cell},
    {"roof", COLUMN_NUMBER, .cell = roof_cell},
    {"share of the roof", COLUMN_NUMBER, .cell = share_cell},
};

static void roof_table(struct page *page, const struct selection *rows) {
    const struct roof roof = roof_of(page->records, rows->rows[0]);
    struct table table;
    table_open(&table,
               "%s: each product and its roof, the lower of the peak (%s GFLOP/s) and flop/byte times the "
               "copy bandwidth (%s GB/s)." NOISY,
               rows->key, text_short(roof.peak).text, text_short(roof.bandwidth).text);
    TABLE_COLUMNS(&table, roof_columns);
    for (size_t i = 0; i < rows->count; i++)
        if (roof_limit(&roof, rows->rows[i]->line) > 0) table_row(&table, rows->rows[i]->line, &roof);
    if (table_rows(&table)) {
        page_table(page, &table);
    } else {
        table_close(&table);
    }
}

/* Says so if a product is faster than the peak allows. */
static void note_exceeded(struct page *page, const struct selection *rows) {
    const struct roof roof = roof_of(page->records, rows->rows[0]);
    size_t exceeded = 0;
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        exceeded += roof_exceeded(line, share_of(&roof, line), share_of_peak(&roof, line));
    }
    if (exceeded)
        page_note(page,
                  "%s: %zu product%s faster than the measured peak. Either another program slowed the "
                  "measurement of the peak down, or the backend uses more threads than it was given.",
                  rows->key, exceeded, exceeded == 1 ? " is" : "s are");
}

static void roofline(struct page *page, const struct selection *rows, size_t number) {
    const struct roof roof = roof_of(page->records, rows->rows[0]);
    double low = INFINITY, high = 0;
    for (size_t i = 0; i < rows->count; i++) {
        const double intensity = roof_intensity(rows->rows[i]->line);
        if (!(roof_limit(&roof, rows->rows[i]->line) > 0)) continue;
        low = fmin(low, intensity);
        high = fmax(high, intensity);
    }
    if (!(high > 0)) return;
    struct chart chart;
    char id[64];
    snprintf(id, sizeof id, "roofline-%zu", number + 1);
    chart_open(&chart, CHART_LINES, id, "%s", rows->key);
    chart.x = (struct chart_axis){.title = "flop per compulsory byte", .kind = SCALE_LOG10};
    chart.y = (struct chart_axis){.title = "GFLOP/s", .kind = SCALE_LOG10};
    roof_draw(&chart, &roof, low, high);
    add_products(page, &chart, rows, &roof);
    page_chart(page, &chart, "Roof: %s GFLOP/s, %s GB/s.", text_short(roof.peak).text,
               text_short(roof.bandwidth).text);
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
    struct selections machines = page_selections(page, "gemm", selection_machine);
    /* one machine needs no name */
    for (size_t i = 0; i < roofs.count && machines.count == 1; i++) *strstr(roofs.list[i].key, " on ") = '\0';
    page_note(page,
              "Each marker is a product. The sloping part of the roof is the limit of memory, the flat part "
              "that of the arithmetic units. The nearer a product is to the roof, the less can be gained. "
              "It can be above the roof if its data stay in a cache, or on tensor cores (tf32, bf16, fp16).");
    peak_table(page);
    page_columns_open(page);
    for (size_t i = 0; i < roofs.count; i++) roofline(page, &roofs.list[i], i);
    page_columns_close(page);
    for (size_t i = 0; i < roofs.count; i++) note_exceeded(page, &roofs.list[i]);
    for (size_t i = 0; i < roofs.count; i++) roof_table(page, &roofs.list[i]);
    selections_free(&machines);
    selections_free(&roofs);
}

const struct section section_roofline = {"roofline", "Roofline", "./train bench gemm --log FILE",
                                         .present = roofline_present, .write = write_roofline};
