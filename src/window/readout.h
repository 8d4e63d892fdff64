/* The last layer of a network in closed form: the least-squares weights W [n][classes] of one-hot targets,

     minimise  |A W - T|^2 + ridge |W without its first row|^2        A [m][n], first column 1

   A is never kept: rows [A | T] enter a triangle R [n][n + classes] by Householder reflectors (qr.h), whose
   columns from n on are Q^T T, and W is a back substitution. The first row of W is the bias. It has no ridge,
   which is the same as centring the features: with the constant first, row 0 of R alone has the bias.

   Of no term are the squares formed, so that the condition number is that of A, and not its square as with
   normal equations (Golub and Van Loan, Matrix Computations, section 5.3). */
#ifndef TESSERA_WINDOW_READOUT_H
#define TESSERA_WINDOW_READOUT_H

#include "src/window/qr.h"

struct readout_shape {
    enum gemm_dtype dtype; /* f32 or f64 */
    size_t n, classes;     /* columns of A, with the constant; targets */
    size_t rows;           /* the most that enter at once */
};

struct readout {
    struct compute *compute;
    struct readout_shape shape;
    struct qr qr;
    size_t ld;             /* of all triangles and rows here: [..][n + classes], then zeros */
    size_t width;          /* rows of a triangle that enter another one together */
    size_t together;       /* triangles that rows enter in the same calls */
    struct qr_matrix rows; /* [shape.rows]: scratch for rows that enter */
    void *identity;        /* device, [width][width] */
};

/* STATUS_UNAVAILABLE if the device has no operations for QR. Call readout_close also after a failure. */
enum status readout_open(struct readout *readout, struct compute *compute, const struct readout_shape *shape);
void readout_close(struct readout *readout);

/* `count` triangles, or rows of A | T, of zeros; `values` is NULL if memory ran out. Freed by
   readout_free. */
struct qr_matrix readout_triangles(struct readout *readout, size_t count);
struct qr_matrix readout_rows(struct readout *readout, size_t count);
void readout_free(struct readout *readout, struct qr_matrix *matrix);

/* Triangle `number` of several. */
struct qr_matrix readout_triangle_at(const struct readout *readout, const struct qr_matrix *triangles,
                                     size_t number);

void readout_zero(struct readout *readout, const struct qr_matrix *triangle);
void readout_copy(struct readout *readout, const struct qr_matrix *from, const struct qr_matrix *to);

/* Rows [A | T] enter; they are destroyed. At most shape.rows. */
enum status readout_append(struct readout *readout, const struct qr_matrix *triangle,
                           const struct qr_matrix *rows, size_t count);

/* The triangle of the rows of both. */
enum status readout_merge(struct readout *readout, const struct qr_matrix *to, const struct qr_matrix *from);

/* The rows sqrt(ridge[k]) e_j, j = 1 .. n - 1, enter triangle k of `count`. */
enum status readout_add_ridges(struct readout *readout, const struct qr_matrix *triangles, size_t count,
                               const double *ridge);

/* The mean square of the norms of the columns of A without their means. Waits for the triangle. */
enum status readout_mean_square(struct readout *readout, const struct qr_matrix *triangle, double *mean);

/* w (device, [n][classes]) = W. Waits for the triangle. STATUS_FAILED names a feature that depends on others,
   within the rounding of the dtype, and says --ridge; *finite is false if it is not a number. */
enum status readout_solve(struct readout *readout, const struct qr_matrix *triangle, void *w, bool *finite);

/* logits (device, [count][classes]) = A W. */
enum status readout_predict(struct readout *readout, const struct qr_matrix *rows, size_t count,
                            const void *w, void *logits);

/* Of predictions. */
struct readout_score {
    size_t total, correct;
    double error; /* sum of squares of logits - targets */
};

/* Adds those of logits [count][classes] in host memory. The prediction is the first largest logit. */
void readout_add_score(struct readout_score *score, enum gemm_dtype dtype, size_t count, size_t classes,
                       const void *logits, const uint8_t *labels);

/* The fraction that is right; 0 without images. */
double readout_accuracy(const struct readout_score *score);

#endif
