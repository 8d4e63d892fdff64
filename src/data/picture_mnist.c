/* A picture as those of MNIST are: see picture.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/data/picture.h"

enum { BOX = 20, FIELD = 28 }; /* of MNIST: pixels of a digit's box, and of the image */

/* Fainter ink, as a share of the darkest, becomes background: the paper's texture, noise, shadows. */
static const double FAINT = 0.25;

/* The median of the pixels of the border. */
static unsigned background(const struct picture *picture) {
    size_t histogram[256] = {0}, border = 0, below = 0;
    unsigned value = 0;
    for (size_t y = 0; y < picture->height; y++) {
        const bool edge = y == 0 || y + 1 == picture->height;
        const size_t step = edge || picture->width == 1 ? 1 : picture->width - 1;
        for (size_t x = 0; x < picture->width; x += step, border++)
            histogram[picture->pixels[y * picture->width + x]]++;
    }
    while ((below += histogram[value]) * 2 <= border) value++;
    return value;
}

/* Bright ink from 0 to 255 on 0; false if there is none. */
static bool normalise_ink(struct picture *picture) {
    const size_t count = picture->height * picture->width;
    const unsigned paper = background(picture);
    const bool bright = paper > 127;
    unsigned most = 0;
    for (size_t i = 0; i < count; i++) {
        const unsigned pixel = picture->pixels[i];
        const unsigned ink = bright ? (pixel < paper ? paper - pixel : 0) : pixel > paper ? pixel - paper : 0;
        picture->pixels[i] = (uint8_t)ink;
        if (ink > most) most = ink;
    }
    for (size_t i = 0; i < count && most; i++) {
        const double ink = picture->pixels[i] / (double)most;
        picture->pixels[i] = ink < FAINT ? 0 : (uint8_t)lround(255 * ink);
    }
    return most > 0;
}

/* Keeps the smallest rectangle that holds all ink. */
static void crop(struct picture *picture) {
    const size_t width = picture->width;
    size_t top = picture->height, left = width, bottom = 0, right = 0;
    for (size_t y = 0; y < picture->height; y++)
        for (size_t x = 0; x < width; x++) {
            if (!picture->pixels[y * width + x]) continue;
            if (y < top) top = y;
            if (x < left) left = x;
            if (x > right) right = x;
            bottom = y;
        }
    picture->height = bottom - top + 1;
    picture->width = right - left + 1;
    for (size_t y = 0; y < picture->height; y++)
        memmove(picture->pixels + y * picture->width, picture->pixels + (top + y) * width + left,
                picture->width);
}

/* Thin lines become faint when they shrink: the brightest pixel is 255 again. */
static void brighten(struct picture *picture) {
    const size_t count = picture->height * picture->width;
    unsigned most = 1;
    for (size_t i = 0; i < count; i++)
        if (picture->pixels[i] > most) most = picture->pixels[i];
    for (size_t i = 0; i < count; i++)
        picture->pixels[i] = (uint8_t)((picture->pixels[i] * 255u + most / 2) / most);
}

/* Where a length begins in the field so that its centre of mass is in the middle, and all of it inside. */
static size_t place(double centre, size_t length, size_t side) {
    const double start = round((double)side / 2 - centre - 0.5);
    return (size_t)fmin(fmax(start, 0), (double)(side - length));
}

static enum status centre(struct picture *picture, size_t side) {
    double mass = 0, across = 0, down = 0;
    uint8_t *field = calloc(side, side);
    if (!field) return status_set(STATUS_FAILED, "out of memory");
    for (size_t y = 0; y < picture->height; y++)
        for (size_t x = 0; x < picture->width; x++) {
            const double ink = picture->pixels[y * picture->width + x];
            mass += ink;
            across += ink * (double)x;
            down += ink * (double)y;
        }
    const size_t top = place(down / mass, picture->height, side),
                 left = place(across / mass, picture->width, side);
    for (size_t y = 0; y < picture->height; y++)
        memcpy(field + (top + y) * side + left, picture->pixels + y * picture->width, picture->width);
    free(picture->pixels);
    *picture = (struct picture){side, side, field};
    return STATUS_OK;
}

/* A side of the box for ink of this length, whose longer side is `longest`. */
static size_t scaled(size_t length, size_t longest, size_t box) {
    const size_t side = (length * box + longest / 2) / longest;
    return side ? side : 1;
}

enum status picture_like_mnist(struct picture *picture, size_t side, const char *name) {
    const size_t box = side * BOX / FIELD ? side * BOX / FIELD : 1;
    if (!normalise_ink(picture))
        return status_set(STATUS_BAD_DATA, "%s: nothing is drawn: all pixels are as the border", name);
    crop(picture);
    const size_t longest = picture->height > picture->width ? picture->height : picture->width;
    const enum status status =
        picture_scale(picture, scaled(picture->height, longest, box), scaled(picture->width, longest, box));
    if (status) return status;
    brighten(picture);
    return centre(picture, side);
}
