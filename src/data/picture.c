#include "src/data/picture.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "src/base/input.h"
#include "src/base/pages.h"

#ifndef HAVE_PNG
#    define picture_decode_png NULL
#endif
#ifndef HAVE_JPEG
#    define picture_decode_jpeg NULL
#endif

typedef enum status decoder(struct picture *picture, const uint8_t *bytes, size_t size, const char *name);

static const struct format {
    const char *name, *start;
    size_t length;        /* of `start` */
    decoder *decode;      /* NULL: its library was not there when the program was built */
    const char *packaged; /* in Debian */
} formats[] = {
    {"PNG", "\x89PNG\r\n\x1a\n", 8, picture_decode_png, "libpng-dev"},
    {"JPEG", "\xff\xd8\xff", 3, picture_decode_jpeg, "libjpeg-dev"},
    {"PGM", "P5", 2, picture_decode_pgm, NULL},
    {"PGM", "P2", 2, picture_decode_pgm, NULL},
};
enum { FORMATS = sizeof formats / sizeof *formats };

bool picture_has_name(const char *name) {
    static const char *const endings[] = {".png", ".jpg", ".jpeg", ".pgm"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++)
        if (strcasecmp(dot, endings[i]) == 0) return true;
    return false;
}

enum status picture_alloc(struct picture *picture, size_t height, size_t width, const char *name) {
    if (!height || !width || height > PICTURE_MOST_PIXELS / width)
        return status_set(STATUS_BAD_DATA, "%s: %zu x %zu pixels; a picture has 1 to %d", name, height, width,
                          PICTURE_MOST_PIXELS);
    const enum status fits = pages_check(height * width);
    if (fits) return status_context(fits, "%s", name);
    *picture = (struct picture){height, width, malloc(height * width)};
    return picture->pixels ? STATUS_OK : status_set(STATUS_FAILED, "%s: out of memory", name);
}

void picture_free(struct picture *picture) {
    free(picture->pixels);
    *picture = (struct picture){0};
}

static const struct format *find_format(const uint8_t *bytes, size_t size) {
    for (size_t i = 0; i < FORMATS; i++)
        if (size >= formats[i].length && memcmp(bytes, formats[i].start, formats[i].length) == 0)
            return &formats[i];
    return NULL;
}

enum status picture_decode(struct picture *picture, const uint8_t *bytes, size_t size, const char *name) {
    const struct format *format = find_format(bytes, size);
    *picture = (struct picture){0};
    if (!format)
        return status_set(STATUS_BAD_DATA, "%s: this is not a PNG, JPEG or grey PGM file%s", name,
                          size ? "" : ": it is empty");
    if (!format->decode)
        return status_set(STATUS_BAD_DATA,
                          "%s: this program was built without %s: apt-get install %s, and run make again",
                          name, format->name, format->packaged);
    const enum status status = format->decode(picture, bytes, size, name);
    if (status) picture_free(picture);
    return status;
}

enum status picture_read(struct picture *picture, const char *path) {
    uint8_t *bytes;
    size_t size;
    *picture = (struct picture){0};
    enum status status = input_bytes(&bytes, &size, PICTURE_MOST_BYTES, path);
    if (status) return status;
    status = picture_decode(picture, bytes, size, path);
    free(bytes);
    return status;
}
