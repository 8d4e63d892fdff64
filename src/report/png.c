#include "src/report/png.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static uint8_t *put_u32(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> (24 - 8 * i));
    return at + 4;
}

/* Length, type, data, CRC of type and data (PNG specification, section 5.3). */
static uint8_t *put_chunk(uint8_t *at, const char *type, const uint8_t *data, size_t length) {
    at = put_u32(at, (uint32_t)length);
    memcpy(at, type, 4);
    if (length) memcpy(at + 4, data, length);
    const uLong crc = crc32(0, at, (uInt)(length + 4));
    return put_u32(at + 4 + length, (uint32_t)crc);
}

static void write_base64(FILE *out, const uint8_t *bytes, size_t count) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3) {
        const size_t left = count - i;
        const unsigned bits = (unsigned)bytes[i] << 16 | (left > 1 ? (unsigned)bytes[i + 1] << 8 : 0) |
                              (left > 2 ? bytes[i + 2] : 0u);
        fputc(digits[bits >> 18], out);
        fputc(digits[bits >> 12 & 63], out);
        fputc(left > 1 ? digits[bits >> 6 & 63] : '=', out);
        fputc(left > 2 ? digits[bits & 63] : '=', out);
    }
}

/* Each row begins with its filter type; 0 is none. */
static void filter_rows(uint8_t *rows, const uint8_t *pixels, size_t height, size_t width) {
    for (size_t y = 0; y < height; y++) {
        rows[y * (width + 1)] = 0;
        memcpy(rows + y * (width + 1) + 1, pixels + y * width, width);
    }
}

/* The whole file; the caller frees it. NULL if memory ran out. */
static uint8_t *encode(const uint8_t *pixels, size_t height, size_t width, size_t *size) {
    const size_t raw = height * (width + 1);
    uLongf packed = compressBound((uLong)raw);
    uint8_t *rows = malloc(raw), *data = malloc(packed), *file = malloc(packed + 64);
    bool done = rows && data && file;
    if (done) {
        filter_rows(rows, pixels, height, width);
        done = compress2(data, &packed, rows, (uLong)raw, 9) == Z_OK;
    }
    if (done) {
        uint8_t head[13] = {[8] = 8}; /* 8 bits, grey, deflate, adaptive filters, not interlaced */
        put_u32(put_u32(head, (uint32_t)width), (uint32_t)height);
        static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
        memcpy(file, signature, sizeof signature);
        uint8_t *at = put_chunk(file + 8, "IHDR", head, sizeof head);
        at = put_chunk(put_chunk(at, "IDAT", data, packed), "IEND", NULL, 0);
        *size = (size_t)(at - file);
    } else {
        free(file);
        file = NULL;
    }
    free(rows);
    free(data);
    return file;
}

enum status png_data_uri(FILE *out, const uint8_t *pixels, size_t height, size_t width) {
    size_t size;
    if (!height || !width || height > PNG_MOST_PIXELS || width > PNG_MOST_PIXELS ||
        height * width > PNG_MOST_PIXELS)
        return status_set(STATUS_BAD_DATA, "an image of %zu x %zu pixels cannot be shown", height, width);
    uint8_t *file = encode(pixels, height, width, &size);
    if (!file) return status_set(STATUS_FAILED, "out of memory");
    fputs("data:image/png;base64,", out);
    write_base64(out, file, size);
    free(file);
    return STATUS_OK;
}

enum status png_write(FILE *out, const uint8_t *pixels, size_t height, size_t width) {
    size_t size;
    uint8_t *file = encode(pixels, height, width, &size);
    if (!file) return status_set(STATUS_FAILED, "out of memory");
    fwrite(file, 1, size, out);
    free(file);
    return STATUS_OK;
}
