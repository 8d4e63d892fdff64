/* What the benches share: header, rows as they are measured, numbers of flags. */
#ifndef TESSERA_CMD_BENCH_TABLE_H
#define TESSERA_CMD_BENCH_TABLE_H

#include "src/bench/candidates.h"
#include "src/report/tables.h"

enum { BENCH_LABEL = 26 };

/* What was built, where it runs, who takes part with which rates, and who does not. */
void bench_print_header(const struct candidates *candidates);
/* Adds the row of a record to a table whose titles are printed, and prints it. */
void bench_print_row(struct table *table, const cJSON *line);

/* Numbers that several benches take: `value` stays as it is without a flag. STATUS_USAGE names the flag. */
enum status bench_parse_count(const char *flag, const char *text, size_t most, size_t *value);
enum status bench_parse_real(const char *flag, const char *text, double *value);
/* Comma-separated whole numbers from 1; "none" is none of them. */
enum status bench_parse_list(const char *flag, const char *text, size_t room, size_t *values, size_t *count);

#endif
