/* The table of a contest of GEMMs, a line a result. */
#ifndef TESSERA_CMD_BENCH_TABLE_H
#define TESSERA_CMD_BENCH_TABLE_H

#include "src/bench/contestants.h"

enum { BENCH_LABEL = 26, BENCH_MOST_KERNELS = 256 };

/* What was built, where it runs, who takes part with which rates, and who does not. */
void bench_print_header(const struct contestants *contestants);
/* `more` ends the line: titles of further columns. */
void bench_print_titles(const char *more);
/* The line without its end, so that columns can follow. */
void bench_print_result(const struct contestant *who, enum gemm_dtype dtype, const struct gemm_shape *shape,
                        const struct result *result);

/* The resources of each kernel that ran, once. */
struct bench_kernels {
    struct gemm_kernel list[BENCH_MOST_KERNELS];
    size_t count;
};
void bench_note_kernels(struct bench_kernels *kernels, const struct result *result);
void bench_print_kernels(const struct bench_kernels *kernels);

/* Numbers that several benches take: `value` stays as it is without a flag. STATUS_USAGE names the flag. */
enum status bench_parse_count(const char *flag, const char *text, size_t most, size_t *value);
enum status bench_parse_real(const char *flag, const char *text, double *value);
/* Comma-separated whole numbers from 1; "none" is none of them. */
enum status bench_parse_list(const char *flag, const char *text, size_t room, size_t *values, size_t *count);

#endif
