/* A table on a console: columns of fixed width, as many as fit. */
#include <stdlib.h>
#include <string.h>

#include "src/base/memstream.h"
#include "src/base/terminal.h"
#include "src/report/table_cells.h"

enum { GAP = 2 }; /* between columns */

static void console_text(FILE *out, const char *text) {
    fputs(text, out);
}

static int text_width(const char *text) {
    return (int)text_letters(text);
}

static void console_cell(FILE *out, const struct table *table, size_t column, const char *text) {
    const int padding = text_padding(text, (size_t)table->widths[column]);
    if (table->columns[column].kind == COLUMN_NUMBER) {
        fprintf(out, "%*s%s", padding, "", text);
    } else {
        fprintf(out, "%s%*s", text, column + 1 < table->column_count ? padding : 0, "");
    }
}

void table_reserve(struct table *table, const char *key, const char *text) {
    for (size_t c = 0; c < table->column_count; c++) {
        struct column *column = &table->columns[c];
        if (column->key && strcmp(column->key, key) == 0 && text_width(text) > column->width)
            column->width = text_width(text);
    }
}

static void measure_columns(struct table *table) {
    for (size_t c = 0; c < table->column_count; c++) {
        const struct column *column = &table->columns[c];
        int width = text_width(column->title);
        if (column->width > width) width = column->width;
        for (size_t r = 0; r < table_rows(table); r++) {
            const char *text = table_cell(table, r, c);
            if (text_width(text) > width && !table_is_sentence(table, c, text)) width = text_width(text);
        }
        table->widths[c] = table_hides(table, c, CONSOLE_ONLY) ? 0 : width;
    }
}

/* The length of a line. *spare: the highest number of its columns. */
static int line_width(const struct table *table, int *spare) {
    int width = -GAP;
    *spare = 0;
    for (size_t c = 0; c < table->column_count; c++) {
        if (!table->widths[c]) continue;
        width += GAP + table->widths[c];
        if (table->columns[c].spare > *spare) *spare = table->columns[c].spare;
    }
    return width;
}

static void fit_columns(struct table *table) {
    int spare;
    while (line_width(table, &spare) > terminal_columns() && spare)
        for (size_t c = 0; c < table->column_count; c++)
            if (table->columns[c].spare == spare) table->widths[c] = 0;
}

void table_console_titles(FILE *out, struct table *table) {
    const char *between = "";
    measure_columns(table);
    fit_columns(table);
    for (size_t c = 0; c < table->column_count; c++) {
        if (!table->widths[c]) continue;
        fputs(between, out);
        console_cell(out, table, c, table->columns[c].title);
        between = "  ";
    }
    fputc('\n', out);
}

void table_console_row(FILE *out, const struct table *table, size_t row) {
    int column = 0;
    for (size_t c = 0; c < table->column_count; c++) {
        const char *text = table_cell(table, row, c);
        if (!table->widths[c]) continue;
        if (column) column += fprintf(out, "%*s", GAP, "");
        const bool last = c + 1 == table->column_count && table->columns[c].kind != COLUMN_NUMBER;
        if (last || table_is_sentence(table, c, text)) { /* nothing comes after it */
            terminal_wrap(out, column, 2 * GAP, text);
            break;
        }
        console_cell(out, table, c, text);
        column += text_width(text) > table->widths[c] ? text_width(text) : table->widths[c];
    }
    fputc('\n', out);
}

void table_console_end(FILE *out, const struct table *table) {
    char text[1024] = "";
    for (size_t c = 0; c < table->column_count; c++)
        if (!table->widths[c] && !table_hides(table, c, CONSOLE_ONLY))
            text_append(text, sizeof text, "%s %s", text[0] ? "," : "", table->columns[c].title);
    if (text[0]) terminal_print(out, 0, "(--wide adds:%s)\n", text);
}

static void console_left_out(FILE *out, const struct table *table) {
    struct memstream stream;
    const enum status opened = memstream_open(&stream);
    if (!opened) table_write_left_out(stream.out, table, "", "\n", console_text, console_text);
    if (!memstream_close(&stream, opened)) terminal_wrap(out, 0, 2 * GAP, stream.text);
    free(stream.text);
}

void table_console(FILE *out, struct table *table) {
    if (table_rows(table) || !table->reasons.count) {
        table_console_titles(out, table);
        for (size_t r = 0; r < table_rows(table); r++) table_console_row(out, table, r);
        table_console_end(out, table);
    }
    console_left_out(out, table);
}
