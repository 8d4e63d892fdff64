/* GEMM benchmarks as JSON lines: "peak" and "gemm". */
#ifndef TESSERA_BENCH_GEMM_LOG_H
#define TESSERA_BENCH_GEMM_LOG_H

#include "src/base/jsonl.h"
#include "src/bench/candidates.h"

/* The header of `command`, then one "peak" line for each device and thread count. `log` may be NULL. */
void gemm_log_open(struct logfile *log, const char *command, const struct candidates *candidates);

/* One "peak" line: the rates of "host" or "cuda" (`gpu`: in words, or ""). */
void gemm_log_peak(struct logfile *log, enum gemm_device device, const char *gpu, int threads,
                   const struct rates *rates);

/* One "gemm" line, which the caller owns. `warm`: the operands were warm. A wrong or left-out result has a
   reason and no time. */
cJSON *gemm_line(const struct candidate *candidate, enum gemm_dtype dtype, const struct gemm_shape *shape,
                 const struct result *result, bool warm);

#endif
