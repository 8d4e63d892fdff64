/* The device seam: where tensors live and element-wise ops run. A driver is one const table (host.c,
   cuda.cu); only src/backend/registry.c knows which drivers were built. */
#ifndef TESSERA_DEVICE_DEVICE_H
#define TESSERA_DEVICE_DEVICE_H

#include "kernels/kmeans_steps.h"
#include "kernels/nearest.h"
#include "kernels/ops.h"
#include "kernels/qr.h"
#include "src/base/profile.h"
#include "src/base/status.h"
#include "src/device/dtype.h"

struct device {
    const struct device_driver *driver;
    void *state;             /* the driver's */
    void *ops_context;       /* first argument of every op */
    struct profile *profile; /* receives every lap; the owner sets it; NULL: no timing */
};

struct device_options {
    int threads; /* of the host, for element-wise work */
    int ordinal; /* which of several GPUs, from 0 */
};

struct device_driver {
    const char *name; /* "host", "cuda" */
    enum gemm_device where;
    bool host_memory; /* the host can read its pointers */

    size_t row_alignment; /* elements; kernels of tf32, bf16 and fp16 are faster on multiples of it */
    size_t steps_ahead;   /* training steps to issue before the host reads their losses */

    /* (optional) Usable on this machine now? If not, writes the reason (a phrase) to `why`. */
    bool (*probe)(char *why, size_t size);

    enum status (*open)(struct device *device, const struct device_options *options);
    void (*close)(struct device *device);

    /* (optional) Must be the first call of a thread that uses a device opened by another thread. A device is
       used by one thread at a time; different devices may be used concurrently. */
    void (*make_current)(struct device *device);

    /* (optional) Resets the device for this process; call it while no device is open. The next run then has
       the speed of the first: in a used CUDA context each node of a new graph takes 0.3 us longer. */
    void (*reset)(void);

    /* 64-byte aligned and zeroed. NULL if out of memory; the message has the needed and the free bytes. */
    void *(*alloc)(struct device *device, size_t bytes);
    void (*free)(struct device *device, void *memory); /* NULL is allowed */

    /* Uploads and downloads return when the host memory may be reused. The CUDA driver counts them as
       PART_H2D and PART_D2H; on the host the next lap includes them. */
    void (*upload)(struct device *device, void *to, const void *from, size_t bytes);
    void (*download)(struct device *device, void *to, const void *from, size_t bytes);
    void (*zero)(struct device *device, void *memory, size_t bytes);
    /* Device to device. */
    void (*copy)(struct device *device, void *to, const void *from, size_t bytes);

    /* (optional, all or none) Work on a copy stream, which overlaps with the work issued so far and is not
       timed. Uploads return when `from` may be reused. Ops called between `prefetch_begin` and `prefetch_end`
       take the context that `prefetch_begin` returns. Only `prefetch_commit` may read prefetched memory: it
       copies it to its destination on the device, before any work issued later. */
    void (*prefetch_upload)(struct device *device, void *to, const void *from, size_t bytes);
    void *(*prefetch_begin)(struct device *device);
    void (*prefetch_end)(struct device *device);
    void (*prefetch_commit)(struct device *device, void *to, const void *prefetched, size_t bytes);

    /* (optional, all or none) Ops aside: those called with the context that `aside_begin` returns start after
       the work issued so far, and overlap with what is issued until `aside_join`, after which later work
       waits for them. Their time is that of the profile's `aside`; they may not share memory with that work.
       Several calls of `aside_begin` may come before one of `aside_join`. `aside_stream` is the stream of
       that context. */
    void *(*aside_begin)(struct device *device);
    void *(*aside_begin_low)(struct device *device); /* the same, at the lowest priority, in captures */
    void (*aside_join)(struct device *device);
    void *(*aside_stream)(struct device *device);

    /* (optional, all or none) Two stages, 0 and 1, of a double buffer on the copy stream, for data that is
       larger than the device. An upload of page-locked memory starts after the work issued before the last
       `stage_release` of its stage, and overlaps with all other work; work issued after `stage_acquire` waits
       for it. `stage_wait` returns when the last upload of the stage is complete: `from` may be reused. */
    void (*stage_upload)(struct device *device, unsigned stage, void *to, const void *from, size_t bytes);
    void (*stage_acquire)(struct device *device, unsigned stage);
    void (*stage_release)(struct device *device, unsigned stage);
    void (*stage_wait)(struct device *device, unsigned stage);

    /* Waits for all issued work; reports the errors since the last call. */
    enum status (*synchronize)(struct device *device);
    /* The same without waiting: the caller has waited, for example by a download. */
    enum status (*check)(struct device *device);

    const struct ops *(*ops)(struct device *device, enum gemm_dtype dtype);

    /* Attributes the work issued since the last lap to `slot`. */
    void (*lap)(struct device *device, struct profile_slot slot);

    /* (optional) Changes the host threads for element-wise work. */
    void (*set_threads)(struct device *device, int threads);

    /* (optional) The stream that GEMM backends of this device must use. */
    void *(*stream)(struct device *device);

    /* (optional) Names the work between begin and end in a profiler's timeline (NVTX). Ranges nest. */
    void (*range_begin)(struct device *device, const char *name);
    void (*range_end)(struct device *device);

    /* (optional) The name and size of the device. */
    void (*describe)(struct device *device, char *text, size_t size);

    /* (optional) A name of the physical device, the same in all processes of this host. */
    void (*identify)(struct device *device, char *text, size_t size);

    /* (optional) How many of these devices this process can see. */
    int (*count)(void);

    /* (optional) Before any other call: what this process will use, so that no more is started. `networks`
       will train at the same time; `ordinal` is the only device, -1 if there may be others. */
    void (*expect)(size_t networks, int ordinal);

    /* (optional) Measures the peak rate, in flops a second, of independent multiply-adds in float32 or
       float64, on all threads or SMs. On the GPU the float64 peak is that of the FP64 units or of the tensor
       cores, whichever is higher; both round the same way. */
    enum status (*peak)(struct device *device, enum gemm_dtype dtype, double *flops_per_second);

    /* (optional) The same within a millisecond, for devices whose clock depends on the preceding load. */
    enum status (*peak_now)(struct device *device, enum gemm_dtype dtype, double *flops_per_second);

    /* (optional) Measures bytes read plus bytes written a second, by a copy that moves more than four times
       the last-level cache. */
    enum status (*bandwidth)(struct device *device, double *bytes_per_second);

    /* (optional) Bytes of the last-level cache; 0 if unknown. */
    size_t (*last_cache)(struct device *device);

    /* (optional) Zeroed page-locked host memory. */
    void *(*alloc_pinned)(struct device *device, size_t bytes);
    void (*free_pinned)(struct device *device, void *memory);

    /* (optional) Calls between begin and end are recorded instead of executed; each replay of the graph
       executes them all. They may not allocate, copy to the host or synchronise. */
    enum status (*begin_capture)(struct device *device);
    enum status (*end_capture)(struct device *device, void **graph);
    enum status (*replay)(struct device *device, void *graph);
    void (*free_graph)(struct device *device, void *graph);

    /* The operations of k-means for f32 or f64. */
    const struct cluster_ops *(*cluster_ops)(struct device *device, enum gemm_dtype dtype);

    /* (optional) The operations of QR for f32 or f64. */
    const struct qr_ops *(*qr_ops)(struct device *device, enum gemm_dtype dtype);

    /* (optional) The kernels of --step. Their context is ops_context. */
    const struct kmeans_steps *kmeans_steps;
};

extern const struct device_driver device_host;

/* A lap of a part that is not a GEMM. */
static inline void device_lap(struct device *device, enum profile_part part) {
    const struct profile_slot slot = {part, 0, 0};
    device->driver->lap(device, slot);
}

static inline void device_range_begin(struct device *device, const char *name) {
    if (device->driver->range_begin) device->driver->range_begin(device, name);
}

static inline void device_range_end(struct device *device) {
    if (device->driver->range_end) device->driver->range_end(device);
}

#endif
