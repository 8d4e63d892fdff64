#include "src/backend/oracle.h"

#include <math.h>
#include <stdlib.h>

/* --- the comparator --- */

static const double HALF_MOST = 65504,
                    HALF_INF = 65536; /* the next number of half precision would be 65536 */

/* How far `got` is outside its bound, infinite for NaN; < 0 if it is inside. */
static double excess(enum gemm_dtype dtype, double got, double want, double bound) {
    if (dtype == GEMM_F16 && fabs(want) - bound >= HALF_INF) want = copysign(INFINITY, want);
    if (isnan(want)) return isnan(got) ? -1 : INFINITY;
    if (isinf(want)) return got == want ? -1 : INFINITY;
    if (dtype == GEMM_F16 && isinf(got)) got = copysign(HALF_INF, got);
    const double error = fabs(got - want);
    if (!(error <= bound)) return isnan(error) ? INFINITY : error - bound;
    return -1;
}

/* Is each element a number within its bound? The usual case, without branches. An infinite error is for
   `excess` to judge: the bound may be infinite, too. */
static bool all_within(enum gemm_dtype dtype, size_t m, size_t n, const void *got, size_t ldc,
                       const double *want, const double *bound) {
    size_t within = 0;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            const double error = fabs(dtype_get(dtype, got, i * ldc + j) - want[i * n + j]);
            within += (error <= bound[i * n + j]) & (error < INFINITY);
        }
    return within == m * n;
}

bool oracle_compare(enum gemm_dtype dtype, size_t m, size_t n, const void *got, size_t ldc,
                    const double *want, const double *bound, struct oracle_mismatch *worst) {
    double furthest = -1;
    if (all_within(dtype, m, n, got, ldc, want, bound)) return true;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            const double value = dtype_get(dtype, got, i * ldc + j);
            const double off = excess(dtype, value, want[i * n + j], bound[i * n + j]);
            if (off < 0 || off <= furthest) continue;
            furthest = off;
            *worst = (struct oracle_mismatch){i, j, value, want[i * n + j], bound[i * n + j]};
        }
    return furthest < 0;
}

double oracle_rms(enum gemm_dtype dtype, size_t m, size_t n, const void *got, size_t ldc, const double *want,
                  const double *bound) {
    double sum = 0;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            const double error = (dtype_get(dtype, got, i * ldc + j) - want[i * n + j]) / bound[i * n + j];
            sum += error * error;
        }
    return sqrt(sum / (double)(m * n));
}

double oracle_relative_error(enum gemm_dtype dtype, size_t m, size_t n, const void *got, size_t ldc,
                             const double *want) {
    double errors = 0, values = 0;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            const double exact = want[i * n + j], error = dtype_get(dtype, got, i * ldc + j) - exact;
            errors += error * error;
            values += exact * exact;
        }
    return sqrt(errors / values);
}

/* --- the oracle --- */

enum { LANES = 16, ROWS = 8 }; /* columns at a time, and rows that read them again from a cache */

/* op(A) by rows (lanes: 1) or op(B) by groups of columns, in double: [group][k][lanes], with zeros beyond
   `count`. NULL without memory. */
static double *unfold(enum gemm_dtype dtype, const void *memory, size_t ld, size_t count, size_t k,
                      bool along_k, size_t lanes) {
    double *values = calloc((count + lanes - 1) / lanes * lanes * k + 1, sizeof *values);
    for (size_t i = 0; values && i < count; i++)
        for (size_t p = 0; p < k; p++)
            values[(i / lanes * k + p) * lanes + i % lanes] =
                dtype_get(dtype, memory, along_k ? i * ld + p : p * ld + i);
    return values;
}

/* LANES elements of op(A) op(B): their sums, and the sums of the absolute and of the squared terms. */
struct terms {
    double sum[LANES], magnitude[LANES], square[LANES];
};
typedef struct terms terms_of(const double *restrict a, const double *restrict b, size_t k);

/* Not instrumented: sanitizers would make it ten times as slow, and it is most of the work of the tests. */
#define NOT_INSTRUMENTED __attribute__((no_sanitize("address", "undefined")))

NOT_INSTRUMENTED static inline __attribute__((always_inline)) struct terms
add_up(const double *restrict a, const double *restrict b, size_t k, const bool magnitudes,
       const bool squares) {
    struct terms terms = {0};
    for (size_t p = 0; p < k; p++)
#pragma omp simd
        for (int j = 0; j < LANES; j++) {
            const double product = a[p] * b[p * LANES + (size_t)j];
            terms.sum[j] += product;
            if (magnitudes) terms.magnitude[j] += fabs(product);
            if (squares) terms.square[j] += product * product;
        }
    return terms;
}

/* Not inlined: gcc would keep the sums in memory. */
#define DEFINE_TERMS(NAME, MAGNITUDES, SQUARES)                          \
    NOT_INSTRUMENTED static __attribute__((noinline)) struct terms NAME( \
        const double *restrict a, const double *restrict b, size_t k) {  \
        return add_up(a, b, k, MAGNITUDES, SQUARES);                     \
    }
DEFINE_TERMS(all_terms, true, true)
DEFINE_TERMS(without_squares, true, false)
DEFINE_TERMS(without_magnitudes, false, true)

/* From k = 37 on, the bound of independent inputs is the smaller one: k + 4 > 4 (sqrt(k) + 4), and the sum of
   absolute terms is at least the root of the sum of their squares. */
enum { INDEPENDENT_TERMS = 37 };

/* The sums that product_bound reads. */
static terms_of *terms_needed(struct oracle_inputs inputs, size_t k) {
    if (inputs.positive || !inputs.zero_mean) return without_squares;
    return k >= INDEPENDENT_TERMS && inputs.rounding == 0 ? without_magnitudes : all_terms;
}

/* The error bound of alpha * (a float sum of k terms) + c. */
static double product_bound(double magnitude, double square, size_t k, double eps, double alpha, double c,
                            struct oracle_inputs inputs, double underflow) {
    const double length = (double)k;
    const double size = fabs(alpha) * (inputs.positive ? magnitude : sqrt(square));
    const double certain = (length + 4) * eps * (fabs(alpha) * magnitude + fabs(c));
    const double likely = 4 * (sqrt(length) + 4) * eps * (size + fabs(c));
    const double rounded = 2 * inputs.rounding * fabs(alpha) * magnitude;
    const bool independent = inputs.zero_mean || inputs.positive,
               is_likely = independent && (k >= INDEPENDENT_TERMS || likely < certain);
    return (is_likely ? likely : certain) + rounded + (length + 4) * underflow;
}

enum status oracle_product(const struct gemm_call *call, struct oracle_inputs inputs, double *want,
                           double *bound) {
    const enum gemm_dtype c_dtype = dtype_of_c(call);
    const double eps = dtype_epsilon(dtype_of_sums(call->dtype));
    const double underflow = dtype_underflow(call->dtype);
    const size_t k = call->k;
    double *a = unfold(call->dtype, call->a, call->lda, call->m, k, !gemm_transposes_a(call->op), 1);
    double *b = unfold(call->dtype, call->b, call->ldb, call->n, k, gemm_transposes_b(call->op), LANES);
    const size_t rows = a && b ? call->m : 0;
    terms_of *const add_terms = terms_needed(inputs, k);
#pragma omp parallel for collapse(2) schedule(static) if (rows * call->n * k > 1 << 16)
    for (size_t first = 0; first < rows; first += ROWS)
        for (size_t col = 0; col < call->n; col += LANES)
            for (size_t i = first; i < rows && i < first + ROWS; i++) {
                const struct terms terms = add_terms(a + i * k, b + col * k, k);
                for (size_t j = col; j < call->n && j < col + LANES; j++) {
                    const double c =
                        call->beta == 0 ? 0 : call->beta * dtype_get(c_dtype, call->c, i * call->ldc + j);
                    want[i * call->n + j] = call->alpha * terms.sum[j - col] + c;
                    bound[i * call->n + j] = product_bound(terms.magnitude[j - col], terms.square[j - col], k,
                                                           eps, call->alpha, c, inputs, underflow);
                }
            }
    const bool complete = a && b;
    free(a);
    free(b);
    return complete ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
}

/* act(z) in double. */
double oracle_activated(enum activation activation, double z) {
    switch (activation) {
    case ACTIVATION_NONE:
        return z;
    case ACTIVATION_RELU:
        return z < 0 ? 0 : z;
    case ACTIVATION_TANH:
        return tanh(z);
    case ACTIVATION_SCALED_TANH:
        return 1.7159 * tanh(2 * z / 3);
    case ACTIVATION_SIGMOID:
        return 1 / (1 + exp(-z));
    case ACTIVATION_GELU:
        return 0.5 * z * (1 + erf(z * 0.70710678118654752440));
    }
    return z;
}

/* act'(z), y = act(z). */
static double slope(enum activation activation, double z, double y) {
    switch (activation) {
    case ACTIVATION_NONE:
        return 1;
    case ACTIVATION_RELU:
        return y > 0;
    case ACTIVATION_TANH:
        return 1 - y * y;
    case ACTIVATION_SCALED_TANH:
        return 1.7159 * 2 / 3 - 2 / 3.0 / 1.7159 * y * y;
    case ACTIVATION_SIGMOID:
        return y * (1 - y);
    case ACTIVATION_GELU:
        return 0.5 * (1 + erf(z * 0.70710678118654752440)) + 0.39894228040143267794 * z * exp(-0.5 * z * z);
    }
    return 1;
}

/* A bound of |act'(z)|: the largest slope on a fine grid, rounded up. */
static double steepest(enum activation activation) {
    double most = 0;
    for (double z = -8; z <= 8; z += 0x1p-5)
        most = fmax(most, fabs(slope(activation, z, oracle_activated(activation, z))));
    return 1.01 * most;
}

void oracle_add_bias(const struct gemm_call *call, double *want, double *bound) {
    const enum gemm_dtype real = dtype_of_sums(call->dtype);
    for (size_t i = 0; i < call->m * call->n; i++) {
        const double bias = dtype_get(real, call->epilogue->bias, i % call->n);
        want[i] += bias;
        bound[i] += 2 * dtype_epsilon(real) * (fabs(want[i]) + fabs(bias));
    }
}

void oracle_backward(const struct gemm_call *call, double *want, double *bound) {
    const struct gemm_backward *backward = call->backward;
    const enum gemm_dtype c_dtype = dtype_of_c(call), real = dtype_of_sums(call->dtype);
    const double most = steepest(backward->activation);
    for (size_t i = 0; i < call->m * call->n; i++) {
        const size_t at = i / call->n * call->ldc + i % call->n;
        const double unscaled = fabs(want[i]);
        want[i] *= slope(backward->activation, dtype_get(c_dtype, backward->pre, at),
                         dtype_get(c_dtype, backward->output, at));
        bound[i] = most * bound[i] + 8 * dtype_epsilon(real) * unscaled;
    }
}

void oracle_saturate(const struct gemm_call *call, double *want, double *bound) {
    for (size_t i = 0; i < call->m * call->n && dtype_of_c(call) == GEMM_F16; i++) {
        if (!(fabs(want[i]) + bound[i] > HALF_MOST)) continue; /* NaN stays NaN */
        const double low = fmax(-HALF_MOST, fmin(want[i] - bound[i], HALF_MOST)),
                     high = fmin(HALF_MOST, fmax(want[i] + bound[i], -HALF_MOST));
        want[i] = low / 2 + high / 2;
        bound[i] = fmax(high - want[i], want[i] - low);
    }
}

void oracle_activate(const struct gemm_call *call, double *want, double *bound) {
    const double most = steepest(call->epilogue->activation);
    for (size_t i = 0; i < call->m * call->n; i++) {
        want[i] = oracle_activated(call->epilogue->activation, want[i]);
        bound[i] = most * bound[i] + 8 * dtype_epsilon(dtype_of_sums(call->dtype)) * (fabs(want[i]) + 1);
    }
}
