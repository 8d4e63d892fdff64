/* Stacked bars are horizontal, each below its name; grouped bars are vertical. */
#include "src/base/text.h"
#include "src/report/chart_draw.h"
#include "src/report/chart_kinds.h"
#include "src/report/markup.h"

#include <math.h>

static double value_at(const struct chart_series *series, size_t category) {
    for (size_t i = 0; i < series->count; i++)
        if (series->points[i].x == (double)category) return series->points[i].y;
    return 0;
}

static struct text_number value_text(enum scale_unit unit, double value) {
    if (unit == UNIT_SECONDS) return text_seconds(value);
    return unit == UNIT_PERCENT ? text_percent(value, 1) : text_short(value);
}

/* Draws the colour and, over it, the hatching that identifies the series without colour. */
static void draw_box(FILE *out, double x, double y, double width, double height, unsigned colour,
                     const char *name) {
    fprintf(out, "<rect class=\"bar f%u\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"><title>",
            colour % CHART_COLOURS, x, y, width, height);
    markup_text(out, name);
    fprintf(out,
            "</title></rect><rect class=\"h%u\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>\n",
            colour % CHART_COLOURS, x, y, width, height);
}

/* --- stacked --- */

enum { ROW_HEIGHT = 36, BAR_HEIGHT = 14, LABEL_HEIGHT = 14 };

static double total_of(const struct chart *chart, size_t category) {
    double total = 0;
    for (size_t s = 0; s < chart->series_count; s++) total += fmax(0, value_at(&chart->series[s], category));
    return total;
}

static void draw_stack(FILE *out, const struct chart *chart, const struct scale *scale, size_t category,
                       double y) {
    double sum = 0;
    for (size_t s = 0; s < chart->series_count; s++) {
        const struct chart_series *series = &chart->series[s];
        const double value = value_at(series, category);
        char name[320];
        if (!(value > 0)) continue;
        const double from = scale_place(scale, sum), to = scale_place(scale, sum + value);
        sum += value;
        snprintf(name, sizeof name, "%s: %s", series->name, value_text(chart->y.unit, value).text);
        draw_box(out, from, y, to - from, BAR_HEIGHT, series->style.colour, name);
    }
}

double chart_stacked(FILE *out, const struct chart *chart) {
    const double height = (double)(ROW_HEIGHT * chart->categories.count) + 46;
    const struct plot plot = {2, CHART_WIDTH - 16, 2, height - 42};
    double most = 0;
    for (size_t c = 0; c < chart->categories.count; c++) most = fmax(most, total_of(chart, c));
    struct scale scale = scale_around(SCALE_LINEAR, 0, most);
    if (chart->y.unit == UNIT_PERCENT) scale.high = 1;
    scale.from = plot.left;
    scale.to = plot.right;
    draw_open(out, chart->label, CHART_WIDTH, height);
    draw_x_axis(out, &plot, &scale, &chart->y);
    for (size_t c = 0; c < chart->categories.count; c++) {
        const double top = plot.top + (double)(ROW_HEIGHT * c) + 2;
        const char *name = chart->categories.list[c];
        draw_text(out, plot.left, top + LABEL_HEIGHT - 3, "k", "start", name);
        if (chart->y.unit != UNIT_PERCENT)
            draw_text(out, plot.right, top + LABEL_HEIGHT - 3, "v", "end",
                      value_text(chart->y.unit, total_of(chart, c)).text);
        draw_stack(out, chart, &scale, c, top + LABEL_HEIGHT + 1);
    }
    draw_close(out);
    return height;
}

/* --- grouped --- */

static void draw_group(FILE *out, const struct chart *chart, const struct scale *y, size_t category,
                       double left, double width) {
    const double bar = width / (double)(chart->series_count ? chart->series_count : 1);
    for (size_t s = 0; s < chart->series_count; s++) {
        const struct chart_series *series = &chart->series[s];
        const double value = value_at(series, category);
        char name[400];
        if (!(value > 0)) continue;
        const double top = scale_place(y, value);
        snprintf(name, sizeof name, "%s, %.160s: %s", series->name, chart->categories.list[category],
                 value_text(chart->y.unit, value).text);
        draw_box(out, left + bar * (double)s, top, bar - 1.5, y->from - top, series->style.colour, name);
    }
}

double chart_grouped(FILE *out, const struct chart *chart) {
    const struct plot plot = {56, CHART_WIDTH - 6, 26, CHART_HEIGHT - 44};
    const size_t groups = chart->categories.count ? chart->categories.count : 1;
    const double width = (plot.right - plot.left) / (double)groups;
    struct scale y = draw_scale_y(chart);
    y.from = plot.bottom;
    y.to = plot.top;
    draw_open(out, chart->label, CHART_WIDTH, CHART_HEIGHT);
    draw_y_axis(out, &plot, &y, &chart->y);
    for (size_t c = 0; c < chart->categories.count; c++) {
        const double left = plot.left + width * (double)c;
        draw_group(out, chart, &y, c, left + 0.1 * width, 0.8 * width);
        draw_text(out, left + 0.5 * width, plot.bottom + 16, "t", "middle", chart->categories.list[c]);
    }
    draw_text(out, plot.right, plot.bottom + 36, "a", "end", chart->x.title);
    draw_close(out);
    return CHART_HEIGHT;
}
