/* Checks of block QR on the backend and device of a struct compute. */
#ifndef TESSERA_TESTS_QR_CHECKS_H
#define TESSERA_TESTS_QR_CHECKS_H

#include "src/window/qr.h"
#include "tests/support.h"
#include "tests/values.h"

struct qr_case {
    size_t rows, n, extra, block; /* extra: right-hand sides */
    enum gemm_dtype dtype;
    size_t batch;
};

/* A matrix on the device of `compute`: the values themselves on the host, else a copy. */
struct qr_matrix qr_checks_upload(struct compute *compute, struct values values, size_t rows, size_t cols,
                                  size_t batch);
/* The copy becomes the values again, and is freed. */
void qr_checks_download(struct compute *compute, struct qr_matrix matrix, struct values values, size_t count);

void qr_checks_open(struct qr *qr, struct compute *compute, struct compute *panels,
                    const struct qr_case *test, bool keeps_q);

/* Residual and orthogonality of every `every`-th case of a list; batches as one by one. `panels`: as in
   struct qr_shape. */
void qr_checks_factor(struct compute *compute, struct compute *panels, size_t every);
void qr_checks_case(struct compute *compute, struct compute *panels, const struct qr_case *test);

/* |R^T R - A^T A| / |A^T A|, Frobenius, of all columns, in float64: A [rows][cols], of which R [n][cols] is
   the triangle. */
double qr_checks_gram_error(size_t rows, size_t n, size_t cols, const double *a, const double *r);

/* Rows enter in portions, from nothing: the triangle is that of all, also while there are fewer than n. Up to
   64 rows leave what is below its diagonal alone. */
void qr_checks_append(struct compute *compute, struct compute *panels);

#endif
