/* Accuracy and speed of every backend on the same training, and where its epoch goes. */
#include <math.h>
#include <string.h>

#include "src/report/markup.h"
#include "src/report/page.h"
#include "src/report/row.h"
#include "src/report/tables.h"

static bool compare_present(const struct records *records) {
    return records_any(records, "compare");
}

static double median_of(const cJSON *line) {
    char why[400];
    return row_refused(line, why, sizeof why) ? (double)NAN : record_number(line, "median_epoch_seconds");
}

/* The sentence to take home. */
static void say_fastest(struct page *page, const struct selection *rows) {
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
        page_note(page, "Fastest: %s, %s an epoch, %s times as fast as %.60s.", label,
                  markup_seconds(median_of(best)).text, markup_fixed(speedup, 2).text, baseline);
    } else {
        page_note(page, "Fastest: %s, %s an epoch.", label, markup_seconds(median_of(best)).text);
    }
    if (refused)
        page_note(page, "%zu row%s no time: a backend that could not run or does not agree gets none.",
                  refused, refused == 1 ? " has" : "s have");
}

static void say_warnings(struct page *page, const struct selection *rows) {
    for (size_t i = 0; i < rows->count; i++) {
        char label[SELECTION_TEXT];
        const char *warning = record_text(rows->rows[i]->line, "warning");
        selection_label(rows, i, label, sizeof label);
        if (warning[0]) page_note(page, "Warning, %s: %s", label, warning);
    }
}

/* How near each loss curve is to that of serial in float64. */
static void drift_table(struct page *page, const struct selection *rows) {
    struct table table;
    table_open(
        &table,
        "Largest relative difference of the loss curve to that of serial in float64. The last column names "
        "the first tensor that left its tolerance, where that was traced.");
    table_column(&table, COLUMN_TEXT, "implementation");
    table_column(&table, COLUMN_NUMBER, "difference");
    table_column(&table, COLUMN_NUMBER, "tolerance");
    table_column(&table, COLUMN_TEXT, "agrees");
    table_column(&table, COLUMN_TEXT, "first drift");
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line, *trace = cJSON_GetObjectItemCaseSensitive(line, "trace");
        char label[SELECTION_TEXT];
        if (record_has(line, "left_out") || record_has(line, "failed")) continue;
        selection_label(rows, i, label, sizeof label);
        table_cell(&table, "%s", label);
        table_cell(&table, "%s", markup_short(record_number(line, "drift")).text);
        table_cell(&table, "%s", markup_short(record_number(line, "tolerance")).text);
        table_cell(&table, "%s", record_true(line, "agrees") ? "yes" : "no");
        if (trace) {
            table_cell(&table, "step %s, layer %s, %.60s: %s",
                       markup_fixed(record_number(trace, "step"), 0).text,
                       markup_fixed(record_number(trace, "layer"), 0).text, record_text(trace, "tensor"),
                       markup_short(record_number(trace, "relative")).text);
        } else {
            table_cell(&table, "-");
        }
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
        page_note(page, "Network %.80s, batch %s, %s epochs, seed %s, data %.80s.",
                  record_text(first, "layers"), markup_fixed(record_number(first, "batch_size"), 0).text,
                  markup_fixed(record_number(first, "epochs"), 0).text,
                  markup_fixed(record_number(first, "seed"), 0).text, record_text(first, "data"));
        say_fastest(page, rows);
        tables_compare(&table, rows);
        page_table(page, &table);
        say_warnings(page, rows);
        drift_table(page, rows);
    }
    selections_free(&configs);
}

const struct section section_compare = {"accuracy", "Accuracy and speed",
                                        "./train compare --config configs/validation.cfg --log FILE",
                                        compare_present, write_compare};

/* --- where the time goes --- */

/* Seconds, or shares of the epoch, as stacked bars. */
static void time_chart(struct page *page, const struct selection *rows, size_t number, bool shares) {
    struct chart chart;
    char id[64];
    snprintf(id, sizeof id, "time-%s-%zu", shares ? "share" : "seconds", number + 1);
    chart_open(&chart, CHART_STACKED, id, shares ? "Share of an epoch" : "Seconds of an epoch");
    chart.y = (struct chart_axis){.title = shares ? "share of the epoch" : "seconds an epoch",
                                  .unit = shares ? UNIT_PERCENT : UNIT_SECONDS,
                                  .from_zero = true};
    for (size_t part = 0; part < ROW_PARTS; part++)
        chart_series(&chart, row_part_titles[part], (struct chart_style){(unsigned)part, 0, 0});
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        char label[SELECTION_TEXT];
        double total = 0;
        if (!(median_of(line) > 0)) continue;
        for (size_t part = 0; part < ROW_PARTS; part++) total += row_part(line, part);
        selection_label(rows, i, label, sizeof label);
        const size_t bar = names_index(&chart.categories, label);
        for (size_t part = 0; part < ROW_PARTS && total > 0; part++)
            if (row_part(line, part) > 0)
                chart_add_xy(&chart, part, (double)bar, row_part(line, part) / (shares ? total : 1));
    }
    page_chart(
        page, &chart, "%s",
        shares
            ? "The same epochs, each drawn to full width: a long first part says that copies cost more than "
              "arithmetic."
            : "Shorter is faster. The parts of a bar add up to the epoch; a captured graph is not taken "
              "apart.");
}

static void time_table(struct page *page, const struct selection *rows) {
    struct table table;
    table_open(&table, "Seconds an epoch, mean over the epochs. Element-wise includes the optimizer; other, "
                       "the preparation of batches.");
    table_column(&table, COLUMN_TEXT, "implementation");
    for (size_t part = 0; part < ROW_PARTS; part++) table_column(&table, COLUMN_NUMBER, row_part_names[part]);
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        char label[SELECTION_TEXT];
        if (!(median_of(line) > 0)) continue;
        selection_label(rows, i, label, sizeof label);
        table_cell(&table, "%s", label);
        for (size_t part = 0; part < ROW_PARTS; part++) {
            const double seconds = row_part(line, part);
            table_cell(&table, "%s", seconds > 0 ? markup_seconds(seconds).text : "-");
        }
    }
    page_table(page, &table);
}

static bool time_present(const struct records *records) {
    const struct record *row = NULL;
    while ((row = records_after(records, row, "compare")))
        if (median_of(row->line) > 0 && record_has(row->line, "time")) return true;
    return false;
}

static void write_time(struct page *page) {
    struct selections configs = page_selections(page, "compare", selection_config);
    for (size_t i = 0; i < configs.count; i++) {
        const struct selection *rows = &configs.list[i];
        page_heading(page, "%s", rows->key);
        page_beside_open(page);
        time_chart(page, rows, i, false);
        time_chart(page, rows, i, true);
        page_beside_close(page);
        time_table(page, rows);
    }
    selections_free(&configs);
}

const struct section section_time = {"time", "Where the time goes",
                                     "./train compare --config configs/validation.cfg --log FILE",
                                     time_present, write_time};
