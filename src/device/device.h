/* The device seam: where tensors live and element-wise work runs. A driver is one const table (host.c,
   cuda.cu); which drivers were built is known to src/backend/registry.c alone. */
#ifndef TESSERA_DEVICE_DEVICE_H
#define TESSERA_DEVICE_DEVICE_H

#include "kernels/ops.h"
#include "src/base/profile.h"
#include "src/base/status.h"
#include "src/device/dtype.h"

struct device {
    const struct device_driver *driver;
    void *state;             /* the driver's */
    void *ops_context;       /* first argument of every op */
    struct profile *profile; /* gets every lap; set by the owner, NULL: nobody counts */
};

struct device_options {
    int threads; /* of the host, for element-wise work */
    int ordinal; /* which of several GPUs, from 0 */
};

struct device_driver {
    const char *name; /* "host", "cuda" */
    enum gemm_device where;
    bool host_memory; /* its pointers can be read by the host */

    /* What rows should be multiples of in mixed precision: cuBLAS then has faster kernels. */
    size_t row_bytes;
    size_t steps_ahead; /* training steps to issue before the host looks at how they went */

    enum status (*open)(struct device *device, const struct device_options *options);
    void (*close)(struct device *device);

    /* (optional) To be called first by a thread that goes on with a device that another thread opened. One
       thread at a time uses a device; devices that were opened apart may be used at once. */
    void (*adopt)(struct device *device);

    /* (optional) With nothing open: forgets all that the process keeps of the device, so that the next run
       starts as the first did. (On CUDA the nodes of a graph that is not the first of its context take 0.3 us
       longer each.) */
    void (*reset)(void);

    /* 64-byte aligned and zeroed; NULL with a message that has the needed and the available bytes. */
    void *(*alloc)(struct device *device, size_t bytes);
    void (*free)(struct device *device, void *memory); /* NULL: nothing */

    /* Copies return when the host memory may be used again. A driver whose copies cross a bus adds their time
       to PART_H2D and PART_D2H itself; on the host a copy is part of the work that it belongs to. */
    void (*upload)(struct device *device, void *to, const void *from, size_t bytes);
    void (*download)(struct device *device, void *to, const void *from, size_t bytes);
    void (*zero)(struct device *device, void *memory, size_t bytes);
    /* From device memory to device memory. */
    void (*copy)(struct device *device, void *to, const void *from, size_t bytes);

    /* (optional, all or none) Work on a copy stream, which overlaps with the work issued so far. Uploads
       return when `from` may be reused. Ops called between `prefetch_begin` and `prefetch_end` take the
       context that `prefetch_begin` returns. Only `prefetch_commit` reads prefetched memory: it copies it on
       the device to its destination, before any work issued later. The time is hidden and not counted. */
    void (*prefetch_upload)(struct device *device, void *to, const void *from, size_t bytes);
    void *(*prefetch_begin)(struct device *device);
    void (*prefetch_end)(struct device *device);
    void (*prefetch_commit)(struct device *device, void *to, const void *prefetched, size_t bytes);

    /* Waits for everything issued; reports what went wrong since the last time. */
    enum status (*synchronize)(struct device *device);

    const struct ops *(*ops)(struct device *device, enum gemm_dtype dtype);

    /* The work issued since the last lap belongs there. */
    void (*lap)(struct device *device, struct profile_slot slot);

    /* (optional) Changes the host threads for element-wise work. */
    void (*set_threads)(struct device *device, int threads);

    /* (optional) The stream that GEMM backends of this device must use. */
    void *(*stream)(struct device *device);

    /* (optional) Names what is issued until the end, for a profiler's timeline (NVTX). Ranges nest. */
    void (*range_begin)(struct device *device, const char *name);
    void (*range_end)(struct device *device);

    /* (optional) The device in words. */
    void (*describe)(struct device *device, char *text, size_t size);

    /* (optional) The best rate, in flops a second, of a loop of independent multiply-adds in float32 or
       float64, measured now: on all threads that the device has, or on all SMs. On the GPU in float64 it is
       that of the tensor cores where they are faster: they round as the other units do, and libraries use
       them. */
    enum status (*peak)(struct device *device, enum gemm_dtype dtype, double *flops_per_second);

    /* (optional) That rate for about a millisecond, right now: of a device whose clock depends on what it did
       just before. */
    enum status (*peak_now)(struct device *device, enum gemm_dtype dtype, double *flops_per_second);

    /* (optional) Bytes read plus bytes written a second by a copy within the device's memory of what, read
       and written together, is larger than four times the last cache; measured now. */
    enum status (*bandwidth)(struct device *device, double *bytes_per_second);

    /* (optional) The last cache in front of the memory, in bytes; 0 if unknown. */
    size_t (*last_cache)(struct device *device);

    /* (optional) Host memory that this device copies from without staging; zeroed. */
    void *(*alloc_pinned)(struct device *device, size_t bytes);
    void (*free_pinned)(struct device *device, void *memory);

    /* (optional) Calls between begin and end are recorded instead of done; the graph does them all, as often
       as it is replayed. Nothing in between may allocate, copy to the host or synchronise. */
    enum status (*begin_capture)(struct device *device);
    enum status (*end_capture)(struct device *device, void **graph);
    enum status (*replay)(struct device *device, void *graph);
    void (*free_graph)(struct device *device, void *graph);
};

extern const struct device_driver device_host;

/* A lap of anything but a GEMM. */
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
