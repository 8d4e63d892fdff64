/* Lines with markers, scattered points, and spreads as whiskers. */
#include "src/report/chart_draw.h"
#include "src/report/chart_kinds.h"
#include "src/base/text.h"

enum { MOST_MARKERS = 24, FEW_MARKERS = 6, MANY_SERIES = 6 };

static void draw_path(FILE *out, const struct chart_series *series, const struct scale *x,
                      const struct scale *y) {
    fprintf(out, "<path class=\"line s%u d%u\" d=\"", series->style.colour % CHART_COLOURS,
            series->style.dash % CHART_DASHES);
    for (size_t i = 0; i < series->count; i++)
        fprintf(out, "%c%.1f %.1f", i ? 'L' : 'M', scale_place(x, series->points[i].x),
                scale_place(y, series->points[i].y));
    fputs("\"/>\n", out);
}

static void draw_spreads(FILE *out, const struct chart_series *series, const struct scale *x,
                         const struct scale *y) {
    for (size_t i = 0; i < series->count; i++) {
        const struct chart_point *point = &series->points[i];
        if (!(point->high > point->low)) continue;
        fprintf(out, "<path class=\"spread s%u\" d=\"M%.1f %.1fV%.1f\"/>\n",
                series->style.colour % CHART_COLOURS, scale_place(x, point->x), scale_place(y, point->low),
                scale_place(y, point->high));
    }
}

static void draw_points(FILE *out, const struct chart *chart, const struct chart_series *series,
                        const struct scale *x, const struct scale *y) {
    /* a dense line has fewer markers than points */
    const size_t most = chart->series_count > MANY_SERIES ? FEW_MARKERS : MOST_MARKERS;
    const size_t stride = series->line ? (series->count + most - 1) / most : 1;
    for (size_t i = 0; i < series->count; i += stride) {
        const struct chart_point *point = &series->points[i];
        char name[400];
        const struct text_number at = scale_label(chart->x.unit, point->x, 0);
        const struct text_number is = chart->y.unit == UNIT_SECONDS   ? text_seconds(point->y)
                                      : chart->y.unit == UNIT_PERCENT ? text_percent(point->y, 2)
                                                                      : text_short(point->y);
        snprintf(name, sizeof name, "%s: %s at %s", series->name, is.text, at.text);
        draw_marker(out, scale_place(x, point->x), scale_place(y, point->y), series->style, name);
    }
}

double chart_lines(FILE *out, const struct chart *chart) {
    const struct plot plot = {56, CHART_WIDTH - 16, CHART_TOP, CHART_HEIGHT - 44};
    struct scale x = draw_scale_x(chart), y = draw_scale_y(chart);
    x.from = plot.left;
    x.to = plot.right;
    y.from = plot.bottom;
    y.to = plot.top;
    draw_open(out, chart->label, CHART_WIDTH, CHART_HEIGHT);
    draw_x_axis(out, &plot, &x, &chart->x);
    draw_y_axis(out, &plot, &y, &chart->y);
    draw_references(out, &plot, &y, chart); /* below the data */
    for (size_t s = 0; s < chart->series_count; s++) {
        const struct chart_series *series = &chart->series[s];
        if (!series->count) continue;
        if (series->line && series->count > 1) draw_path(out, series, &x, &y);
        draw_spreads(out, series, &x, &y);
        if (series->marks) draw_points(out, chart, series, &x, &y);
    }
    draw_close(out);
    return CHART_HEIGHT;
}
