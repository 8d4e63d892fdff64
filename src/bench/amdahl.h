/* The serial fraction of a training. */
#ifndef TESSERA_BENCH_AMDAHL_H
#define TESSERA_BENCH_AMDAHL_H

#include <stddef.h>

struct amdahl {
    double one;             /* seconds on one thread, as fitted */
    double serial_fraction; /* s of T(p) = T(1) (s + (1 - s) / p); Amdahl, AFIPS 1967 */
    double error;           /* standard error of s; 0 for fewer than three times */
};

/* Fits a line in 1/p to `count` times by least squares. All zero for fewer than two thread counts. */
struct amdahl amdahl_fit(const double *threads, const double *seconds, size_t count);

#endif
