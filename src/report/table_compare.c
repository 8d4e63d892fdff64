/* The table of `compare`: implementation, accuracy, transfer/total, speed-up. */
#include "src/report/cells.h"
#include "src/report/row.h"
#include "src/report/tables.h"

/* The backend, and how it differs from other rows of its label. */
static void name_cell(struct cell *cell) {
    const struct selection *rows = cell->context;
    char difference[SELECTION_TEXT] = "";
    for (size_t i = 0; i < rows->count; i++)
        if (rows->rows[i]->line == cell->line) selection_difference(rows, i, difference, sizeof difference);
    cell_text(cell, "%s%s", record_text(cell->line, "backend"), difference);
}

static void residency_cell(struct cell *cell) {
    const size_t threads = record_count(cell->line, "threads", 1u << 20, 0);
    if (row_on_gpu(cell->line)) {
        cell_text(cell, "%s", record_text(cell->line, "residency"));
    } else if (threads) {
        cell_text(cell, "CPU, %zu thread%s", threads, threads == 1 ? "" : "s");
    } else {
        cell_text(cell, "-"); /* it did not run */
    }
}

static void precision_cell(struct cell *cell) {
    cell_text(cell, "%s", row_precision(cell->line));
}

static void accuracy_cell(struct cell *cell) {
    cell_held_out(cell, cell->line, cell_number(cell, "accuracy_error"));
}

static void accuracy_page_cell(struct cell *cell) {
    const double trained = cell_number(cell, "epochs_trained");
    accuracy_cell(cell);
    if (trained < cell_number(cell, "epochs") - 1e-6) /* cut by a time limit */
        text_append(cell->text, sizeof cell->text, " after %s epochs", unit_ratio(trained).text);
}

/* Of an epoch; for a captured graph, of one more epoch of engine eager. */
static void product_cell(struct cell *cell) {
    const char *source = record_has(cell->line, "op_by_op") ? "op_by_op" : "time";
    const cJSON *time = cJSON_GetObjectItemCaseSensitive(cell->line, source);
    cell_text(cell, "%s", text_seconds(record_number(time, cell->column->key)).text);
}

static const struct column setup_columns[] = {
    {"implementation", COLUMN_NAME, .cell = name_cell, .setup = true, .only = PAGE_ONLY},
    {"implementation", COLUMN_TEXT, .key = "label", .setup = true, .only = CONSOLE_ONLY},
    {"residency", COLUMN_TEXT, .cell = residency_cell, .setup = true, .only = PAGE_ONLY},
    {"engine", COLUMN_TEXT, .key = "engine", .setup = true, .spare = 2},
    {"precision", COLUMN_TEXT, .cell = precision_cell, .setup = true, .only = PAGE_ONLY},
};

static const struct column result_columns[] = {
    {"transfer/total", COLUMN_NUMBER, .key = "transfer_ratio", .unit = unit_share, .spare = 1},
    {"epoch, median (min to max)", COLUMN_NUMBER, .key = "median_epoch_seconds", .cell = cell_epoch,
     .only = PAGE_ONLY},
    {"epoch", COLUMN_NUMBER, .key = "median_epoch_seconds", .cell = cell_epoch_median, .only = CONSOLE_ONLY},
    {"min to max", COLUMN_NUMBER, .cell = cell_epoch_spread, .only = CONSOLE_ONLY, .spare = 3},
    {"speed-up", COLUMN_NUMBER, .key = "speedup", .unit = unit_ratio},
    {"images/s", COLUMN_NUMBER, .key = "images_per_second", .unit = text_short, .spare = 4},
    {"GFLOP/s in GEMM", COLUMN_NUMBER, .key = "gflops", .unit = text_short, .spare = 4},
    {"NN", COLUMN_NUMBER, .key = "gemm_nn", .cell = product_cell, .only = CONSOLE_ONLY, .spare = 5},
    {"TN", COLUMN_NUMBER, .key = "gemm_tn", .cell = product_cell, .only = CONSOLE_ONLY, .spare = 5},
    {"NT", COLUMN_NUMBER, .key = "gemm_nt", .cell = product_cell, .only = CONSOLE_ONLY, .spare = 5},
    {"drift", COLUMN_NUMBER, .key = "drift", .unit = text_short, .only = CONSOLE_ONLY, .spare = 5},
};

void tables_compare(struct table *table, const struct selection *rows) {
    table_open(
        table,
        "All rows train the same network from the same seed. +- is one binomial standard error. "
        "transfer/total is the share of the training time that copies between host and GPU take." NOISY);
    struct held_out_parts parts = {0};
    for (size_t i = 0; i < rows->count; i++) held_out_add(&parts, rows->rows[i]->line);
    const char *accuracy = held_out_title(&parts);
    const struct column accuracy_columns[] = {
        {accuracy, COLUMN_NUMBER, .cell = accuracy_page_cell, .only = PAGE_ONLY},
        {accuracy, COLUMN_NUMBER, .cell = accuracy_cell, .only = CONSOLE_ONLY}};
    TABLE_COLUMNS(table, setup_columns);
    TABLE_COLUMNS(table, accuracy_columns);
    TABLE_COLUMNS(table, result_columns);
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        const char *reason = record_text(line, "left_out"), *label = record_text(line, "label");
        if (reason[0]) {
            table_left_out(table, label[0] ? label : record_text(line, "backend"), reason);
        } else {
            table_row(table, line, rows);
        }
    }
}
