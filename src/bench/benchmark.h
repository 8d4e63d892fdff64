/* Several GEMMs on one shape: each verified, timed interleaved with the others, verified again. */
#ifndef TESSERA_BENCH_BENCHMARK_H
#define TESSERA_BENCH_BENCHMARK_H

#include "src/base/statistics.h"
#include "src/bench/contestant.h"
#include "src/bench/verdict.h"

/* An opened backend. */
struct candidate {
    struct compute compute;        /* if a contestant runs it: threads, precision and descriptions alone */
    struct gemm_backend backend;   /* then the compute's: name and device */
    struct contestant *contestant; /* NULL: it runs in this process */
    size_t slot;                   /* of the contestant */
    struct config config;          /* that it was opened with */
    char path[512];                /* of a plug-in, or "" */
    char label[256];
    struct rates rates;
    bool supports[DTYPES][3];           /* [dtype][op] */
    double seconds_per_flop[DTYPES][3]; /* of the previous shape: predicts the next; 0: none yet */
};

struct result {
    enum outcome outcome;
    char reason[640];
    /* Only with OUTCOME_RIGHT: */
    struct statistics seconds; /* of a call */
    double flops, bytes;       /* of a call; the bytes of A, B and C once */
    double h2d, d2h;           /* seconds to copy A and B to the GPU and C back; 0 on the host */
    double relative_error;     /* of up to 16 rows of C with signed reals (oracle.h) */
    /* Flop/s of a multiply-add loop; 0: unknown. Measured at the start; on the host, if the backend
       has no threads of its own, the median of measurements between the calls. */
    double peak;
    struct gemm_kernel kernel[SAMPLER_MOST_KERNELS];
    size_t kernels;
    struct counters counters; /* empty unless the benchmark asks for them */
};

/* 0 if the peak is unknown. */
static inline double share_of_peak(const struct result *result) {
    return result->peak > 0 ? result->flops / result->seconds.median / result->peak : 0;
}

struct benchmark {
    struct candidate *candidates;
    size_t count, repeats;
    bool warm;     /* the same operands in each call; else copies that fill twice the last-level cache */
    bool fresh;    /* new operands for each repeat, and a check of each C (sampler.h) */
    bool counters; /* read hardware counters too, after the timing */
    struct counters no_profiler; /* why, since a shape that was measured before */
    double limit_seconds; /* per candidate and shape; 0: none. Left out if the predicted time is longer */
};

/* About how many seconds benchmark_run takes, from the rates of previous shapes. */
double benchmark_predict(const struct benchmark *benchmark, enum gemm_dtype dtype,
                         const struct gemm_shape *shape);

/* Fills results[count]. The operands of all candidates are in memory at the same time. */
enum status benchmark_run(struct benchmark *benchmark, enum gemm_dtype dtype, const struct gemm_shape *shape,
                          struct result *results);

#endif
