/* Grey images as PNG: a file, or a data: URI of a small one. */
#ifndef TESSERA_REPORT_PNG_H
#define TESSERA_REPORT_PNG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "src/base/status.h"

enum { PNG_MOST_PIXELS = 1 << 16 };

/* Writes data:image/png;base64,... of pixels[height][width], 0 is black, 8 bits a pixel. STATUS_BAD_DATA for
   an image without pixels or with more than PNG_MOST_PIXELS, STATUS_FAILED if memory ran out. */
enum status png_data_uri(FILE *out, const uint8_t *pixels, size_t height, size_t width);

/* Writes a PNG file of any size. The caller checks ferror. */
enum status png_write(FILE *out, const uint8_t *pixels, size_t height, size_t width);

#endif
