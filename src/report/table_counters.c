/* Hardware counters, one product a row. The record of a cell is the object "counters", the context the
   line. */
#include <string.h>

#include "src/report/cells.h"
#include "src/report/row.h"
#include "src/report/tables.h"

static double of_line(const struct cell *cell, const char *key) {
    return record_number(cell->context, key);
}

/* Short, so that the table fits into 80 columns: "NN f32 2048^3", "NT f32 128x10x784". */
static void product_cell(struct cell *cell) {
    const double m = of_line(cell, "m"), n = of_line(cell, "n"), k = of_line(cell, "k");
    cell_text(cell, "%.4s %.8s %s", record_text(cell->context, "op"), record_text(cell->context, "dtype"),
              unit_count(m).text);
    if (m == n && n == k) {
        text_append(cell->text, sizeof cell->text, "^3");
    } else {
        text_append(cell->text, sizeof cell->text, "x%s", unit_count(n).text);
        text_append(cell->text, sizeof cell->text, "x%s", unit_count(k).text);
    }
}

static void name_cell(struct cell *cell) {
    const char *label = record_text(cell->context, "label");
    cell_text(cell, "%s", label[0] ? label : row_backend(cell->context).text);
}

static const struct column product_column[] = {{"product", COLUMN_TEXT, .cell = product_cell}};
static const struct column name_column[] = {{"backend", COLUMN_NAME, .cell = name_cell}};

/* --- the CPU --- */

static void rate_cell(struct cell *cell) {
    cell_text(cell, "%s",
              unit_ratio(cell_number(cell, "instructions") / cell_number(cell, cell->column->key)).text);
}

static void flops_cell(struct cell *cell) {
    const double flops = 2 * of_line(cell, "m") * of_line(cell, "n") * of_line(cell, "k");
    cell_text(cell, "%s", unit_ratio(flops / cell_number(cell, cell->column->key)).text);
}

static void traffic_cell(struct cell *cell) {
    const double missed = cell_number(cell, cell->column->key) * cell_number(cell, "cache_line_bytes");
    cell_text(cell, "%s", unit_ratio(missed / of_line(cell, "bytes")).text);
}

static const struct column cpu_columns[] = {
    {"IPC", COLUMN_NUMBER, .key = "cycles", .cell = rate_cell},
    {"flop/cycle", COLUMN_NUMBER, .key = "cycles", .cell = flops_cell},
    {"LLC misses", COLUMN_NUMBER, .key = "cache_misses", .unit = text_short},
    {"traffic", COLUMN_NUMBER, .key = "cache_misses", .cell = traffic_cell},
    {"L1D misses", COLUMN_NUMBER, .key = "l1d_misses", .unit = text_short, .spare = 2},
    {"LLC accesses", COLUMN_NUMBER, .key = "cache_references", .unit = text_short, .spare = 2},
    {"cycles", COLUMN_NUMBER, .key = "cycles", .unit = text_short, .spare = 2},
    {"instructions", COLUMN_NUMBER, .key = "instructions", .unit = text_short, .spare = 2},
    {"counted", COLUMN_NUMBER, .key = "counted_share", .unit = unit_percent, .spare = 1},
};

/* --- the GPU --- */

static void fma_cell(struct cell *cell) {
    const bool f64 = strcmp(record_text(cell->context, "dtype"), "f64") == 0;
    cell_text(cell, "%s", unit_percent(cell_number(cell, f64 ? "fp64_pipe" : "fma_pipe")).text);
}

static const struct column gpu_columns[] = {
    {"DRAM", COLUMN_NUMBER, .key = "dram_bytes", .unit = unit_bytes},
    {"L2", COLUMN_NUMBER, .key = "l2_bytes", .unit = unit_bytes},
    {"occupancy", COLUMN_NUMBER, .key = "achieved_occupancy", .unit = unit_percent},
    {"tensor", COLUMN_NUMBER, .key = "tensor_pipe", .unit = unit_percent},
    {"FMA", COLUMN_NUMBER, .cell = fma_cell},
    {"conflicts", COLUMN_NUMBER, .key = "bank_conflicts", .unit = text_short, .spare = 1},
    {"wavefronts", COLUMN_NUMBER, .key = "shared_wavefronts", .unit = text_short, .spare = 2},
    {"compute busy", COLUMN_NUMBER, .key = "compute_throughput", .unit = unit_percent, .spare = 3},
    {"memory busy", COLUMN_NUMBER, .key = "memory_throughput", .unit = unit_percent, .spare = 3},
    {"L1 busy", COLUMN_NUMBER, .key = "l1_throughput", .unit = unit_percent, .spare = 3},
    {"L2 busy", COLUMN_NUMBER, .key = "l2_throughput", .unit = unit_percent, .spare = 3},
    {"DRAM busy", COLUMN_NUMBER, .key = "dram_throughput", .unit = unit_percent, .spare = 3},
    {"duration", COLUMN_NUMBER, .key = "seconds", .unit = text_seconds, .spare = 3},
    {"cycles", COLUMN_NUMBER, .key = "cycles", .unit = text_short, .spare = 3},
};

/* --- both --- */

static void fill(struct table *table, const struct selection *rows, const char *tool) {
    table->missing = "Without counters";
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        const cJSON *counters = cJSON_GetObjectItemCaseSensitive(line, "counters");
        if (!counters || strcmp(record_text(counters, "tool"), tool) != 0) continue;
        if (record_has(counters, "reason")) {
            char reason[800];
            snprintf(reason, sizeof reason, "hardware counters are not available here: %.700s",
                     record_text(counters, "reason"));
            table_left_out(table, row_backend(line).text, reason);
        } else {
            table_row(table, counters, line);
        }
    }
}

void tables_counters_cpu(struct table *table, const struct selection *rows) {
    table_open(table, "Hardware counters of the CPU during a call, in user code, all threads added up. IPC: "
                      "instructions per cycle. LLC: the cache that the kernel counts as cache-misses, mostly "
                      "the last level. Traffic: bytes of the lines that missed it, relative to A, B and C "
                      "once. Counted: the share of the time; the rest is extrapolated.");
    TABLE_COLUMNS(table, product_column);
    TABLE_COLUMNS(table, name_column);
    TABLE_COLUMNS(table, cpu_columns);
    fill(table, rows, "perf_event_open");
}

void tables_counters_gpu(struct table *table, const struct selection *rows) {
    const bool one_shape = rows->count && strcmp(rows->rows[0]->type, "shmem") == 0;
    table_open(table,
               "Hardware counters of the GPU during a call (ncu). DRAM and L2: bytes moved. Occupancy: "
               "the achieved one. Tensor, FMA: the share of cycles in which these pipes are busy (f64: "
               "the FP64 pipe). Conflicts: wavefronts of shared memory that bank conflicts add. Busy: "
               "throughput relative to the peak of the unit.");
    if (!one_shape) TABLE_COLUMNS(table, product_column);
    TABLE_COLUMNS(table, name_column);
    TABLE_COLUMNS(table, gpu_columns);
    fill(table, rows, "ncu");
}
