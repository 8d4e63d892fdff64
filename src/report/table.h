/* A table is an array of columns over records. A console, HTML and Markdown show the same cells. */
#ifndef TESSERA_REPORT_TABLE_H
#define TESSERA_REPORT_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <cjson/cJSON.h>

#include "src/base/text.h"
#include "src/report/selection.h"

enum column_kind { COLUMN_TEXT, COLUMN_NAME /* typed by users: code */, COLUMN_NUMBER /* right-aligned */ };
enum column_place { ALL_PLACES, CONSOLE_ONLY, PAGE_ONLY /* HTML and Markdown */ };

struct column;

/* A cell while it is written. */
struct cell {
    const struct column *column;
    const cJSON *line;   /* the record of the row */
    const void *context; /* as given to table_row */
    char text[1024];
};

struct column {
    const char *title;
    enum column_kind kind;
    const char *key;                          /* of the value in the record */
    struct text_number (*unit)(double value); /* formats a number; NULL: the value is a text */
    void (*cell)(struct cell *cell);          /* (optional) writes the cell instead */
    bool setup; /* says what ran; other columns are results, empty in a refused row */
    enum column_place only;
    int width; /* the minimum, on a console */
    int spare; /* if a console is too narrow, it leaves out the columns of the highest number; 0: never */
};

enum { TABLE_MAX_COLUMNS = 24 };

struct table {
    char caption[1024];
    struct column columns[TABLE_MAX_COLUMNS];
    int widths[TABLE_MAX_COLUMNS]; /* on a console; 0: left out */
    size_t column_count;
    char **cells; /* [rows][columns] */
    size_t cell_count, capacity;
    struct names reasons, left_out; /* names of rows, after the index of their reason: "0 cublas" */
    const char *missing;            /* in front of the names of left_out; NULL: "Left out" */
    bool wrap;                      /* cells of text may take several lines (HTML) */
};

/* An empty table. The caption says what the reader should look at. */
void table_open(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_close(struct table *table);

/* Appends columns, before the first row; at most TABLE_MAX_COLUMNS are kept. Titles are copied. */
void table_columns(struct table *table, const struct column *columns, size_t count);
#define TABLE_COLUMNS(table, array) table_columns(table, array, sizeof(array) / sizeof *(array))

/* Appends the row of a record. If the table has setup columns and the record says why it has no result, the
   first result column gets this reason. */
void table_row(struct table *table, const cJSON *line, const void *context);
/* Names a row that could not run here: listed below the table, with others of the same reason. */
void table_left_out(struct table *table, const char *name, const char *reason);
size_t table_rows(const struct table *table);

/* For cell writers. */
void cell_text(struct cell *cell, const char *format, ...) __attribute__((format(printf, 2, 3)));
double cell_number(const struct cell *cell, const char *key);

/* Every cell is escaped. In HTML the first column heads the row. */
void table_html(FILE *out, const struct table *table);
void table_markdown(FILE *out, const struct table *table);
/* The whole table; or first the titles, then rows as they are measured, in the minimum widths, and at the end
   the columns that --wide adds. */
void table_console(FILE *out, struct table *table);
void table_console_titles(FILE *out, struct table *table);
void table_console_row(FILE *out, const struct table *table, size_t row);
void table_console_end(FILE *out, const struct table *table);
/* Makes room for this text in the console column of `key`, before the titles. */
void table_reserve(struct table *table, const char *key, const char *text);

#endif
