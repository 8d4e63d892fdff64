/* A picture from a file: PNG, JPEG or PGM, as 8-bit grey. Files may be hostile: the size is checked before
   memory is allocated. PNG and JPEG need libpng and libjpeg, which `make probe` looks for. */
#ifndef TESSERA_DATA_PICTURE_H
#define TESSERA_DATA_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/status.h"

enum {
    PICTURE_MOST_PIXELS = 1 << 25, /* 33.5 million */
    PICTURE_MOST_BYTES = 1 << 28   /* of a file */
};

struct picture {
    size_t height, width;
    uint8_t *pixels; /* [height][width], 0 is black, 255 white; owned */
};

/* Reads a file of any of the formats, recognised by its content. Colours become grey, and what is transparent
   white. STATUS_BAD_DATA, with the path, if it is not a picture, damaged, too large, or of a format that this
   program was built without. */
enum status picture_read(struct picture *picture, const char *path);

/* The same for a file in memory; `name` is for messages. */
enum status picture_decode(struct picture *picture, const uint8_t *bytes, size_t size, const char *name);
void picture_free(struct picture *picture);

/* Does the name end in .png, .jpg, .jpeg or .pgm, in small or capital letters? */
bool picture_has_name(const char *name);

/* Scales in place, bilinearly; where it shrinks, each pixel is a weighted mean of all that it covers. */
enum status picture_scale(struct picture *picture, size_t height, size_t width);

/* Makes the picture look as those of MNIST do (LeCun et al. 1998, "Gradient-based learning applied to
   document recognition", section III-A): bright ink on a black background. Inverts it if its border is
   bright, cuts out what is drawn, scales that into a square of 20/28 of `side`, keeping its proportions, and
   puts its centre of mass into the middle of side x side pixels. STATUS_BAD_DATA if nothing is drawn. */
enum status picture_like_mnist(struct picture *picture, size_t side, const char *name);

/* --- for the decoders --- */

/* Checks the size, then allocates the pixels. */
enum status picture_alloc(struct picture *picture, size_t height, size_t width, const char *name);

/* Each fills a picture that is empty; on failure picture_decode frees it. */
enum status picture_decode_png(struct picture *picture, const uint8_t *bytes, size_t size, const char *name);
enum status picture_decode_jpeg(struct picture *picture, const uint8_t *bytes, size_t size, const char *name);
enum status picture_decode_pgm(struct picture *picture, const uint8_t *bytes, size_t size, const char *name);

#endif
