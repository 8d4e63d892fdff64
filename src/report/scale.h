/* Maps values to positions on a chart, and chooses round ticks. */
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
    double from, to;  /* the positions of low and high */
    bool whole;       /* ticks at whole numbers only */
};

/* A scale with round ends that includes both values. Invalid values (NaN, zero on a logarithmic scale, low
   >= high) also yield a valid scale. */
struct scale scale_around(enum scale_kind kind, double low, double high);

/* Can the scale show the value? Its position, clamped to the ends. */
bool scale_shows(const struct scale *scale, double value);
double scale_place(const struct scale *scale, double value);

enum { SCALE_MAX_TICKS = 24 };
struct scale_ticks {
    double at[SCALE_MAX_TICKS];
    size_t count;
};

/* Linear: about `most` ticks at multiples of 1, 2 or 5 times a power of ten. SCALE_LOG10: powers of ten, 2
   and 5 times them if they fit. SCALE_LOG2: powers of two. All are inside the scale. */
struct scale_ticks scale_ticks(const struct scale *scale, size_t most);

/* The least step of 1, 2 or 5 times a power of ten that covers `range` in `most` steps. */
double scale_step(double range, size_t most);

/* "10,000", "0.25", "2 ms", "95 %", with the decimals that the step between ticks needs (0: those of the
   value). */
struct text_number scale_label(enum scale_unit unit, double value, double step);

#endif
