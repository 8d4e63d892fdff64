/* Times of an earlier `bench gemm`, to detect slowdowns. */
#ifndef TESSERA_BENCH_BASELINE_H
#define TESSERA_BENCH_BASELINE_H

#include "src/bench/benchmark.h"

struct baseline_entry {
    char backend[256], path[512]; /* the path of a plug-in, else "" */
    char precision[16], gpu[256];
    int threads; /* of the host; 1 on a GPU */
    enum gemm_dtype dtype;
    struct gemm_shape shape;
    double seconds; /* median */
};

struct baseline {
    struct baseline_entry *entries;
    size_t count;
    bool warm; /* operands, as in struct benchmark */
};

/* The verified "gemm" lines of a log. STATUS_BAD_DATA if there are none. */
enum status baseline_read(struct baseline *baseline, const char *path);
void baseline_close(struct baseline *baseline);

/* The time of the same backend, threads, precision, GPU, dtype, op and shape; 0: none. */
double baseline_seconds(const struct baseline *baseline, const struct candidate *candidate,
                        enum gemm_dtype dtype, const struct gemm_shape *shape);

/* Comma-separated values for --backends (paths of plug-ins) and --threads; truncated at `size`. */
void baseline_backends(const struct baseline *baseline, char *list, size_t size);
void baseline_threads(const struct baseline *baseline, char *list, size_t size);

#endif
