#include "src/report/scale.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/text.h"

double scale_step(double range, size_t most) {
    if (!(range > 0) || !isfinite(range) || most == 0) return 1;
    const double raw = range / (double)most, power = pow(10, floor(log10(raw)));
    const double factor = raw / power;
    const double slack = 1 + 1e-9; /* 0.3 / 3 rounds to more than 0.1 */
    return power * (factor <= slack ? 1 : factor <= 2 * slack ? 2 : factor <= 5 * slack ? 5 : 10);
}

enum { ROUND_STEPS = 5 };

static void round_linear(struct scale *scale) {
    const double step = scale_step(scale->high - scale->low, ROUND_STEPS);
    scale->low = step * floor(scale->low / step * (1 + 1e-12));
    scale->high = step * ceil(scale->high / step * (1 - 1e-12));
}

/* Rounds an end to 1, 2 or 5 times a power of ten, or to a power of two. */
static double round_log(enum scale_kind kind, double value, bool up) {
    if (kind == SCALE_LOG2) return exp2(up ? ceil(log2(value) - 1e-9) : floor(log2(value) + 1e-9));
    static const double steps[] = {1, 2, 5, 10};
    const double power = pow(10, floor(log10(value)));
    const double factor = value / power;
    if (up) {
        for (size_t i = 0; i < 4; i++)
            if (factor <= steps[i] * (1 + 1e-9)) return power * steps[i];
        return 10 * power;
    }
    for (size_t i = 4; i-- > 0;)
        if (factor >= steps[i] * (1 - 1e-9)) return power * steps[i];
    return power;
}

struct scale scale_around(enum scale_kind kind, double low, double high) {
    struct scale scale = {.kind = kind, .low = low, .high = high, .from = 0, .to = 1};
    const bool logarithmic = kind != SCALE_LINEAR;
    if (!isfinite(low) || !isfinite(high) || low > high || (logarithmic && low <= 0)) {
        scale.low = logarithmic ? 1 : 0;
        scale.high = logarithmic ? 10 : 1;
    }
    if (logarithmic) {
        scale.low = round_log(kind, scale.low, false);
        scale.high = round_log(kind, scale.high, true);
        if (!(scale.high > scale.low)) scale.high = scale.low * (kind == SCALE_LOG2 ? 2 : 10);
        return scale;
    }
    if (!(scale.high - scale.low > 1e-12 * fabs(scale.high))) {
        const double margin = scale.high == 0 ? 1 : 0.1 * fabs(scale.high);
        scale.low -= scale.low == 0 ? 0 : margin;
        scale.high += margin;
    }
    round_linear(&scale);
    return scale;
}

bool scale_shows(const struct scale *scale, double value) {
    /* rounding an end up must not overflow */
    return fabs(value) <= 1e100 && (scale->kind == SCALE_LINEAR || value >= 1e-100);
}

double scale_place(const struct scale *scale, double value) {
    double share = (value - scale->low) / (scale->high - scale->low);
    if (scale->kind != SCALE_LINEAR)
        share = log(fmax(value, scale->low) / scale->low) / log(scale->high / scale->low);
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    return scale->from + share * (scale->to - scale->from);
}

/* --- ticks --- */

static void add_tick(struct scale_ticks *ticks, const struct scale *scale, double value) {
    const double slack = 1e-9 * (scale->high - scale->low);
    const bool inside = scale->kind == SCALE_LINEAR
                            ? value >= scale->low - slack && value <= scale->high + slack
                            : value >= scale->low * (1 - 1e-9) && value <= scale->high * (1 + 1e-9);
    if (inside && ticks->count < SCALE_MAX_TICKS) ticks->at[ticks->count++] = value;
}

static void linear_ticks(struct scale_ticks *ticks, const struct scale *scale, size_t most) {
    double step = scale_step(scale->high - scale->low, most);
    if (scale->whole && step < 1) step = 1;
    const double first = ceil(scale->low / step - 1e-9);
    for (size_t i = 0; i < SCALE_MAX_TICKS; i++) {
        const double value = step * (first + (double)i);
        add_tick(ticks, scale, fabs(value) < 1e-9 * step ? 0 : value);
    }
}

/* Powers of `base`, at most `most`; if there are few powers of ten, 2 and 5 times them as well. */
static void power_ticks(struct scale_ticks *ticks, const struct scale *scale, double base, size_t most) {
    const double first = floor(log(scale->low) / log(base) + 1e-9),
                 last = ceil(log(scale->high) / log(base) - 1e-9);
    const double powers = last - first + 1;
    const double stride = ceil(powers / (double)most);
    const bool between = base == 10 && powers <= 4;
    for (size_t i = 0; i < SCALE_MAX_TICKS && first + stride * (double)i <= last; i++) {
        const double power = first + stride * (double)i;
        add_tick(ticks, scale, pow(base, power));
        if (between) add_tick(ticks, scale, 2 * pow(base, power));
        if (between) add_tick(ticks, scale, 5 * pow(base, power));
    }
}

struct scale_ticks scale_ticks(const struct scale *scale, size_t most) {
    struct scale_ticks ticks = {.count = 0};
    if (most < 2) most = 2;
    if (scale->kind == SCALE_LINEAR) {
        linear_ticks(&ticks, scale, most);
    } else {
        power_ticks(&ticks, scale, scale->kind == SCALE_LOG2 ? 2 : 10, most);
    }
    return ticks;
}

static int decimals_of(double step) {
    const double digits = -floor(log10(fabs(step)) + 1e-9);
    return digits > 9 ? 9 : digits > 0 ? (int)digits : 0;
}

struct text_number scale_label(enum scale_unit unit, double value, double step) {
    if (unit == UNIT_PERCENT) return text_percent(value, decimals_of(100 * step));
    if (unit == UNIT_SECONDS) {
        struct text_number out = value == 0 ? (struct text_number){"0"} : text_seconds(value);
        const size_t point = strcspn(out.text, "."), space = strcspn(out.text, " ");
        size_t end = space; /* 20.0 ms is 20 ms, 0.50 s is 0.5 s */
        while (end > point && (out.text[end - 1] == '0' || end - 1 == point)) end--;
        if (point < space) memmove(out.text + end, out.text + space, strlen(out.text + space) + 1);
        return out;
    }
    if (fabs(value) >= 1000 && fabs(value) < 1e15 && !(step < 1 && step > 0)) return text_short(value);
    if (!(step > 0)) { /* logarithmic: decimals differ by tick */
        struct text_number out;
        snprintf(out.text, sizeof out.text, "%.4g", value);
        return out;
    }
    return value != 0 && fabs(value) < 1e-4 ? text_short(value) : text_fixed(value, decimals_of(step));
}
