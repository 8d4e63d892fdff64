/* Words in a grey image: small letters made of squares. */
#ifndef TESSERA_REPORT_LETTERING_H
#define TESSERA_REPORT_LETTERING_H

#include <stddef.h>
#include <stdint.h>

/* The room that a text of one or more lines takes, in pixels; 0 x 0 for "". */
size_t lettering_width(const char *text);
size_t lettering_height(const char *text);

/* Writes it white at the top of `pixels`, which has `stride` pixels a line, each line in the middle of
   `width`. There are the digits, blank , # and the letters of "not"; a box stands for any other character. */
void lettering_draw(uint8_t *pixels, size_t stride, size_t width, const char *text);

#endif
