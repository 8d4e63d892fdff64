/* Sliding windows against a float64 Householder QR of each window, in plain loops. */
#ifndef TESSERA_TESTS_WINDOWS_ORACLE_H
#define TESSERA_TESTS_WINDOWS_ORACLE_H

#include "src/window/windows.h"
#include "tests/values.h"

struct windows_errors {
    double gram;     /* |R^T R - A^T A| / |A^T A|, with the ridge in A */
    double triangle; /* |R - R of the oracle| / (|R| kappa), up to the signs of rows */
    double kappa;
};

/* What the visitor receives, as float64. */
struct windows_received {
    const struct windows_shape *shape;
    struct device *device; /* of the triangles, if not the host */
    size_t next, every;    /* the window that must come next; keep those that are multiples of `every` */
    double *r;             /* [count / every + 1][n][cols]; to be freed */
    bool in_order;
};

/* Small windows for every method, some with a ridge, gaps or right-hand sides. */
enum { WINDOWS_SHAPES = 22 };
extern const struct windows_shape windows_oracle_shapes[WINDOWS_SHAPES];

struct windows_received windows_oracle_make(const struct windows_shape *shape, size_t every);
/* The visitor; `self` is a struct windows_received. */
enum status windows_oracle_receive(void *self, size_t first, size_t count, const struct qr_triangles *r);

/* Opens, runs and closes, on any device; `a` has leading dimension cols. */
enum status windows_oracle_run(struct compute *compute, enum windows_method method,
                               const struct windows_shape *shape, struct values a,
                               struct windows_received *received);

/* Of a triangle [n][cols] that claims to be that of a window. Its rows receive the signs of the oracle. */
struct windows_errors windows_oracle_errors(const struct windows_shape *shape, struct values a, size_t window,
                                            double *r);

/* The worst error of all windows that were kept, relative to sqrt(window + n) epsilons; the triangles of Gram
   matrices may lose kappa twice. Above 1 they are wrong; infinite if not finite or not in order. */
double windows_oracle_worst(const struct windows_shape *shape, enum windows_method method, struct values a,
                            const struct windows_received *received);

#endif
