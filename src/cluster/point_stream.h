/* Points in host memory, for data that is larger than the memory of the device. A pass uploads them a chunk
   at a time into two buffers, so that the copy of a chunk overlaps with the work on the one before. */
#ifndef TESSERA_CLUSTER_POINT_STREAM_H
#define TESSERA_CLUSTER_POINT_STREAM_H

#include "src/cluster/points.h"

/* How points that stay in host memory are uploaded. */
struct point_place {
    bool pinned;  /* the points are page-locked: the copy stream reads them itself */
    int threads;  /* of the host, that copy to the page-locked buffers otherwise */
    size_t chunk; /* rows of a buffer, rounded up to a multiple of NEAREST_BLOCK; 0: 32 MiB */
};

struct point_stream {
    struct point_place place;
    void *owned;       /* the points, freed with the stream; NULL: they belong to another owner */
    void *buffer[2];   /* device: a chunk of rows each */
    void *staging[2];  /* page-locked host memory, the same size */
    uint64_t uploaded; /* bytes, of all passes so far */
    bool repeats;      /* between point_stream_begin and point_stream_end */
    /* The first chunks of the next pass, uploaded at the end of the last one: how many, and of which rows. */
    size_t ahead, ahead_count;
    const void *ahead_of;
};

/* Can the device stream points? */
bool point_stream_usable(const struct device *device);

/* Host memory for points, page-locked if `pinned`; NULL, with a message, if there is too little. */
void *point_stream_alloc(struct device *device, bool pinned, size_t bytes);
void point_stream_release(struct device *device, bool pinned, void *memory);

/* Opens points in host memory, `count` x `features` of uint8_t (`bytes`) or of the dtype, and computes their
   norms. With `owned` the memory is from point_stream_alloc and belongs to the points from now on, also after
   a failure. Otherwise it must outlive them, and with `pinned` the points are copied. STATUS_BAD_DATA names
   the first row with a value that is not finite. Call points_free also after a failure. */
enum status points_on_host(struct points *points, struct device *device, enum gemm_dtype dtype, size_t count,
                           size_t features, bool bytes, void *memory, bool owned,
                           const struct point_place *place);

/* From begin to end, many passes over these points alone follow one another: each ends with the upload of
   the first chunks of the next. Makes the buffers larger if their rows are no multiple of `multiple`, which
   is one of NEAREST_BLOCK. */
enum status point_stream_begin(const struct points *points, struct device *device, size_t multiple);
void point_stream_end(const struct points *points, struct device *device);

/* Of the points that are streamed, for points.c. */
void point_stream_close(struct points *points, struct device *device);
enum status point_stream_pass(const struct points *points, struct device *device,
                              const struct points_visitor *visitor);
struct points point_stream_rows(const struct points *points, struct device *device, size_t first,
                                size_t count, void *buffer);
void point_stream_gather(const struct points *points, struct device *device, const uint32_t *index,
                         size_t count, void *values);

#endif
