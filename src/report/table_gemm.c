/* GEMM rates, one product a row or products x backends; resources of kernels; peaks. */
#include <math.h>
#include <string.h>

#include "src/report/cells.h"
#include "src/report/roof.h"
#include "src/report/row.h"
#include "src/report/tables.h"

/* --- one product a row --- */

static void backend_cell(struct cell *cell) {
    cell_text(cell, "%s", selection_backend(cell->context, cell->line).text);
}

static void share_cell(struct cell *cell) {
    const double share = cell_number(cell, "share_of_peak");
    cell_text(cell, "%s", roof_share(cell->line, share, share).text);
}

static void short_shape_cell(struct cell *cell) {
    cell_text(cell, "%sx%sx%s", unit_count(cell_number(cell, "m")).text,
              unit_count(cell_number(cell, "n")).text, unit_count(cell_number(cell, "k")).text);
}

static const struct column details[] = {
    {"op", COLUMN_TEXT, .key = "op", .setup = true},
    {"dtype", COLUMN_TEXT, .key = "dtype", .setup = true, .width = 4, .spare = 1},
    {"m x n x k", COLUMN_NUMBER, .cell = cell_shape, .setup = true, .only = PAGE_ONLY},
    {"m x n x k", COLUMN_NUMBER, .cell = short_shape_cell, .setup = true, .only = CONSOLE_ONLY, .width = 14},
    {"backend", COLUMN_TEXT, .cell = backend_cell, .setup = true, .only = PAGE_ONLY},
    {"backend", COLUMN_TEXT, .key = "label", .setup = true, .only = CONSOLE_ONLY, .width = 10},
    {"median", COLUMN_NUMBER, .cell = cell_median, .width = 14},
    {"min to max", COLUMN_NUMBER, .cell = cell_spread, .width = 18, .spare = 3},
    {"GFLOP/s", COLUMN_NUMBER, .key = "gflops", .unit = text_short},
    {"of peak", COLUMN_NUMBER, .cell = share_cell},
    {"error", COLUMN_NUMBER, .key = "relative_error", .cell = cell_error, .spare = 1},
    {"to GPU", COLUMN_NUMBER, .key = "h2d_seconds", .unit = text_seconds, .width = 8, .spare = 2},
    {"from GPU", COLUMN_NUMBER, .key = "d2h_seconds", .unit = text_seconds, .spare = 2},
};

void tables_fill(struct table *table, const struct selection *rows) {
    for (size_t i = 0; i < rows->count; i++) table_row(table, rows->rows[i]->line, rows);
}

void tables_gemm_details(struct table *table, const struct selection *rows) {
    table_open(table, "All products, each with its fastest and its slowest repeat. error: the Frobenius "
                      "norm of the error of up to 16 rows of C, divided by that of the float64 product, with "
                      "operands in [-1, 1); in layer 1 of a training, A holds pixels. The last two columns "
                      "are the times to copy A and B to the GPU "
                      "and C back (pageable memory, medians)." NOISY);
    TABLE_COLUMNS(table, details);
    tables_fill(table, rows);
}

/* --- products x backends --- */

static void product_key(const cJSON *line, char *key, size_t size) {
    struct cell shape = {.line = line};
    cell_shape(&shape);
    snprintf(key, size, "%.4s %.8s %.90s %.80s", record_text(line, "op"), record_text(line, "dtype"),
             shape.text, record_text(line, "what"));
}

/* The latest rate of the column's backend on the row's product. */
static void rate_cell(struct cell *cell) {
    const struct selection *rows = cell->context;
    const cJSON *line = NULL;
    char product[256], key[256], why[400];
    product_key(cell->line, product, sizeof product);
    for (size_t i = rows->count; i-- > 0 && !line;) {
        product_key(rows->rows[i]->line, key, sizeof key);
        if (strcmp(key, product) == 0 &&
            strcmp(selection_backend(rows, rows->rows[i]->line).text, cell->column->title) == 0)
            line = rows->rows[i]->line;
    }
    const double share = record_number(line, "share_of_peak");
    if (!line) {
        cell_text(cell, "-");
    } else if (row_refused(line, why, sizeof why)) {
        cell_text(cell, "%s", why);
    } else {
        cell_text(cell, "%s", text_short(record_number(line, "gflops")).text);
        if (isfinite(share))
            text_append(cell->text, sizeof cell->text, " (%s)", roof_share(line, share, share).text);
        text_append(cell->text, sizeof cell->text, "%s", cell_noise(line));
    }
}

static const struct column product_columns[] = {
    {"op", COLUMN_TEXT, .key = "op"},
    {"dtype", COLUMN_TEXT, .key = "dtype"},
    {"m x n x k", COLUMN_NUMBER, .cell = cell_shape},
    {"product", COLUMN_TEXT, .key = "what"},
};

void tables_gemm(struct table *table, const struct selection *rows) {
    struct names products = {0}, backends = {0};
    table_open(table, "GFLOP/s of each product. In brackets: its share of the peak (on the CPU, of the peak "
                      "that was measured right after each call, because the clock changes)." NOISY);
    TABLE_COLUMNS(table, product_columns);
    for (size_t i = 0; i < rows->count; i++)
        names_index(&backends, selection_backend(rows, rows->rows[i]->line).text);
    for (size_t b = 0; b < backends.count; b++)
        table_columns(
            table, &(struct column){.title = backends.list[b], .kind = COLUMN_NUMBER, .cell = rate_cell}, 1);
    for (size_t i = 0; i < rows->count; i++) {
        char key[256];
        const size_t before = products.count;
        product_key(rows->rows[i]->line, key, sizeof key);
        if (names_index(&products, key) == before) table_row(table, rows->rows[i]->line, rows);
    }
    names_free(&products);
    names_free(&backends);
}

/* --- kernels: the record is the kernel, the context the record of its product --- */

static void kernel_backend_cell(struct cell *cell) {
    cell_text(cell, "%s", row_backend(cell->context).text);
}

static const struct column kernel_columns[] = {
    {"backend", COLUMN_NAME, .cell = kernel_backend_cell},
    {"kernel", COLUMN_NAME, .key = "name"},
    {"threads a block", COLUMN_NUMBER, .key = "threads", .unit = unit_count},
    {"registers a thread", COLUMN_NUMBER, .key = "registers", .unit = unit_count},
    {"shared memory a block", COLUMN_NUMBER, .key = "shared_bytes", .unit = unit_bytes},
    {"occupancy", COLUMN_NUMBER, .key = "occupancy", .unit = unit_percent},
};

void tables_kernels(struct table *table, const struct selection *rows) {
    struct names seen = {0};
    table_open(table, "What each kernel uses of a multiprocessor. Occupancy is the theoretical one: the "
                      "share of the possible threads that can run at once.");
    TABLE_COLUMNS(table, kernel_columns);
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *kernel, *line = rows->rows[i]->line;
        cJSON_ArrayForEach(kernel, cJSON_GetObjectItemCaseSensitive(line, "kernels")) {
            char key[512];
            const size_t before = seen.count;
            snprintf(key, sizeof key, "%s %.200s %.0f %.0f", row_backend(line).text,
                     record_text(kernel, "name"), record_number(kernel, "registers"),
                     record_number(kernel, "shared_bytes"));
            if (names_index(&seen, key) == before) table_row(table, kernel, line);
        }
    }
    names_free(&seen);
}

/* --- peaks --- */

static bool is_cuda(const cJSON *line) {
    return strcmp(record_text(line, "device"), "cuda") == 0;
}

static void device_cell(struct cell *cell) {
    const char *gpu = record_text(cell->line, "gpu");
    cell_text(cell, "%s", !is_cuda(cell->line) ? "CPU" : gpu[0] ? gpu : "GPU");
}

static void host_threads_cell(struct cell *cell) {
    cell_text(cell, "%s", is_cuda(cell->line) ? "-" : unit_count(cell_number(cell, "threads")).text);
}

static void ridge_cell(struct cell *cell) {
    const double copy = cell_number(cell, "copy_gbytes_per_second");
    cell_text(cell, "%s", text_short(cell_number(cell, cell->column->key) / copy).text);
}

static const struct column peak_columns[] = {
    {"device", COLUMN_TEXT, .cell = device_cell},
    {"threads", COLUMN_NUMBER, .cell = host_threads_cell},
    {"f32 GFLOP/s", COLUMN_NUMBER, .key = "f32_gflops", .unit = text_short},
    {"f64 GFLOP/s", COLUMN_NUMBER, .key = "f64_gflops", .unit = text_short},
    {"copy GB/s", COLUMN_NUMBER, .key = "copy_gbytes_per_second", .unit = text_short},
    {"f32 ridge, flop/byte", COLUMN_NUMBER, .key = "f32_gflops", .cell = ridge_cell},
    {"f64 ridge, flop/byte", COLUMN_NUMBER, .key = "f64_gflops", .cell = ridge_cell},
};

void tables_peak(struct table *table, const struct selection *rows) {
    table_open(table,
               "The measured peaks, one row for each run of bench; a roof is the highest of them. A product "
               "with more flop/byte than the ridge is limited by arithmetic, one with less by memory.");
    TABLE_COLUMNS(table, peak_columns);
    tables_fill(table, rows);
}
