#include "src/bench/amdahl.h"

#include <math.h>

struct amdahl amdahl_fit(const double *threads, const double *seconds, size_t count) {
    double n = (double)count, x_mean = 0, y_mean = 0, xx = 0, xy = 0;
    for (size_t i = 0; i < count; i++) {
        x_mean += 1 / threads[i] / n;
        y_mean += seconds[i] / n;
    }
    for (size_t i = 0; i < count; i++) {
        xx += (1 / threads[i] - x_mean) * (1 / threads[i] - x_mean);
        xy += (1 / threads[i] - x_mean) * (seconds[i] - y_mean);
    }
    if (count < 2 || xx < 1e-12) return (struct amdahl){0};
    const double parallel = xy / xx, serial = y_mean - parallel * x_mean, one = serial + parallel;
    struct amdahl fit = {.one = one, .serial_fraction = serial / one};
    if (count == 2) return fit;

    double residual = 0;
    for (size_t i = 0; i < count; i++) {
        const double off = seconds[i] - serial - parallel / threads[i];
        residual += off * off;
    }
    /* the error of s = a / (a + b), a = y_mean - b x_mean, propagated from the uncorrelated y_mean and b */
    const double variance = residual / (n - 2), by_mean = parallel / (one * one),
                 by_slope = -(y_mean) / (one * one);
    fit.error = sqrt(variance * (by_mean * by_mean / n + by_slope * by_slope / xx));
    return fit;
}
