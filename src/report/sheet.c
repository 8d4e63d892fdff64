#include "src/report/sheet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/report/lettering.h"
#include "src/report/png.h"

/* Pixels, and grey. */
enum {
    GAP = 4,
    CAPTION_GAP = 6, /* above a caption */
    APART = 16,
    PAPER = 96,
    SEEN = 56,       /* an image has at least this many a side, */
    CAPTIONED = 112, /* or this many with a caption */
};

/* What is where. */
struct layout {
    size_t zoom, height, width; /* of an image */
    size_t row, column;         /* from one image to the next */
    size_t left, top;           /* of the first */
    size_t apart;               /* more, behind the first column */
    size_t lines, stride;       /* of the sheet */
};

static const char *ending(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot : "";
}

enum status sheet_check_name(const char *path) {
    if (strcmp(ending(path), ".png") == 0 || strcmp(ending(path), ".pgm") == 0) return STATUS_OK;
    return status_set(STATUS_USAGE, "'%s': a sheet is a .png or a .pgm file", path);
}

static struct layout lay_out(const struct sheet *sheet) {
    size_t text_height = 0, text_width = 0;
    for (size_t i = 0; i < sheet->rows * sheet->columns; i++) {
        const size_t height = lettering_height(sheet->pictures[i].caption),
                     width = lettering_width(sheet->pictures[i].caption);
        if (height > text_height) text_height = height;
        if (width > text_width) text_width = width;
    }
    const size_t side = sheet->height > sheet->width ? sheet->height : sheet->width;
    const size_t wanted = text_height ? CAPTIONED : SEEN, gap = text_height ? 3 * GAP : GAP;
    const size_t zoom = side < wanted ? (wanted + side - 1) / side : 1;
    struct layout layout = {.zoom = zoom, .height = sheet->height * zoom, .width = sheet->width * zoom};
    const size_t cell = text_width > layout.width ? text_width : layout.width;
    layout.column = cell + gap;
    layout.row = layout.height + gap + (text_height ? text_height + CAPTION_GAP - gap / 2 : 0);
    layout.left = gap + (cell - layout.width) / 2;
    layout.top = gap;
    layout.apart = sheet->apart ? APART : 0;
    layout.stride = gap + sheet->columns * layout.column + layout.apart;
    layout.lines = gap + sheet->rows * layout.row;
    return layout;
}

static void place(const struct sheet *sheet, const struct layout *layout, const struct picture *picture,
                  uint8_t *to) {
    const size_t zoom = layout->zoom, stride = layout->stride;
    if (!picture->pixels) return;
    for (size_t y = 0; y < layout->height; y++)
        for (size_t x = 0; x < layout->width; x++)
            to[y * stride + x] = picture->pixels[y / zoom * sheet->width + x / zoom];
    if (!picture->caption[0]) return;
    const size_t text = lettering_width(picture->caption), width = layout->width;
    uint8_t *below = to + (layout->height + CAPTION_GAP) * stride;
    if (text > width) below -= (text - width) / 2;
    lettering_draw(below, stride, text > width ? text : width, picture->caption);
}

static enum status write_file(const char *path, const uint8_t *pixels, size_t height, size_t width) {
    FILE *file = fopen(path, "wb");
    if (!file) return status_set(STATUS_FAILED, "cannot write '%s': %s", path, strerror(errno));
    enum status status = STATUS_OK;
    if (strcmp(ending(path), ".png") == 0) {
        status = png_write(file, pixels, height, width);
    } else {
        fprintf(file, "P5\n%zu %zu\n255\n", width, height);
        fwrite(pixels, 1, height * width, file);
    }
    const int failed = ferror(file);
    if ((fclose(file) != 0 || failed) && !status)
        status = status_set(STATUS_FAILED, "cannot write '%s': %s", path, strerror(errno));
    return status;
}

enum status sheet_write(const struct sheet *sheet, const char *path) {
    const struct layout layout = lay_out(sheet);
    enum status status = sheet_check_name(path);
    if (status) return status;
    uint8_t *pixels = malloc(layout.lines * layout.stride);
    if (!pixels)
        return status_set(STATUS_FAILED, "out of memory: %zu x %zu pixels of a sheet", layout.lines,
                          layout.stride);
    memset(pixels, PAPER, layout.lines * layout.stride);
    for (size_t row = 0; row < sheet->rows; row++)
        for (size_t column = 0; column < sheet->columns; column++)
            place(sheet, &layout, &sheet->pictures[row * sheet->columns + column],
                  pixels + (layout.top + row * layout.row) * layout.stride + layout.left +
                      column * layout.column + (column ? layout.apart : 0));
    status = write_file(path, pixels, layout.lines, layout.stride);
    free(pixels);
    return status;
}
