#include "src/report/table_cells.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"
#include "src/report/markup.h"
#include "src/report/row.h"

void table_open(struct table *table, const char *format, ...) {
    va_list args;
    *table = (struct table){0};
    va_start(args, format);
    vsnprintf(table->caption, sizeof table->caption, format, args);
    va_end(args);
}

void table_close(struct table *table) {
    for (size_t c = 0; c < table->column_count; c++) free((char *)table->columns[c].title);
    for (size_t i = 0; i < table->cell_count; i++) free(table->cells[i]);
    free(table->cells);
    names_free(&table->reasons);
    names_free(&table->left_out);
    *table = (struct table){0};
}

void table_columns(struct table *table, const struct column *columns, size_t count) {
    for (size_t c = 0; c < count && table->column_count < TABLE_MAX_COLUMNS; c++) {
        struct column column = columns[c];
        column.title = memory_copy(column.title);
        if (!column.title) return;
        table->columns[table->column_count++] = column;
    }
}

/* --- rows --- */

void cell_text(struct cell *cell, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(cell->text, sizeof cell->text, format, args);
    va_end(args);
}

double cell_number(const struct cell *cell, const char *key) {
    return record_number(cell->line, key);
}

static void write_cell(struct cell *cell) {
    const struct column *column = cell->column;
    if (column->cell) {
        column->cell(cell);
    } else if (column->unit) {
        cell_text(cell, "%s", column->unit(cell_number(cell, column->key)).text);
    } else {
        const char *text = record_text(cell->line, column->key);
        cell_text(cell, "%s", text[0] ? text : "-");
    }
}

static bool has_setup(const struct table *table) {
    for (size_t c = 0; c < table->column_count; c++)
        if (table->columns[c].setup) return true;
    return false;
}

/* The first in its place. */
static bool is_first_result(const struct table *table, size_t column) {
    for (size_t c = 0; c < column; c++)
        if (!table->columns[c].setup &&
            (table->columns[c].only == ALL_PLACES || table->columns[c].only == table->columns[column].only))
            return false;
    return true;
}

static void add_cell(struct table *table, const char *text) {
    if (table->cell_count == table->capacity) {
        const size_t capacity = table->capacity ? 2 * table->capacity : 64;
        char **cells = memory_resize(table->cells, capacity * sizeof *cells);
        if (!cells) return;
        table->cells = cells;
        table->capacity = capacity;
    }
    char *copy = memory_copy(text);
    if (copy) table->cells[table->cell_count++] = copy;
}

void table_row(struct table *table, const cJSON *line, const void *context) {
    char why[400];
    const bool refused = has_setup(table) && row_refused(line, why, sizeof why);
    for (size_t c = 0; c < table->column_count; c++) {
        struct cell cell = {.column = &table->columns[c], .line = line, .context = context};
        if (refused && !cell.column->setup) {
            cell_text(&cell, "%s", is_first_result(table, c) ? why : "-");
        } else {
            write_cell(&cell);
        }
        add_cell(table, cell.text);
    }
}

void table_left_out(struct table *table, const char *name, const char *reason) {
    char text[256];
    const size_t index = names_index(&table->reasons, reason);
    snprintf(text, sizeof text, "%zu %s", index, name);
    names_index(&table->left_out, text);
}

size_t table_rows(const struct table *table) {
    return table->column_count ? table->cell_count / table->column_count : 0;
}

/* --- table_cells.h --- */

const char *table_cell(const struct table *table, size_t row, size_t column) {
    return table->cells[row * table->column_count + column];
}

bool table_hides(const struct table *table, size_t column, enum column_place place) {
    const enum column_place only = table->columns[column].only;
    return only != ALL_PLACES && only != place;
}

bool table_is_sentence(const struct table *table, size_t column, const char *text) {
    return table->columns[column].kind == COLUMN_NUMBER && strstr(text, ": ");
}

void table_write_left_out(FILE *out, const struct table *table, const char *before, const char *after,
                          table_text_writer *write_text, table_text_writer *write_name) {
    for (size_t r = 0; r < table->reasons.count; r++) {
        const char *between = "";
        fprintf(out, "%s%s: ", before, table->missing ? table->missing : "Left out");
        for (size_t i = 0; i < table->left_out.count; i++) {
            char *name;
            if (strtoul(table->left_out.list[i], &name, 10) != r) continue;
            fputs(between, out);
            write_name(out, name + 1);
            between = ", ";
        }
        fputs(", because ", out);
        write_text(out, table->reasons.list[r]);
        fprintf(out, ".%s", after);
    }
}

/* --- HTML --- */

static void html_name(FILE *out, const char *text) {
    fputs("<code>", out);
    markup_text(out, text);
    fputs("</code>", out);
}

/* Sentences and long cells may wrap, numbers may not. */
static const char *html_class(const struct table *table, size_t column, const char *text) {
    enum { LONG = 28 };
    const bool number = table->columns[column].kind == COLUMN_NUMBER;
    if (table_is_sentence(table, column, text)) return " class=\"say\"";
    if (strlen(text) > LONG) return number ? " class=\"n long\"" : " class=\"long\"";
    return number ? " class=\"n\"" : "";
}

static void html_cell(FILE *out, const struct table *table, size_t row, size_t column) {
    const char *text = table_cell(table, row, column);
    const char *tag = column == 0 ? "th scope=\"row\"" : "td";
    fprintf(out, "<%s%s>", tag, html_class(table, column, text));
    (table->columns[column].kind == COLUMN_NAME ? html_name : markup_text)(out, text);
    fputs(column == 0 ? "</th>" : "</td>", out);
}

void table_html(FILE *out, const struct table *table) {
    fprintf(out, "<div class=\"scroll\" tabindex=\"0\"><table%s>\n<caption>",
            table->wrap ? " class=\"wide\"" : "");
    markup_text(out, table->caption);
    fputs("</caption>\n<thead><tr>", out);
    for (size_t c = 0; c < table->column_count; c++) {
        if (table_hides(table, c, PAGE_ONLY)) continue;
        fprintf(out, "<th scope=\"col\"%s>", html_class(table, c, ""));
        markup_text(out, table->columns[c].title);
        fputs("</th>", out);
    }
    fputs("</tr></thead>\n<tbody>\n", out);
    for (size_t r = 0; r < table_rows(table); r++) {
        fputs("<tr>", out);
        for (size_t c = 0; c < table->column_count; c++)
            if (!table_hides(table, c, PAGE_ONLY)) html_cell(out, table, r, c);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
    table_write_left_out(out, table, "<p>", "</p>\n", markup_text, html_name);
}

/* --- Markdown --- */

void table_markdown(FILE *out, const struct table *table) {
    fputc('|', out);
    for (size_t c = 0; c < table->column_count; c++) {
        if (table_hides(table, c, PAGE_ONLY)) continue;
        fputc(' ', out);
        markup_markdown(out, table->columns[c].title);
        fputs(" |", out);
    }
    fputs("\n|", out);
    for (size_t c = 0; c < table->column_count; c++)
        if (!table_hides(table, c, PAGE_ONLY))
            fputs(table->columns[c].kind == COLUMN_NUMBER ? "---:|" : "---|", out);
    for (size_t r = 0; r < table_rows(table); r++) {
        fputs("\n|", out);
        for (size_t c = 0; c < table->column_count; c++) {
            if (table_hides(table, c, PAGE_ONLY)) continue;
            fputc(' ', out);
            (table->columns[c].kind == COLUMN_NAME ? markup_code : markup_markdown)(out,
                                                                                    table_cell(table, r, c));
            fputs(" |", out);
        }
    }
    fputc('\n', out);
    table_write_left_out(out, table, "\n", "\n", markup_markdown, markup_code);
}
