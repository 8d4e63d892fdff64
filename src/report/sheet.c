#include "src/report/sheet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/report/png.h"

enum {
    GAP = 4,
    APART = 16,
    PAPER = 96,
    SEEN = 56
}; /* pixels, and grey; SEEN: an image has at least this many a side */

static const char *ending(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot : "";
}

enum status sheet_check_name(const char *path) {
    if (strcmp(ending(path), ".png") == 0 || strcmp(ending(path), ".pgm") == 0) return STATUS_OK;
    return status_set(STATUS_USAGE, "'%s': a sheet is a .png or a .pgm file", path);
}

static size_t zoom_of(const struct sheet *sheet) {
    const size_t side = sheet->height > sheet->width ? sheet->height : sheet->width;
    return side < SEEN ? (SEEN + side - 1) / side : 1;
}

/* Where image `index` of a row or column starts. */
static size_t start_of(size_t index, size_t size) {
    return GAP + index * (size + GAP);
}

static void place(const struct sheet *sheet, size_t zoom, const uint8_t *image, uint8_t *to, size_t stride) {
    for (size_t y = 0; y < sheet->height * zoom; y++)
        for (size_t x = 0; x < sheet->width * zoom; x++)
            to[y * stride + x] = image[y / zoom * sheet->width + x / zoom];
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
    const size_t zoom = zoom_of(sheet), height = sheet->height * zoom, width = sheet->width * zoom;
    const size_t stride = start_of(sheet->columns, width) + APART, lines = start_of(sheet->rows, height);
    enum status status = sheet_check_name(path);
    if (status) return status;
    uint8_t *pixels = malloc(lines * stride);
    if (!pixels)
        return status_set(STATUS_FAILED, "out of memory: %zu x %zu pixels of a sheet", lines, stride);
    memset(pixels, PAPER, lines * stride);
    for (size_t row = 0; row < sheet->rows; row++)
        for (size_t column = 0; column < sheet->columns; column++)
            place(sheet, zoom, sheet->images[row * sheet->columns + column],
                  pixels + start_of(row, height) * stride + start_of(column, width) + (column ? APART : 0),
                  stride);
    status = write_file(path, pixels, lines, stride);
    free(pixels);
    return status;
}
