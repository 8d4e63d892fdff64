/* What a CUDA device keeps: its streams, events, and the laps that they time. */
#ifndef TESSERA_DEVICE_CUDA_STATE_CUH
#define TESSERA_DEVICE_CUDA_STATE_CUH

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops/ops.cuh"
extern "C" {
#include "src/device/device.h"
}

enum {
    RING = 2048,         /* the most laps between two synchronisations */
    ASIDES = 256,        /* the most intervals of work aside between them */
    STAGING_BYTES = 4096 /* downloads up to this size use page-locked memory, which halves their time */
};

struct cuda_state {
    int ordinal;
    struct cuda_ops_context ops;
    /* event[0] ends the last counted lap, event[i] ends slot[i - 1]. */
    cudaEvent_t event[RING + 1];
    struct profile_slot slot[RING];
    size_t pending;
    bool capturing;                /* no events inside a graph */
    void *staging;                 /* page-locked, STAGING_BYTES */
    struct cuda_ops_context copy;  /* the copy stream: prefetched uploads and ops */
    struct cuda_ops_context aside; /* ops aside: at the highest priority unless `low` */
    cudaEvent_t begun, ended;      /* the work that ops aside wait for, and they themselves */
    /* Begin and end of each interval of work aside; the last may have no end yet. */
    cudaEvent_t aside_event[2 * ASIDES];
    size_t aside_events;
    bool aside_begun;                     /* .. and not joined */
    bool aside_low;                       /* since the capture began: some at the lowest priority */
    cudaEvent_t prefetched, committed;    /* the last prefetch and the last commit */
    cudaEvent_t uploaded[2], released[2]; /* of each stage */
};

static inline struct cuda_state *state_of(struct device *device) {
    return (struct cuda_state *)device->state;
}

#define TRY(state, call) CUDA_TRY(&(state)->ops.fault, call)

/* cuda_laps.cu: waits for the compute stream and counts what was timed; false after a fault of CUDA, which
   cuda_report puts into the status message. */
bool cuda_wait(struct device *device);
enum status cuda_report(struct cuda_state *state);
void cuda_lap(struct device *device, struct profile_slot slot);
enum status cuda_synchronize(struct device *device);
enum status cuda_check(struct device *device);

/* Slots of device.h that use the other streams (cuda_side_streams.cu). */
void *cuda_prefetch_begin(struct device *device);
void cuda_prefetch_end(struct device *device);
void *cuda_aside_begin(struct device *device);
void *cuda_aside_begin_low(struct device *device);
void cuda_aside_join(struct device *device);
void *cuda_aside_stream(struct device *device);
void cuda_prefetch_upload(struct device *device, void *to, const void *from, size_t bytes);
void cuda_prefetch_commit(struct device *device, void *to, const void *prefetched, size_t bytes);
void cuda_stage_upload(struct device *device, unsigned stage, void *to, const void *from, size_t bytes);
void cuda_stage_acquire(struct device *device, unsigned stage);
void cuda_stage_release(struct device *device, unsigned stage);
void cuda_stage_wait(struct device *device, unsigned stage);

#endif
