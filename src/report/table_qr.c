/* The table of sliding windows. */
#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/tables.h"

static void nb_cell(struct cell *cell) {
    cell_text(cell, "%s", record_has(cell->line, "nb") ? unit_count(cell_number(cell, "nb")).text : "-");
}

static void windows_cell(struct cell *cell) {
    const double windows = cell_number(cell, "windows"), timed = cell_number(cell, "windows_timed");
    cell_text(cell, "%s", unit_count(windows).text);
    if (timed < windows) text_append(cell->text, sizeof cell->text, " (%s)", unit_count(timed).text);
}

static struct text_number unit_share_of_peak(double value) {
    return text_percent(value, value < 0.0995 ? 1 : 0);
}

static const struct column columns[] = {
    {"method", COLUMN_TEXT, .key = "method", .setup = true, .width = 6},
    {"backend", COLUMN_NAME, .key = "backend", .setup = true, .width = 8},
    {"nb", COLUMN_NUMBER, .cell = nb_cell, .setup = true, .width = 3},
    {"windows", COLUMN_NUMBER, .cell = windows_cell, .setup = true, .width = 7},
    {"time", COLUMN_NUMBER, .cell = cell_median, .width = 14},
    {"min to max", COLUMN_NUMBER, .cell = cell_spread, .width = 18, .spare = 3},
    {"a window", COLUMN_NUMBER, .key = "window_seconds", .unit = text_seconds, .width = 8, .spare = 2},
    {"speed-up", COLUMN_NUMBER, .key = "speedup", .unit = text_short, .width = 8},
    {"GFLOP/s", COLUMN_NUMBER, .key = "gflops", .unit = text_short, .width = 7},
    {"of peak", COLUMN_NUMBER, .key = "share_of_peak", .unit = unit_share_of_peak, .width = 7},
    {"backward", COLUMN_NUMBER, .key = "backward_error", .cell = cell_error, .width = 8},
    {"orthogonal", COLUMN_NUMBER, .key = "orthogonality", .cell = cell_error, .width = 10, .spare = 1},
    {"panels", COLUMN_NUMBER, .key = "panel", .cell = cell_time, .spare = 4},
    {"products", COLUMN_NUMBER, .key = "gemm_nn gemm_tn gemm_nt", .cell = cell_time, .spare = 4},
    {"transfers", COLUMN_NUMBER, .key = "h2d d2h", .cell = cell_time, .only = PAGE_ONLY},
    {"group", COLUMN_NUMBER, .key = "group", .unit = unit_count, .only = PAGE_ONLY},
};

void tables_qr(struct table *table, const struct selection *rows) {
    table_open(table,
               "%s%sR of all windows; method naive is timed on the windows in parentheses, and its time is "
               "proportional. Speed-up: over naive of the same backend at its fastest nb. GFLOP/s: the flop "
               "of the method itself. Backward: |R^T R - A^T A| / |A^T A|; orthogonal: |Q^T Q - I| of "
               "Q = A R^-1; the largest of three windows." NOISY,
               rows->key, rows->key[0] ? ": " : "");
    TABLE_COLUMNS(table, columns);
    tables_fill(table, rows);
}
