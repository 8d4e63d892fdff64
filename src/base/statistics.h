/* Repeated measurements in a few numbers. */
#ifndef TESSERA_BASE_STATISTICS_H
#define TESSERA_BASE_STATISTICS_H

#include <stdbool.h>
#include <stddef.h>

struct statistics {
    size_t count;
    double median, min, max;
    /* Would another run find another median? The second and the second last of the sorted values, which hold the true median
       between them in 7 of 8 runs of 7 repeats, are more than 5 % of the median apart. */
    bool noisy;
};

/* Of `count` values, which are sorted on the way; all zero of none. */
struct statistics statistics_of(double *values, size_t count);

#endif
