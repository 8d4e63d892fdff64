/* Several GEMMs on one shape: each verified, timed in turn with the others, and verified again. */
#ifndef TESSERA_BENCH_BENCHMARK_H
#define TESSERA_BENCH_BENCHMARK_H

#include "src/base/statistics.h"
#include "src/bench/problem.h"
#include "src/bench/verdict.h"

/* What a device can do at most, measured now. */
struct rates {
    double flops[2];  /* a second, of f32 and f64 (enum gemm_dtype); 0 if unknown */
    double bandwidth; /* bytes read plus bytes written a second */
};

/* Of the device that `compute` runs its GEMM on, with as many threads as it uses. */
enum status rates_measure(struct compute *compute, int ordinal, struct rates *rates);

/* One that takes part. */
struct candidate {
    struct compute compute;
    char label[128];
    struct rates rates;
    double seconds_per_flop[3]
                           [3]; /* of the shape before, by dtype and op: to foresee the next; 0: none yet */
};

enum { BENCHMARK_MOST_KERNELS = 4 };

/* How it went for one of them. */
struct result {
    enum outcome outcome;
    char reason[512];
    /* Of OUTCOME_RIGHT alone. */
    struct statistics seconds; /* of a call */
    double flops, bytes;       /* of a call; the bytes of A, B and C once */
    double h2d, d2h;           /* seconds to copy A and B there and C back; 0 on the host */
    /* Flops a second of a multiply-add loop; 0: unknown. On the host the median in turn with the calls,
       unless the backend has threads of its own; else at the start. */
    double peak;
    struct gemm_kernel kernel[BENCHMARK_MOST_KERNELS];
    size_t kernels;
};

/* Of the peak; 0 if that is unknown. */
static inline double share_of_peak(const struct result *result) {
    return result->peak > 0 ? result->flops / result->seconds.median / result->peak : 0;
}

struct benchmark {
    struct candidate *candidates;
    size_t count, repeats;
    bool warm;            /* the same operands in each call; else they rotate through twice the last cache */
    double limit_seconds; /* for a candidate and a shape; 0: none. One that would take longer is left out */
};

/* results[count]. The candidates' operands are all in memory at once. */
enum status benchmark_run(struct benchmark *benchmark, enum gemm_dtype dtype, const struct gemm_shape *shape,
                          struct result *results);

#endif
