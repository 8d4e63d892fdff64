#include "src/window/windows_parts.h"

#include <math.h>
#include <stdlib.h>

enum {
    ALIGNED = 16, /* elements: rows of triangles are multiples */
    MOST_BATCH = 1024,
    GPU_BATCH = 1024 /* triangles that keep the SMs busy */
};

/* Of the triangles of a level; larger triangles come one by one. */
static const size_t MOST_MEMORY = (size_t)128 << 20, MOST_GPU_MEMORY = (size_t)1 << 30;

static const char *const names[] = {"naive", "common", "tree", "gram"};

const char *windows_method_name(enum windows_method method) {
    return names[method];
}

/* --- memory --- */

void *windows_alloc(struct windows *windows, size_t elements) {
    struct device *device = &windows->compute->device;
    return device->driver->alloc(device, elements * dtype_size(windows->shape.dtype));
}

size_t windows_batch(const struct windows *windows, size_t bytes, size_t hot, size_t least, size_t count) {
    const struct device_driver *driver = windows->compute->device.driver;
    const size_t cache = driver->last_cache ? driver->last_cache(&windows->compute->device) : 0,
                 allowed = (driver->host_memory ? MOST_MEMORY : MOST_GPU_MEMORY) / bytes;
    size_t batch = cache / 2 / (hot * bytes);
    if (!driver->host_memory && hot > 1) least = GPU_BATCH;
    if (batch > MOST_BATCH) batch = MOST_BATCH;
    if (least > allowed) least = allowed;
    if (batch < least) batch = least;
    if (batch > count) batch = count;
    return batch ? batch : 1;
}

static enum status open_arrays(struct windows *windows) {
    const size_t cols = windows->shape.cols;
    windows->from = malloc(windows->most * sizeof *windows->from);
    windows->to = malloc(windows->most * sizeof *windows->to);
    windows->pieces = malloc(windows->most * sizeof *windows->pieces);
    windows->column = malloc(windows->most * sizeof *windows->column);
    windows->largest = malloc(4 * cols * sizeof *windows->largest);
    if (!windows->from || !windows->to || !windows->pieces || !windows->column || !windows->largest)
        return status_set(STATUS_FAILED, "out of memory");
    windows->bound = windows->largest + cols;
    windows->scale = windows->bound + cols;
    windows->unscale = windows->scale + cols;
    return STATUS_OK;
}

void windows_close(struct windows *windows) {
    if (!windows) return;
    struct device *device = &windows->compute->device;
    for (size_t i = 0; i < WINDOWS_MOST_LEVELS; i++) {
        device->driver->free(device, windows->levels[i].triangles);
        free(windows->levels[i].nodes);
    }
    void *const memory[] = {windows->dense, windows->entering, windows->start, windows->current,
                            windows->scaled_back};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) device->driver->free(device, memory[i]);
    qr_close(&windows->roots);
    qr_close(&windows->steps);
    free(windows->from);
    free(windows->to);
    free(windows->pieces);
    free(windows->column);
    free(windows->largest);
    free(windows->least);
    free(windows->most_squares);
    free(windows);
}

/* --- sizes --- */

size_t windows_rows(const struct windows_shape *shape) {
    return (shape->count - 1) * shape->stride + shape->window;
}

static enum status check_sizes(const struct windows_shape *shape) {
    size_t rows;
    if (shape->dtype != GEMM_F32 && shape->dtype != GEMM_F64)
        return status_set(STATUS_USAGE, "windows are f32 or f64, not %s", dtype_name(shape->dtype));
    if (!shape->n || !shape->window || !shape->stride || !shape->count)
        return status_set(STATUS_USAGE,
                          "windows of %zu rows and %zu columns, %zu of them, stride %zu: no size may be 0",
                          shape->window, shape->n, shape->count, shape->stride);
    if (shape->cols < shape->n)
        return status_set(STATUS_USAGE, "%zu columns to factor, but only %zu in all", shape->n, shape->cols);
    if (__builtin_mul_overflow(shape->count - 1, shape->stride, &rows) ||
        __builtin_add_overflow(rows, shape->window, &rows) ||
        __builtin_mul_overflow(rows, shape->cols * sizeof(double), &rows))
        return status_set(STATUS_USAGE, "%zu windows of stride %zu have more rows than fit in memory",
                          shape->count, shape->stride);
    if (shape->nb % QR_WIDTH || shape->nb > QR_MOST_BLOCK)
        return status_set(STATUS_USAGE, "panels of %zu columns: use a multiple of %d, up to %d", shape->nb,
                          QR_WIDTH, QR_MOST_BLOCK);
    if (!(shape->ridge >= 0) || !isfinite(shape->ridge))
        return status_set(STATUS_USAGE, "the ridge is %g: it must be 0 or more", shape->ridge);
    if (shape->window < shape->n && !(shape->ridge > 0))
        return status_set(
            STATUS_USAGE,
            "windows of %zu rows have no full rank in %zu columns: use more rows, or add --ridge "
            "1e-6",
            shape->window, shape->n);
    return STATUS_OK;
}

/* --- the interface --- */

static enum status open_method(struct windows *windows) {
    struct windows_shape *shape = &windows->shape;
    struct device *device = &windows->compute->device;
    if (device->driver->qr_ops) windows->ops = device->driver->qr_ops(device, shape->dtype);
    if (!windows->ops)
        return status_set(STATUS_UNAVAILABLE,
                          "QR has no kernels for the device '%s': use a backend on the host",
                          device->driver->name);
    const size_t most = windows->method == WINDOWS_NAIVE ? 1 : windows_sharing(shape);
    if (!shape->group) shape->group = windows_plan_group(windows->method, shape);
    if (shape->group > most) shape->group = most;
    if (!shape->nb && windows->method == WINDOWS_GRAM) shape->nb = QR_BLOCK;
    windows->groups = (shape->count + shape->group - 1) / shape->group;
    windows->ld = (shape->cols + ALIGNED - 1) / ALIGNED * ALIGNED;
    windows->triangle = shape->n * windows->ld;
    if (shape->ridge > 0) windows->start = windows_alloc(windows, windows->triangle);
    if (shape->ridge > 0 && !windows->start) return STATUS_FAILED;
    return windows->method == WINDOWS_GRAM ? windows_gram_open(windows) : windows_tree_open(windows);
}

enum status windows_open(struct windows **out, struct compute *compute, enum windows_method method,
                         const struct windows_shape *shape) {
    *out = NULL;
    enum status status = check_sizes(shape);
    if (status) return status;
    struct windows *windows = calloc(1, sizeof *windows);
    if (!windows) return status_set(STATUS_FAILED, "out of memory");
    windows->compute = compute;
    windows->method = method;
    windows->shape = *shape;
    status = open_method(windows);
    if (!status) status = open_arrays(windows);
    if (!status)
        *out = windows;
    else
        windows_close(windows);
    return status;
}

enum status windows_run(struct windows *windows, const void *a, size_t lda,
                        const struct windows_visitor *visitor) {
    windows->a = a;
    windows->lda = lda;
    windows->visitor = visitor;
    const enum status status = windows_measure(windows);
    if (status) return status;
    device_lap(&windows->compute->device, PART_ELEMENTWISE);
    return windows->method == WINDOWS_GRAM ? windows_gram_run(windows) : windows_tree_run(windows);
}

double windows_flops(const struct windows *windows) {
    return windows_plan_flops(windows->method, &windows->shape, windows->shape.group);
}

double windows_naive_flops(const struct windows_shape *shape) {
    return windows_plan_flops(WINDOWS_NAIVE, shape, 1);
}

size_t windows_group(const struct windows *windows) {
    return windows->shape.group;
}
