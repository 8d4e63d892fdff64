/* Small grey images in rows and columns, enlarged, as a PNG or PGM file. */
#ifndef TESSERA_REPORT_IMAGE_GRID_H
#define TESSERA_REPORT_IMAGE_GRID_H

#include <stdbool.h>

#include "src/base/status.h"
#include "src/report/image.h"

struct image_grid {
    size_t rows, columns;
    size_t height, width; /* of each image */
    /* [rows][columns]; NULL pixels: an empty place. Captions are below, in the font of bitmap_font.h. */
    const struct image *images;
    bool separate; /* a gap after the first column */
};

/* Writes the format of the path's ending. STATUS_USAGE for another ending; STATUS_FAILED if memory ran out or
   the file cannot be written. */
enum status image_grid_write(const struct image_grid *grid, const char *path);

/* The columns, `least` or more, that `count` images with their captions need so that the file is at most
   `most` pixels high, if one image is. The rows and columns of the grid do not count. */
size_t image_grid_columns(struct image_grid grid, size_t count, size_t least, size_t most);

/* STATUS_USAGE unless the name ends in .png or .pgm. */
enum status image_grid_check_name(const char *path);

#endif
