/* The points that are clustered, in device memory or streamed from host memory. */
#ifndef TESSERA_CLUSTER_POINTS_H
#define TESSERA_CLUSTER_POINTS_H

#include "src/backend/compute.h"
#include "src/nn/config.h"
#include "src/nn/safetensors.h"

struct point_stream;

/* Exactly one of `bytes` and `values` is set, if count is not 0. */
struct points {
    enum gemm_dtype dtype; /* of the arithmetic, and of `values` */
    size_t count, features;
    uint8_t *bytes;       /* [count][features]: pixels */
    void *values;         /* [count][features] */
    double *norm;         /* [count / NEAREST_BLOCK, rounded up]: see struct nearest_call */
    const uint8_t *label; /* host, [count]: the classes, to judge clusters by; NULL: none. Not owned */
    /* NULL: `bytes` and `values` are device memory. Otherwise they are host memory, and points_pass uploads
       them (src/cluster/point_stream.h). */
    struct point_stream *stream;
};

/* Receives the points of a pass: all of them, or in their order parts in device memory, whose memory is
   overwritten after the work issued by `visit`. `first` is the number of the first row, a multiple of
   NEAREST_BLOCK. */
struct points_visitor {
    void *self;
    enum status (*visit)(void *self, const struct points *part, size_t first);
};

/* The parts of a data set. */
struct point_sets {
    struct points train, validation, test; /* count 0: there is none */
    struct dataset_pair images;            /* owns the classes; empty if the points are no images */
    struct safetensors file;               /* owns streamed points of a file */
    double scale;                          /* results are in units of scale x: 1/255 for pixels, else 1 */
    char name[512];
};

/* Loads config->data: images (dataset_load), whose last config->validation training images are a part of
   their own; "uniform:SIZE,D", that many bytes (64MB, 1GB) of random points in [0, 1]^D of the dtype, the
   same for every number of threads; or FILE.safetensors with the tensor `points` [count, features] of the
   dtype. With residency = host the points stay in host memory, if the device can stream them. STATUS_USAGE or
   STATUS_BAD_DATA says what is wrong. Call points_close also after a failure. */
enum status points_load(struct point_sets *sets, struct device *device, const struct config *config);
void points_close(struct point_sets *sets, struct device *device);

/* Is this name of a data set none of images? */
bool points_are_values(const char *data);

/* Points from host memory, which is copied: pixels, or values of the dtype. STATUS_BAD_DATA names the first
   row with a value that is not finite. */
enum status points_from_bytes(struct points *points, struct device *device, enum gemm_dtype dtype,
                              size_t count, size_t features, const uint8_t *bytes);
enum status points_from_values(struct points *points, struct device *device, enum gemm_dtype dtype,
                               size_t count, size_t features, const void *values);
void points_free(struct points *points, struct device *device);

/* Allocates the norms of points without data; checks that the values are finite, in host memory. For
   point_stream.c. */
enum status points_open(struct points *points, struct device *device, enum gemm_dtype dtype, size_t count,
                        size_t features);
enum status points_check(const struct points *points);

/* "device", "host (pinned)", "host (pageable)". */
const char *points_residency(const struct points *points);

/* Visits all points, until a visit fails. */
enum status points_pass(const struct points *points, struct device *device,
                        const struct points_visitor *visitor);

/* Rows first .. first + count - 1 as values, in `buffer` (device, [count][features]) or in the points' own
   memory. If the points are streamed, `count` is at most NEAREST_BLOCK. */
const void *points_rows(const struct points *points, struct device *device, size_t first, size_t count,
                        void *buffer);

/* One row, in `buffer` (device) if the points are streamed. */
struct points points_row(const struct points *points, struct device *device, size_t row, void *buffer);

/* values (device, [count][features]) = the rows index[0] .. index[count - 1] (host memory). `scratch` is
   device memory for the index. */
void points_gather(const struct points *points, struct device *device, const uint32_t *index, size_t count,
                   uint32_t *scratch, void *values);

/* Computes points->norm. */
enum status points_update_norms(struct points *points, struct device *device);

/* Rows that one pass converts and multiplies together, a multiple of NEAREST_BLOCK: the values, and their
   scores for `clusters` centres, then stay in the L2 caches, of `threads` cores or of a GPU. */
size_t points_chunk(struct device *device, size_t features, size_t clusters, enum gemm_dtype dtype,
                    int threads);

#endif
