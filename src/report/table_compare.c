/* The table of the course reports: implementation, accuracy, transfer/total, speed-up. */
#include <math.h>
#include <stdio.h>

#include "src/report/markup.h"
#include "src/report/row.h"
#include "src/report/tables.h"

static void accuracy_cell(struct table *table, const cJSON *line) {
    const double accuracy = record_number(line, "test_accuracy"),
                 error = record_number(line, "accuracy_error");
    const double trained = record_number(line, "epochs_trained");
    char after[64] = "";
    if (trained < record_number(line, "epochs") - 1e-6) /* a time limit ended it; false without the numbers */
        snprintf(after, sizeof after, " after %s epochs", markup_fixed(trained, 2).text);
    if (isfinite(error)) {
        table_cell(table, "%s +- %s%s", markup_percent(accuracy, 2).text, markup_fixed(100 * error, 2).text,
                   after);
    } else {
        table_cell(table, "%s%s", markup_percent(accuracy, 2).text, after);
    }
}

static void epoch_cell(struct table *table, const cJSON *line) {
    const double low = record_number(line, "min_epoch_seconds"),
                 high = record_number(line, "max_epoch_seconds");
    const struct text_number median = markup_seconds(record_number(line, "median_epoch_seconds"));
    const char *label = record_true(line, "extrapolated") ? ", extrapolated" : "";
    if (isfinite(low) && isfinite(high)) {
        table_cell(table, "%s (%s to %s)%s", median.text, markup_seconds(low).text, markup_seconds(high).text,
                   label);
    } else {
        table_cell(table, "%s%s", median.text, label);
    }
}

static void name_cells(struct table *table, const struct selection *rows, size_t row) {
    const cJSON *line = rows->rows[row]->line;
    char difference[SELECTION_TEXT];
    const size_t threads = record_count(line, "threads", 1u << 20, 0);
    const bool cuda = row_on_gpu(line);
    selection_difference(rows, row, difference, sizeof difference);
    table_cell(table, "%s%s", record_text(line, "backend"), difference);
    if (cuda) {
        table_cell(table, "%s", record_text(line, "residency"));
    } else if (threads) {
        table_cell(table, "CPU, %zu thread%s", threads, threads == 1 ? "" : "s");
    } else {
        table_cell(table, "-"); /* it did not run */
    }
    table_cell(table, "%s", record_text(line, "engine")[0] ? record_text(line, "engine") : "-");
    table_cell(table, "%s", row_precision(line));
}

void tables_compare(struct table *table, const struct selection *rows) {
    static const char *const numbers[] = {"test accuracy", "transfer/total", "epoch, median (min to max)",
                                          "speed-up",      "images/s",       "GFLOP/s in GEMM"};
    table_open(table,
               "Same config, same seed, one row an implementation. +- is one binomial standard error.");
    table_column(table, COLUMN_NAME, "implementation");
    table_column(table, COLUMN_TEXT, "residency");
    table_column(table, COLUMN_TEXT, "engine");
    table_column(table, COLUMN_TEXT, "precision");
    for (size_t i = 0; i < 6; i++) table_column(table, COLUMN_NUMBER, numbers[i]);
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        char why[400];
        name_cells(table, rows, i);
        if (row_refused(line, why, sizeof why)) {
            table_cell(table, "%s", why);
            for (int blank = 0; blank < 5; blank++) table_cell(table, "-");
            continue;
        }
        accuracy_cell(table, line);
        table_cell(table, "%s", markup_fixed(record_number(line, "transfer_ratio"), 3).text);
        epoch_cell(table, line);
        table_cell(table, "%s", markup_fixed(record_number(line, "speedup"), 2).text);
        table_cell(table, "%s", markup_short(record_number(line, "images_per_second")).text);
        table_cell(table, "%s", markup_short(record_number(line, "gflops")).text);
    }
}
