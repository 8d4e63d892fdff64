/* Stacked bars are horizontal, each below its name; grouped bars are vertical. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/report/chart_draw.h"
#include "src/report/chart_kinds.h"
#include "src/report/markup.h"

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

enum { BAR_HEIGHT = 14, LABEL_HEIGHT = 14, ROW_GAP = 8, LABEL_FITS = 46 /* characters */ };

/* Where the line of a label ends: at its last ", " or space that fits, or at its end. */
static size_t label_line(const char *text) {
    const size_t length = strlen(text);
    size_t end = LABEL_FITS;
    if (length <= LABEL_FITS) return length;
    while (end > LABEL_FITS / 2 && text[end - 1] != ' ') end--;
    return end > LABEL_FITS / 2 ? end : (size_t)text_cut(text, LABEL_FITS);
}

static size_t row_height(const char *label) {
    return (label[label_line(label)] ? 2 : 1) * LABEL_HEIGHT + BAR_HEIGHT + ROW_GAP;
}

/* Draws a label in one or two lines, as much of it as fits; y is the top. */
static void draw_label(FILE *out, double x, double y, const char *text) {
    char line[LABEL_FITS + 1];
    for (size_t i = 0; i < 2 && *text; i++) {
        const size_t length = label_line(text);
        snprintf(line, sizeof line, "%.*s", (int)length, text);
        draw_text(out, x, y + (double)(LABEL_HEIGHT * (i + 1)) - 3, "k", "start", line);
        text += length;
    }
}

static double total_of(const struct chart *chart, size_t category) {
    double total = 0;
    for (size_t s = 0; s < chart->series_count; s++) total += fmax(0, value_at(&chart->series[s], category));
    return total;
}

/* The whole bar ends at its total on the scale; its parts divide it by their shares, also on a logarithmic
   scale. */
static void draw_stack(FILE *out, const struct chart *chart, const struct scale *scale, size_t category,
                       double y) {
    const double total = total_of(chart, category), length = scale_place(scale, total) - scale->from;
    double x = scale->from;
    for (size_t s = 0; s < chart->series_count; s++) {
        const struct chart_series *series = &chart->series[s];
        const double value = value_at(series, category);
        char name[340];
        if (!(value > 0)) continue;
        const double width = length * value / total;
        snprintf(name, sizeof name, "%s: %s", series->name, value_text(chart->y.unit, value).text);
        draw_box(out, x, y, width, BAR_HEIGHT, series->style.colour, name);
        x += width;
    }
}

static struct scale scale_of_totals(const struct chart *chart) {
    const size_t count = chart->categories.count;
    double *totals = memory_zero(count + 1, sizeof *totals);
    for (size_t c = 0; totals && c < count; c++) totals[c] = total_of(chart, c);
    struct scale scale = draw_scale_sums(chart, totals, totals ? count : 0);
    if (chart->y.unit == UNIT_PERCENT) scale.high = 1;
    free(totals);
    return scale;
}

double chart_stacked(FILE *out, const struct chart *chart) {
    double height = 46;
    for (size_t c = 0; c < chart->categories.count; c++)
        height += (double)row_height(chart->categories.list[c]);
    const struct plot plot = {2, CHART_WIDTH - 16, 2, height - 42};
    struct scale scale = scale_of_totals(chart);
    scale.from = plot.left;
    scale.to = plot.right;
    draw_open(out, chart->label, CHART_WIDTH, height);
    draw_x_axis(out, &plot, &scale, &chart->y);
    double top = plot.top;
    for (size_t c = 0; c < chart->categories.count; c++) {
        const char *label = chart->categories.list[c];
        draw_label(out, plot.left, top, label);
        top += (double)row_height(label);
        const double bar = top - BAR_HEIGHT - ROW_GAP + 1;
        if (chart->y.unit != UNIT_PERCENT)
            draw_text(out, plot.right, bar - 4, "v", "end",
                      value_text(chart->y.unit, total_of(chart, c)).text);
        draw_stack(out, chart, &scale, c, bar);
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
        char name[480];
        if (!(value > 0)) continue;
        const double top = scale_place(y, value);
        snprintf(name, sizeof name, "%s, %.160s: %s", series->name, chart->categories.list[category],
                 value_text(chart->y.unit, value).text);
        draw_box(out, left + bar * (double)s, top, bar - 1.5, y->from - top, series->style.colour, name);
    }
}

double chart_grouped(FILE *out, const struct chart *chart) {
    const struct plot plot = {56, CHART_WIDTH - 6, CHART_TOP, CHART_HEIGHT - 44};
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
    draw_references(out, &plot, &y, chart);
    draw_text(out, plot.right, plot.bottom + 36, "a", "end", chart->x.title);
    draw_close(out);
    return CHART_HEIGHT;
}
