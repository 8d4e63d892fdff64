/* The expected result of a GEMM call in float64, the error bound of its dtype, and a comparator that rejects
   NaN. All memory is host memory; `want` and `bound` are dense m x n. */
#ifndef TESSERA_BACKEND_ORACLE_H
#define TESSERA_BACKEND_ORACLE_H

#include "kernels/gemm.h"
#include "src/base/status.h"
#include "src/device/dtype.h"

/* How A and B were drawn, and how the call may round them. */
struct oracle_inputs {
    bool zero_mean;  /* independent draws with a mean of zero: rounding errors cancel */
    bool positive;   /* independent draws of one sign: rounding errors cancel, values do not */
    double rounding; /* the relative error that the call may add to each operand: 0 or ORACLE_TF32 */
};

/* Ten bits of mantissa, rounded or truncated. */
static const double ORACLE_TF32 = 0x1p-10;

/* op(A) op(B) in float64 and the bound of its float error; call->c holds the C before the call.
     always      (k + 4) eps (|alpha| (|A||B|)_ij + |beta C_ij|)
                 Higham, "Accuracy and Stability of Numerical Algorithms", section 3.5
     zero_mean   the smaller of that and 4 (sqrt(k) + 4) eps (|alpha| sqrt(sum_p (a_ip b_pj)^2) + |beta C_ij|)
                 Higham and Mary, "Sharper probabilistic backward error analysis ...", SIAM J. Sci.
                 Comput. 42 (2020)
     positive    the smaller of that and 4 (sqrt(k) + 4) eps (|alpha| (|A||B|)_ij + |beta C_ij|)
                 the same authors, SIAM J. Sci. Comput. 41 (2019)
   Each plus (k + 4) times dtype_underflow. The first grows with k and the others with
   sqrt(k). Measured, k = 1 to 8192, 50,000 elements each: true sums, one term after the other (the worst
   order), stay under 0.4 of the second; TF32 operands exceed it 15 times and more, but pass the first one
   from k = 500 on. By the tail of a random walk, hundreds of millions of true sums stay under it. `rounding`
   adds its own error to both. STATUS_FAILED: out of memory; `want` and `bound` are then undefined. */
enum status oracle_product(const struct gemm_call *call, struct oracle_inputs inputs, double *want,
                           double *bound);

/* The root mean square of error / bound over an m x n result within its bounds. Roundings to nearest, one
   term after the other (the worst order), stay under 0.045 with the bounds of zero_mean and positive, for
   every k; 0.036 is the most that the host's backends were measured at. At k = 784 operands of 16 bits of
   mantissa (two bfloat16) have 0.2, and a truncated accumulator 0.08, on positive data more: ORACLE_RMS lies
   between. It is for long sums, and needs enough elements for an estimate. */
double oracle_rms(enum gemm_dtype dtype, size_t m, size_t n, const void *got, size_t ldc, const double *want,
                  const double *bound);
static const double ORACLE_RMS = 1.0 / 16;
enum { ORACLE_RMS_TERMS = 64, ORACLE_RMS_ELEMENTS = 1024 };

/* ||got - want|| / ||want||, Euclidean norms over all elements: the relative error of an m x n result. */
double oracle_relative_error(enum gemm_dtype dtype, size_t m, size_t n, const void *got, size_t ldc,
                             const double *want);

/* Apply the epilogue to the product: the first adds the bias, the second applies the activation. */
void oracle_add_bias(const struct gemm_call *call, double *want, double *bound);
void oracle_activate(const struct gemm_call *call, double *want, double *bound);

/* Applies the backward epilogue to the product. With a C of half precision, the second limits the interval
   want +- bound, which then includes the rounding of C, to +-65504. */
void oracle_backward(const struct gemm_call *call, double *want, double *bound);
void oracle_saturate(const struct gemm_call *call, double *want, double *bound);

/* act(z); the formulas of kernels/activation.h. */
double oracle_activated(enum activation activation, double z);

struct oracle_mismatch {
    size_t row, col; /* of the element that is furthest outside its bound; NaN counts as furthest */
    double got, want, bound;
};

/* Compares an m x n result (leading dimension ldc) with `want`, element by element: |got - want| <= bound,
   the absolute error allowed (0: equality). Equal infinities agree; NaN agrees only with NaN. In half
   precision, what is expected beyond 65536 must be Inf, and Inf counts as 65536.
   False on any mismatch, with the worst element in `worst`. */
bool oracle_compare(enum gemm_dtype dtype, size_t m, size_t n, const void *got, size_t ldc,
                    const double *want, const double *bound, struct oracle_mismatch *worst);

#endif
