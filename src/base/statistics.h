/* Statistics of repeated measurements. */
#ifndef TESSERA_BASE_STATISTICS_H
#define TESSERA_BASE_STATISTICS_H

#include <stdbool.h>
#include <stddef.h>

struct statistics {
    size_t count;
    double median, min, max, mean;
    /* sample standard deviation, sqrt(sum (x - mean)^2 / (n - 1)); 0 for a single value */
    double deviation;
    /* The 87 % confidence interval of the median, from order statistics (of 7 values the second and the
       sixth), is wider than 5 % of it. */
    bool noisy;
};

/* Of `count` values, which it sorts; all zero if there are none. */
struct statistics statistics_of(double *values, size_t count);

#endif
