/* A grid of coloured cells with text: maps and matrices. */
#include <stdlib.h>

#include "src/report/chart_draw.h"
#include "src/report/markup.h"

bool grid_open(struct grid *grid, const char *id, const char *label, struct names rows,
               struct names columns) {
    *grid = (struct grid){.rows = rows, .columns = columns, .row_title = "", .column_title = ""};
    snprintf(grid->id, sizeof grid->id, "%s", id);
    snprintf(grid->label, sizeof grid->label, "%s", label);
    grid->cells = calloc(rows.count * columns.count + 1, sizeof *grid->cells);
    return grid->cells != NULL;
}

void grid_close(struct grid *grid) {
    free(grid->cells);
    names_free(&grid->rows);
    names_free(&grid->columns);
    *grid = (struct grid){0};
}

enum { LEFT = 52, TOP = 44, LEAST_FOR_TEXT = 20 };

static void draw_cell(FILE *out, const struct grid_cell *cell, double x, double y, double width,
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

/* Names of many rows: as many as have room. */
static size_t names_apart(size_t count, double size) {
    const size_t apart = (size_t)(14 / size) + 1;
    return count > 40 ? apart : 1;
}

void grid_svg(FILE *out, const struct grid *grid) {
    const size_t rows = grid->rows.count, columns = grid->columns.count;
    const double width = (CHART_WIDTH - LEFT - 2.0) / (double)(columns ? columns : 1);
    double height = width;
    if (height > 40) height = 40;
    const double total = TOP + height * (double)rows + 4;
    draw_open(out, grid->label, CHART_WIDTH, total);
    draw_text(out, CHART_WIDTH - 2, 12, "a", "end", grid->column_title);
    draw_text(out, 0, 12, "a", "start", grid->row_title);
    for (size_t c = 0; c < columns; c += names_apart(columns, width))
        draw_text(out, LEFT + width * ((double)c + 0.5), TOP - 8, "t", "middle", grid->columns.list[c]);
    for (size_t r = 0; r < rows; r += names_apart(rows, height))
        draw_text(out, LEFT - 8, TOP + height * ((double)r + 0.5) + 4, "t", "end", grid->rows.list[r]);
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < columns; c++)
            draw_cell(out, &grid->cells[r * columns + c], LEFT + width * (double)c, TOP + height * (double)r,
                      width, height);
    draw_close(out);
}
