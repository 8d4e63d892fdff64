/* A CUDA device: memory, its compute stream, events that time each op, the ops of kernels/cuda/ops/ops.cu,
   those of k-means and QR, captured graphs. Its other streams are in cuda_side_streams.cu,
   its clock in cuda_laps.cu. */
#include <glob.h>
#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>

#include "kernels/cuda/cluster/cluster.cuh"
#include "kernels/cuda/gemm/peak.cuh"
#include "kernels/cuda/qr/qr.cuh"
#include "src/device/cuda_state.cuh"
extern "C" {
#include "src/base/text.h"
}

/* --- open and close --- */

static void cuda_close(struct device *device) {
    struct cuda_state *state = state_of(device);
    if (!state) return;
    reduction_close(&state->ops.reduction);
    reduction_close(&state->aside.reduction);
    cudaFree(state->ops.scratch);
    for (size_t i = 0; i <= RING; i++)
        if (state->event[i]) cudaEventDestroy(state->event[i]);
    if (state->prefetched) cudaEventDestroy(state->prefetched);
    if (state->committed) cudaEventDestroy(state->committed);
    for (int i = 0; i < 2; i++) {
        if (state->uploaded[i]) cudaEventDestroy(state->uploaded[i]);
        if (state->released[i]) cudaEventDestroy(state->released[i]);
    }
    for (size_t i = 0; i < 2 * ASIDES; i++)
        if (state->aside_event[i]) cudaEventDestroy(state->aside_event[i]);
    if (state->begun) cudaEventDestroy(state->begun);
    if (state->ended) cudaEventDestroy(state->ended);
    cudaFree(state->aside.scratch);
    if (state->aside.stream) cudaStreamDestroy(state->aside.stream);
    if (state->copy.stream) cudaStreamDestroy(state->copy.stream);
    if (state->ops.stream) cudaStreamDestroy(state->ops.stream);
    cudaFreeHost(state->staging);
    free(state);
    device->state = NULL;
}

/* Priority 0, the default, is the lowest. The compute stream and the copy stream have a middle one, so that
   work beside large products can have a lower one (aside_begin_low in device.h). */
static bool open_streams(struct cuda_state *state) {
    int lowest = 0, highest = 0;
    const auto open = [&](struct cuda_ops_context *context, int priority) {
        return TRY(state, cudaStreamCreateWithPriority(&context->stream, cudaStreamNonBlocking, priority));
    };
    return TRY(state, cudaDeviceGetStreamPriorityRange(&lowest, &highest)) &&
           open(&state->ops, (lowest + highest) / 2) && open(&state->copy, (lowest + highest) / 2) &&
           open(&state->aside, highest);
}

static bool open_all(struct cuda_state *state) {
    if (!TRY(state, cudaSetDevice(state->ordinal)) || !open_streams(state) ||
        !TRY(state, cudaEventCreateWithFlags(&state->begun, cudaEventDisableTiming)) ||
        !TRY(state, cudaEventCreateWithFlags(&state->ended, cudaEventDisableTiming)) ||
        !TRY(state, cudaEventCreateWithFlags(&state->prefetched, cudaEventDisableTiming)) ||
        !TRY(state, cudaEventCreateWithFlags(&state->committed, cudaEventDisableTiming)) ||
        !TRY(state, cudaHostAlloc(&state->staging, STAGING_BYTES, cudaHostAllocDefault)))
        return false;
    for (size_t i = 0; i <= RING; i++)
        if (!TRY(state, cudaEventCreate(&state->event[i]))) return false;
    for (size_t i = 0; i < 2 * ASIDES; i++)
        if (!TRY(state, cudaEventCreate(&state->aside_event[i]))) return false;
    for (int i = 0; i < 2; i++)
        if (!TRY(state, cudaEventCreateWithFlags(&state->uploaded[i], cudaEventDisableTiming)) ||
            !TRY(state, cudaEventCreateWithFlags(&state->released[i], cudaEventDisableTiming)))
            return false;
    return reduction_open(&state->ops.reduction, &state->ops.fault) &&
           reduction_open(&state->aside.reduction, &state->aside.fault) &&
           TRY(state, cudaEventRecord(state->event[0], state->ops.stream)) &&
           TRY(state, cudaDeviceSynchronize());
}

static const char VISIBLE[] = "CUDA_VISIBLE_DEVICES";
static int first_visible; /* the GPUs before it are hidden from CUDA */

/* Networks that train concurrently have three streams each. Streams that share a hardware queue serialise,
   and CUDA creates 8 queues unless this variable is set before its first call; 32 take 0.7 s more to start
   and end on an H100. Of several GPUs CUDA starts each that is visible, in 0.25 s. */
static void cuda_expect(size_t networks, int ordinal) {
    glob_t gpus = {};
    char text[16];
    if (networks > 1) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    glob("/dev/nvidia[0-9]*", 0, NULL, &gpus);
    if (ordinal >= 0 && ordinal < (int)gpus.gl_pathc && gpus.gl_pathc > 1 && !getenv(VISIBLE)) {
        snprintf(text, sizeof text, "%d", ordinal);
        setenv(VISIBLE, text, 1);
        first_visible = ordinal;
    }
    globfree(&gpus);
}

static enum status cuda_open(struct device *device, const struct device_options *options) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        status_write("no CUDA device: %s",
                     error == cudaSuccess ? "none is visible" : cudaGetErrorString(error));
        return STATUS_UNAVAILABLE;
    }
    if (options->ordinal < first_visible || options->ordinal - first_visible >= count) {
        status_write("--device %d: there %s %d CUDA device%s, numbered from 0", options->ordinal,
                     count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
        return STATUS_UNAVAILABLE;
    }
    struct cuda_state *state = (struct cuda_state *)calloc(1, sizeof *state);
    if (!state) {
        status_write("out of memory");
        return STATUS_FAILED;
    }
    state->ordinal = options->ordinal - first_visible;
    device->state = state;
    device->ops_context = &state->ops;
    if (open_all(state)) return STATUS_OK;
    const enum status status = cuda_report(state);
    cuda_close(device);
    return status;
}

static void cuda_make_current(struct device *device) {
    TRY(state_of(device), cudaSetDevice(state_of(device)->ordinal));
}

static void cuda_reset(void) {
    cudaDeviceReset();
}

static void cuda_describe(struct device *device, char *text, size_t size) {
    struct cudaDeviceProp properties;
    if (!TRY(state_of(device), cudaGetDeviceProperties(&properties, state_of(device)->ordinal))) return;
    snprintf(text, size, "%s, %d SMs, compute capability %d.%d, %s", properties.name,
             properties.multiProcessorCount, properties.major, properties.minor,
             text_bytes((double)properties.totalGlobalMem).text);
}

static void cuda_identify(struct device *device, char *text, size_t size) {
    struct cuda_state *state = state_of(device);
    if (!TRY(state, cudaDeviceGetPCIBusId(text, (int)size, state->ordinal))) text[0] = '\0';
}

static int cuda_count(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError(); /* clears the error */
    return 0;
}

static enum status cuda_best_rate(struct device *device, enum gemm_dtype dtype, double *flops_per_second) {
    struct cuda_state *state = state_of(device);
    if (gemm_is_16bit(dtype)) return status_set(STATUS_UNAVAILABLE, "no peak is measured for 16 bits");
    return cuda_peak(state->ops.stream, &state->ops.fault, dtype, flops_per_second) ? STATUS_OK
                                                                                    : cuda_report(state);
}

static size_t cuda_last_cache(struct device *device) {
    int bytes = 0;
    TRY(state_of(device), cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, state_of(device)->ordinal));
    return (size_t)bytes;
}

static enum status cuda_bandwidth(struct device *device, double *bytes_per_second) {
    struct cuda_state *state = state_of(device);
    return cuda_copy_rate(state->ops.stream, &state->ops.fault, bytes_per_second) ? STATUS_OK
                                                                                  : cuda_report(state);
}

/* --- memory --- */

static void *cuda_alloc(struct device *device, size_t bytes) {
    struct cuda_state *state = state_of(device);
    void *memory = NULL;
    const cudaError_t error = cudaMalloc(&memory, bytes ? bytes : 1);
    if (error == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, total = 0;
        cudaGetLastError(); /* clears the error */
        cudaMemGetInfo(&free_bytes, &total);
        status_write("out of GPU memory: %s (%zu bytes) needed, %s (%zu bytes) free",
                     text_bytes((double)bytes).text, bytes, text_bytes((double)free_bytes).text, free_bytes);
        return NULL;
    }
    if (!TRY(state, error) || !TRY(state, cudaMemsetAsync(memory, 0, bytes, state->ops.stream)) ||
        !TRY(state, cudaStreamSynchronize(state->ops.stream))) {
        cuda_report(state);
        return NULL;
    }
    return memory;
}

static void cuda_free(struct device *device, void *memory) {
    if (memory) TRY(state_of(device), cudaFree(memory));
}

static void copy(struct device *device, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    struct cuda_state *state = state_of(device);
    if (!bytes) return;
    device_lap(device, PART_OTHER); /* idle time before the copy is not part of it */
    TRY(state, cudaMemcpyAsync(to, from, bytes, kind, state->ops.stream));
    device_lap(device, kind == cudaMemcpyHostToDevice ? PART_H2D : PART_D2H);
}

static void cuda_upload(struct device *device, void *to, const void *from, size_t bytes) {
    copy(device, to, from, bytes, cudaMemcpyHostToDevice);
    TRY(state_of(device), cudaStreamSynchronize(state_of(device)->ops.stream)); /* `from` may be reused */
}

static void cuda_download(struct device *device, void *to, const void *from, size_t bytes) {
    const struct cuda_state *state = state_of(device);
    copy(device, bytes <= STAGING_BYTES ? state->staging : to, from, bytes, cudaMemcpyDeviceToHost);
    if (cuda_wait(device) && bytes <= STAGING_BYTES) memcpy(to, state->staging, bytes);
}

static void cuda_zero(struct device *device, void *memory, size_t bytes) {
    struct cuda_state *state = state_of(device);
    if (bytes) TRY(state, cudaMemsetAsync(memory, 0, bytes, state->ops.stream));
}

static void cuda_copy(struct device *device, void *to, const void *from, size_t bytes) {
    struct cuda_state *state = state_of(device);
    if (bytes) TRY(state, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, state->ops.stream));
}

/* The pinned host device of src/backend/offload.c uses these: `device` may be of another driver. */
static void *cuda_alloc_pinned(struct device *device, size_t bytes) {
    void *memory = NULL;
    (void)device;
    const cudaError_t error = cudaHostAlloc(&memory, bytes ? bytes : 1, cudaHostAllocDefault);
    if (error != cudaSuccess) {
        cudaGetLastError();
        status_write("no page-locked memory: %s needed: %s", text_bytes((double)bytes).text,
                     cudaGetErrorString(error));
        return NULL;
    }
    memset(memory, 0, bytes);
    return memory;
}

static void cuda_free_pinned(struct device *device, void *memory) {
    (void)device;
    if (memory) cudaFreeHost(memory);
}

/* --- ops and graphs --- */

extern "C" const struct kmeans_steps kmeans_steps_cuda; /* kernels/cuda/kmeans_steps/steps.cu */

static const struct ops *cuda_table(struct device *device, enum gemm_dtype dtype) {
    (void)device;
    return cuda_ops(dtype);
}

static const struct cluster_ops *cuda_cluster_table(struct device *device, enum gemm_dtype dtype) {
    (void)device;
    return cuda_cluster_ops(dtype);
}

static const struct qr_ops *cuda_qr_table(struct device *device, enum gemm_dtype dtype) {
    return cuda_qr_ops(&state_of(device)->ops, dtype);
}

static void cuda_range_begin(struct device *device, const char *name) {
    (void)device;
    nvtxRangePushA(name);
}

static void cuda_range_end(struct device *device) {
    (void)device;
    nvtxRangePop();
}

static void *cuda_stream(struct device *device) {
    return state_of(device)->ops.stream;
}

static enum status cuda_begin_capture(struct device *device) {
    struct cuda_state *state = state_of(device);
    cuda_wait(device);
    state->aside_low = false;
    state->capturing =
        TRY(state, cudaStreamBeginCapture(state->ops.stream, cudaStreamCaptureModeThreadLocal));
    return cuda_report(state);
}

static enum status cuda_end_capture(struct device *device, void **graph) {
    struct cuda_state *state = state_of(device);
    cudaGraph_t captured = NULL;
    cudaGraphExec_t executable = NULL;
    const bool ended = TRY(state, cudaStreamEndCapture(state->ops.stream, &captured));
    state->capturing = false;
    const unsigned priorities = state->aside_low ? cudaGraphInstantiateFlagUseNodePriority : 0;
    const bool made = ended && TRY(state, cudaGraphInstantiate(&executable, captured, priorities)) &&
                      TRY(state, cudaGraphUpload(executable, state->ops.stream)) &&
                      TRY(state, cudaStreamSynchronize(state->ops.stream));
    if (captured) cudaGraphDestroy(captured);
    *graph = made ? executable : NULL;
    return cuda_report(state);
}

static enum status cuda_replay(struct device *device, void *graph) {
    struct cuda_state *state = state_of(device);
    TRY(state, cudaGraphLaunch((cudaGraphExec_t)graph, state->ops.stream));
    return cuda_report(state);
}

static void cuda_free_graph(struct device *device, void *graph) {
    if (graph) TRY(state_of(device), cudaGraphExecDestroy((cudaGraphExec_t)graph));
}

extern "C" const struct device_driver device_cuda = {
    .name = "cuda",
    .where = GEMM_ON_CUDA,
    .host_memory = false,
    .row_alignment = 8, /* 16 bytes of 16 bits, for tensor maps; of float32, 32: a sector of the L2 cache */
    .steps_ahead = 64,
    .probe = cuda_probe,
    .open = cuda_open,
    .close = cuda_close,
    .make_current = cuda_make_current,
    .reset = cuda_reset,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .zero = cuda_zero,
    .copy = cuda_copy,
    .prefetch_upload = cuda_prefetch_upload,
    .prefetch_begin = cuda_prefetch_begin,
    .prefetch_end = cuda_prefetch_end,
    .prefetch_commit = cuda_prefetch_commit,
    .aside_begin = cuda_aside_begin,
    .aside_begin_low = cuda_aside_begin_low,
    .aside_join = cuda_aside_join,
    .aside_stream = cuda_aside_stream,
    .stage_upload = cuda_stage_upload,
    .stage_acquire = cuda_stage_acquire,
    .stage_release = cuda_stage_release,
    .stage_wait = cuda_stage_wait,
    .synchronize = cuda_synchronize,
    .check = cuda_check,
    .ops = cuda_table,
    .lap = cuda_lap,
    .stream = cuda_stream,
    .range_begin = cuda_range_begin,
    .range_end = cuda_range_end,
    .describe = cuda_describe,
    .identify = cuda_identify,
    .count = cuda_count,
    .expect = cuda_expect,
    .peak = cuda_best_rate,
    .bandwidth = cuda_bandwidth,
    .last_cache = cuda_last_cache,
    .alloc_pinned = cuda_alloc_pinned,
    .free_pinned = cuda_free_pinned,
    .begin_capture = cuda_begin_capture,
    .end_capture = cuda_end_capture,
    .replay = cuda_replay,
    .free_graph = cuda_free_graph,
    .cluster_ops = cuda_cluster_table,
    .qr_ops = cuda_qr_table,
    .kmeans_steps = &kmeans_steps_cuda,
};
