/* A matrix of coloured cells with text: the break-even map, the confusion matrix. */
#ifndef TESSERA_REPORT_HEATMAP_H
#define TESSERA_REPORT_HEATMAP_H

#include "src/report/legend.h"
#include "src/report/selection.h"

struct heatmap_cell {
    char text[24];   /* shown if it fits */
    char title[160]; /* shown on hovering */
    unsigned colour; /* of CHART_COLOURS */
    double strength; /* 0 (no colour) to 1 */
};

struct heatmap {
    char id[64], label[256];
    const char *row_title, *column_title;
    struct names rows, columns;
    struct heatmap_cell *cells; /* [rows][columns] */
    struct legend legend;
};

/* All cells empty. False if memory ran out; the map owns `rows` and `columns` either way. */
bool heatmap_open(struct heatmap *map, const char *id, const char *label, struct names rows,
                  struct names columns);
void heatmap_close(struct heatmap *map);
/* As chart_svg. */
double heatmap_svg(FILE *out, const struct heatmap *map);

#endif
