/* Charts as data: series of points on two axes, written as SVG with lines, stacked bars or grouped bars. */
#ifndef TESSERA_REPORT_CHART_H
#define TESSERA_REPORT_CHART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "src/report/legend.h"
#include "src/report/scale.h"
#include "src/report/selection.h"

/* The style of the n-th thing: the same thing looks the same in every chart of a page. */
struct chart_style chart_style_of(size_t index);

struct chart_point {
    double x, y, low, high; /* low and high: the spread of y, NaN if there is none */
};

struct chart_series {
    char name[128];
    struct chart_style style;
    bool line, marks;
    bool unlisted; /* not in the legend: another series of the same style is */
    struct chart_point *points;
    size_t count;
};

struct chart_axis {
    const char *title; /* with the unit */
    enum scale_kind kind;
    enum scale_unit unit;
    bool from_zero;
    bool whole; /* counts: no ticks between */
};

enum chart_kind {
    CHART_LINES,   /* and scattered points */
    CHART_STACKED, /* bars to the right: x is the index of the category, y adds up; styles are CHART_PART */
    CHART_GROUPED  /* bars upwards: a group a category, a bar a series */
};

struct chart {
    enum chart_kind kind;
    char id[64];     /* lower case and dashes: the name of its files */
    char label[256]; /* what it shows, for those who do not see it and as its title */
    struct chart_axis x, y;
    struct chart_series *series;
    size_t series_count;
    struct names categories; /* of bars */
    bool unlisted;           /* another chart beside it has the legend */
    bool failed;             /* memory ran out: the chart is not whole */
};

/* An empty chart of axes x and y (for stacked bars y is the one that goes right). */
void chart_open(struct chart *chart, enum chart_kind kind, const char *id, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void chart_close(struct chart *chart);

/* A new series; its index. SIZE_MAX, and the chart failed, if memory ran out: chart_add then does nothing. */
size_t chart_series(struct chart *chart, const char *name, struct chart_style style);
/* A point, in the order of x; points that an axis cannot show are left out. */
void chart_add(struct chart *chart, size_t series, struct chart_point point);
/* The same without a spread. */
void chart_add_xy(struct chart *chart, size_t series, double x, double y);

/* Puts the points of every series in the order of x. */
void chart_sort(struct chart *chart);

/* One <svg role="img">: well-formed XML, text as text, colours as classes (page_style.c). Returns its height;
   its width is CHART_WIDTH. */
double chart_svg(FILE *out, const struct chart *chart);
/* The series that have points, but for unlisted ones. False if memory ran out. */
bool chart_legend(struct legend *legend, const struct chart *chart);

#endif
