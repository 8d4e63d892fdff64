/* A small bitmap font for captions in grey images. */
#ifndef TESSERA_REPORT_BITMAP_FONT_H
#define TESSERA_REPORT_BITMAP_FONT_H

#include <stddef.h>
#include <stdint.h>

/* The size in pixels of a text of one or more lines; 0 x 0 for "". */
size_t font_width(const char *text);
size_t font_height(const char *text);

/* Writes white text at the top of `pixels`, which has `stride` pixels a line; each line of text is centred in
   `width`. The font has digits, space, comma, # and the letters of "not"; others are drawn as a box. */
void font_draw(uint8_t *pixels, size_t stride, size_t width, const char *text);

#endif
