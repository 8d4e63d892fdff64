/* Common to all benches: header, rows, numeric flags. */
#ifndef TESSERA_CMD_BENCH_TABLE_H
#define TESSERA_CMD_BENCH_TABLE_H

#include "src/bench/candidates.h"
#include "src/bench/comparison.h"
#include "src/report/tables.h"

enum { BENCH_LABEL = 19 };

/* Prints the build and the machine. */
void bench_print_machine(void);
/* The same, then the candidates with their rates, and those that were left out. */
void bench_print_header(const struct candidates *candidates);
/* Adds the row of a record to a table whose titles are printed, and prints it. */
void bench_print_row(struct table *table, const cJSON *line);

/* The observer of a comparison: the progress line. */
void bench_print_progress(const struct comparison_row *row, const char *what);
enum { BENCH_LONG = 10 }; /* seconds; what may take longer is announced before it starts */
/* Tells how long the trainings of a comparison of so many rows take at most. */
void bench_tell_most(const struct comparison *comparison, size_t rows);

/* The tables of the hardware counters of these rows, and why some have none. */
enum status bench_print_counters(const struct records *records, const char *type, selection_key *key);
#define BENCH_COUNTERS_FLAG(value) \
    { "counters", NULL, "read hardware counters too: with perf on the CPU, with ncu on a GPU", value }

/* The last line: the load of the machine. */
void bench_print_load(void);

/* Numeric flags. Without the flag, `value` is unchanged. STATUS_USAGE names the flag. */
enum status bench_parse_count(const char *flag, const char *text, size_t most, size_t *value);
enum status bench_parse_real(const char *flag, const char *text, double *value);
#define BENCH_OPERANDS_FLAG(value)                                                                       \
    {                                                                                                    \
        "operands", "cold|warm",                                                                         \
            "cold: they rotate through twice the last-level cache; warm: each call has the same [cold]", \
            value                                                                                        \
    }
enum status bench_parse_operands(const char *text, bool *warm);
/* The next word of a list with commas between words; *list moves on. */
void bench_next_word(const char **list, char *word, size_t size);
/* The backends of a list; without one (NULL), the fast ones that are usable here. STATUS_USAGE if the list
   has more than `room`. */
enum status bench_find_backends(const char *list, size_t room, char (*names)[CONFIG_TEXT], size_t *count);
/* Comma-separated whole numbers from 1; "none" is the empty list. */
enum status bench_parse_list(const char *flag, const char *text, size_t room, size_t *values, size_t *count);

#endif
