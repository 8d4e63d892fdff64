/* Augmentation against a slow reference in double precision, and its statistics. */
#include "tests/augment_bench.h"

#include <math.h>
#include <stdlib.h>

/* --- the reference, as the first comment of kernels/augment.h defines it --- */

/* The uniform numbers of a field, smoothed and scaled, at one pixel; the 21 taps in double. */
static double field_at(const struct augment_plan *plan, const struct augmentation *amounts, uint32_t image,
                       int axis, int y, int x) {
    double sum = 0, row_energy = 0, column_energy = 0;
    for (int k = -10; k <= 10; k++) {
        const double tap = exp(-0.5 * k * k / (amounts->sigma * amounts->sigma)), energy = tap * tap;
        if (x + k >= 0 && x + k < plan->to_width) row_energy += energy;
        if (y + k < 0 || y + k >= plan->to_height) continue;
        column_energy += energy;
        for (int j = -10; j <= 10; j++) {
            uint32_t block[4];
            if (x + j < 0 || x + j >= plan->to_width) continue;
            augment_noise_draw(plan, 3, image, y + k, (x + j) / 8, block);
            const unsigned byte = block[2 * axis + (x + j) % 8 / 4] >> (x + j) % 4 * 8 & 255;
            const double uniform = (byte - 127.5) / 128;
            sum += tap * exp(-0.5 * j * j / (amounts->sigma * amounts->sigma)) * uniform;
        }
    }
    const double variance = 65535.0 / 65536 / 3 * row_energy * column_energy;
    return amounts->elastic / sqrt(2) * sum / sqrt(variance);
}

static double uniform(uint32_t bits) {
    return 2 * (double)bits / 4294967296.0 - 1;
}

/* The place in the original that a pixel is read from, in pixels. */
static void place_of(const struct augment_plan *plan, const struct augmentation *amounts, uint32_t image,
                     int label, int y, int x, double *from_y, double *from_x) {
    uint32_t a[4], b[4];
    augment_draw(plan, 3, image, 0, a);
    augment_draw(plan, 3, image, 1, b);
    const bool shears = amounts->shear > 0 && (amounts->rotate == 0 || b[2] >= 1u << 31);
    const double angle =
        uniform(a[0]) * (shears ? amounts->shear : amounts->rotate) * (label == 1 || label == 7 ? 0.5 : 1);
    const double across = x - 0.5 * (plan->to_width - 1), down = y - 0.5 * (plan->to_height - 1);
    const double turned_x = shears ? across - tan(angle) * down : cos(angle) * across - sin(angle) * down;
    const double turned_y = shears ? down : sin(angle) * across + cos(angle) * down;
    double dx = amounts->shift * uniform(b[0]), dy = amounts->shift * uniform(b[1]);
    if (amounts->elastic > 0) {
        dx += field_at(plan, amounts, image, 0, y, x);
        dy += field_at(plan, amounts, image, 1, y, x);
    }
    *from_x = 0.5 * (plan->width - 1) +
              plan->width / (double)plan->to_width * (turned_x / (1 + amounts->scale * uniform(a[1])) + dx);
    *from_y = 0.5 * (plan->height - 1) +
              plan->height / (double)plan->to_height * (turned_y / (1 + amounts->scale * uniform(a[2])) + dy);
}

static double read_between(const struct augment_plan *plan, const uint8_t *image, double y, double x) {
    double value = 0;
    for (int i = 0; i < 4; i++) {
        const double row = floor(y) + i / 2, column = floor(x) + i % 2;
        if (row < 0 || row >= plan->height || column < 0 || column >= plan->width) continue;
        value += (1 - fabs(y - row)) * (1 - fabs(x - column)) *
                 image[(size_t)row * (size_t)plan->width + (size_t)column];
    }
    return value;
}

static void pixels_of_the_reference(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "serial", 1);
    for (size_t c = 0; c < AUGMENT_CASES; c++) {
        const struct augment_case *one = &augment_cases[c];
        struct augment_images images;
        double worst = 0, sum = 0, count = 0;
        augment_images_open(&images, one);
        uint8_t *got = augment_images_deform(&images, &compute, 3, AUGMENT_IMAGES);
        for (uint32_t i = 0; i < AUGMENT_IMAGES; i++)
            for (size_t p = i % 7; p < images.to_pixels; p += 7 * support_stride()) {
                double y, x;
                place_of(&images.plan, &one->amounts, i, images.labels[i], (int)(p / one->to_width),
                         (int)(p % one->to_width), &y, &x);
                const double want = read_between(&images.plan, images.originals + i * images.pixels, y, x);
                const double off = fabs(want - got[i * images.to_pixels + p]);
                worst = fmax(worst, off);
                sum += off;
                count++;
            }
        /* places are rounded to 1/256, taps to integers */
        if (!(worst <= 5 && sum / count <= 0.4))
            fail_msg("case %zu: pixels are up to %g of 255 off, %g in the mean", c, worst, sum / count);
        free(got);
        augment_images_close(&images);
    }
    compute_close(&compute);
}

/* --- units of the amounts --- */

/* At a corner, an edge and the centre; sigma: no smoothing, a full Gaussian, a truncated one. */
static void displacement_has_the_given_size(void **state) {
    (void)state;
    static const double sigmas[] = {0.1, 4, 30};
    static const int places[][2] = {{0, 0}, {0, 14}, {13, 13}, {5, 27}};
    enum { DRAWS = 1500 };
    for (size_t s = 0; s < 3; s++) {
        const struct augmentation amounts = {.elastic = 2.5, .sigma = sigmas[s]};
        struct augment_plan plan;
        augment_plan_make(&plan, &amounts, 77, 28, 28, 28, 28);
        for (size_t p = s; p < 4; p += support_stride()) {
            double sum = 0, mean = 0;
            for (uint32_t i = 0; i < DRAWS; i++) {
                const double x = field_at(&plan, &amounts, i, 0, places[p][0], places[p][1]);
                const double y = field_at(&plan, &amounts, i, 1, places[p][0], places[p][1]);
                sum += x * x + y * y;
                mean += x + y;
            }
            assert_near(sqrt(sum / DRAWS) / 2.5, 1, 0.06); /* error: 0.5 / sqrt(DRAWS) = 0.013 */
            assert_true(fabs(mean / DRAWS) < 0.4);         /* error: 2.5 / sqrt(DRAWS) = 0.065 */
        }
    }
}

static double angle_of(const struct augment_map *map) {
    return atan2(map->yx, map->yy);
}

static void angles_and_factors(void **state) {
    (void)state;
    const struct augmentation turns = {.rotate = 0.5, .gentle = {[1] = true, [200] = true}};
    const struct augmentation both = {.rotate = 0.3, .shear = 0.3, .scale = 0.2, .gentle = {[1] = true}};
    struct augment_plan plan;
    double least = 1, most = -1;
    size_t sheared = 0;
    augment_plan_make(&plan, &turns, 5, 28, 28, 28, 28);
    for (uint32_t i = 0; i < 2000; i++) {
        const struct augment_map map = augment_map_of(&plan, 0, i, 0),
                                 gentle = augment_map_of(&plan, 0, i, 200);
        assert_near(angle_of(&gentle), 0.5 * angle_of(&map), 1e-4);
        least = fmin(least, angle_of(&map));
        most = fmax(most, angle_of(&map));
    }
    assert_true(least >= -0.5 && least < -0.49 && most <= 0.5 && most > 0.49);
    augment_plan_make(&plan, &both, 5, 28, 28, 28, 28);
    for (uint32_t i = 0; i < 2000; i++) {
        const struct augment_map map = augment_map_of(&plan, 0, i, 0);
        const double area = ((double)map.xx * map.yy - (double)map.xy * map.yx) / (65536.0 * 65536.0);
        sheared += map.yx == 0;
        assert_true(area > 1 / (1.2 * 1.2) - 1e-3 && area < 1 / (0.8 * 0.8) + 1e-3);
    }
    assert_true(sheared > 900 && sheared < 1100);
}

static void no_deformation_is_a_copy(void **state) {
    (void)state;
    static const size_t shapes[][2] = {{28, 28}, {20, 20}, {1, 1}, {5, 67}, {100, 33}};
    struct compute compute;
    support_open(&compute, "serial", 1);
    for (size_t s = 0; s < 5; s++) {
        const struct augment_case same = {
            shapes[s][0], shapes[s][1], shapes[s][0], shapes[s][1], {.elastic = 0}};
        struct augment_images images;
        augment_images_open(&images, &same);
        uint8_t *got = augment_images_deform(&images, &compute, 8, AUGMENT_IMAGES);
        assert_memory_equal(got, images.originals, AUGMENT_IMAGES * images.pixels);
        free(got);
        augment_images_close(&images);
    }
    compute_close(&compute);
}

/* The result depends on seed, epoch and image alone. */
static void threads_and_concurrency_change_nothing(void **state) {
    (void)state;
    struct augment_images images;
    struct compute compute;
    augment_images_open(&images, &augment_cases[0]);
    support_open(&compute, "openmp", 1);
    uint8_t *alone = augment_images_deform(&images, &compute, 4, AUGMENT_IMAGES);
    compute_close(&compute);
    for (int threads = 2; threads <= 5; threads++) {
        support_open(&compute, "openmp", threads);
        const size_t count = AUGMENT_IMAGES - (size_t)threads;
        uint8_t *some = augment_images_deform(&images, &compute, 4, count);
        uint8_t *later = augment_images_deform(&images, &compute, 5, count);
        assert_memory_equal(alone, some, count * images.to_pixels);
        assert_memory_not_equal(alone, later, images.to_pixels);
        free(some);
        free(later);
        compute_close(&compute);
    }
    memcpy(images.originals + images.pixels, images.originals, images.pixels);
    images.labels[1] = images.labels[0];
    images.plan.key[1]++;
    support_open(&compute, "serial", 1);
    uint8_t *other = augment_images_deform(&images, &compute, 4, 2);
    assert_memory_not_equal(alone, other, images.to_pixels); /* another seed */
    assert_memory_not_equal(other, other + images.to_pixels,
                            images.to_pixels); /* the same image at another index */
    compute_close(&compute);
    free(alone);
    free(other);
    augment_images_close(&images);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pixels_of_the_reference),
        cmocka_unit_test(displacement_has_the_given_size),
        cmocka_unit_test(angles_and_factors),
        cmocka_unit_test(no_deformation_is_a_copy),
        cmocka_unit_test(threads_and_concurrency_change_nothing),
    };
    return cmocka_run_group_tests_name("augment", tests, NULL, NULL);
}
