/* The fastest backend by batch and hidden size. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/text.h"
#include "src/report/cells.h"
#include "src/report/markup.h"
#include "src/report/page.h"
#include "src/report/row.h"
#include "src/report/tables.h"

static bool is_cell(const cJSON *line, const char *batch, const char *hidden) {
    return strcmp(text_fixed(record_number(line, "batch"), 0).text, batch) == 0 &&
           strcmp(text_fixed(record_number(line, "hidden"), 0).text, hidden) == 0;
}

static const cJSON *winner_at(const struct selection *rows, const char *batch, const char *hidden) {
    for (size_t i = 0; i < rows->count; i++)
        if (record_true(rows->rows[i]->line, "wins") && is_cell(rows->rows[i]->line, batch, hidden))
            return rows->rows[i]->line;
    return NULL;
}

/* A row of a table: the cells of this batch and, in the table of steps, of this hidden size. */
struct position {
    const struct selection *rows;
    const char *batch, *hidden;
};

static void batch_cell(struct cell *cell) {
    cell_text(cell, "%s", ((const struct position *)cell->context)->batch);
}

static void hidden_cell(struct cell *cell) {
    cell_text(cell, "%s", ((const struct position *)cell->context)->hidden);
}

static void winner_cell(struct cell *cell) {
    const struct position *at = cell->context;
    const cJSON *line = winner_at(at->rows, at->batch, cell->column->title);
    if (line) {
        cell_text(cell, "%s %s%s", row_backend(line).text,
                  text_seconds(record_number(line, "step_seconds")).text, cell_noise(line));
    } else {
        cell_text(cell, "-");
    }
}

void tables_breakeven(struct table *table, const struct selection *rows) {
    static const struct column batch = {"batch", COLUMN_TEXT, .cell = batch_cell};
    struct names batches = selection_values(rows, "batch"), hidden = selection_values(rows, "hidden");
    table_open(table, "The fastest backend and its time of one training step, by batch (down) and hidden "
                      "size (across)." NOISY);
    table_columns(table, &batch, 1);
    for (size_t h = 0; h < hidden.count; h++)
        table_columns(table, &(struct column){hidden.list[h], COLUMN_TEXT, .cell = winner_cell}, 1);
    for (size_t b = 0; b < batches.count; b++)
        table_row(table, NULL, &(struct position){rows, batches.list[b], NULL});
    names_free(&batches);
    names_free(&hidden);
}

/* --- the map --- */

/* The first letter of the name (after "cuda-"), or of the alphabet, that no entry has. */
static char free_letter(const struct legend *legend, const char *name) {
    char candidates[256];
    snprintf(candidates, sizeof candidates, "%.128sABCDEFGHIJKLMNOPQRSTUVWXYZ",
             strncmp(name, "cuda-", 5) == 0 ? name + 5 : name);
    for (const char *at = candidates; *at; at++) {
        const char letter = (char)toupper((unsigned char)*at);
        bool used = !isalpha((unsigned char)letter);
        for (size_t i = 0; i < legend->count && !used; i++) used = legend->list[i].letter == letter;
        if (!used) return letter;
    }
    return '?';
}

/* The entry of the backend of a row, added if new; NULL if memory ran out. */
static const struct legend_entry *entry_of(struct page *page, struct legend *legend, const cJSON *line) {
    struct legend_entry entry = {.style = page_style(page, record_text(line, "backend"))};
    snprintf(entry.name, sizeof entry.name, "%s", row_backend(line).text);
    for (size_t i = 0; i < legend->count; i++)
        if (strcmp(legend->list[i].name, entry.name) == 0) return &legend->list[i];
    entry.letter = free_letter(legend, entry.name);
    return legend_add(legend, entry) ? &legend->list[legend->count - 1] : NULL;
}

static void fill_cell(struct heatmap_cell *cell, const struct legend_entry *entry, const cJSON *line) {
    snprintf(cell->text, sizeof cell->text, "%c", entry->letter);
    snprintf(cell->title, sizeof cell->title, "%.100s: %s", entry->name,
             text_seconds(record_number(line, "step_seconds")).text);
    cell->colour = entry->style.colour;
    cell->strength = 0.55;
}

static void draw_map(struct page *page, const struct selection *rows, size_t number) {
    struct heatmap map;
    char id[64];
    snprintf(id, sizeof id, "breakeven-%zu", number + 1);
    if (!heatmap_open(&map, id, "The fastest backend by batch and hidden size",
                      selection_values(rows, "batch"), selection_values(rows, "hidden"))) {
        heatmap_close(&map);
        return;
    }
    map.row_title = "batch";
    map.column_title = "hidden size";
    for (size_t i = 0; i < rows->count; i++) entry_of(page, &map.legend, rows->rows[i]->line);
    for (size_t b = 0; b < map.rows.count; b++)
        for (size_t h = 0; h < map.columns.count; h++) {
            const cJSON *line = winner_at(rows, map.rows.list[b], map.columns.list[h]);
            const struct legend_entry *entry = line ? entry_of(page, &map.legend, line) : NULL;
            if (entry) fill_cell(&map.cells[b * map.columns.count + h], entry, line);
        }
    page_heatmap(page, &map,
                 "The letter in a cell names the backend with the fastest training step. Where the letter "
                 "changes is the break-even.");
}

static struct names backends_of(const struct selection *rows) {
    struct names names = {0};
    for (size_t i = 0; i < rows->count; i++) names_index(&names, row_backend(rows->rows[i]->line).text);
    return names;
}

static void step_cell(struct cell *cell) {
    const struct position *at = cell->context;
    cell_text(cell, "-");
    for (size_t i = 0; i < at->rows->count; i++) {
        const cJSON *line = at->rows->rows[i]->line;
        if (!is_cell(line, at->batch, at->hidden) || strcmp(row_backend(line).text, cell->column->title) != 0)
            continue;
        cell_text(cell, "%s%s%s", text_seconds(record_number(line, "step_seconds")).text,
                  record_true(line, "wins") ? " *" : "", cell_noise(line));
        return;
    }
}

static void step_table(struct page *page, const struct selection *rows) {
    static const struct column position[] = {{"batch", COLUMN_NUMBER, .cell = batch_cell},
                                             {"hidden", COLUMN_NUMBER, .cell = hidden_cell}};
    struct names backends = backends_of(rows), batches = selection_values(rows, "batch"),
                 hidden = selection_values(rows, "hidden");
    struct table table;
    table_open(&table, "The time of one training step. * marks the fastest backend of the row." NOISY);
    TABLE_COLUMNS(&table, position);
    for (size_t b = 0; b < backends.count; b++)
        table_columns(&table, &(struct column){backends.list[b], COLUMN_NUMBER, .cell = step_cell}, 1);
    for (size_t b = 0; b < batches.count; b++)
        for (size_t h = 0; h < hidden.count; h++)
            table_row(&table, NULL, &(struct position){rows, batches.list[b], hidden.list[h]});
    page_table(page, &table);
    names_free(&backends);
    names_free(&batches);
    names_free(&hidden);
}

static void write_breakeven(struct page *page) {
    struct selections dtypes = page_selections(page, "breakeven", selection_dtype);
    for (size_t i = 0; i < dtypes.count; i++) {
        page_heading(page, "%s", dtypes.list[i].key);
        page_columns_open(page);
        draw_map(page, &dtypes.list[i], i);
        step_table(page, &dtypes.list[i]);
        page_columns_close(page);
    }
    selections_free(&dtypes);
}

const struct section section_breakeven = {"breakeven", "Break-even map", "./train bench breakeven --log FILE",
                                          .type = "breakeven", .write = write_breakeven};
