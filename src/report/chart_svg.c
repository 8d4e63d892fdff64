/* A chart as SVG: its kind draws it. */
#include "src/report/chart_kinds.h"

double chart_svg(FILE *out, const struct chart *chart) {
    static double (*const draw[])(FILE *, const struct chart *) = {
        [CHART_LINES] = chart_lines, [CHART_STACKED] = chart_stacked, [CHART_GROUPED] = chart_grouped};
    return draw[chart->kind](out, chart);
}

bool chart_legend(struct legend *legend, const struct chart *chart) {
    const bool lines = chart->kind == CHART_LINES;
    for (size_t s = 0; s < chart->series_count; s++) {
        const struct chart_series *series = &chart->series[s];
        struct legend_entry entry = {
            .style = series->style, .line = lines && series->line, .marks = lines && series->marks};
        if (!series->count || series->unlisted) continue;
        snprintf(entry.name, sizeof entry.name, "%s", series->name);
        if (!legend_add(legend, entry)) return false;
    }
    return true;
}
