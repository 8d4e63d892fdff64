/* Shared-memory access order: layout of A and B in the tile, and its size. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/page.h"
#include "src/report/roof.h"
#include "src/report/row.h"
#include "src/report/tables.h"

static void block_cell(struct cell *cell) {
    const struct text_number tile = unit_count(cell_number(cell, "tile"));
    cell_text(cell, "%.8s x %.8s", tile.text, tile.text);
}

static void best_cell(struct cell *cell) {
    cell_text(cell, "%s", record_true(cell->line, "best") ? "best" : "");
}

static const struct column columns[] = {
    {"order", COLUMN_TEXT, .key = "order", .setup = true},
    {"shared", COLUMN_TEXT, .key = "shared", .setup = true},
    {"multiply", COLUMN_TEXT, .key = "multiply", .setup = true},
    {"block", COLUMN_NUMBER, .cell = block_cell, .setup = true},
    {"median", COLUMN_NUMBER, .cell = cell_median},
    {"min to max", COLUMN_NUMBER, .cell = cell_spread},
    {"GFLOP/s", COLUMN_NUMBER, .key = "gflops", .unit = text_short},
    {"occupancy", COLUMN_NUMBER, .key = "occupancy", .unit = unit_percent},
    {"registers", COLUMN_NUMBER, .key = "registers", .unit = unit_count},
    {"shared memory", COLUMN_NUMBER, .key = "shared_bytes", .unit = unit_bytes},
    {"", COLUMN_TEXT, .cell = best_cell},
};

void tables_shmem(struct table *table, const struct selection *rows) {
    table_open(
        table,
        "Order: how the tiles of A and of B lie in shared memory, row-major (R) or transposed (C). Shared: "
        "how that memory is allocated. Multiply: plain allows fused multiply-add, fmul_rn does not." NOISY);
    TABLE_COLUMNS(table, columns);
    tables_fill(table, rows);
}

static void variant_of(const cJSON *line, char *text, size_t size) {
    snprintf(text, size, "%.16s shared memory, %.16s multiply", record_text(line, "shared"),
             record_text(line, "multiply"));
}

static const char *const orders[] = {"RR", "RC", "CR", "CC"};

static size_t order_of(const cJSON *line) {
    for (size_t i = 0; i < 4; i++)
        if (strcmp(record_text(line, "order"), orders[i]) == 0) return i;
    return SIZE_MAX;
}

static void variant_chart(struct page *page, const struct selection *rows, const char *variant, size_t number,
                          size_t part) {
    struct chart chart;
    char id[64];
    snprintf(id, sizeof id, "shmem-%zu-%zu", number + 1, part + 1);
    chart_open(&chart, CHART_GROUPED, id, "%s", variant);
    chart.x = (struct chart_axis){.title = "block: threads along an edge"};
    chart.y = (struct chart_axis){.title = "GFLOP/s", .from_zero = true, .log_if_wide = true};
    chart.categories = selection_values(rows, "tile");
    for (size_t i = 0; i < 4; i++) chart_series(&chart, orders[i], (struct chart_style){(unsigned)i, 0, 0});
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        char other[64];
        variant_of(line, other, sizeof other);
        if (strcmp(other, variant) != 0 || row_refused(line, NULL, 0)) continue;
        const size_t group = names_index(&chart.categories, text_fixed(record_number(line, "tile"), 0).text);
        chart_add_xy(&chart, order_of(line), (double)group, record_number(line, "gflops"));
        const struct roof roof = roof_of(page->records, rows->rows[i]);
        chart_reference(&chart, roof.peak, "peak of the GPU, %s GFLOP/s", text_short(roof.peak).text);
    }
    page_chart(page, &chart,
               "Higher is faster. RR: the tiles of A and B are row-major in shared memory. RC: B is "
               "transposed. CR: A is transposed. CC: both are.");
}

static void note_best(struct page *page, const struct selection *rows) {
    for (size_t i = 0; i < rows->count; i++) {
        const cJSON *line = rows->rows[i]->line;
        if (!record_true(line, "best")) continue;
        page_note(page,
                  "Best choice: order %.8s, block %s, %.16s shared memory, %.16s multiply: %s, %s GFLOP/s.",
                  record_text(line, "order"), text_fixed(record_number(line, "tile"), 0).text,
                  record_text(line, "shared"), record_text(line, "multiply"),
                  text_seconds(record_number(line, "median_seconds")).text,
                  text_short(record_number(line, "gflops")).text);
    }
}

static void write_shape(struct page *page, const struct selection *rows, size_t number) {
    struct names variants = {0};
    struct table table;
    for (size_t i = 0; i < rows->count; i++) {
        char variant[64];
        variant_of(rows->rows[i]->line, variant, sizeof variant);
        names_index(&variants, variant);
    }
    page_heading(page, "%s", rows->key);
    note_best(page, rows);
    page_columns_open(page);
    for (size_t v = 0; v < variants.count; v++) variant_chart(page, rows, variants.list[v], number, v);
    page_columns_close(page);
    tables_shmem(&table, rows);
    page_table(page, &table);
    tables_counters_gpu(&table, rows);
    page_optional_table(page, &table);
    names_free(&variants);
}

static void write_shmem(struct page *page) {
    struct selections shapes = page_selections(page, "shmem", selection_shape);
    for (size_t i = 0; i < shapes.count; i++) write_shape(page, &shapes.list[i], i);
    selections_free(&shapes);
}

const struct section section_shmem = {"shmem", "Shared-memory access order", "./train bench shmem --log FILE",
                                      .type = "shmem", .write = write_shmem};
