/* A table of text, written as HTML or as Markdown. */
#ifndef TESSERA_REPORT_TABLE_H
#define TESSERA_REPORT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum column_kind { COLUMN_TEXT, COLUMN_NAME /* a name to type */, COLUMN_NUMBER /* to the right */ };

enum { TABLE_MAX_COLUMNS = 24 };

struct table {
    char caption[512];
    char *titles[TABLE_MAX_COLUMNS];
    enum column_kind kinds[TABLE_MAX_COLUMNS];
    size_t columns;
    char **cells; /* row by row */
    size_t count, capacity;
    bool wrap;   /* cells of text may take several lines (HTML) */
    bool failed; /* memory ran out: the table is not whole */
};

/* An empty table; the caption says what the reader should look at. Then its columns (no more than
   TABLE_MAX_COLUMNS are kept), then cells, row by row. */
void table_open(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_column(struct table *table, enum column_kind kind, const char *title);
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_close(struct table *table);

/* Every cell is escaped. In HTML the first column heads the row. A started last row is filled up. */
void table_html(FILE *out, const struct table *table);
void table_markdown(FILE *out, const struct table *table);

#endif
