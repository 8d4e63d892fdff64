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
    /* True if the 87 % confidence interval of the median is wider than 5 % of the median. The interval is
       from order statistics: of 7 values, the second to the sixth. */
    bool noisy;
};

/* Sorts `values`. All zero if count is 0. */
struct statistics statistics_of(double *values, size_t count);

#endif
