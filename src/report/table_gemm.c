/* GEMM rates: a row a product, a column a backend; what the kernels use of the GPU; what the machine can
   do. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "src/report/markup.h"
#include "src/report/row.h"
#include "src/report/tables.h"

static void product_key(const cJSON *line, char *key, size_t size) {
    snprintf(key, size, "%.4s %.8s %s x %s x %s %.80s", record_text(line, "op"), record_text(line, "dtype"),
             markup_fixed(record_number(line, "m"), 0).text, markup_fixed(record_number(line, "n"), 0).text,
             markup_fixed(record_number(line, "k"), 0).text, record_text(line, "what"));
}

static void rate_cell(struct table *table, const cJSON *line) {
    char why[400];
    const double share = record_number(line, "share_of_peak");
    const char *noisy = record_true(line, "noisy") ? ", noisy" : "";
    if (!line) {
        table_cell(table, "-");
    } else if (row_refused(line, why, sizeof why)) {
        table_cell(table, "%s", why);
    } else if (isfinite(share)) {
        table_cell(table, "%s (%s)%s", markup_short(record_number(line, "gflops")).text,
                   markup_percent(share, share < 0.0995 ? 1 : 0).text, noisy);
    } else {
        table_cell(table, "%s%s", markup_short(record_number(line, "gflops")).text, noisy);
    }
}

/* The rows as products down and backends across, in the order in which they came. */
struct pivot {
    struct names products, backends;
    const cJSON **cells; /* [products][backends]; NULL where nothing was measured */
};

static bool pivot_open(struct pivot *pivot, const struct selection *rows) {
    *pivot = (struct pivot){0};
    for (int fill = 0; fill < 2; fill++) {
        for (size_t i = 0; i < rows->count; i++) {
            const cJSON *line = rows->rows[i]->line;
            char key[256], name[128];
            product_key(line, key, sizeof key);
            row_backend(line, name, sizeof name);
            const size_t product = names_index(&pivot->products, key),
                         backend = names_index(&pivot->backends, name);
            if (product == SIZE_MAX || backend == SIZE_MAX) return false;
            if (fill) pivot->cells[product * pivot->backends.count + backend] = line;
        }
        if (!fill)
            pivot->cells = calloc(pivot->products.count * pivot->backends.count + 1, sizeof *pivot->cells);
        if (!pivot->cells) return false;
    }
    return true;
}

static void pivot_close(struct pivot *pivot) {
    names_free(&pivot->products);
    names_free(&pivot->backends);
    free(pivot->cells);
}

static void product_cells(struct table *table, const cJSON *line) {
    table_cell(table, "%s", record_text(line, "op"));
    table_cell(table, "%s", record_text(line, "dtype"));
    table_cell(table, "%s x %s x %s", markup_fixed(record_number(line, "m"), 0).text,
               markup_fixed(record_number(line, "n"), 0).text,
               markup_fixed(record_number(line, "k"), 0).text);
    table_cell(table, "%s", record_text(line, "what"));
}

void tables_gemm(struct table *table, const struct selection *rows) {
    struct pivot pivot;
    table_open(table, "GFLOP/s of each product, and in brackets the share of the measured peak: on the host "
                      "of what it is in turn with the product.");
    table_column(table, COLUMN_TEXT, "op");
    table_column(table, COLUMN_TEXT, "dtype");
    table_column(table, COLUMN_NUMBER, "m x n x k");
    table_column(table, COLUMN_TEXT, "product");
    if (!pivot_open(&pivot, rows)) table->failed = true;
    const size_t all = pivot.backends.count, most = TABLE_MAX_COLUMNS - 4, shown = all < most ? all : most;
    for (size_t b = 0; b < shown; b++) table_column(table, COLUMN_NUMBER, pivot.backends.list[b]);
    for (size_t p = 0; p < pivot.products.count && !table->failed; p++) {
        const cJSON **cells = &pivot.cells[p * all];
        size_t first = 0;
        while (!cells[first]) first++; /* a product is there because some backend has it */
        product_cells(table, cells[first]);
        for (size_t b = 0; b < shown; b++) rate_cell(table, cells[b]);
    }
    pivot_close(&pivot);
}

void tables_kernels(struct table *table, const struct selection *rows) {
    static const char *const numbers[] = {"threads a block", "registers a thread", "shared memory a block",
                                          "occupancy"};
    struct names seen = {0};
    table_open(table,
               "What each kernel takes of a multiprocessor, and the theoretical occupancy that this leaves.");
    table_column(table, COLUMN_NAME, "backend");
    table_column(table, COLUMN_NAME, "kernel");
    for (size_t i = 0; i < 4; i++) table_column(table, COLUMN_NUMBER, numbers[i]);
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *kernel, *line = rows->rows[i]->line;
        cJSON_ArrayForEach(kernel, cJSON_GetObjectItemCaseSensitive(line, "kernels")) {
            char key[512], backend[128];
            const double shared = record_number(kernel, "shared_bytes"),
                         registers = record_number(kernel, "registers");
            const size_t before = seen.count;
            row_backend(line, backend, sizeof backend);
            snprintf(key, sizeof key, "%s %.200s %.0f %.0f", backend, record_text(kernel, "name"), registers,
                     shared);
            if (names_index(&seen, key) != before) continue;
            table_cell(table, "%s", backend);
            table_cell(table, "%s", record_text(kernel, "name"));
            table_cell(table, "%s", markup_fixed(record_number(kernel, "threads"), 0).text);
            table_cell(table, "%s", markup_fixed(registers, 0).text);
            table_cell(table, "%s", shared >= 0 ? text_bytes(shared).text : "-");
            table_cell(table, "%s", markup_percent(record_number(kernel, "occupancy"), 0).text);
        }
    }
    names_free(&seen);
}

void tables_peak(struct table *table, const struct selection *rows) {
    static const char *const numbers[] = {"threads",   "f32 GFLOP/s",          "f64 GFLOP/s",
                                          "copy GB/s", "f32 ridge, flop/byte", "f64 ridge, flop/byte"};
    table_open(table, "Measured rates of the machine. Above the ridge a product can be bound by arithmetic; "
                      "below it, memory "
                      "sets the pace.");
    table_column(table, COLUMN_TEXT, "device");
    for (size_t i = 0; i < 6; i++) table_column(table, COLUMN_NUMBER, numbers[i]);
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        const double f32 = record_number(line, "f32_gflops"), f64 = record_number(line, "f64_gflops");
        const double copy = record_number(line, "copy_gbytes_per_second");
        const bool cuda = strcmp(record_text(line, "device"), "cuda") == 0;
        const char *gpu = record_text(line, "gpu");
        table_cell(table, "%s", cuda && gpu[0] ? gpu : cuda ? "GPU" : "CPU");
        table_cell(table, "%s", cuda ? "-" : markup_fixed(record_number(line, "threads"), 0).text);
        table_cell(table, "%s", markup_short(f32).text);
        table_cell(table, "%s", markup_short(f64).text);
        table_cell(table, "%s", markup_short(copy).text);
        table_cell(table, "%s", markup_short(f32 / copy).text);
        table_cell(table, "%s", markup_short(f64 / copy).text);
    }
}
