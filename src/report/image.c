#include "src/report/image.h"

static const char SHADES[] = " .:-=+*#%@";
enum { GAP = 2, LEVELS = sizeof SHADES - 1 };

/* The shade of rows y and y + 1 of column x. */
static char shade(const uint8_t *pixels, size_t height, size_t width, size_t x, size_t y) {
    const unsigned top = pixels[y * width + x];
    const unsigned bottom = y + 1 < height ? pixels[(y + 1) * width + x] : top;
    return SHADES[(top + bottom) * LEVELS / 511];
}

static void print_row(FILE *out, const struct image *images, size_t count, size_t height, size_t width,
                      size_t cell) {
    for (size_t i = 0; i < count; i++)
        fprintf(out, i + 1 < count ? "%-*s" : "%.*s", (int)cell, images[i].caption);
    fputc('\n', out);
    for (size_t y = 0; y < height; y += 2) {
        for (size_t i = 0; i < count; i++) {
            for (size_t x = 0; x < width; x++) fputc(shade(images[i].pixels, height, width, x, y), out);
            for (size_t x = width; i + 1 < count && x < cell; x++) fputc(' ', out);
        }
        fputc('\n', out);
    }
}

static size_t caption_width(const struct image *images, size_t count) {
    size_t longest = 0;
    for (size_t i = 0; i < count; i++) {
        size_t length = 0;
        while (images[i].caption[length]) length++;
        if (length > longest) longest = length;
    }
    return longest;
}

void image_print(FILE *out, const struct image *images, size_t count, size_t height, size_t width,
                 size_t columns) {
    const size_t caption = caption_width(images, count), cell = (caption > width ? caption : width) + GAP;
    const size_t fit = columns + GAP >= 2 * cell ? (columns + GAP) / cell : 1;
    for (size_t first = 0; first < count; first += fit)
        print_row(out, images + first, count - first < fit ? count - first : fit, height, width, cell);
}
