#include "src/report/heatmap.h"

#include <stdlib.h>

#include "src/base/memory.h"
#include "src/report/chart_draw.h"
#include "src/report/markup.h"

bool heatmap_open(struct heatmap *map, const char *id, const char *label, struct names rows,
                  struct names columns) {
    *map = (struct heatmap){.rows = rows, .columns = columns, .row_title = "", .column_title = ""};
    snprintf(map->id, sizeof map->id, "%s", id);
    snprintf(map->label, sizeof map->label, "%s", label);
    map->cells = memory_zero(rows.count * columns.count + 1, sizeof *map->cells);
    return map->cells != NULL;
}

void heatmap_close(struct heatmap *map) {
    free(map->cells);
    legend_free(&map->legend);
    names_free(&map->rows);
    names_free(&map->columns);
    *map = (struct heatmap){0};
}

enum { LEFT = 52, TOP = 44, LEAST_FOR_TEXT = 20 };

static void draw_cell(FILE *out, const struct heatmap_cell *cell, double x, double y, double width,
                      double height) {
    if (cell->strength > 0) {
        fprintf(out,
                "<rect class=\"cell f%u\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                "fill-opacity=\"%.2f\"><title>",
                cell->colour % CHART_COLOURS, x, y, width - 1, height - 1,
                cell->strength > 1 ? 1 : cell->strength);
        markup_text(out, cell->title);
        fputs("</title></rect>\n", out);
    }
    if (cell->text[0] && width >= LEAST_FOR_TEXT)
        draw_text(out, x + width / 2, y + height / 2 + 4, "c", "middle", cell->text);
}

/* Every n-th row (or column) is named: all if there are at most 40, else as many as fit. Returns n. */
static size_t name_stride(size_t count, double size) {
    const size_t stride = (size_t)(14 / size) + 1;
    return count > 40 ? stride : 1;
}

double heatmap_svg(FILE *out, const struct heatmap *map) {
    const size_t rows = map->rows.count, columns = map->columns.count;
    const double width = (CHART_WIDTH - LEFT - 2.0) / (double)(columns ? columns : 1);
    double height = width;
    if (height > 40) height = 40;
    const double total = TOP + height * (double)rows + 4;
    draw_open(out, map->label, CHART_WIDTH, total);
    draw_text(out, CHART_WIDTH - 2, 12, "a", "end", map->column_title);
    draw_text(out, 0, 12, "a", "start", map->row_title);
    for (size_t c = 0; c < columns; c += name_stride(columns, width))
        draw_text(out, LEFT + width * ((double)c + 0.5), TOP - 8, "t", "middle", map->columns.list[c]);
    for (size_t r = 0; r < rows; r += name_stride(rows, height))
        draw_text(out, LEFT - 8, TOP + height * ((double)r + 0.5) + 4, "t", "end", map->rows.list[r]);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            draw_cell(out, &map->cells[r * columns + c], LEFT + width * (double)c, TOP + height * (double)r,
                      width, height);
    draw_close(out);
    return total;
}
