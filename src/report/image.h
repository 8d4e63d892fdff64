/* Small grey images, and how a terminal shows them. */
#ifndef TESSERA_REPORT_IMAGE_H
#define TESSERA_REPORT_IMAGE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct image {
    const uint8_t *pixels; /* [height][width], 0 is background */
    char caption[64];
};

/* Prints captions and images side by side, as many as fit `columns` characters, in ASCII shades. A character
   stands for two pixels, one above the other, because terminal fonts are twice as high as wide. */
void image_print(FILE *out, const struct image *images, size_t count, size_t height, size_t width,
                 size_t columns);

#endif
