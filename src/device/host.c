/* The host as a device: memory, timing and the ops of kernels/host/ops. Every call is synchronous. */
#include <stdlib.h>
#include <string.h>

#include "kernels/host/gemm/peak.h"
#include "kernels/host/ops/cluster.h"
#include "kernels/host/ops/ops.h"
#include "kernels/host/ops/qr.h"
#include "src/base/pages.h"
#include "src/base/platform.h"
#include "src/base/text.h"
#include "src/device/device.h"

static const size_t UNKNOWN_CACHE_BUFFER = (size_t)256 << 20; /* for the bandwidth, if the cache is unknown */

static void host_set_threads(struct device *device, int threads) {
    struct host_ops_context *context = device->state;
    context->threads = threads;
}

static enum status host_open(struct device *device, const struct device_options *options) {
    struct host_ops_context *context = malloc(sizeof *context);
    if (!context) return status_set(STATUS_FAILED, "out of memory");
    device->state = context;
    device->ops_context = context;
    host_set_threads(device, options->threads);
    return STATUS_OK;
}

static void host_close(struct device *device) {
    free(device->state);
    device->state = device->ops_context = NULL;
}

static void *host_alloc(struct device *device, size_t bytes) {
    (void)device;
    void *memory = pages_alloc(bytes);
    if (memory) memset(memory, 0, bytes); /* the first touch of every page */
    return memory;
}

static void host_free(struct device *device, void *memory) {
    (void)device;
    free(memory);
}

static void host_copy(struct device *device, void *to, const void *from, size_t bytes) {
    (void)device;
    if (bytes) memcpy(to, from, bytes);
}

static void host_zero(struct device *device, void *memory, size_t bytes) {
    (void)device;
    if (bytes) memset(memory, 0, bytes);
}

static enum status host_synchronize(struct device *device) { /* and check */
    (void)device;
    return STATUS_OK;
}

static const struct ops *host_table(struct device *device, enum gemm_dtype dtype) {
    (void)device;
    return host_ops(dtype);
}

static const struct cluster_ops *host_cluster_table(struct device *device, enum gemm_dtype dtype) {
    (void)device;
    return host_cluster_ops(dtype);
}

static const struct qr_ops *host_qr_table(struct device *device, enum gemm_dtype dtype) {
    (void)device;
    return host_qr_ops(dtype);
}

static void host_lap(struct device *device, struct profile_slot slot) {
    if (device->profile) profile_lap(device->profile, slot);
}

/* `rate`: host_peak or host_peak_now of kernels/host/gemm/peak.h. */
static enum status measure_peak(struct device *device, double (*rate)(enum gemm_dtype dtype, int threads),
                                enum gemm_dtype dtype, double *flops_per_second) {
    const struct host_ops_context *context = device->state;
    if (gemm_is_16bit(dtype)) return status_set(STATUS_UNAVAILABLE, "no peak is measured for 16 bits");
    *flops_per_second = rate(dtype, context->threads);
    return STATUS_OK;
}

static enum status host_best_rate(struct device *device, enum gemm_dtype dtype, double *flops_per_second) {
    return measure_peak(device, host_peak, dtype, flops_per_second);
}

static enum status host_rate_now(struct device *device, enum gemm_dtype dtype, double *flops_per_second) {
    return measure_peak(device, host_peak_now, dtype, flops_per_second);
}

static size_t host_last_cache(struct device *device) {
    (void)device;
    return platform_last_cache();
}

/* Two buffers, together 4.25 times the last-level cache but at most a quarter of the available memory. */
static enum status host_bandwidth(struct device *device, double *bytes_per_second) {
    const struct host_ops_context *context = device->state;
    const char *limit;
    const size_t most = platform_memory_available(&limit) / 8, cache = platform_last_cache();
    size_t bytes = cache ? cache / 8 * 17 : UNKNOWN_CACHE_BUFFER;
    if (bytes > most) bytes = most;
    bytes = bytes / 64 * 64;
    void *to = aligned_alloc(64, bytes), *from = aligned_alloc(64, bytes);
    const enum status status =
        to && from
            ? STATUS_OK
            : status_set(STATUS_FAILED, "out of memory: two buffers of %s needed to measure the bandwidth",
                         text_bytes((double)bytes).text);
    if (!status) *bytes_per_second = host_copy_rate(to, from, bytes, context->threads);
    free(to);
    free(from);
    return status;
}

const struct device_driver device_host = {
    .name = "host",
    .where = GEMM_ON_HOST,
    .host_memory = true,
    .row_alignment = 1,
    .steps_ahead = 1,
    .open = host_open,
    .close = host_close,
    .alloc = host_alloc,
    .free = host_free,
    .upload = host_copy,
    .download = host_copy,
    .zero = host_zero,
    .copy = host_copy,
    .synchronize = host_synchronize,
    .check = host_synchronize,
    .ops = host_table,
    .lap = host_lap,
    .set_threads = host_set_threads,
    .peak = host_best_rate,
    .peak_now = host_rate_now,
    .bandwidth = host_bandwidth,
    .last_cache = host_last_cache,
    .cluster_ops = host_cluster_table,
    .qr_ops = host_qr_table,
};
