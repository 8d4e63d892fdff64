/* Small grey images as text, for a terminal. */
#ifndef TESSERA_REPORT_PICTURE_H
#define TESSERA_REPORT_PICTURE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* One image with a line of text above it. */
struct picture {
    const uint8_t *pixels; /* [height][width], 0 is background */
    char caption[64];
};

/* Prints the pictures side by side, as many as fit `columns` characters, in ASCII shades. A character is one
   pixel wide and two high, so the shape is right in a terminal's font. */
void picture_print(FILE *out, const struct picture *pictures, size_t count, size_t height, size_t width,
                   size_t columns);

#endif
