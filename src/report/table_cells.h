/* For the files that write a table (table.c: HTML and Markdown; table_console.c). */
#ifndef TESSERA_REPORT_TABLE_CELLS_H
#define TESSERA_REPORT_TABLE_CELLS_H

#include "src/report/table.h"

const char *table_cell(const struct table *table, size_t row, size_t column);

/* Is the column shown only in another place? */
bool table_hides(const struct table *table, size_t column, enum column_place place);

/* Is this text of a column of numbers a reason in place of a number? */
bool table_is_sentence(const struct table *table, size_t column, const char *text);

/* Writes the rows that were left out, one line for each reason, between `before` and `after`. */
typedef void table_text_writer(FILE *out, const char *text);
void table_write_left_out(FILE *out, const struct table *table, const char *before, const char *after,
                          table_text_writer *write_text, table_text_writer *write_name);

#endif
