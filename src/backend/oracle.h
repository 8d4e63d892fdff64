/* What a GEMM call should give: float64 values, the error that its dtype is allowed, and a comparator that NaN cannot
   pass. Everything is host memory; `want` and `bound` are dense m x n. */
#ifndef TESSERA_BACKEND_ORACLE_H
#define TESSERA_BACKEND_ORACLE_H

#include "kernels/gemm.h"
#include "src/device/dtype.h"

/* op(A) op(B) in float64 and the bound of its float error: (k + 4) eps (|alpha| (|A||B|)_ij + |beta C_ij|), after Higham,
   "Accuracy and Stability of Numerical Algorithms", section 3.5. call->c holds the C before the call. */
void oracle_product(const struct gemm_call *call, double *want, double *bound);

/* From the product to what the epilogue makes of it: first the values before the activation, then those after it. */
void oracle_add_bias(const struct gemm_call *call, double *want, double *bound);
void oracle_activate(const struct gemm_call *call, double *want, double *bound);

/* From the product to the way back through an activation. */
void oracle_go_back(const struct gemm_call *call, double *want, double *bound);

/* act(z); the formulas of kernels/ops.h. */
double oracle_activated(enum activation activation, double z);

struct oracle_mismatch {
    size_t row, col; /* of the element that is furthest outside its bound; a NaN comes first */
    double got, want, bound;
};

/* Compares an m x n result (leading dimension ldc) with `want`, element by element: |got - want| <= bound, the absolute
   error allowed (0: equality). Equal infinities agree; NaN agrees with NaN only where `want` is NaN. False on any
   mismatch, with the worst element in `worst`. */
bool oracle_compare(enum gemm_dtype dtype, size_t m, size_t n, const void *got, size_t ldc,
                    const double *want, const double *bound, struct oracle_mismatch *worst);

#endif
