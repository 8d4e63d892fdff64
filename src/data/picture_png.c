/* PNG by libpng's simplified interface: every bit depth, palettes, interlacing and checksums. */
#include <png.h>

#include "src/data/picture.h"

enum status picture_decode_png(struct picture *picture, const uint8_t *bytes, size_t size, const char *name) {
    static const png_color white = {255, 255, 255};
    png_image image = {.version = PNG_IMAGE_VERSION};
    if (!png_image_begin_read_from_memory(&image, bytes, size))
        return status_set(STATUS_BAD_DATA, "%s: a damaged PNG file (%s)", name, image.message);
    const enum status status = picture_alloc(picture, image.height, image.width, name);
    if (status) {
        png_image_free(&image);
        return status;
    }
    image.format = PNG_FORMAT_GRAY;
    image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB; /* 16 bits are as bright as the same picture in 8 bits */
    if (png_image_finish_read(&image, &white, picture->pixels, 0, NULL)) return STATUS_OK;
    return status_set(STATUS_BAD_DATA, "%s: a damaged PNG file (%s)", name, image.message);
}
