/* Times of an earlier `bench gemm`, to find what has become slower. */
#ifndef TESSERA_BENCH_BASELINE_H
#define TESSERA_BENCH_BASELINE_H

#include "src/bench/contest.h"

struct baseline_entry {
    char label[128];
    enum gemm_dtype dtype;
    struct gemm_shape shape;
    double seconds; /* median */
};

struct baseline {
    struct baseline_entry *entries;
    size_t count;
};

/* The verified "gemm" lines of a log. STATUS_BAD_DATA if there are none. */
enum status baseline_read(struct baseline *baseline, const char *path);
void baseline_close(struct baseline *baseline);

/* The time of the same label, dtype, op and shape; 0 if it has none. */
double baseline_seconds(const struct baseline *baseline, const char *label, enum gemm_dtype dtype,
                        const struct gemm_shape *shape);

/* Their backends, comma-separated, for --backends; cut off at `size`. */
void baseline_backends(const struct baseline *baseline, char *list, size_t size);

#endif
