/* The kinds of charts: each writes one <svg> and returns its height. */
#ifndef TESSERA_REPORT_CHART_KINDS_H
#define TESSERA_REPORT_CHART_KINDS_H

#include "src/report/chart.h"

double chart_lines(FILE *out, const struct chart *chart);   /* chart_line.c */
double chart_stacked(FILE *out, const struct chart *chart); /* chart_bars.c */
double chart_grouped(FILE *out, const struct chart *chart);

#endif
