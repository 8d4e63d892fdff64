/* Roofs of products: the measured rates that bound them (Williams, Waterman, Patterson: Roofline, 2009). */
#ifndef TESSERA_REPORT_ROOF_H
#define TESSERA_REPORT_ROOF_H

#include "src/report/chart.h"
#include "src/report/records.h"

struct roof {
    double peak;      /* GFLOP/s */
    double bandwidth; /* GB/s of a copy */
};

/* The roof of a row of type "gemm", "shmem" or "kmeans_step": the highest rates of its dtype that a row of
   type "peak" has for its machine and device and, on the CPU, for its number of threads. Both NaN if there
   is none. */
struct roof roof_of(const struct records *records, const struct record *product);

/* flop per compulsory byte of a product; NaN if the row has no result. */
double roof_intensity(const cJSON *line);
/* What the product can reach, in GFLOP/s: the lower of the peak and intensity times bandwidth. NaN if there
   is no roof, or no result. */
double roof_limit(const struct roof *roof, const cJSON *line);

/* Adds the roof as a series, at least from intensity `low` to `high`. */
void roof_draw(struct chart *chart, const struct roof *roof, double low, double high);

/* "85 %": a share of the roof, of a row whose share of the peak is `of_peak`. A share above 100 % is followed
   by its reason. One that has none is not written; the words say so. */
struct roof_text {
    char text[96];
};
struct roof_text roof_share(const cJSON *line, double share, double of_peak);
/* Is there a share above 100 % without a reason? Then the peak was measured too low, or on fewer threads. */
bool roof_exceeded(const cJSON *line, double share, double of_peak);

#endif
