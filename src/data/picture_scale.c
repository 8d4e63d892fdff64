#include <math.h>
#include <stdlib.h>

#include "src/base/pages.h"
#include "src/data/picture.h"

/* One output pixel: the weighted mean of inputs first .. first + count - 1. */
struct window {
    size_t first, count;
    double centre, radius;
};

/* A triangle that is as wide as two output pixels, and at least as two input pixels. */
static struct window window_at(size_t out, size_t from, size_t to) {
    const double scale = (double)from / (double)to, radius = fmax(1, scale);
    const double centre = ((double)out + 0.5) * scale - 0.5;
    const double first = fmax(0, ceil(centre - radius)),
                 last = fmin((double)from - 1, floor(centre + radius));
    return (struct window){(size_t)first, (size_t)(last - first) + 1, centre, radius};
}

static double weight(const struct window *window, size_t in) {
    return fmax(0, 1 - fabs((double)in - window->centre) / window->radius);
}

/* to[rows][columns] from the rows of from[rows][width], transposed: to[columns][rows]. */
static void scale_rows(const float *from, size_t rows, size_t width, float *to, size_t columns) {
    for (size_t x = 0; x < columns; x++) {
        const struct window window = window_at(x, width, columns);
        double total = 0;
        for (size_t i = 0; i < window.count; i++) total += weight(&window, window.first + i);
        for (size_t y = 0; y < rows; y++) {
            double sum = 0;
            for (size_t i = 0; i < window.count; i++)
                sum += weight(&window, window.first + i) * (double)from[y * width + window.first + i];
            to[x * rows + y] = (float)(sum / total);
        }
    }
}

enum status picture_scale(struct picture *picture, size_t height, size_t width) {
    const size_t rows = picture->height, columns = picture->width;
    if (rows == height && columns == width) return STATUS_OK;
    const enum status fits = pages_check((rows * columns + width * rows + height * width) * sizeof(float));
    if (fits) return fits;
    float *source = malloc(rows * columns * sizeof *source);
    float *narrow = malloc(width * rows * sizeof *narrow), *both = malloc(height * width * sizeof *both);
    uint8_t *pixels = malloc(height * width);
    const bool there = source && narrow && both && pixels;
    if (there) {
        for (size_t i = 0; i < rows * columns; i++) source[i] = picture->pixels[i];
        scale_rows(source, rows, columns, narrow, width);
        scale_rows(narrow, width, rows, both, height);
        for (size_t i = 0; i < height * width; i++) pixels[i] = (uint8_t)lround((double)both[i]);
        free(picture->pixels);
        *picture = (struct picture){height, width, pixels};
        pixels = NULL;
    }
    free(source);
    free(narrow);
    free(both);
    free(pixels);
    return there ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
}
