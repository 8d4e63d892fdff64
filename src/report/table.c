#include "src/report/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "src/report/markup.h"

void table_open(struct table *table, const char *format, ...) {
    va_list args;
    *table = (struct table){0};
    va_start(args, format);
    vsnprintf(table->caption, sizeof table->caption, format, args);
    va_end(args);
}

void table_column(struct table *table, enum column_kind kind, const char *title) {
    if (table->columns == TABLE_MAX_COLUMNS) return;
    table->kinds[table->columns] = kind;
    table->titles[table->columns] = strdup(title);
    if (table->titles[table->columns]) {
        table->columns++;
    } else {
        table->failed = true;
    }
}

void table_cell(struct table *table, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (table->count == table->capacity) {
        const size_t capacity = table->capacity ? 2 * table->capacity : 64;
        char **cells = realloc(table->cells, capacity * sizeof *cells);
        if (!cells) table->failed = true;
        if (!cells) return;
        table->cells = cells;
        table->capacity = capacity;
    }
    char *copy = strdup(text);
    if (!copy) table->failed = true;
    if (copy) table->cells[table->count++] = copy;
}

void table_close(struct table *table) {
    for (size_t i = 0; i < table->columns; i++) free(table->titles[i]);
    for (size_t i = 0; i < table->count; i++) free(table->cells[i]);
    free(table->cells);
    *table = (struct table){0};
}

static size_t row_count(const struct table *table) {
    return table->columns ? (table->count + table->columns - 1) / table->columns : 0;
}

static const char *cell_at(const struct table *table, size_t row, size_t column) {
    const size_t index = row * table->columns + column;
    return index < table->count ? table->cells[index] : "";
}

/* --- HTML --- */

/* A sentence among numbers (why there is none) may wrap; a number never does. */
static const char *html_class(const struct table *table, size_t column, const char *text) {
    if (table->kinds[column] != COLUMN_NUMBER) return "";
    return strstr(text, ": ") ? " class=\"say\"" : " class=\"n\"";
}

static void html_cell(FILE *out, const struct table *table, size_t row, size_t column) {
    const char *text = cell_at(table, row, column);
    const char *tag = column == 0 ? "th scope=\"row\"" : "td";
    const char *class = html_class(table, column, text);
    fprintf(out, "<%s%s>", tag, class);
    if (table->kinds[column] == COLUMN_NAME && *text) fputs("<code>", out);
    markup_text(out, text);
    if (table->kinds[column] == COLUMN_NAME && *text) fputs("</code>", out);
    fputs(column == 0 ? "</th>" : "</td>", out);
}

void table_html(FILE *out, const struct table *table) {
    fprintf(out, "<div class=\"scroll\" tabindex=\"0\"><table%s>\n<caption>",
            table->wrap ? " class=\"wide\"" : "");
    markup_text(out, table->caption);
    fputs("</caption>\n<thead><tr>", out);
    for (size_t c = 0; c < table->columns; c++) {
        fprintf(out, "<th scope=\"col\"%s>", table->kinds[c] == COLUMN_NUMBER ? " class=\"n\"" : "");
        markup_text(out, table->titles[c]);
        fputs("</th>", out);
    }
    fputs("</tr></thead>\n<tbody>\n", out);
    for (size_t r = 0; r < row_count(table); r++) {
        fputs("<tr>", out);
        for (size_t c = 0; c < table->columns; c++) html_cell(out, table, r, c);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

/* --- Markdown --- */

void table_markdown(FILE *out, const struct table *table) {
    fputc('|', out);
    for (size_t c = 0; c < table->columns; c++) {
        fputc(' ', out);
        markup_markdown(out, table->titles[c]);
        fputs(" |", out);
    }
    fputs("\n|", out);
    for (size_t c = 0; c < table->columns; c++)
        fputs(table->kinds[c] == COLUMN_NUMBER ? "---:|" : "---|", out);
    for (size_t r = 0; r < row_count(table); r++) {
        fputs("\n|", out);
        for (size_t c = 0; c < table->columns; c++) {
            const char *text = cell_at(table, r, c);
            fputc(' ', out);
            if (table->kinds[c] == COLUMN_NAME && *text) {
                markup_code(out, text);
            } else {
                markup_markdown(out, text);
            }
            fputs(" |", out);
        }
    }
    fputc('\n', out);
}
