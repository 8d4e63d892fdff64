#include "src/report/chart.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"
#include "src/report/chart_kinds.h"

struct chart_style chart_style_of(size_t index) {
    /* 8 colours and 7 markers have no common factor: 56 different pairs */
    return (struct chart_style){(unsigned)(index % CHART_COLOURS), (unsigned)(index % CHART_MARKERS), 0};
}

/* A file name of lower case, digits and dashes. */
static void make_id(char *id, size_t size, const char *text) {
    size_t at = 0;
    for (; *text && at + 1 < size; text++)
        id[at++] = isalnum((unsigned char)*text) ? (char)tolower((unsigned char)*text) : '-';
    id[at] = '\0';
}

void chart_open(struct chart *chart, enum chart_kind kind, const char *id, const char *format, ...) {
    va_list args;
    *chart = (struct chart){.kind = kind};
    make_id(chart->id, sizeof chart->id, id);
    va_start(args, format);
    vsnprintf(chart->label, sizeof chart->label, format, args);
    va_end(args);
}

void chart_close(struct chart *chart) {
    for (size_t i = 0; i < chart->series_count; i++) free(chart->series[i].points);
    free(chart->series);
    names_free(&chart->categories);
    *chart = (struct chart){0};
}

size_t chart_series(struct chart *chart, const char *name, struct chart_style style) {
    struct chart_series *series = memory_resize(chart->series, (chart->series_count + 1) * sizeof *series);
    if (!series) return SIZE_MAX;
    chart->series = series;
    struct chart_series *added = &series[chart->series_count];
    *added = (struct chart_series){.style = style, .line = true, .marks = true};
    snprintf(added->name, sizeof added->name, "%s", name);
    return chart->series_count++;
}

void chart_add(struct chart *chart, size_t index, struct chart_point point) {
    if (index >= chart->series_count) return;
    struct chart_series *series = &chart->series[index];
    const struct scale x = {.kind = chart->x.kind}, y = {.kind = chart->y.kind};
    if (!scale_shows(&x, point.x) || !scale_shows(&y, point.y)) return;
    if ((series->count & (series->count - 1)) == 0) { /* 0 or a power of two: full */
        const size_t room = series->count ? 2 * series->count : 1;
        struct chart_point *points = memory_resize(series->points, room * sizeof *points);
        if (!points) return;
        series->points = points;
    }
    if (!scale_shows(&y, point.low) || !scale_shows(&y, point.high)) point.low = point.high = (double)NAN;
    series->points[series->count++] = point;
}

void chart_add_xy(struct chart *chart, size_t series, double x, double y) {
    chart_add(chart, series, (struct chart_point){x, y, (double)NAN, (double)NAN});
}

void chart_reference(struct chart *chart, double value, const char *format, ...) {
    struct chart_reference reference = {.value = value};
    va_list args;
    va_start(args, format);
    vsnprintf(reference.name, sizeof reference.name, format, args);
    va_end(args);
    for (size_t i = 0; i < chart->reference_count; i++)
        if (strcmp(chart->references[i].name, reference.name) == 0) return;
    if (value > 0 && chart->reference_count < CHART_REFERENCES)
        chart->references[chart->reference_count++] = reference;
}

static int by_x(const void *a, const void *b) {
    const struct chart_point *p = a, *q = b;
    return (p->x > q->x) - (p->x < q->x);
}

void chart_sort(struct chart *chart) {
    for (size_t s = 0; s < chart->series_count; s++)
        if (chart->series[s].count)
            qsort(chart->series[s].points, chart->series[s].count, sizeof *chart->series[s].points, by_x);
}

double chart_svg(FILE *out, const struct chart *chart) {
    static double (*const draw[])(FILE *, const struct chart *) = {
        [CHART_LINES] = chart_lines, [CHART_STACKED] = chart_stacked, [CHART_GROUPED] = chart_grouped};
    return draw[chart->kind](out, chart);
}

void chart_legend(struct legend *legend, const struct chart *chart) {
    const bool lines = chart->kind == CHART_LINES;
    for (size_t s = 0; s < chart->series_count; s++) {
        const struct chart_series *series = &chart->series[s];
        struct legend_entry entry = {
            .style = series->style, .line = lines && series->line, .marks = lines && series->marks};
        if (!series->count || series->unlisted) continue;
        snprintf(entry.name, sizeof entry.name, "%s", series->name);
        legend_add(legend, entry);
    }
}
