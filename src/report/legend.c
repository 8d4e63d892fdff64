#include "src/report/legend.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"
#include "src/report/chart_draw.h"
#include "src/report/markup.h"

bool legend_add(struct legend *legend, struct legend_entry entry) {
    struct legend_entry *list = memory_resize(legend->list, (legend->count + 1) * sizeof *list);
    if (!list) return false;
    legend->list = list;
    list[legend->count++] = entry;
    return true;
}

void legend_free(struct legend *legend) {
    free(legend->list);
    *legend = (struct legend){0};
}

/* Draws the symbol of an entry in a box of 28 x 14. */
static void write_symbol(FILE *out, const struct legend_entry *entry) {
    const unsigned colour = entry->style.colour % CHART_COLOURS;
    if (entry->letter) {
        fprintf(out,
                "<rect class=\"f%u\" x=\"5\" y=\"0\" width=\"18\" height=\"14\" fill-opacity=\"0.55\"/>"
                "<text class=\"c\" x=\"14\" y=\"11\" text-anchor=\"middle\">%c</text>",
                colour, entry->letter);
    } else if (!entry->line && !entry->marks) {
        fprintf(out, "<rect class=\"f%u\" x=\"5\" y=\"1\" width=\"18\" height=\"12\"/>", colour);
        fprintf(out, "<rect class=\"h%u\" x=\"5\" y=\"1\" width=\"18\" height=\"12\"/>", colour);
    }
    if (entry->line)
        fprintf(out, "<path class=\"line s%u d%u\" d=\"M0 7H28\"/>", colour,
                entry->style.dash % CHART_DASHES);
    if (entry->marks) draw_symbol(out, 14, 7, entry->style);
}

void legend_html(FILE *out, const struct legend *legend) {
    fputs("<ul class=\"legend\">\n", out);
    for (size_t i = 0; i < legend->count; i++) {
        fputs("<li><svg viewBox=\"0 0 28 14\" width=\"28\" height=\"14\" aria-hidden=\"true\">", out);
        write_symbol(out, &legend->list[i]);
        fputs("</svg> ", out);
        markup_text(out, legend->list[i].name);
        fputs("</li>\n", out);
    }
    fputs("</ul>\n", out);
}

/* In two columns if all names fit. */
double legend_svg(FILE *out, const struct legend *legend, double x, double y) {
    enum { LINE = 18, TEXT = 36, FITS = 26 /* characters */ };
    size_t columns = 2;
    for (size_t i = 0; i < legend->count; i++)
        if (strlen(legend->list[i].name) > FITS) columns = 1;
    for (size_t i = 0; i < legend->count; i++) {
        const double left = x + (double)(i % columns) * CHART_WIDTH / 2,
                     top = y + (double)(i / columns) * LINE;
        fprintf(out, "<g transform=\"translate(%.1f %.1f)\">", left, top);
        write_symbol(out, &legend->list[i]);
        fputs("</g>\n", out);
        draw_text(out, left + TEXT, top + 11, "k", "start", legend->list[i].name);
    }
    return (double)((legend->count + columns - 1) / columns) * LINE;
}
