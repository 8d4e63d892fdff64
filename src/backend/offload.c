#include "src/backend/offload.h"

#include <string.h>

static enum status grow(struct offload *offload, struct offload_buffer *buffer, size_t bytes) {
    if (bytes <= buffer->bytes) return STATUS_OK;
    offload->gpu.driver->free(&offload->gpu, buffer->memory);
    buffer->bytes = 0;
    buffer->memory = offload->gpu.driver->alloc(&offload->gpu, bytes);
    if (!buffer->memory) return STATUS_FAILED;
    buffer->bytes = bytes;
    return STATUS_OK;
}

/* Counts the seconds since `start`, which belong to the open lap, as `part`; returns the current time. */
static double count_part(struct profile *profile, enum profile_part part, double start) {
    const double now = clock_seconds();
    if (profile) profile_take(profile, (struct profile_slot){.part = part}, now - start);
    return now;
}

/* The same call on the GPU copies of its operands. */
static struct gemm_call on_gpu(const struct offload *offload, const struct gemm_call *call) {
    struct gemm_call copy = *call;
    copy.a = offload->a.memory;
    copy.b = offload->b.memory;
    copy.c = offload->c.memory;
    copy.a_unchanged = copy.b_unchanged = copy.b_complete = copy.c_only_operand =
        false; /* each call copies its operands to the same memory, and C back */
    return copy;
}

enum status offload_gemm(struct offload *offload, const struct gemm_call *call, struct profile *profile) {
    struct device *gpu = &offload->gpu;
    const struct device_driver *driver = gpu->driver;
    const bool ta = gemm_transposes_a(call->op), tb = gemm_transposes_b(call->op);
    const size_t a_bytes = dtype_span(call->dtype, ta ? call->k : call->m, ta ? call->m : call->k, call->lda);
    const size_t b_bytes = dtype_span(call->dtype, tb ? call->n : call->k, tb ? call->k : call->n, call->ldb);
    const size_t c_bytes = dtype_span(dtype_of_c(call), call->m, call->n, call->ldc);
    const bool padded = call->ldc != call->n;
    enum status status = grow(offload, &offload->a, a_bytes);
    if (!status) status = grow(offload, &offload->b, b_bytes);
    if (!status) status = grow(offload, &offload->c, c_bytes);
    if (status) return status;

    double start = clock_seconds();
    driver->upload(gpu, offload->a.memory, call->a, a_bytes);
    driver->upload(gpu, offload->b.memory, call->b, b_bytes);
    if (call->beta != 0 || padded) driver->upload(gpu, offload->c.memory, call->c, c_bytes);
    count_part(profile, PART_H2D, start);

    const struct gemm_call copy = on_gpu(offload, call);
    const enum gemm_status result = offload->backend->gemm(offload->context, &copy);
    status = driver->synchronize(gpu);
    if (result != GEMM_OK) {
        const char *why = offload->backend->error ? offload->backend->error(offload->context) : "";
        return status_set(STATUS_FAILED, "backend '%s' failed: %s", offload->backend->name, why);
    }

    start = clock_seconds();
    driver->download(gpu, call->c, offload->c.memory, c_bytes);
    count_part(profile, PART_D2H, start);
    return status;
}

size_t offload_kernels(struct offload *offload, const struct gemm_call *call, struct gemm_kernel *list,
                       size_t size) {
    const struct gemm_call copy = on_gpu(offload, call);
    return offload->backend->kernels(offload->context, &copy, list, size);
}

void offload_close(struct offload *offload) {
    struct device *gpu = &offload->gpu;
    if (!offload->backend) return;
    if (offload->backend->destroy) offload->backend->destroy(offload->context);
    gpu->driver->free(gpu, offload->a.memory);
    gpu->driver->free(gpu, offload->b.memory);
    gpu->driver->free(gpu, offload->c.memory);
    gpu->driver->close(gpu);
    *offload = (struct offload){0};
}

struct device_driver offload_pinned_host(const struct device_driver *gpu_driver) {
    struct device_driver pinned = device_host;
    pinned.alloc = gpu_driver->alloc_pinned;
    pinned.free = gpu_driver->free_pinned;
    return pinned;
}
