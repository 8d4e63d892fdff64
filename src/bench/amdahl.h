/* How much of the work does not run in parallel? */
#ifndef TESSERA_BENCH_AMDAHL_H
#define TESSERA_BENCH_AMDAHL_H

#include <stddef.h>

struct amdahl {
    double one;             /* seconds on one thread, as fitted */
    double serial_fraction; /* s of T(p) = T(1) (s + (1 - s) / p); Amdahl, AFIPS 1967 */
    double error;           /* standard error of s; 0 with less than three times */
};

/* Least squares over `count` times, each with its thread count, of a straight line in 1/p. All zero if there
   are not two thread counts. */
struct amdahl amdahl_fit(const double *threads, const double *seconds, size_t count);

#endif
