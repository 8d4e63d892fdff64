/* The legend of a figure: a list below it. */
#ifndef TESSERA_REPORT_LEGEND_H
#define TESSERA_REPORT_LEGEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Series differ in all three: markers and dashes identify them without colour. */
enum { CHART_COLOURS = 8, CHART_MARKERS = 7, CHART_DASHES = 5 };
struct chart_style {
    unsigned colour, marker, dash;
};

struct legend_entry {
    char name[256];
    struct chart_style style;
    bool line, marks; /* neither: a box, for bars and cells */
    char letter;      /* in the box, in place of the hatching; 0: none */
};

struct legend {
    struct legend_entry *list;
    size_t count;
};

/* False if memory ran out (memory.h notes it). */
bool legend_add(struct legend *legend, struct legend_entry entry);
void legend_free(struct legend *legend);

void legend_html(FILE *out, const struct legend *legend);
/* The same within an <svg>, with the top left corner at (x, y). Returns the height. */
double legend_svg(FILE *out, const struct legend *legend, double x, double y);

#endif
