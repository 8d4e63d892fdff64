/* Speed-up against threads, with the ideal line and Amdahl's law. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/page.h"
#include "src/report/row.h"
#include "src/report/tables.h"

/* Logs of version 0.1.0 have no "ideal". */
static void efficiency_cell(struct cell *cell) {
    const double ideal = cell_number(cell, record_has(cell->line, "ideal") ? "ideal" : "threads");
    cell_text(cell, "%s", text_percent(cell_number(cell, "speedup") / ideal, 0).text);
}

static const struct column columns[] = {
    {"backend", COLUMN_NAME, .cell = cell_backend, .width = 12},
    {"threads", COLUMN_NUMBER, .key = "threads", .unit = unit_count},
    {"epoch, median (min to max)", COLUMN_NUMBER, .key = "epoch_seconds", .cell = cell_epoch, .width = 34},
    {"speed-up", COLUMN_NUMBER, .key = "speedup", .unit = unit_ratio},
    {"efficiency", COLUMN_NUMBER, .cell = efficiency_cell},
    {"NN", COLUMN_NUMBER, .key = "gemm_nn", .cell = cell_time, .width = 8, .spare = 1},
    {"TN", COLUMN_NUMBER, .key = "gemm_tn", .cell = cell_time, .width = 8, .spare = 1},
    {"NT", COLUMN_NUMBER, .key = "gemm_nt", .cell = cell_time, .width = 8, .spare = 1},
    {"rest", COLUMN_NUMBER, .key = "h2d d2h elementwise optimizer graph batch augment other",
     .cell = cell_time, .spare = 1},
};

void tables_scaling(struct table *table, const struct selection *rows) {
    table_open(
        table,
        "The time of an epoch by number of threads. Efficiency is the share of the ideal speed-up." NOISY);
    TABLE_COLUMNS(table, columns);
    tables_fill(table, rows);
}

static void fraction_cell(struct cell *cell) {
    cell_text(cell, "%s +- %s", text_percent(cell_number(cell, "serial_fraction"), 2).text,
              text_percent(cell_number(cell, "error"), 2).text);
}

static const struct column amdahl_columns[] = {
    {"backend", COLUMN_NAME, .key = "backend"},
    {"config", COLUMN_TEXT, .key = "config"},
    {"serial fraction", COLUMN_NUMBER, .cell = fraction_cell},
};

void tables_amdahl(struct table *table, const struct selection *rows) {
    table_open(table, "The serial fraction s of Amdahl's law, speed-up = 1 / (s + (1 - s) / threads), fitted "
                      "to these times.");
    TABLE_COLUMNS(table, amdahl_columns);
    tables_fill(table, rows);
}

/* The fit of a backend in the same config and run of the command; NULL if there is none. */
static const cJSON *amdahl_of(const struct records *records, const struct record *scaling) {
    const struct record *row = NULL;
    while ((row = records_after(records, row, "amdahl")))
        if (row->header == scaling->header &&
            strcmp(record_text(row->line, "backend"), record_text(scaling->line, "backend")) == 0 &&
            strcmp(record_text(row->line, "config"), record_text(scaling->line, "config")) == 0)
            return row->line;
    return NULL;
}

/* The first row of a backend. */
static const struct record *first_of(const struct selection *rows, const char *name) {
    for (size_t i = 0; i < rows->count; i++)
        if (strcmp(name, row_backend(rows->rows[i]->line).text) == 0) return rows->rows[i];
    return NULL;
}

static double most_threads(const struct selection *rows) {
    double most = 1;
    for (size_t i = 0; i < rows->count; i++) most = fmax(most, record_number(rows->rows[i]->line, "threads"));
    return fmin(most, 4096);
}

enum { FIT_POINTS = 33 };

static void add_fit(struct chart *chart, const char *name, struct chart_style style, double serial,
                    double most) {
    char title[160];
    snprintf(title, sizeof title, "%.100s, Amdahl fit", name);
    style.dash = 1;
    const size_t series = chart_series(chart, title, style);
    if (series >= chart->series_count || !(serial >= 0 && serial <= 1)) return;
    chart->series[series].marks = false;
    for (int i = 0; i < FIT_POINTS; i++) {
        const double threads = 1 + (most - 1) * i / (FIT_POINTS - 1);
        chart_add_xy(chart, series, threads, 1 / (serial + (1 - serial) / threads));
    }
}

static void add_backends(struct page *page, struct chart *chart, const struct selection *rows, double most) {
    struct names names = {0};
    for (size_t i = 0; i < rows->count; i++) names_index(&names, row_backend(rows->rows[i]->line).text);
    for (size_t n = 0; n < names.count; n++) {
        const struct record *first = first_of(rows, names.list[n]);
        const struct chart_style style = page_style(page, record_text(first->line, "backend"));
        const size_t series = chart_series(chart, names.list[n], style);
        for (size_t i = 0; i < rows->count; i++) {
            if (strcmp(row_backend(rows->rows[i]->line).text, names.list[n]) == 0)
                chart_add_xy(chart, series, record_number(rows->rows[i]->line, "threads"),
                             record_number(rows->rows[i]->line, "speedup"));
        }
        const cJSON *fit = amdahl_of(page->records, first);
        if (fit) add_fit(chart, names.list[n], style, record_number(fit, "serial_fraction"), most);
    }
    names_free(&names);
}

static void speedup_chart(struct page *page, const struct selection *rows, size_t number) {
    struct chart chart;
    char id[64];
    const double most = most_threads(rows);
    snprintf(id, sizeof id, "scaling-%zu", number + 1);
    chart_open(&chart, CHART_LINES, id, "Speed-up against threads");
    chart.x = (struct chart_axis){.title = "threads", .whole = true};
    chart.y = (struct chart_axis){.title = "speed-up over one thread", .from_zero = true};
    const size_t ideal = chart_series(&chart, "ideal", (struct chart_style){7, 0, 3});
    chart_add_xy(&chart, ideal, 1, 1);
    chart_add_xy(&chart, ideal, most, most);
    if (ideal < chart.series_count) chart.series[ideal].marks = false;
    add_backends(page, &chart, rows, most);
    page_chart(
        page, &chart,
        "On the ideal line n threads are n times as fast as one. A curve bends away from it because "
        "of the serial fraction of the work (Amdahl's law), of memory bandwidth, or of other programs.");
}

static void list_fits(struct page *page, const struct selection *rows) {
    struct names seen = {0}, lines = {0};
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *fit = amdahl_of(page->records, rows->rows[i]);
        const char *backend = record_text(rows->rows[i]->line, "backend");
        const size_t before = seen.count;
        char line[160];
        if (!fit || names_index(&seen, backend) != before) continue;
        const double serial = record_number(fit, "serial_fraction"), error = record_number(fit, "error");
        snprintf(line, sizeof line, "%.64s: s = %s", backend, text_percent(serial, 1).text);
        if (error > 0) text_append(line, sizeof line, " +- %s", text_percent(error, 1).text);
        if (serial >= 1) text_append(line, sizeof line, ": more threads are not faster");
        names_index(&lines, line);
    }
    if (lines.count) {
        page_note(page,
                  "The serial fraction s of Amdahl's law, speed-up = 1 / (s + (1 - s) / threads), fitted to "
                  "these times:");
        page_list(page, &lines);
    }
    names_free(&seen);
    names_free(&lines);
}

static void write_scaling(struct page *page) {
    struct selections configs = page_selections(page, "scaling", selection_config_dtype);
    for (size_t i = 0; i < configs.count; i++) {
        struct table table;
        page_heading(page, "%s", configs.list[i].key);
        page_columns_open(page);
        speedup_chart(page, &configs.list[i], i);
        page_columns_close(page);
        tables_scaling(&table, &configs.list[i]);
        page_table(page, &table);
        list_fits(page, &configs.list[i]);
    }
    selections_free(&configs);
}

const struct section section_scaling = {"scaling", "Thread scaling", "./train bench scaling --log FILE",
                                        .type = "scaling", .write = write_scaling};
