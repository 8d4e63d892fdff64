/* k-means on small data with any driver and backend, and a reference in integers. */
#ifndef TESSERA_TESTS_KMEANS_BENCH_H
#define TESSERA_TESTS_KMEANS_BENCH_H

#include "src/cluster/kmeans.h"

/* Points as doubles, of which every value is exact in the dtype. */
struct kmeans_data {
    size_t count, features, clusters;
    enum gemm_dtype dtype;
    bool bytes; /* give them to k-means as pixels */
    /* Not 0: the points stay in host memory, and parts of so many rows are streamed. */
    size_t chunk;
    bool pinned;
    double *values;
};

enum { KMEANS_SHAPES = 12, KMEANS_ITERATIONS = 20 /* of kmeans_defaults */ };

/* Integers from 0 to `most`, so that ties are frequent; plus `offset`. To be freed with kmeans_data_free. */
struct kmeans_data kmeans_lattice(size_t count, size_t features, size_t clusters, enum gemm_dtype dtype,
                                  unsigned most, double offset, uint64_t seed);
/* Lattice data of odd sizes, with ties and offsets: shape 0 .. KMEANS_SHAPES - 1. */
struct kmeans_data kmeans_shape(size_t shape, enum gemm_dtype dtype);
/* Random reals. */
struct kmeans_data kmeans_reals(size_t count, size_t features, size_t clusters, enum gemm_dtype dtype);
void kmeans_data_free(struct kmeans_data *data);

struct kmeans_options kmeans_defaults(const struct kmeans_data *data);

/* Runs k-means on the points with an open compute. */
enum status kmeans_bench_run(struct compute *compute, const struct kmeans_data *data,
                             const struct kmeans_options *options, const struct kmeans_observer *observer,
                             struct kmeans_result *result);

/* Lloyd's algorithm from the first points for `iterations`, with distances in long double, ties to the lowest
   index, empty clusters as they are, and means that are rounded to the dtype once. */
void kmeans_reference(const struct kmeans_data *data, size_t iterations, struct kmeans_result *result);

/* Has the run the labels, counts, centres (bit by bit) and inertia of the reference? If not, `why` says. */
bool kmeans_agrees(const struct kmeans_data *data, const struct kmeans_result *got, size_t iterations,
                   char *why, size_t size);

/* For steps of kernels/kmeans_steps.h. Has each label a centre whose distance, in long double, is the
   smallest but for the roundings of a sum of squares in the dtype? Is each centre the mean of the labels that
   it was computed from, with a relative error of `slack` before it is rounded? If not, `why` says. */
bool kmeans_is_iteration(const struct kmeans_data *data, const struct kmeans_result *got, double slack,
                         char *why, size_t size);

/* Assert that a run succeeds, and that it has the result of the reference after KMEANS_ITERATIONS. */
void kmeans_assert_runs(struct compute *compute, const struct kmeans_data *data,
                        const struct kmeans_options *options, struct kmeans_result *result);
/* The same number of iterations, labels, counts, centres (bit by bit) and inertia. */
void kmeans_assert_same(const struct kmeans_data *data, const struct kmeans_result *got,
                        const struct kmeans_result *want);
void kmeans_assert_agrees(const struct kmeans_data *data, const struct kmeans_result *got);

#endif
