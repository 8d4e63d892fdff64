/* SVG primitives of all kinds of charts: frame, axes, markers, text. */
#ifndef TESSERA_REPORT_CHART_DRAW_H
#define TESSERA_REPORT_CHART_DRAW_H

#include "src/report/chart.h"

/* In CSS pixels: a width of 440 fits a phone, and stays readable when scaled to twice that. */
enum { CHART_WIDTH = 440, CHART_HEIGHT = 290, CHART_TOP = 34 /* of the plot, below the title of y */ };

/* The plot area: left < right, top < bottom. */
struct plot {
    double left, right, top, bottom;
};

/* Opens and closes the <svg>. */
void draw_open(FILE *out, const char *label, double width, double height);
void draw_close(FILE *out);

/* Classes: "t" tick, "a" axis title, "v" value, "k" category; anchors: start, middle, end. */
void draw_text(FILE *out, double x, double y, const char *class, const char *anchor, const char *text);

/* Grid lines, tick labels and title of an axis; scale->from and ->to must be set. */
void draw_x_axis(FILE *out, const struct plot *plot, const struct scale *scale,
                 const struct chart_axis *axis);
void draw_y_axis(FILE *out, const struct plot *plot, const struct scale *scale,
                 const struct chart_axis *axis);

/* Lines across the plot with their names, on the scale of y. */
void draw_references(FILE *out, const struct plot *plot, const struct scale *scale,
                     const struct chart *chart);

/* A marker; `name` is shown on hovering. */
void draw_marker(FILE *out, double x, double y, struct chart_style style, const char *name);
/* The same without a name. */
void draw_symbol(FILE *out, double x, double y, struct chart_style style);

/* A scale over all points; for y with their spreads and the references. */
struct scale draw_scale_x(const struct chart *chart);
struct scale draw_scale_y(const struct chart *chart);
/* A scale of y over the sums of stacked bars. */
struct scale draw_scale_sums(const struct chart *chart, const double *sums, size_t count);

#endif
