/* Block Householder QR on the GEMM of a backend (kernels/qr.h has the form of the reflectors): of dense
   matrices, and of a triangle and rows that enter it. A batch of matrices of the same sizes is factored
   together.

   Matrices are row-major, in memory of compute->device. Columns beyond the n that are factored are right-hand
   sides: A becomes Q^T A in all of them. Every diagonal element of R may have either sign. */
#ifndef TESSERA_WINDOW_QR_H
#define TESSERA_WINDOW_QR_H

#include "src/backend/compute.h"

enum { QR_BLOCK = 128 /* the largest default of nb */, QR_MOST_BLOCK = 512 };

/* The default of nb for n columns: on the host wide panels for wide matrices, whose products read from
   memory; on a GPU those of one op, which overlap with products. */
size_t qr_block(const struct qr_ops *ops, size_t n);

struct qr_shape {
    enum gemm_dtype dtype; /* f32 or f64 */
    size_t batch;          /* the most matrices of a call */
    size_t rows, n, cols;  /* the most rows; the columns to factor, and all: cols >= n */
    size_t block;          /* nb: columns of a panel, a multiple of QR_WIDTH; 0: a default */
    bool keeps_q;          /* qr_apply_q will be called */
    /* (optional) Factors the panels, in host memory (qr_host_panel.h). NULL: ops->panel does. */
    struct compute *panels;
};

struct qr_host_panel;

struct qr {
    struct compute *compute;
    const struct qr_ops *ops;
    struct qr_shape shape;
    struct qr_matrix vt;              /* a panel, [block][..]; with keeps_q all of them, [n][..] */
    struct qr_matrix t;               /* the same: [block][block], or [n][block] */
    struct qr_matrix w[2];            /* [block][cols] */
    struct qr_host_panel *host_panel; /* NULL: panels on the device */
    double *scratch;                  /* of the host, as the next one */
    void *append_scratch;
    const void **from; /* [2][batch] */
    void **to;         /* [2][batch] */
    size_t most_rows;  /* of a panel: more are factored in portions */
    size_t rows;       /* of the last qr_factor */
};

/* STATUS_UNAVAILABLE if the device has no operations for QR, or cannot keep the Q of so many rows. Call
   qr_close also after a failure. */
enum status qr_open(struct qr *qr, struct compute *compute, const struct qr_shape *shape);
void qr_close(struct qr *qr);

/* Factors `count` matrices a [rows][cols] in place: R is in the upper triangle (trapezoid, if rows < n), the
   columns from n on become Q^T b. Below the diagonal the values are unspecified. STATUS_UNAVAILABLE if the
   device has no panels of n rows. */
enum status qr_factor(struct qr *qr, size_t count, size_t rows, const struct qr_matrix *a);

/* R, [n][cols] of each triangle, becomes that of [R; a], a [rows][cols]; `a` is destroyed, and its columns
   from n on become what no column of R explains. R is [Q^T b] in the columns from n on. r->from and r->to
   are host memory; they are not needed after the call. Up to QR_APPEND_ROWS rows in one op; more in panels.
   `triangular`: row i of `a` is zero before column i, and a panel has only the rows that begin before its
   end: n such rows take a third of the flops. */
enum status qr_append(struct qr *qr, size_t count, size_t rows, bool triangular, const struct qr_triangles *r,
                      const struct qr_matrix *a);

/* b (one matrix, [rows][cols]) = Q b, with the Q [rows][rows] of the last qr_factor of one matrix. Q
   itself, or its first columns, come from those of the identity. Needs keeps_q. `cols` is at most
   shape.cols. */
enum status qr_apply_q(struct qr *qr, const struct qr_matrix *b, size_t cols);

/* Flops of a factorisation of rows x n with cols in all, and of rows that enter a triangle. */
double qr_factor_flops(size_t rows, size_t n, size_t cols);
double qr_append_flops(size_t rows, size_t n, size_t cols);

#endif
