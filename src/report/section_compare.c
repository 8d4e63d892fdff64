/* Accuracy and speed of every backend on the same training, and the parts of its epoch. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/page.h"
#include "src/report/row.h"
#include "src/report/tables.h"

static double median_of(const cJSON *line) {
    return row_refused(line, NULL, 0) ? (double)NAN : record_number(line, "median_epoch_seconds");
}

static void note_fastest(struct page *page, const struct selection *rows) {
    const cJSON *best = NULL;
    size_t refused = 0, fastest = 0;
    char label[SELECTION_TEXT];
    for (size_t i = 0; i < rows->count; i++) {
        const double median = median_of(rows->rows[i]->line);
        if (!(median > 0)) refused++;
        if (median > 0 && !(best && median_of(best) <= median)) best = rows->rows[fastest = i]->line;
    }
    if (!best) {
        page_note(page, "No implementation could be timed; the table says why.");
        return;
    }
    selection_label(rows, fastest, label, sizeof label);
    const double speedup = record_number(best, "speedup");
    const char *baseline = record_text(best, "baseline");
    if (speedup > 0 && baseline[0]) {
        page_note(page, "Fastest: %s, %s an epoch%s, %s times as fast as %.60s.", label,
                  text_seconds(median_of(best)).text, cell_noise(best), text_fixed(speedup, 2).text,
                  baseline);
    } else {
        page_note(page, "Fastest: %s, %s an epoch%s.", label, text_seconds(median_of(best)).text,
                  cell_noise(best));
    }
    if (refused)
        page_note(page,
                  "%zu row%s no time, because the backend could not run here or its results were wrong.",
                  refused, refused == 1 ? " has" : "s have");
}

static void note_warnings(struct page *page, const struct selection *rows) {
    for (size_t i = 0; i < rows->count; i++) {
        char label[SELECTION_TEXT];
        const char *warning = record_text(rows->rows[i]->line, "warning");
        selection_label(rows, i, label, sizeof label);
        if (warning[0]) page_note(page, "Warning, %s: %s", label, warning);
    }
}

static void agrees_cell(struct cell *cell) {
    cell_text(cell, "%s", record_true(cell->line, "agrees") ? "yes" : "no");
}

static void trace_cell(struct cell *cell) {
    const cJSON *trace = cJSON_GetObjectItemCaseSensitive(cell->line, "trace");
    cell_text(cell, "-");
    if (trace)
        cell_text(cell, "step %s, layer %s, %.60s: %s", unit_count(record_number(trace, "step")).text,
                  unit_count(record_number(trace, "layer")).text, record_text(trace, "tensor"),
                  text_short(record_number(trace, "relative")).text);
}

static const struct column drift_columns[] = {
    {"implementation", COLUMN_TEXT, .cell = cell_label},
    {"difference", COLUMN_NUMBER, .key = "drift", .unit = text_short},
    {"tolerance", COLUMN_NUMBER, .key = "tolerance", .unit = text_short},
    {"agrees", COLUMN_TEXT, .cell = agrees_cell},
    {"first difference", COLUMN_TEXT, .cell = trace_cell},
};

static void drift_table(struct page *page, const struct selection *rows) {
    struct table table;
    table_open(&table, "How far the losses are from those of the reference, serial in float64: the largest "
                       "relative difference of a step. If it was traced, the last column names the first "
                       "tensor beyond its tolerance.");
    TABLE_COLUMNS(&table, drift_columns);
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        if (!record_has(line, "left_out") && !record_has(line, "failed")) table_row(&table, line, rows);
    }
    page_table(page, &table);
}

static void write_compare(struct page *page) {
    struct selections configs = page_selections(page, "compare", selection_config);
    for (size_t i = 0; i < configs.count; i++) {
        const struct selection *rows = &configs.list[i];
        const cJSON *first = rows->rows[0]->line;
        struct table table;
        page_heading(page, "%s", rows->key);
        page_note(page, "Network %.80s, batch %s, %s epoch%s, seed %s, data %.80s.",
                  record_text(first, "layers"), text_fixed(record_number(first, "batch_size"), 0).text,
                  text_fixed(record_number(first, "epochs"), 0).text,
                  record_number(first, "epochs") == 1 ? "" : "s",
                  text_fixed(record_number(first, "seed"), 0).text, record_text(first, "data"));
        note_fastest(page, rows);
        tables_compare(&table, rows);
        page_table(page, &table);
        tables_energy(&table, rows);
        page_optional_table(page, &table);
        note_warnings(page, rows);
        drift_table(page, rows);
    }
    selections_free(&configs);
}

const struct section section_compare = {"accuracy", "Accuracy and speed",
                                        "./train compare --config configs/validation.cfg --log FILE",
                                        .type = "compare", .write = write_compare};

/* --- where the time goes --- */

/* The sum of the parts of an epoch. */
static double time_of(const cJSON *line) {
    double total = 0;
    for (size_t part = 0; part < ROW_PARTS; part++) total += row_seconds(line, row_parts[part].keys);
    return total;
}

/* Times, or shares of the epoch, as stacked bars. */
static void time_chart(struct page *page, const struct selection *rows, size_t number, bool shares) {
    struct chart chart;
    char id[64];
    snprintf(id, sizeof id, "time-%s-%zu", shares ? "share" : "seconds", number + 1);
    chart_open(&chart, CHART_STACKED, id, shares ? "Share of an epoch" : "Time of an epoch");
    chart.y = (struct chart_axis){.title = shares ? "share of the epoch" : "time of an epoch",
                                  .unit = shares ? UNIT_PERCENT : UNIT_SECONDS,
                                  .from_zero = true,
                                  .log_if_wide = !shares};
    for (size_t part = 0; part < ROW_PARTS; part++)
        chart_series(&chart, row_parts[part].title, (struct chart_style){(unsigned)part, 0, 0});
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        char label[SELECTION_TEXT];
        const double total = time_of(line);
        if (!(median_of(line) > 0)) continue;
        selection_label(rows, i, label, sizeof label);
        text_append(label, sizeof label, "%s", cell_noise(line));
        const size_t bar = names_index(&chart.categories, label);
        for (size_t part = 0; part < ROW_PARTS && total > 0; part++)
            if (row_seconds(line, row_parts[part].keys) > 0)
                chart_add_xy(&chart, part, (double)bar,
                             row_seconds(line, row_parts[part].keys) / (shares ? total : 1));
    }
    page_chart(
        page, &chart, "%s",
        shares
            ? "The same epochs, each drawn to full width. If the first part is long, copies cost more than "
              "arithmetic."
            : "Shorter is faster. The mean over all epochs, as in the table below. The parts divide each bar "
              "by "
              "their shares of the epoch, also on a log scale. A captured graph, or engine fused on a GPU, "
              "runs whole steps: their parts are not "
              "timed.");
}

static void time_table(struct page *page, const struct selection *rows) {
    static const struct column name = {"implementation", COLUMN_TEXT, .cell = cell_label};
    struct table table;
    table_open(&table, "The parts of an epoch, the mean over all epochs. NN, TN and NT are the matrix "
                       "multiplies of the forward pass, the weight gradient and the input gradient. "
                       "Element-wise includes the optimizer; other includes the preparation of batches.");
    table_columns(&table, &name, 1);
    for (size_t p = 0; p < ROW_PARTS; p++)
        table_columns(
            &table,
            &(struct column){row_parts[p].name, COLUMN_NUMBER, .key = row_parts[p].keys, .cell = cell_time},
            1);
    for (size_t i = 0; i < rows->count; i++)
        if (median_of(rows->rows[i]->line) > 0) table_row(&table, rows->rows[i]->line, rows);
    page_table(page, &table);
}

static bool time_present(const struct records *records) {
    const struct record *row = NULL;
    while ((row = records_after(records, row, "compare")))
        if (median_of(row->line) > 0 && record_has(row->line, "time")) return true;
    return false;
}

/* The fastest first, by the sum of the parts that the bars show. */
static int by_time(const void *a, const void *b) {
    const struct record *x = *(const struct record *const *)a, *y = *(const struct record *const *)b;
    const double first = time_of(x->line), second = time_of(y->line);
    return first != second ? (first > second) - (first < second) : (x > y) - (x < y);
}

static void write_time(struct page *page) {
    struct selections configs = page_selections(page, "compare", selection_config);
    for (size_t i = 0; i < configs.count; i++) {
        const struct selection *rows = &configs.list[i];
        qsort(rows->rows, rows->count, sizeof *rows->rows, by_time);
        page_heading(page, "%s", rows->key);
        page_columns_open(page);
        time_chart(page, rows, i, false);
        time_chart(page, rows, i, true);
        page_columns_close(page);
        time_table(page, rows);
    }
    selections_free(&configs);
}

const struct section section_time = {"time", "Where the time goes",
                                     "./train compare --config configs/validation.cfg --log FILE",
                                     .present = time_present, .write = write_time};
