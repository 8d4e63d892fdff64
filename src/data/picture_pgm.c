/* PGM, the grey format of Netpbm: binary (P5) or text (P2), up to 16 bits a pixel. */
#include <ctype.h>

#include "src/data/picture.h"

enum { MOST_VALUE = 65535, MOST_SIDE = PICTURE_MOST_PIXELS };

struct reader {
    const uint8_t *at, *end;
};

/* White space, and comments from # to the end of the line. */
static void skip_space(struct reader *reader) {
    bool comment = false;
    for (; reader->at < reader->end; reader->at++) {
        if (*reader->at == '#') comment = true;
        if (*reader->at == '\n' || *reader->at == '\r') comment = false;
        if (!comment && !isspace(*reader->at)) return;
    }
}

/* A number of at most `most`; false if there is none. */
static bool read_number(struct reader *reader, size_t most, size_t *number) {
    skip_space(reader);
    const uint8_t *first = reader->at;
    for (*number = 0; reader->at < reader->end && isdigit(*reader->at); reader->at++) {
        *number = 10 * *number + (size_t)(*reader->at - '0');
        if (*number > most) return false;
    }
    return reader->at > first;
}

/* The next pixel: text, or one or two bytes. */
static bool read_pixel(struct reader *reader, bool text, size_t maximum, size_t *value) {
    if (text) return read_number(reader, maximum, value);
    const size_t bytes = maximum > 255 ? 2 : 1;
    if ((size_t)(reader->end - reader->at) < bytes) return false;
    *value = bytes == 2 ? (size_t)reader->at[0] << 8 | reader->at[1] : reader->at[0];
    reader->at += bytes;
    return *value <= maximum;
}

enum status picture_decode_pgm(struct picture *picture, const uint8_t *bytes, size_t size, const char *name) {
    struct reader reader = {bytes + 2, bytes + size};
    const bool text = bytes[1] == '2';
    size_t width, height, maximum, value;
    if (!read_number(&reader, MOST_SIDE, &width) || !read_number(&reader, MOST_SIDE, &height) ||
        !read_number(&reader, MOST_VALUE, &maximum) || !maximum || reader.at == reader.end ||
        !isspace(*reader.at++))
        return status_set(STATUS_BAD_DATA, "%s: a PGM file with a damaged header", name);
    if (!width || height > (size_t)(reader.end - reader.at) / width) /* a pixel takes a byte or more */
        return status_set(STATUS_BAD_DATA, "%s: a PGM file without pixels, or that ends before its %zu x %zu",
                          name, height, width);
    const enum status status = picture_alloc(picture, height, width, name);
    if (status) return status;
    for (size_t i = 0; i < height * width; i++) {
        if (!read_pixel(&reader, text, maximum, &value))
            return status_set(STATUS_BAD_DATA, "%s: a PGM file whose pixel %zu is missing or wrong", name, i);
        picture->pixels[i] = (uint8_t)((value * 255 + maximum / 2) / maximum);
    }
    return STATUS_OK;
}
