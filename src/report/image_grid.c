#include "src/report/image_grid.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/replace.h"
#include "src/report/bitmap_font.h"
#include "src/report/png.h"

enum {
    GAP = 4,         /* pixels */
    CAPTION_GAP = 6, /* above a caption */
    FIRST_GAP = 16,  /* after a separate first column */
    LEAST_SIDE = 56, /* of an enlarged image */
    LEAST_CAPTIONED_SIDE = 112,
    BACKGROUND = 96, /* grey */
};

struct layout {
    size_t zoom, height, width; /* of an image */
    size_t row, column;         /* distance from one image to the next */
    size_t left, top;           /* of the first image */
    size_t first_gap;
    size_t lines, stride; /* of the file, in pixels */
};

static const char *ending(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot : "";
}

enum status image_grid_check_name(const char *path) {
    if (strcmp(ending(path), ".png") == 0 || strcmp(ending(path), ".pgm") == 0) return STATUS_OK;
    return status_set(STATUS_USAGE, "'%s': the image must be a .png or a .pgm file", path);
}

static struct layout layout_of(const struct image_grid *grid) {
    size_t text_height = 0, text_width = 0;
    for (size_t i = 0; i < grid->rows * grid->columns; i++) {
        const size_t height = font_height(grid->images[i].caption),
                     width = font_width(grid->images[i].caption);
        if (height > text_height) text_height = height;
        if (width > text_width) text_width = width;
    }
    const size_t side = grid->height > grid->width ? grid->height : grid->width;
    const size_t wanted = text_height ? LEAST_CAPTIONED_SIDE : LEAST_SIDE, gap = text_height ? 3 * GAP : GAP;
    const size_t zoom = side < wanted ? (wanted + side - 1) / side : 1;
    struct layout layout = {.zoom = zoom, .height = grid->height * zoom, .width = grid->width * zoom};
    const size_t cell = text_width > layout.width ? text_width : layout.width;
    layout.column = cell + gap;
    layout.row = layout.height + gap + (text_height ? text_height + CAPTION_GAP - gap / 2 : 0);
    layout.left = gap + (cell - layout.width) / 2;
    layout.top = gap;
    layout.first_gap = grid->separate ? FIRST_GAP : 0;
    layout.stride = gap + grid->columns * layout.column + layout.first_gap;
    layout.lines = gap + grid->rows * layout.row;
    return layout;
}

size_t image_grid_columns(struct image_grid grid, size_t count, size_t least, size_t most) {
    grid.rows = 1;
    grid.columns = count;
    const size_t fit = (most - GAP) / layout_of(&grid).row, rows = fit ? fit : 1;
    const size_t columns = (count + rows - 1) / rows;
    return columns > least ? columns : least;
}

static void draw_image(const struct image_grid *grid, const struct layout *layout, const struct image *image,
                       uint8_t *to) {
    const size_t zoom = layout->zoom, stride = layout->stride;
    if (!image->pixels) return;
    for (size_t y = 0; y < layout->height; y++)
        for (size_t x = 0; x < layout->width; x++)
            to[y * stride + x] = image->pixels[y / zoom * grid->width + x / zoom];
    if (!image->caption[0]) return;
    const size_t text = font_width(image->caption), width = layout->width;
    uint8_t *below = to + (layout->height + CAPTION_GAP) * stride;
    if (text > width) below -= (text - width) / 2;
    font_draw(below, stride, text > width ? text : width, image->caption);
}

static enum status write_file(const char *path, const uint8_t *pixels, size_t height, size_t width) {
    struct replacement file;
    enum status status = replace_open(&file, "", path);
    if (status) return status;
    if (strcmp(ending(path), ".png") == 0) {
        status = png_write(file.out, pixels, height, width);
    } else {
        fprintf(file.out, "P5\n%zu %zu\n255\n", width, height);
        fwrite(pixels, 1, height * width, file.out);
    }
    return replace_close(&file, status);
}

enum status image_grid_write(const struct image_grid *grid, const char *path) {
    const struct layout layout = layout_of(grid);
    enum status status = image_grid_check_name(path);
    if (status) return status;
    uint8_t *pixels = malloc(layout.lines * layout.stride);
    if (!pixels)
        return status_set(STATUS_FAILED, "out of memory: %zu x %zu pixels of an image grid", layout.lines,
                          layout.stride);
    memset(pixels, BACKGROUND, layout.lines * layout.stride);
    for (size_t row = 0; row < grid->rows; row++)
        for (size_t column = 0; column < grid->columns; column++)
            draw_image(grid, &layout, &grid->images[row * grid->columns + column],
                       pixels + (layout.top + row * layout.row) * layout.stride + layout.left +
                           column * layout.column + (column ? layout.first_gap : 0));
    status = write_file(path, pixels, layout.lines, layout.stride);
    free(pixels);
    return status;
}
