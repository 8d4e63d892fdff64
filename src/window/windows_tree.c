/* The orthogonal methods of windows.h: a tree of the rows that windows have in common.

   Idea       a node of windows first .. end - 1 has the triangle of the rows of all of them, which are rows
              (end - 1) stride to first stride + window - 1. A child lacks its parent's triangle only rows at
              both ends, which enter it. naive is a tree of roots, common one of two levels.
   Memory     depth first over batches of nodes: only the batches from a root to the current leaves have
              triangles, so that the cache may hold them. */
#include "src/window/windows_parts.h"

#include <stdlib.h>

enum { HOT_LEVELS = 3 /* the lowest ones, which have 7/8 of the nodes of a binary tree */ };

static size_t bytes_of(const struct windows *windows, size_t elements) {
    return elements * dtype_size(windows->shape.dtype);
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t at_least_one(size_t a) {
    return a ? a : 1;
}

/* --- memory --- */

static enum status open_level(struct windows *windows, struct windows_level *level, bool triangles) {
    level->nodes = malloc(level->batch * sizeof *level->nodes);
    if (!level->nodes) return status_set(STATUS_FAILED, "out of memory");
    if (triangles) level->triangles = windows_alloc(windows, level->batch * windows->triangle);
    return triangles && !level->triangles ? STATUS_FAILED : STATUS_OK;
}

static enum status open_qr(struct windows *windows, struct qr *qr, size_t batch, size_t rows) {
    const struct windows_shape *shape = &windows->shape;
    return qr_open(qr, windows->compute,
                   &(struct qr_shape){.dtype = shape->dtype,
                                      .batch = batch,
                                      .rows = rows,
                                      .n = shape->n,
                                      .cols = shape->cols,
                                      .block = shape->nb});
}

enum status windows_tree_open(struct windows *windows) {
    const struct windows_shape *shape = &windows->shape;
    windows_plan_levels(windows);
    struct windows_level *root = windows->levels;
    root->batch = windows_batch(windows, bytes_of(windows, root->rows * windows->ld), 1, 1, windows->groups);
    const size_t below = windows_batch(windows, bytes_of(windows, windows->triangle), HOT_LEVELS,
                                       2 * (size_t)windows->compute->threads, shape->count);
    size_t rows = 0;
    enum status status = open_level(windows, root, shape->ridge > 0);
    for (size_t i = 1; i <= windows->depth && !status; i++) {
        windows->levels[i].batch = smaller(below, windows->groups * windows->levels[i].parts);
        if (windows->levels[i].rows > rows) rows = windows->levels[i].rows;
        status = open_level(windows, &windows->levels[i], true);
    }
    windows->most = windows->depth && below > root->batch ? below : root->batch;
    if (!status) status = open_qr(windows, &windows->roots, root->batch, root->rows);
    if (!status && windows->depth) status = open_qr(windows, &windows->steps, below, rows);
    if (status) return status;
    windows->dense = windows_alloc(windows, root->batch * root->rows * windows->ld);
    windows->entering = windows_alloc(windows, at_least_one(windows->depth * below * rows * windows->ld));
    return windows->dense && windows->entering ? STATUS_OK : STATUS_FAILED;
}

/* --- rows --- */

/* Copies rows of the data, and zero rows up to `to_rows`. */
static void gather(struct windows *windows, size_t row, size_t rows, size_t to_rows, char *to) {
    const struct windows_shape *shape = &windows->shape;
    windows->ops->rows(windows->compute->device.ops_context, rows, to_rows, shape->cols,
                       windows->a + bytes_of(windows, row * windows->lda), windows->lda,
                       windows->scaled ? windows->scale : NULL, to, windows->ld);
}

/* The rows that a node has and its parent lacks, before and after the parent's. */
static void gather_entering(struct windows *windows, const struct windows_node *parent,
                            const struct windows_node *node, size_t to_rows, char *to) {
    const size_t stride = windows->shape.stride, before = (parent->end - node->end) * stride,
                 after = (node->first - parent->first) * stride;
    gather(windows, (node->end - 1) * stride, before, before, to);
    gather(windows, parent->first * stride + windows->shape.window, after, to_rows - before,
           to + bytes_of(windows, before * windows->ld));
}

/* --- nodes --- */

static enum status factor_roots(struct windows *windows, size_t first_group, size_t count) {
    const struct windows_shape *shape = &windows->shape;
    struct windows_level *level = windows->levels;
    const struct qr_matrix dense = {windows->dense, windows->ld, level->rows * windows->ld};
    for (size_t i = 0; i < count; i++) {
        struct windows_node *node = &level->nodes[i];
        char *to = windows->dense + bytes_of(windows, i * dense.stride);
        *node = (struct windows_node){.first = windows_group_start(windows, first_group + i),
                                      .end = windows_group_start(windows, first_group + i + 1),
                                      .group = first_group + i};
        windows->from[i] = windows->start;
        windows->to[i] = shape->ridge > 0 ? level->triangles + bytes_of(windows, i * windows->triangle) : to;
        node->r = windows->to[i];
        const size_t row = (node->end - 1) * shape->stride,
                     rows = node->first * shape->stride + shape->window - row;
        gather(windows, row, rows, level->rows, to);
    }
    device_lap(&windows->compute->device, PART_BATCH);
    if (!(shape->ridge > 0)) return qr_factor(&windows->roots, count, level->rows, &dense);
    const struct qr_triangles r = {windows->from, windows->to, windows->ld};
    return qr_append(&windows->roots, count, level->rows, &r, &dense);
}

/* Child `i` of `parent` on level `level`, before its rows have entered. */
static struct windows_node child_of(const struct windows *windows, const struct windows_level *level,
                                    const struct windows_node *parent, size_t i) {
    const size_t start = windows_group_start(windows, parent->group),
                 size = windows_group_start(windows, parent->group + 1) - start,
                 index = parent->index * (level->parts / level[-1].parts) + i;
    return (struct windows_node){.first = start + size * index / level->parts,
                                 .end = start + size * (index + 1) / level->parts,
                                 .group = parent->group,
                                 .index = index};
}

/* The triangles of `count` nodes of a level; parents[i] is that of nodes[i]. A node that is its parent has
   its triangle. */
static enum status append(struct windows *windows, struct windows_level *level, size_t count) {
    const size_t stride = level->rows * windows->ld;
    const struct qr_matrix entering = {windows->entering, windows->ld, stride};
    size_t calls = 0;
    for (size_t i = 0; i < count; i++) {
        struct windows_node *node = &level->nodes[i];
        const struct windows_node *parent = node->r;
        node->r = parent->r;
        if (node->end - node->first == parent->end - parent->first) continue;
        windows->from[calls] = parent->r;
        windows->to[calls] = level->triangles + bytes_of(windows, i * windows->triangle);
        gather_entering(windows, parent, node, level->rows,
                        windows->entering + bytes_of(windows, calls * stride));
        node->r = windows->to[calls++];
    }
    device_lap(&windows->compute->device, PART_BATCH);
    const struct qr_triangles r = {windows->from, windows->to, windows->ld};
    return calls ? qr_append(&windows->steps, calls, level->rows, &r, &entering) : STATUS_OK;
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
        *node = child_of(windows, next, parent, i % children);
        node->r = parent;
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
