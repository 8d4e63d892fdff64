#include "src/base/statistics.h"

#include <math.h>
#include <stdlib.h>

static const double NOISE_LIMIT = 0.05, DEVIATIONS = 1.53; /* +- 1.53 of a normal distribution are 87 % */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct statistics statistics_of(double *values, size_t count) {
    if (count == 0) return (struct statistics){0};
    qsort(values, count, sizeof *values, by_value);
    struct statistics of = {.count = count,
                            .median = (values[(count - 1) / 2] + values[count / 2]) / 2,
                            .min = values[0],
                            .max = values[count - 1]};
    for (size_t i = 0; i < count; i++) of.mean += values[i] / (double)count;
    for (size_t i = 0; i < count; i++) of.deviation += (values[i] - of.mean) * (values[i] - of.mean);
    of.deviation = count > 1 ? sqrt(of.deviation / (double)(count - 1)) : 0;
    /* the rank of the median has a standard deviation of sqrt(count) / 2 */
    const double rank = ((double)count - DEVIATIONS * sqrt((double)count)) / 2;
    const size_t low = rank > 0 ? (size_t)rank : 0;
    of.noisy = values[count - 1 - low] - values[low] > NOISE_LIMIT * of.median;
    return of;
}
