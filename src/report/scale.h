/* From values to places on a chart, and the round values at which an axis is marked. */
#ifndef TESSERA_REPORT_SCALE_H
#define TESSERA_REPORT_SCALE_H

#include <stdbool.h>
#include <stddef.h>

#include "src/base/text.h"

enum scale_kind { SCALE_LINEAR, SCALE_LOG10, SCALE_LOG2 };
enum scale_unit { UNIT_PLAIN, UNIT_SECONDS, UNIT_PERCENT /* of a fraction */ };

struct scale {
    enum scale_kind kind;
    double low, high; /* low < high; both > 0 on a logarithmic scale */
    double from, to;  /* the places of low and high */
    bool whole;       /* ticks at whole numbers only */
};

/* A scale that holds both values, at round ends. Values that cannot be (nothing, NaN, zero on a logarithmic
   scale, low = high) give a scale that can be drawn. */
struct scale scale_around(enum scale_kind kind, double low, double high);

/* Can the value be shown at all? / its place, kept inside the scale's ends. */
bool scale_shows(const struct scale *scale, double value);
double scale_place(const struct scale *scale, double value);

enum { SCALE_MAX_TICKS = 24 };
struct scale_ticks {
    double at[SCALE_MAX_TICKS];
    size_t count;
};

/* Linear: 1, 2 or 5 times a power of ten apart, about `most` of them. Logarithmic to ten: powers of ten, with
   2 and 5 between where there is room; to two: powers of two. All are inside the scale. */
struct scale_ticks scale_ticks(const struct scale *scale, size_t most);

/* 1, 2 or 5 times a power of ten, the least that covers `range` in at most `most` steps. */
double scale_step(double range, size_t most);

/* "10,000", "0.25", "2 ms", "95 %": with as many decimals as the step between ticks needs (0: as many as
   the value has). */
struct text_number scale_label(enum scale_unit unit, double value, double step);

#endif
