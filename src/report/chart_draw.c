#include "src/report/chart_draw.h"

#include <math.h>
#include <string.h>

#include "src/report/markup.h"

void draw_open(FILE *out, const char *label, double width, double height) {
    fprintf(out,
            "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" "
            "viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"",
            width, height, width, height);
    markup_text(out, label);
    fputs("\">\n", out);
}

void draw_close(FILE *out) {
    fputs("</svg>\n", out);
}

void draw_text(FILE *out, double x, double y, const char *class, const char *anchor, const char *text) {
    fprintf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", class, x, y, anchor);
    markup_text(out, text);
    fputs("</text>\n", out);
}

static double tick_step(const struct scale *scale, const struct scale_ticks *ticks) {
    return scale->kind != SCALE_LINEAR || ticks->count < 2 ? 0 : ticks->at[1] - ticks->at[0];
}

static void draw_title(FILE *out, double x, double y, const char *anchor, const struct scale *scale,
                       const struct chart_axis *axis) {
    char title[160];
    snprintf(title, sizeof title, "%s%s", axis->title, scale->kind == SCALE_LINEAR ? "" : ", log scale");
    draw_text(out, x, y, "a", anchor, title);
}

enum { X_TICKS = 8, Y_TICKS = 6, LOG_TICKS = 8, LABEL_CHARACTER = 8 /* pixels on a phone */ };

void draw_x_axis(FILE *out, const struct plot *plot, const struct scale *scale,
                 const struct chart_axis *axis) {
    const struct scale_ticks ticks = scale_ticks(scale, X_TICKS);
    double free_from = -INFINITY; /* the end of the last label */
    for (size_t i = 0; i < ticks.count; i++) {
        const double x = scale_place(scale, ticks.at[i]);
        const struct text_number label = scale_label(axis->unit, ticks.at[i], tick_step(scale, &ticks));
        const double half = 0.5 * LABEL_CHARACTER * (double)strlen(label.text);
        fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>\n", x, plot->top, plot->bottom);
        if (x - half < free_from) continue;
        draw_text(out, x, plot->bottom + 16, "t", "middle", label.text);
        free_from = x + half;
    }
    draw_title(out, plot->right, plot->bottom + 36, "end", scale, axis);
}

void draw_y_axis(FILE *out, const struct plot *plot, const struct scale *scale,
                 const struct chart_axis *axis) {
    const struct scale_ticks ticks = scale_ticks(scale, scale->kind == SCALE_LINEAR ? Y_TICKS : LOG_TICKS);
    for (size_t i = 0; i < ticks.count; i++) {
        const double y = scale_place(scale, ticks.at[i]);
        fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>\n", plot->left, y, plot->right);
        draw_text(out, plot->left - 7, y + 4, "t", "end",
                  scale_label(axis->unit, ticks.at[i], tick_step(scale, &ticks)).text);
    }
    draw_title(out, 0, 12, "start", scale, axis);
}

/* Is a higher reference so close that the names would overlap? Then this one's is below its line. */
static bool is_crowded(const struct chart *chart, size_t index, const struct scale *scale) {
    enum { NAME_HEIGHT = 14 };
    const struct chart_reference *reference = &chart->references[index];
    const double y = scale_place(scale, reference->value);
    for (size_t i = 0; i < chart->reference_count; i++)
        if (chart->references[i].value > reference->value &&
            fabs(scale_place(scale, chart->references[i].value) - y) < NAME_HEIGHT)
            return true;
    return false;
}

void draw_references(FILE *out, const struct plot *plot, const struct scale *scale,
                     const struct chart *chart) {
    for (size_t i = 0; i < chart->reference_count; i++) {
        const struct chart_reference *reference = &chart->references[i];
        const double y = scale_place(scale, reference->value);
        fprintf(out, "<path class=\"reference\" d=\"M%.1f %.1fH%.1f\"/>\n", plot->left, y, plot->right);
        const bool below = is_crowded(chart, i, scale);
        draw_text(out, plot->left + 4, below ? y + 13 : y - 4, "r", "start", reference->name);
    }
}

/* --- markers: all of about the same area --- */

static const char *const shapes[CHART_MARKERS] = {
    "m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",                            /* circle */
    "m-3.3 -3.3h6.6v6.6h-6.6z",                                                     /* square */
    "m0 -4.4l4.2 7.4h-8.4z",                                                        /* triangle up */
    "m0 -4.8l4.8 4.8l-4.8 4.8l-4.8 -4.8z",                                          /* diamond */
    "m0 4.4l4.2 -7.4h-8.4z",                                                        /* triangle down */
    "m-1.3 -4.2h2.6v2.9h2.9v2.6h-2.9v2.9h-2.6v-2.9h-2.9v-2.6h2.9z",                 /* plus */
    "m-2 -4.4l2 2l2 -2l2.4 2.4l-2 2l2 2l-2.4 2.4l-2 -2l-2 2l-2.4 -2.4l2 -2l-2 -2z", /* cross */
};

static void shape_path(FILE *out, double x, double y, struct chart_style style) {
    fprintf(out, "<path class=\"mark f%u\" d=\"M%.1f %.1f%s\"", style.colour % CHART_COLOURS, x, y,
            shapes[style.marker % CHART_MARKERS]);
}

void draw_symbol(FILE *out, double x, double y, struct chart_style style) {
    shape_path(out, x, y, style);
    fputs("/>", out);
}

void draw_marker(FILE *out, double x, double y, struct chart_style style, const char *name) {
    shape_path(out, x, y, style);
    fputs("><title>", out);
    markup_text(out, name);
    fputs("</title></path>\n", out);
}

/* --- scales --- */

struct range {
    double low, high, positive; /* positive: the least value that a logarithmic scale can show */
};

static const struct range NOTHING = {INFINITY, -INFINITY, INFINITY};
static const double WIDE = 20;

static void widen(struct range *range, double value) {
    if (!isfinite(value)) return;
    range->low = fmin(range->low, value);
    range->high = fmax(range->high, value);
    if (scale_shows(&(struct scale){.kind = SCALE_LOG10}, value))
        range->positive = fmin(range->positive, value);
}

static struct scale scale_of(const struct chart_axis *axis, struct range range) {
    const bool wide = axis->log_if_wide && range.high > WIDE * range.positive;
    if (axis->from_zero && !wide) widen(&range, 0);
    /* half the smallest value: its bar has a length */
    struct scale scale = wide ? scale_around(SCALE_LOG10, range.positive / 2, range.high)
                              : scale_around(axis->kind, range.low, range.high);
    scale.whole = axis->whole;
    return scale;
}

struct scale draw_scale_x(const struct chart *chart) {
    struct range range = NOTHING;
    for (size_t s = 0; s < chart->series_count; s++)
        for (size_t i = 0; i < chart->series[s].count; i++) widen(&range, chart->series[s].points[i].x);
    return scale_of(&chart->x, range);
}

struct scale draw_scale_y(const struct chart *chart) {
    struct range range = NOTHING;
    for (size_t s = 0; s < chart->series_count; s++)
        for (size_t i = 0; i < chart->series[s].count; i++) {
            const struct chart_point *point = &chart->series[s].points[i];
            widen(&range, point->y);
            widen(&range, point->low);
            widen(&range, point->high);
        }
    for (size_t i = 0; i < chart->reference_count; i++) widen(&range, chart->references[i].value);
    return scale_of(&chart->y, range);
}

struct scale draw_scale_sums(const struct chart *chart, const double *sums, size_t count) {
    struct range range = NOTHING;
    for (size_t i = 0; i < count; i++) widen(&range, sums[i]);
    return scale_of(&chart->y, range);
}
