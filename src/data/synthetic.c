/* The embedded data set: digits drawn from strokes, each distorted at random. The functions below are in the
   order in which they make an image: trace a shape of the table into a fine path, bend, slant, place and ink
   it.

   All geometry is double, so that a last-bit difference between compilers or math libraries practically never
   changes a grey value: a seed gives the same images everywhere. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/rng.h"
#include "src/data/reader.h"

enum {
    SIDE = SYNTHETIC_SIDE,
    DIGITS = 10,
    VARIANTS = 3,
    SHAPE_POINTS = 20,
    STEP = 7, /* length of one piece of a traced curve, in units of the table */
    /* Two points of the table are less than 142 apart. */
    PATH_POINTS = SHAPE_POINTS * (142 / STEP + 1),
    WAVES = 3
};

static const double two_pi = 6.283185307179586476925;

/* A shape is a list of points (x, y) on a smooth curve: x to the right and y down, both 1 to 99. A repeated
   point is a corner, LIFT ends a stroke, and zeros fill the rest. */
enum { LIFT = 255 };
// clang-format off
static const uint8_t shapes[DIGITS][VARIANTS][SHAPE_POINTS][2] = {
    {
        {{52, 4}, {27, 16}, {16, 48}, {25, 82}, {48, 96}, {74, 82}, {84, 50}, {75, 18}, {52, 4}},
        {{68, 12}, {42, 6}, {22, 32}, {20, 68}, {42, 96}, {70, 84}, {82, 50}, {70, 16}, {46, 6}, {32, 16}},
        {{50, 4}, {34, 20}, {28, 52}, {36, 86}, {52, 96}, {66, 82}, {70, 48}, {64, 18}, {50, 4}},
    }, {
        {{50, 4}, {50, 96}},
        {{34, 22}, {54, 4}, {54, 4}, {52, 96}},
        {{32, 20}, {52, 4}, {52, 4}, {52, 96}, {LIFT}, {28, 96}, {76, 96}},
    }, {
        {{18, 26}, {34, 7}, {62, 6}, {78, 26}, {66, 52}, {42, 75}, {16, 95}, {16, 95}, {84, 94}},
        {{20, 24}, {40, 5}, {68, 8}, {76, 32}, {58, 62}, {32, 88}, {16, 90}, {18, 76}, {40, 80}, {64, 95},
         {86, 86}},
        {{24, 14}, {52, 4}, {76, 20}, {70, 46}, {46, 72}, {18, 93}, {18, 93}, {40, 86}, {62, 95}, {84, 86}},
    }, {
        {{20, 16}, {44, 4}, {72, 14}, {70, 36}, {42, 47}, {42, 47}, {72, 56}, {78, 78}, {52, 96}, {18, 84}},
        {{18, 6}, {76, 6}, {76, 6}, {44, 40}, {44, 40}, {74, 52}, {80, 76}, {54, 96}, {18, 86}},
        {{22, 14}, {48, 4}, {70, 18}, {60, 40}, {40, 50}, {36, 42}, {52, 44}, {76, 60}, {72, 86}, {46, 96},
         {18, 84}},
    }, {
        {{28, 6}, {18, 56}, {18, 56}, {84, 52}, {LIFT}, {68, 16}, {62, 96}},
        {{64, 4}, {12, 66}, {12, 66}, {90, 64}, {LIFT}, {64, 4}, {64, 96}},
        {{24, 8}, {18, 38}, {34, 54}, {68, 46}, {LIFT}, {78, 6}, {68, 46}, {62, 96}},
    }, {
        {{78, 6}, {30, 6}, {30, 6}, {24, 46}, {24, 46}, {50, 38}, {76, 54}, {73, 82}, {46, 96}, {16, 86}},
        {{34, 8}, {28, 46}, {28, 46}, {58, 40}, {78, 62}, {68, 88}, {42, 96}, {16, 88}, {LIFT}, {34, 8},
         {84, 4}},
        {{80, 8}, {58, 10}, {36, 8}, {30, 24}, {28, 44}, {28, 44}, {54, 40}, {76, 56}, {70, 84}, {44, 96},
         {18, 90}},
    }, {
        {{68, 5}, {38, 28}, {22, 64}, {34, 92}, {62, 92}, {76, 70}, {56, 53}, {32, 64}, {24, 78}},
        {{58, 4}, {32, 46}, {24, 78}, {44, 96}, {70, 84}, {68, 62}, {46, 58}, {26, 78}},
        {{80, 16}, {60, 4}, {34, 22}, {20, 62}, {36, 93}, {66, 90}, {74, 66}, {52, 52}, {24, 70}},
    }, {
        {{14, 8}, {84, 8}, {84, 8}, {40, 96}},
        {{16, 8}, {82, 8}, {82, 8}, {58, 48}, {44, 96}, {LIFT}, {32, 52}, {78, 50}},
        {{13, 19}, {17, 8}, {17, 8}, {50, 11}, {86, 6}, {86, 6}, {60, 42}, {46, 96}},
    }, {
        {{70, 16}, {48, 4}, {28, 18}, {38, 40}, {66, 58}, {74, 80}, {50, 96}, {26, 82}, {36, 58}, {62, 38},
         {72, 18},
         {56, 5}},
        {{50, 4}, {30, 14}, {32, 38}, {50, 48}, {68, 38}, {70, 14}, {50, 4}, {LIFT}, {50, 48}, {25, 60},
         {24, 86},
         {50, 96}, {76, 86}, {75, 60}, {50, 48}},
        {{80, 8}, {48, 6}, {28, 22}, {46, 46}, {70, 66}, {64, 92}, {36, 94}, {28, 72}, {50, 48}, {72, 28},
         {84, 12}},
    }, {
        {{72, 28}, {58, 7}, {34, 10}, {22, 32}, {38, 51}, {62, 44}, {73, 22}, {73, 22}, {66, 96}},
        {{74, 30}, {58, 5}, {32, 12}, {26, 38}, {48, 50}, {74, 26}, {76, 60}, {60, 90}, {28, 92}},
        {{76, 16}, {50, 4}, {24, 22}, {30, 46}, {56, 42}, {76, 16}, {76, 16}, {64, 52}, {44, 96}},
    },
};
// clang-format on

struct point {
    double x, y;
    bool drawn; /* connected to the previous point */
};

struct path {
    struct point points[PATH_POINTS];
    size_t count;
};

/* One instruction each; fmin and fmax are calls, for the sake of NaN. */
static double smaller(double a, double b) {
    return a < b ? a : b;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

static double uniform_between(struct rng *rng, double low, double high) {
    return low + (high - low) * rng_uniform(rng);
}

static bool is_pen_point(const uint8_t shape[SHAPE_POINTS][2], int i) {
    return i >= 0 && i < SHAPE_POINTS && shape[i][0] != 0 && shape[i][0] != LIFT;
}

/* Coordinate `axis` of the uniform Catmull-Rom curve from point i to i + 1, at t in [0, 1]. */
static double curve_at(const uint8_t shape[SHAPE_POINTS][2], int i, int axis, double t) {
    double p1 = shape[i][axis], p2 = shape[i + 1][axis];
    double p0 = is_pen_point(shape, i - 1) ? shape[i - 1][axis] : p1;
    double p3 = is_pen_point(shape, i + 2) ? shape[i + 2][axis] : p2;
    double linear = p2 - p0, square = 2 * p0 - 5 * p1 + 4 * p2 - p3, cube = 3 * (p1 - p2) + p3 - p0;
    return (p1 + 0.5 * t * (linear + t * (square + t * cube))) / 100;
}

/* The shape in the unit square, in pieces short enough to bend. Between the two copies of a corner the curve
   has zero length, so each side ends in the direction of its own neighbour. */
static void path_trace(struct path *path, const uint8_t shape[SHAPE_POINTS][2]) {
    path->count = 0;
    for (int i = 0; i < SHAPE_POINTS; i++) {
        if (!is_pen_point(shape, i)) continue;
        if (!is_pen_point(shape, i - 1))
            path->points[path->count++] = (struct point){shape[i][0] / 100.0, shape[i][1] / 100.0, false};
        if (!is_pen_point(shape, i + 1)) continue;
        int dx = shape[i + 1][0] - shape[i][0], dy = shape[i + 1][1] - shape[i][1];
        int steps = (int)ceil(sqrt(dx * dx + dy * dy) / STEP);
        for (int step = 1; step <= steps; step++) {
            double t = (double)step / steps;
            path->points[path->count++] =
                (struct point){curve_at(shape, i, 0, t), curve_at(shape, i, 1, t), true};
        }
    }
}

/* Elastic displacement: a few plane waves; longer waves have larger amplitudes. */
static void path_bend(struct path *path, struct rng *rng) {
    for (int wave = 0; wave < WAVES; wave++) {
        double frequency = uniform_between(rng, 0.5, 1.6), heading = two_pi * rng_uniform(rng);
        double kx = two_pi * frequency * cos(heading), ky = two_pi * frequency * sin(heading);
        double phase = two_pi * rng_uniform(rng), strength = 0.035 / frequency;
        double dx = strength * rng_normal(rng), dy = strength * rng_normal(rng);
        for (size_t i = 0; i < path->count; i++) {
            struct point *p = &path->points[i];
            double swing = sin(kx * p->x + ky * p->y + phase);
            p->x += dx * swing;
            p->y += dy * swing;
        }
    }
}

/* Width, slant and rotation, as a linear map of the plane. */
static void path_slant(struct path *path, struct rng *rng) {
    double width = uniform_between(rng, 0.75, 1.15), slant = uniform_between(rng, -0.15, 0.35);
    double angle = uniform_between(rng, -12, 12) * (two_pi / 360), c = cos(angle), s = sin(angle);
    for (size_t i = 0; i < path->count; i++) {
        struct point *p = &path->points[i];
        double x = width * p->x - slant * p->y, y = p->y;
        p->x = c * x - s * y;
        p->y = s * x + c * y;
    }
}

/* Scales the path so that the longer side of its ink is 17 to 20 pixels (MNIST: 20), and places it near the
   centre, inside the image. */
static void path_place(struct path *path, double half_width, struct rng *rng) {
    double left = INFINITY, right = -INFINITY, top = INFINITY, bottom = -INFINITY;
    for (size_t i = 0; i < path->count; i++) {
        left = smaller(left, path->points[i].x);
        right = larger(right, path->points[i].x);
        top = smaller(top, path->points[i].y);
        bottom = larger(bottom, path->points[i].y);
    }
    double scale = (uniform_between(rng, 17, 20) - 2 * half_width) / larger(right - left, bottom - top);
    double centre_x = (SIDE - 1) / 2.0 + uniform_between(rng, -1.5, 1.5);
    double centre_y = (SIDE - 1) / 2.0 + uniform_between(rng, -1.5, 1.5);
    for (size_t i = 0; i < path->count; i++) {
        struct point *p = &path->points[i];
        p->x = centre_x + scale * (p->x - (left + right) / 2);
        p->y = centre_y + scale * (p->y - (top + bottom) / 2);
    }
}

static int pixel_clamp(double value) {
    return (int)smaller(larger(value, 0), SIDE - 1);
}

/* For each pixel within `reach` of the segment from a to b: distance2 = min(distance2, squared distance to
   the segment). */
static void segment_measure(double distance2[SIDE][SIDE], struct point a, struct point b, double reach) {
    int top = pixel_clamp(ceil(smaller(a.y, b.y) - reach)),
        bottom = pixel_clamp(floor(larger(a.y, b.y) + reach));
    int left = pixel_clamp(ceil(smaller(a.x, b.x) - reach)),
        right = pixel_clamp(floor(larger(a.x, b.x) + reach));
    double dx = b.x - a.x, dy = b.y - a.y, length2 = dx * dx + dy * dy;
    double inverse = length2 > 0 ? 1 / length2 : 0;
    for (int y = top; y <= bottom; y++) {
        double *row = distance2[y];
        for (int x = left; x <= right; x++) {
            double px = x - a.x, py = y - a.y;
            double along = (px * dx + py * dy) * inverse;
            along = smaller(larger(along, 0), 1);
            double ex = px - along * dx, ey = py - along * dy, d2 = ex * ex + ey * ey;
            row[x] = smaller(d2, row[x]);
        }
    }
}

/* Full ink inside the stroke, and a smooth edge one pixel wide around its outline. */
static void path_ink(const struct path *path, double half_width, double ink, uint8_t *image) {
    double reach = half_width + 0.5, distance2[SIDE][SIDE];
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) distance2[y][x] = reach * reach;
    for (size_t i = 1; i < path->count; i++)
        if (path->points[i].drawn) segment_measure(distance2, path->points[i - 1], path->points[i], reach);
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            const double cover = smaller(reach - sqrt(distance2[y][x]), 1);
            image[y * SIDE + x] = (uint8_t)(ink * cover * cover * (3 - 2 * cover) + 0.5);
        }
}

static void digit_draw(uint8_t *image, uint64_t seed, size_t index) {
    struct rng rng = rng_open(seed, RNG_SYNTHETIC, (uint32_t)index);
    double half_width = uniform_between(&rng, 0.8, 1.8), ink = uniform_between(&rng, 200, 255);
    struct path path;
    path_trace(&path, shapes[index % DIGITS][rng_below(&rng, VARIANTS)]);
    path_bend(&path, &rng);
    path_slant(&path, &rng);
    path_place(&path, half_width, &rng);
    path_ink(&path, half_width, ink, image);
}

enum status dataset_synthesize(struct dataset *set, size_t count, uint64_t seed, size_t first) {
    const size_t pixels = (size_t)SIDE * SIDE;
    *set = (struct dataset){.height = SIDE, .width = SIDE, .classes = DIGITS};
    /* The random substream is the 32-bit index of the image: larger indices would repeat images. */
    if (count > UINT32_MAX || first > UINT32_MAX - count || count > SIZE_MAX / pixels)
        return status_set(STATUS_FAILED,
                          "synthetic digits: cannot draw %zu images from image %zu on; ask for fewer", count,
                          first);
    if (count == 0) return STATUS_OK;
    set->images = malloc(count * pixels);
    set->labels = malloc(count);
    if (!set->images || !set->labels) {
        free(set->images);
        free(set->labels);
        *set = (struct dataset){0};
        return status_set(STATUS_FAILED,
                          "synthetic digits: no memory for %zu images (%zu bytes); ask for fewer", count,
                          count * pixels);
    }
    set->count = count;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < count; i++) {
        digit_draw(set->images + i * pixels, seed, first + i);
        set->labels[i] = (uint8_t)((first + i) % DIGITS);
    }
    return STATUS_OK;
}

enum { SEED = 1 }; /* of the data set; independent of --seed */

static bool recognises(const char *source) {
    return strcmp(source, "synthetic") == 0;
}

static enum status load(struct dataset_pair *pair, const char *source,
                        const struct dataset_options *options) {
    (void)source;
    const size_t train = options->parts == DATASET_ALL ? SYNTHETIC_TRAIN : 0;
    const enum status status = dataset_synthesize(&pair->train, train, SEED, 0);
    return status ? status : dataset_synthesize(&pair->test, SYNTHETIC_TEST, SEED, SYNTHETIC_TRAIN);
}

const struct dataset_reader dataset_synthetic = {recognises, load, NULL};
