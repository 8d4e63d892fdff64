/* Charts as data: series of points on two axes, written as SVG with lines, stacked bars or grouped bars. */
#ifndef TESSERA_REPORT_CHART_H
#define TESSERA_REPORT_CHART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "src/report/legend.h"
#include "src/report/scale.h"
#include "src/report/selection.h"

/* The style of the n-th name of a page: a name has one style in all charts. */
struct chart_style chart_style_of(size_t index);

struct chart_point {
    double x, y, low, high; /* low and high: the spread of y; NaN: none */
};

struct chart_series {
    char name[256];
    struct chart_style style;
    bool line, marks;
    bool unlisted; /* left out of the legend, which lists a series of the same style */
    struct chart_point *points;
    size_t count;
};

struct chart_axis {
    const char *title; /* with the unit */
    enum scale_kind kind;
    enum scale_unit unit;
    bool from_zero;
    bool whole;       /* ticks at whole numbers only */
    bool log_if_wide; /* logarithmic if the largest value is more than 20 times the smallest */
};

/* A line across the chart at a value of y, with its name: the peak of a machine. */
struct chart_reference {
    char name[80];
    double value;
};
enum { CHART_REFERENCES = 8 };

enum chart_kind {
    CHART_LINES,   /* and scatter plots */
    CHART_STACKED, /* horizontal bars: x is the index of the category, the values y add up */
    CHART_GROUPED  /* vertical bars: a group for each category, a bar for each series */
};

struct chart {
    enum chart_kind kind;
    char id[64];     /* the name of its file */
    char label[256]; /* the title, also read by screen readers */
    struct chart_axis x, y;
    struct chart_series *series;
    size_t series_count;
    struct names categories;                             /* of bars */
    struct chart_reference references[CHART_REFERENCES]; /* not in stacked bars */
    size_t reference_count;
    bool unlisted; /* the legend is written elsewhere */
};

/* Opens an empty chart. The caller sets its axes; stacked bars draw y horizontally. */
void chart_open(struct chart *chart, enum chart_kind kind, const char *id, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void chart_close(struct chart *chart);

/* Adds a series and returns its index. If memory ran out (memory.h notes it), returns SIZE_MAX, which
   chart_add ignores. */
size_t chart_series(struct chart *chart, const char *name, struct chart_style style);
/* Adds a point; one that an axis cannot show is left out. */
void chart_add(struct chart *chart, size_t series, struct chart_point point);
/* The same without a spread. */
void chart_add_xy(struct chart *chart, size_t series, double x, double y);

/* Adds a reference; ignores one without a value, with a known name, or beyond CHART_REFERENCES. */
void chart_reference(struct chart *chart, double value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Sorts the points of each series by x. */
void chart_sort(struct chart *chart);

/* One <svg role="img">: well-formed XML, text as text, colours as classes (page_style.c). Returns its height;
   its width is CHART_WIDTH. */
double chart_svg(FILE *out, const struct chart *chart);
/* Lists the series with points, without the unlisted ones. */
void chart_legend(struct legend *legend, const struct chart *chart);

#endif
