#include "src/window/qr_host_panel.h"

#include <stdlib.h>
#include <string.h>

struct qr_host_panel {
    struct qr *gpu;
    struct qr host; /* factors one panel, and keeps its V^T and T */
    char *copy;     /* host, [batch][first rows and rows][width]; page-locked if the device can do so */
    char *staging;  /* device, the same */
    bool pinned;
};

static struct device *device_of(const struct qr_host_panel *panel) {
    return &panel->gpu->compute->device;
}

static size_t size_of(const struct qr_host_panel *panel) {
    return dtype_size(panel->gpu->shape.dtype);
}

/* The first rows of a triangle, and the rows below. */
static size_t most_rows(const struct qr *qr) {
    return qr->shape.rows + qr->shape.block;
}

enum status qr_host_panel_open(struct qr_host_panel **out, struct qr *qr, struct compute *host) {
    struct device *device = &qr->compute->device;
    struct qr_host_panel *panel = *out = calloc(1, sizeof *panel);
    if (!panel) return status_set(STATUS_FAILED, "out of memory");
    panel->gpu = qr;
    panel->pinned = device->driver->alloc_pinned;
    const struct qr_shape shape = {.dtype = qr->shape.dtype,
                                   .batch = 1,
                                   .rows = most_rows(qr),
                                   .n = qr->shape.block,
                                   .cols = qr->shape.block,
                                   .block = qr->shape.block,
                                   .keeps_q = true};
    const size_t bytes = qr->shape.batch * most_rows(qr) * qr->shape.block * size_of(panel);
    const enum status status = qr_open(&panel->host, host, &shape);
    if (status) return status;
    panel->staging = device->driver->alloc(device, bytes);
    panel->copy = panel->pinned ? device->driver->alloc_pinned(device, bytes) : malloc(bytes);
    if (!panel->copy) return status_set(STATUS_FAILED, "out of memory");
    return panel->staging ? STATUS_OK : STATUS_FAILED;
}

void qr_host_panel_close(struct qr_host_panel *panel) {
    if (!panel) return;
    struct device *device = device_of(panel);
    device->driver->free(device, panel->staging);
    if (panel->pinned && panel->copy)
        device->driver->free_pinned(device, panel->copy);
    else
        free(panel->copy);
    qr_close(&panel->host);
    free(panel);
}

/* Rows of a panel, with the first ones. */
static size_t rows_of(const struct qr_step *step) {
    return step->r ? step->width + step->rows : step->rows - step->col;
}

/* The rows `to` of each matrix of the staging memory = the block [rows][width] at (row, col) of `from`. */
static void stage(struct qr_host_panel *panel, const struct qr_step *step, const struct qr_triangles *from,
                  size_t row, size_t rows, size_t to) {
    const size_t stride = rows_of(step) * step->width;
    const struct qr_matrix staging = {panel->staging + to * step->width * size_of(panel), step->width,
                                      stride};
    panel->gpu->ops->block(device_of(panel)->ops_context, step->count, rows, step->width, from, row,
                           step->col, &staging);
}

enum status qr_host_panel_fetch(struct qr_host_panel *panel, const struct qr_step *step) {
    struct device *device = device_of(panel);
    const void **base = panel->gpu->from; /* not needed after the call */
    const struct qr_triangles a = {.from = base, .ld = step->a->ld};
    for (size_t i = 0; i < step->count; i++)
        base[i] = (const char *)step->a->values + i * step->a->stride * size_of(panel);
    if (step->r) stage(panel, step, step->r, step->col, step->width, 0);
    stage(panel, step, &a, step->r ? 0 : step->col, rows_of(step) - (step->r ? step->width : 0),
          step->r ? step->width : 0);
    device_lap(device, PART_ELEMENTWISE);
    device->driver->download(device, panel->copy, panel->staging,
                             step->count * rows_of(step) * step->width * size_of(panel));
    return device->driver->synchronize(device);
}

/* to [rows][cols] on the device = `from` in host memory, contiguous. */
static void put(struct qr_host_panel *panel, const void *from, size_t rows, size_t cols, void *to,
                size_t ld) {
    struct device *device = device_of(panel);
    device->driver->upload(device, panel->staging, from, rows * cols * size_of(panel));
    panel->gpu->ops->rows(device->ops_context, rows, rows, cols, panel->staging, cols, NULL, to, ld);
    device_lap(device, PART_ELEMENTWISE);
}

/* packed [rows][cols] = the elements of `from`, with zeros below the diagonal. */
static void pack_triangle(struct qr_host_panel *panel, const char *from, size_t ld, size_t rows, size_t cols,
                          char *packed) {
    const size_t size = size_of(panel);
    for (size_t i = 0; i < rows; i++) {
        const size_t first = i < cols ? i : cols;
        memmove(packed + (i * cols + first) * size, from + (i * ld + first) * size, (cols - first) * size);
        memset(packed + i * cols * size, 0, first * size);
    }
}

/* R, T and V^T of matrix `number`, whose rows on the host are at `values`; they are overwritten. */
static void put_results(struct qr_host_panel *panel, const struct qr_step *step, size_t number,
                        char *values) {
    const size_t size = size_of(panel), width = step->width, rows = rows_of(step),
                 top = rows < width ? rows : width, skipped = step->r ? width : 0, length = rows - skipped;
    const struct qr_matrix *vt = &panel->host.vt, *t = &panel->host.t;
    const struct qr_triangles *r = step->r;
    char *to = r ? r->to[number] : (char *)step->a->values + number * step->a->stride * size;
    const size_t ld = r ? r->ld : step->a->ld;
    pack_triangle(panel, values, width, top, width, values);
    put(panel, values, top, width, to + (step->col * ld + step->col) * size, ld);
    pack_triangle(panel, t->values, t->ld, width, width, values);
    put(panel, values, width, width, (char *)step->t.values + number * step->t.stride * size, step->t.ld);
    for (size_t c = 0; c < width; c++)
        memcpy(values + c * length * size, (char *)vt->values + (c * vt->ld + skipped) * size, length * size);
    put(panel, values, width, length, (char *)step->vt.values + number * step->vt.stride * size, step->vt.ld);
}

enum status qr_host_panel_factor(struct qr_host_panel *panel, const struct qr_step *step) {
    const size_t width = step->width, rows = rows_of(step), size = size_of(panel);
    struct qr one = panel->host;
    one.shape.n = one.shape.cols = width;
    for (size_t i = 0; i < step->count; i++) {
        char *values = panel->copy + i * rows * width * size;
        const struct qr_matrix matrix = {values, width, rows * width};
        if (step->r) pack_triangle(panel, values, width, width, width, values);
        const enum status status = qr_factor(&one, 1, rows, &matrix);
        if (status) return status;
        device_lap(device_of(panel), PART_PANEL); /* the time that it took longer than the products */
        put_results(panel, step, i, values);
    }
    return STATUS_OK;
}
