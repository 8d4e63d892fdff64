/* The orthogonal methods of windows.h: a tree of the rows that windows have in common.

   Idea       a node of windows first .. end - 1 has the triangle of the rows of all of them, which are rows
              (end - 1) stride to first stride + window - 1. A child lacks its parent's triangle only rows at
              both ends, which enter it. naive is a tree of roots, common one of two levels.
   Memory     depth first over batches of nodes: only the batches from a root to the current leaves have
              triangles, so that the cache may hold them. */
#include "src/window/windows_parts.h"

#include <stdlib.h>

enum { HOT_LEVELS = 8 /* whose triangles fit in half of the last-level cache; 3 took 20 % longer */ };

static size_t bytes_of(const struct windows *windows, size_t elements) {
    return elements * dtype_size(windows->shape.dtype);
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* --- memory --- */

static enum status open_level(struct windows *windows, struct windows_level *level, bool triangles) {
    level->nodes = malloc(level->batch * sizeof *level->nodes);
    if (!level->nodes) return status_set(STATUS_FAILED, "out of memory");
    if (triangles) level->triangles = windows_alloc(windows, level->batch * windows->triangle);
    return triangles && !level->triangles ? STATUS_FAILED : STATUS_OK;
}

static enum status open_qr(struct windows *windows, struct qr *qr, size_t batch, size_t rows,
                           struct compute *panels) {
    const struct windows_shape *shape = &windows->shape;
    return qr_open(qr, windows->compute,
                   &(struct qr_shape){.dtype = shape->dtype,
                                      .batch = batch,
                                      .rows = rows,
                                      .n = shape->n,
                                      .cols = shape->cols,
                                      .block = shape->nb,
                                      .panels = panels});
}

enum status windows_tree_open(struct windows *windows) {
    const struct windows_shape *shape = &windows->shape;
    windows_plan_levels(windows);
    struct windows_level *root = windows->levels;
    root->batch = windows_batch(windows, bytes_of(windows, root->rows * windows->ld), 1, 1, windows->groups);
    const size_t below = windows_batch(windows, bytes_of(windows, windows->triangle), HOT_LEVELS,
                                       2 * (size_t)windows->compute->threads, shape->count);
    size_t rows = 0, entering = 0;
    enum status status = open_level(windows, root, shape->ridge > 0);
    for (size_t i = 1; i <= windows->depth && !status; i++) {
        struct windows_level *level = &windows->levels[i];
        level->batch = smaller(below, windows->groups * level->parts);
        rows = larger(rows, level->rows);
        entering = larger(entering, level->batch * level->rows);
        status = open_level(windows, level, true);
    }
    windows->most = larger(root->batch, windows->depth ? below : 0);
    if (!status) status = open_qr(windows, &windows->roots, root->batch, root->rows, shape->panels);
    if (!status && windows->depth) status = open_qr(windows, &windows->steps, below, rows, NULL);
    if (status) return status;
    windows->dense = windows_alloc(windows, root->batch * root->rows * windows->ld);
    if (entering) windows->entering = windows_alloc(windows, entering * windows->ld);
    return windows->dense && (windows->entering || !entering) ? STATUS_OK : STATUS_FAILED;
}

/* --- rows --- */

static const char *row_of(const struct windows *windows, size_t row) {
    return windows->a + bytes_of(windows, row * windows->lda);
}

/* The rows that a node has and its parent lacks, before and after the parent's. */
static struct qr_rows entering_rows(const struct windows *windows, const struct windows_node *parent,
                                    const struct windows_node *node) {
    const size_t stride = windows->shape.stride;
    return (struct qr_rows){{row_of(windows, (node->end - 1) * stride),
                             row_of(windows, parent->first * stride + windows->shape.window)},
                            {(parent->end - node->end) * stride, (node->first - parent->first) * stride}};
}

/* The rows of `pieces` for a call of `count` matrices. */
static struct qr_matrix gather(struct windows *windows, size_t count, size_t rows, char *to) {
    const struct qr_matrix matrix = {to, windows->ld, rows * windows->ld};
    windows->ops->gather(windows->compute->device.ops_context, count, rows, windows->shape.cols,
                         windows->pieces, windows->lda, windows->scaled ? windows->scale : NULL, &matrix);
    device_lap(&windows->compute->device, PART_BATCH);
    return matrix;
}

/* --- nodes --- */

/* All windows of a group, and their common rows. */
static struct windows_node root_of(struct windows *windows, size_t group, struct qr_rows *piece) {
    const struct windows_shape *shape = &windows->shape;
    const size_t start = windows_group_start(windows, group), end = windows_group_start(windows, group + 1),
                 row = (end - 1) * shape->stride;
    *piece = (struct qr_rows){{row_of(windows, row), NULL}, {start * shape->stride + shape->window - row, 0}};
    return (struct windows_node){.first = start, .end = end, .start = start, .size = end - start};
}

static enum status factor_roots(struct windows *windows, size_t first_group, size_t count) {
    const bool ridge = windows->shape.ridge > 0;
    struct windows_level *level = windows->levels;
    char *triangles = ridge ? level->triangles : windows->dense;
    const size_t bytes = bytes_of(windows, ridge ? windows->triangle : level->rows * windows->ld);
    for (size_t i = 0; i < count; i++) {
        level->nodes[i] = root_of(windows, first_group + i, &windows->pieces[i]);
        level->nodes[i].r = windows->to[i] = triangles + i * bytes;
        windows->from[i] = windows->start;
    }
    const struct qr_matrix dense = gather(windows, count, level->rows, windows->dense);
    if (!ridge) return qr_factor(&windows->roots, count, level->rows, &dense);
    const struct qr_triangles r = {windows->from, windows->to, windows->ld};
    return qr_append(&windows->roots, count, level->rows, false, &r, &dense);
}

/* Child `i` of `parent` on level `level`. */
static struct windows_node child_of(const struct windows_level *level, const struct windows_node *parent,
                                    size_t i) {
    struct windows_node child = *parent;
    child.index = parent->index * (level->parts / level[-1].parts) + i;
    child.first = parent->start + parent->size * child.index / level->parts;
    child.end = parent->start + parent->size * (child.index + 1) / level->parts;
    return child;
}

/* The triangles of `count` nodes of a level. A node that is its parent has its triangle. */
static enum status append(struct windows *windows, struct windows_level *level, size_t count) {
    size_t calls = 0;
    for (size_t i = 0; i < count; i++) {
        struct windows_node *node = &level->nodes[i];
        const struct windows_node *parent = node->parent;
        if (node->end - node->first == parent->end - parent->first) continue;
        windows->pieces[calls] = entering_rows(windows, parent, node);
        windows->from[calls] = parent->r;
        windows->to[calls] = level->triangles + bytes_of(windows, i * windows->triangle);
        node->r = windows->to[calls++];
    }
    if (!calls) return STATUS_OK;
    const struct qr_matrix entering = gather(windows, calls, level->rows, windows->entering);
    const struct qr_triangles r = {windows->from, windows->to, windows->ld};
    return qr_append(&windows->steps, calls, level->rows, false, &r, &entering);
}

static enum status show(struct windows *windows, const struct windows_level *level, size_t count) {
    for (size_t i = 0; i < count; i++) {
        windows->from[i] = level->nodes[i].r;
        windows->to[i] = (void *)(uintptr_t)level->nodes[i].r;
    }
    const struct qr_triangles r = {windows->from, windows->to, windows->ld};
    return windows_deliver(windows, level->nodes[0].first, count, &r);
}

/* All windows of the `count` nodes of a level. */
static enum status expand(struct windows *windows, size_t depth, size_t count) {
    struct windows_level *level = &windows->levels[depth], *next = level + 1;
    if (depth == windows->depth) return show(windows, level, count);
    const size_t children = next->parts / level->parts, all = count * children;
    enum status status = STATUS_OK;
    for (size_t i = 0, filled = 0; i < all && !status; i++) {
        const struct windows_node *parent = &level->nodes[i / children];
        struct windows_node *node = &next->nodes[filled];
        *node = child_of(next, parent, i % children);
        node->parent = parent;
        if (node->first < node->end) filled++;
        if (!filled || (filled < next->batch && i + 1 < all)) continue;
        status = append(windows, next, filled);
        if (!status) status = expand(windows, depth + 1, filled);
        filled = 0;
    }
    return status;
}

enum status windows_tree_run(struct windows *windows) {
    const size_t batch = windows->levels[0].batch;
    enum status status = STATUS_OK;
    for (size_t group = 0; group < windows->groups && !status; group += batch) {
        const size_t left = windows->groups - group, count = left < batch ? left : batch;
        status = factor_roots(windows, group, count);
        if (!status) status = expand(windows, 0, count);
    }
    return status;
}
