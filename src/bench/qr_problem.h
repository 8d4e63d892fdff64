/* A random matrix whose overlapping windows are factored, and the errors of their triangles in float64. */
#ifndef TESSERA_BENCH_QR_PROBLEM_H
#define TESSERA_BENCH_QR_PROBLEM_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/gemm.h"
#include "src/base/status.h"

enum { QR_CHECKED = 3 }; /* windows that are checked: the first, the middle, the last */

struct qr_problem {
    enum gemm_dtype dtype;
    size_t window, n, stride; /* rows and columns of a window, rows to the next one */
    size_t most;              /* windows that the matrix has */
    /* The matrix is N D H: N standard normal; D diagonal, from 1 down to 1 / condition in equal ratios; H the
       reflection I - 2/n 1 1^T, so that no scaling of columns undoes D. */
    double condition;
    uint64_t seed;

    void *a;        /* [(most - 1) stride + window][n], host memory */
    double *common; /* the products A^T A of the rows that all windows share, [n][n], upper triangle */
    size_t count;   /* of windows, the first ones */
    struct qr_checked {
        size_t index;
        double *gram; /* A^T A of the window, as `common` */
        double norm;  /* Frobenius */
    } checked[QR_CHECKED];
    double *error, *rows; /* [n][n] and a block of rows */
};

/* Draws the matrix from the fields above `a`. Call qr_problem_close also after a failure. STATUS_USAGE if a
   size is 0 or the matrix has more than 2^40 elements. */
enum status qr_problem_open(struct qr_problem *problem);
void qr_problem_close(struct qr_problem *problem);

/* Rows and elements of the matrix. */
size_t qr_problem_rows(const struct qr_problem *problem);
size_t qr_problem_elements(const struct qr_problem *problem);

/* Uses the first `count` of the windows. */
void qr_problem_use(struct qr_problem *problem, size_t count);

struct qr_errors {
    double backward; /* |R^T R - A^T A| / |A^T A|, Frobenius */
    /* |Q^T Q - I|, Frobenius, of Q = A R^-1: about condition eps for a backward stable R, condition^2 eps for
       a Cholesky factor. Estimated: |M x|^2 of a normal vector x has the mean |M|^2; the mean of four. */
    double orthogonality;
};

/* Of the R [n][n] of checked[which]; nothing below its diagonal is read. */
struct qr_errors qr_problem_errors(const struct qr_problem *problem, size_t which, const double *r);

/* The largest backward error that rounding explains: 2 (sqrt(n) + sqrt(rows of a window)) eps, as errors of
   random sign grow (Higham and Mary 2019, SIAM J. Sci. Comput. 41). Measured: up to a sixth of it
   with few columns, a twentieth of it at 640 x 128. */
double qr_problem_bound(const struct qr_problem *problem);

#endif
