/* The sign of |x - a|^2 - |x - b|^2 over the reals.

   Idea     the difference is sum (a a - b b - 2 x a + 2 x b). A product of two doubles is exactly p + e with
            e = fma(a, b, -p), and that of two floats is a double. An expansion, a sum of doubles that do not
            overlap, grows by one term at a time without error (Shewchuk 1997, "Adaptive precision
            floating-point arithmetic", theorem 10); its sign is that of its largest component.
   Needs    rounding to nearest, and a compiler that neither reassociates nor contracts: the Makefile compiles
            the files that include this one with -ffp-contract=off, and those for the GPU with -fmad=false.
   Bound by  latency: some hundred cycles a feature. It runs for ties, and where float64 does not decide. */
#ifndef TESSERA_KERNELS_EXACT_H
#define TESSERA_KERNELS_EXACT_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __CUDACC__
#    define EXACT_INLINE static __host__ __device__ inline
#else
#    define EXACT_INLINE static inline
#endif

enum { EXACT_COMPONENTS = 64 }; /* 2098 bits of exponent and mantissa need 40 of 53 bits */

struct exact_sum {
    size_t count;
    double component[EXACT_COMPONENTS]; /* in rising order of magnitude, none is 0 */
    bool inexact;                       /* a term was lost */
};

EXACT_INLINE void exact_add(struct exact_sum *sum, double term) {
    size_t kept = 0;
    for (size_t i = 0; i < sum->count; i++) { /* TwoSum (Knuth) */
        const double part = sum->component[i], whole = term + part, virtual_part = whole - term;
        const double error = (term - (whole - virtual_part)) + (part - virtual_part);
        if (error != 0) sum->component[kept++] = error;
        term = whole;
    }
    if (term != 0 && kept == EXACT_COMPONENTS) sum->inexact = true;
    if (term != 0 && kept < EXACT_COMPONENTS) sum->component[kept++] = term;
    sum->count = kept;
}

/* Adds scale a b; scale is a power of two. The error of a product below 2^-960 may be subnormal. */
EXACT_INLINE void exact_add_product(struct exact_sum *sum, double scale, double a, double b) {
    const double product = a * b, error = fma(a, b, -product);
    if (!(fabs(product) < 0x1p1000) || (fabs(product) < 0x1p-960 && a != 0 && b != 0)) sum->inexact = true;
    exact_add(sum, scale * product);
    if (error != 0) exact_add(sum, scale * error);
}

/* Adds (x - a)^2 - (x - b)^2. */
EXACT_INLINE void exact_add_squares(struct exact_sum *sum, double x, double a, double b) {
    if (a == b) return;
    exact_add_product(sum, 1, a, a);
    exact_add_product(sum, -1, b, b);
    exact_add_product(sum, -2, x, a);
    exact_add_product(sum, 2, x, b);
}

/* Negative: a is nearer. */
EXACT_INLINE int exact_sign(const struct exact_sum *sum) {
    const double largest = sum->count ? sum->component[sum->count - 1] : 0;
    return (largest > 0) - (largest < 0);
}

#endif
