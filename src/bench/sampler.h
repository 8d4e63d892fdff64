/* One GEMM on one shape, verified and timed sample by sample, in the process that runs it. */
#ifndef TESSERA_BENCH_SAMPLER_H
#define TESSERA_BENCH_SAMPLER_H

#include "src/backend/core_use.h"
#include "src/bench/counters.h"

enum { SAMPLER_MOST_KERNELS = 4 };

struct sampler_plan {
    enum gemm_dtype dtype;
    struct gemm_shape shape;
    bool warm;            /* the same operands in each call */
    bool fresh;           /* new operands for each sample, and a check of each C that is in memory after it */
    size_t calls;         /* at least so many are expected */
    double limit_seconds; /* of these calls; 0: none */
    double seconds_per_flop; /* of the previous shape; 0: a small product is timed if there is a limit */
};

/* What is known after the last sample. */
struct sampler_facts {
    double flops, bytes;   /* of a call; the bytes of A, B and C once */
    double h2d, d2h;       /* seconds to copy A and B to the GPU and C back; 0 on the host */
    double relative_error; /* of C with signed reals, of up to 16 rows: oracle_relative_error */
    struct gemm_kernel kernel[SAMPLER_MOST_KERNELS];
    size_t kernels;
};

struct sampler {
    struct problem problem;
    struct core_use cores; /* of all samples */
    size_t calls;          /* of a sample */
    bool has_peak;         /* the measured peak applies to its arithmetic */
    bool fresh;
    bool peak_next; /* a sample measures the peak too */
};

/* Verifies on the shape and warms up. STATUS_UNAVAILABLE if the backend does not support it or if it would
   exceed the limit. */
enum status sampler_open(struct sampler *sampler, struct compute *compute, const struct sampler_plan *plan);
void sampler_close(struct sampler *sampler);

/* Mean seconds of a call; then the peak rate at the same clock frequency, or *peak stays as it is. */
enum status sampler_take(struct sampler *sampler, double *seconds, double *peak);

/* The hardware counters of the CPU, during the calls of a sample. */
enum status sampler_count(struct sampler *sampler, struct counters *counters);

/* Verifies again, and that the samples used no more cores than the backend has threads. */
enum status sampler_finish(struct sampler *sampler, struct sampler_facts *facts);

#endif
