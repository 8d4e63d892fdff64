/* A projection on leading principal directions, for bounds of distances (nearest_pruned.c).

   P has `columns` orthonormal columns up to `defect`, the Frobenius norm of P^T P - I. The image of x is

     F(x) = (P^T (x - mean), the norm of the rest of x - mean)

   in float32, with an error of at most E(x). For exact orthonormal columns and no error, F is 1-Lipschitz, by
   | |u| - |v| | <= |u - v| for the rests u, v. So |F(x) - F(c)| <= |x - c| + E(x) + E(c). */
#ifndef TESSERA_KERNELS_HOST_TUNED_PRINCIPAL_H
#define TESSERA_KERNELS_HOST_TUNED_PRINCIPAL_H

#include "kernels/nearest.h"

enum { PRINCIPAL_PANEL = 16 /* columns */, PRINCIPAL_MOST = 63 /* and the rest: 64 */ };

struct principal {
    size_t features, columns;
    double *mean;   /* [features] */
    double *panels; /* P: [PRINCIPAL_MOST / PRINCIPAL_PANEL, rounded up][features][PRINCIPAL_PANEL] */
    double defect;
};

/* Rows of a matrix of a dtype, or of bytes. */
struct principal_rows {
    enum gemm_dtype dtype;
    bool bytes;
    const void *x; /* [count][features] */
    size_t count;
};

/* Up to PRINCIPAL_MOST directions, the largest variance first, by orthogonal iteration on a sample of the
   rows (Golub and Van Loan, Matrix Computations, 7.3.2): any P is correct, a good one prunes more. false: out
   of memory. Call principal_close also then. */
bool principal_open(struct principal *principal, const struct principal_rows *rows, size_t features,
                    int threads);
void principal_close(struct principal *principal);

/* image[r] = F(row first + r), [rows][columns + 1] for the first `columns` directions. Returns an upper bound
   of E of these rows; not finite if the image is not. `scratch`: PRINCIPAL_SCRATCH(features) doubles. */
double principal_image(const struct principal *principal, size_t columns, const struct principal_rows *from,
                       size_t first, size_t rows, double *scratch, float *image);

enum { PRINCIPAL_ROWS = 4 /* that are projected together */ };
#define PRINCIPAL_SCRATCH(features) (PRINCIPAL_ROWS * ((features) + PRINCIPAL_MOST + 1))

#endif
