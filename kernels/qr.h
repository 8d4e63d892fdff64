/* The contract of QR: the operations of a blocked Householder factorisation other than GEMM, in a table per
   dtype and device.

   The reflector of column c is H_c = I - tau_c v_c v_c^T, where v_c has zeros before element c and 1 there.
   The product of the reflectors of a panel is, in compact WY form (Schreiber and Van Loan 1989, SIAM J. Sci.
   Stat. Comput. 10),

     H_0 H_1 .. = I - V T V^T        T upper triangular

   Matrices are row-major. V is stored as its transpose, so that Q^T A is two products of the GEMM seam:

     W = V^T A (NN)        A -= V (T^T W) (TN)

   An op works on `count` matrices of the same sizes. All memory is the device's. Sums have an order that the
   sizes and the count alone decide, on one device: the number of threads changes no bit. The squares of
   magnitudes should be normal numbers of the dtype: a GPU takes a column below that for zero. */
#ifndef TESSERA_KERNELS_QR_H
#define TESSERA_KERNELS_QR_H

#include "kernels/gemm.h"

enum {
    QR_WIDTH = 16,       /* nb and panel_width are multiples */
    QR_CHUNK = 256,      /* rows whose products are one partial sum */
    QR_APPEND_ROWS = 64, /* the most rows of a call of `append` */
    QR_PADDED = 32       /* the columns of its scratch are a multiple */
};

/* Matrices of a batch. */
struct qr_matrix {
    void *values;
    size_t ld, stride; /* elements from row to row, and from matrix to matrix */
};

/* Triangles of a batch, which are anywhere in memory: [count] pointers to host memory of device pointers. */
struct qr_triangles {
    const void *const *from; /* read */
    void *const *to;         /* written; may be `from` */
    size_t ld;
};

/* A panel of `width` columns: its first `top_rows` rows, and the `rows` below them. */
struct qr_panel {
    size_t count, width, top_rows, rows;
    /* The first rows, [top_rows][width] at (row, col) of each triangle. In: dense, or with `triangular` upper
       triangular, below which nothing is read. Out: R, and zeros below it. */
    struct qr_triangles top;
    size_t row, col;
    bool triangular;
    struct qr_matrix a; /* [rows][width]; not changed */
    /* Out: V^T, [width][lead + top_rows + rows], whose first `lead` columns are zero. With `triangular` the
       columns of the first rows, which are those of the identity, are left out. */
    struct qr_matrix vt;
    size_t lead;
    struct qr_matrix t; /* out: [width][width], with the zeros below its diagonal */
    double *scratch;    /* [count][qr_scratch(rows)]: of the host */
};

/* Rows that enter a triangle. */
struct qr_append {
    size_t count;
    size_t n, cols; /* the triangle is [n][cols], cols >= n: the columns from n on are right-hand sides */
    size_t rows;    /* at most QR_APPEND_ROWS */
    struct qr_triangles r;
    struct qr_matrix a; /* [rows][cols]; destroyed. The columns from n on then hold what is left of them */
    void *scratch;      /* [count][qr_append_scratch(rows, cols)] elements, 64-byte aligned: of the host */
};

/* Two pieces of a matrix, one below the other. */
struct qr_rows {
    const void *from[2];
    size_t rows[2];
};

struct qr_ops {
    size_t panel_width; /* the most columns of a call of `panel` */
    /* The most `rows` of a call of `panel`. NULL: any number. */
    size_t (*panel_rows)(void *context);
    void (*panel)(void *context, const struct qr_panel *panel);

    /* R becomes the triangle of [R; a]. Below its diagonal nothing is read or written. */
    void (*append)(void *context, const struct qr_append *append);

    /* w = the block [rows][cols] at (row, col) of each triangle. */
    void (*block)(void *context, size_t count, size_t rows, size_t cols, const struct qr_triangles *r,
                  size_t row, size_t col, const struct qr_matrix *w);

    /* The block at (row, col) of r->to = that of r->from - w. */
    void (*subtract)(void *context, size_t count, size_t rows, size_t cols, const struct qr_triangles *r,
                     size_t row, size_t col, const struct qr_matrix *w);

    /* to[i][j] = scale[j] from[i][j]; rows from `rows` to `to_rows` - 1 are zero. */
    void (*rows)(void *context, size_t rows, size_t to_rows, size_t cols, const void *from, size_t from_ld,
                 const double *scale, void *to, size_t to_ld);

    /* Matrix i, to[to_rows][cols], = pieces[i] (host memory) with the columns scaled, and zero rows below. */
    void (*gather)(void *context, size_t count, size_t to_rows, size_t cols, const struct qr_rows *pieces,
                   size_t from_ld, const double *scale, const struct qr_matrix *to);

    /* Scales row i of every triangle r->to in place: the columns j >= i of r = factor r. */
    void (*scale)(void *context, size_t count, size_t n, size_t cols, double factor,
                  const struct qr_triangles *r);

    /* largest[j] = the largest magnitude of column j; infinite if an element is not finite. */
    void (*largest)(void *context, size_t rows, size_t cols, const void *a, size_t lda, double *largest);

    /* The block G [width][cols] at (col, col) of each triangle r->to becomes U, upper triangular in its first
       `width` columns, with U^T U = G there, and U^-T G in the others. column[i] (host memory) is the first
       column of the block whose pivot is not positive, or `width`; what G then becomes is unspecified. */
    void (*cholesky)(void *context, size_t count, size_t width, size_t cols, const struct qr_triangles *r,
                     size_t col, size_t *column);

    /* to[i][j] (host memory, [count][n]) = the diagonal element j of r->from[i]. */
    void (*diagonals)(void *context, size_t count, size_t n, const struct qr_triangles *r, double *to);

    /* column[i] (host memory) = the first column of triangle r->from[i] whose diagonal element is not above
       `tolerance` times the norm of the column, or not finite; n: none. bound[j] is at least that norm in
       every triangle: a diagonal element above `tolerance` times it needs no norm. NULL: none is known. */
    void (*deficient)(void *context, size_t count, size_t n, const struct qr_triangles *r, double tolerance,
                      const double *bound, size_t *column);

    /* x [n][cols - n] = R^-1 (Q^T b), by back substitution, with one triangle r [n][cols] of full rank. */
    void (*solve)(void *context, size_t n, size_t cols, const void *r, size_t ld, void *x);
};

/* Elements of the scratch of a panel on the host: partial sums of each chunk, twice. */
static inline size_t qr_scratch(size_t rows) {
    return 2 * QR_WIDTH * ((rows + QR_CHUNK - 1) / QR_CHUNK);
}

/* Elements of the scratch of rows that enter: a copy, with columns padded to whole cache lines. */
static inline size_t qr_append_scratch(size_t rows, size_t cols) {
    return rows * ((cols + QR_PADDED - 1) / QR_PADDED * QR_PADDED);
}

#endif
