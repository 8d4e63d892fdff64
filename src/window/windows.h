/* The triangles R of overlapping windows of the rows of a matrix: window k has the rows k stride to k stride
   + window - 1. Columns beyond the n that are factored are right-hand sides, of which R has Q^T b.

   Windows next to each other share rows. Each method factors them once for several windows:
     naive    each window by itself
     common   the rows that a group of windows has in common; then, for each, the rows that it has alone
     tree     the common rows of a group, then those of each half that the other lacks, down to single windows
     gram     moving Gram matrices and their Cholesky factors: fewer flops, but the condition number squared
   Only orthogonal transformations, but for gram; nothing is ever subtracted from a triangle. */
#ifndef TESSERA_WINDOW_WINDOWS_H
#define TESSERA_WINDOW_WINDOWS_H

#include "src/window/qr.h"

enum windows_method { WINDOWS_NAIVE, WINDOWS_COMMON, WINDOWS_TREE, WINDOWS_GRAM };

struct windows_shape {
    enum gemm_dtype dtype;        /* f32 or f64 */
    size_t n, cols;               /* columns to factor, and all; cols >= n */
    size_t window, stride, count; /* rows of a window, rows to the next one, number of windows */
    size_t group;                 /* windows with a common part (common, tree); 0: by the flops */
    size_t nb;                    /* columns of a panel; 0: a default */
    double ridge;                 /* R^T R = A^T A + ridge I; 0: none */
    struct compute *panels;       /* (optional) factors the panels of common rows on the host (qr.h) */
};

/* Receives the triangles of windows first .. first + count - 1: r->from, [n][cols] each, in device memory,
   zero or unspecified below the diagonal, valid during the call. Windows come in order. */
struct windows_visitor {
    void *self;
    enum status (*visit)(void *self, size_t first, size_t count, const struct qr_triangles *r);
};

struct windows; /* memory and plan */

/* Allocates, without taking more than the shape needs. STATUS_USAGE if a size is 0 or does not fit the
   method. `windows` is NULL after a failure. */
enum status windows_open(struct windows **windows, struct compute *compute, enum windows_method method,
                         const struct windows_shape *shape);
void windows_close(struct windows *windows);

/* All windows of a [(count - 1) stride + window][cols] (device memory; not changed). Laps: PART_PANEL,
   PART_GEMM_*, PART_ELEMENTWISE, PART_BATCH (gathers rows). STATUS_FAILED names the window and the column
   if a value is not finite or a window has no full rank, and says how to go on. */
enum status windows_run(struct windows *windows, const void *a, size_t lda,
                        const struct windows_visitor *visitor);

/* Rows that the windows cover, flops of the method, and of naive; the group in use. */
size_t windows_rows(const struct windows_shape *shape);
double windows_flops(const struct windows *windows);
double windows_naive_flops(const struct windows_shape *shape);
size_t windows_group(const struct windows *windows);

/* "naive", "common", "tree", "gram". */
const char *windows_method_name(enum windows_method method);

#endif
