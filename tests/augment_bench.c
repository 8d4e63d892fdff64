#include "tests/augment_bench.h"

#include <stdlib.h>

#include "src/base/rng.h"

const struct augment_case augment_cases[AUGMENT_CASES] = {
    {28, 28, 28, 28, {.elastic = 1.5, .sigma = 5, .rotate = 0.26, .shear = 0.26, .scale = 0.15}},
    {28, 28, 29, 29, {.elastic = 2, .sigma = 4, .rotate = 0.26, .shift = 2}},
    {20, 20, 20, 20, {.elastic = 1, .sigma = 6, .shear = 0.26, .scale = 0.1, .shift = 0.5}},
    {1, 1, 1, 1, {.elastic = 1, .sigma = 5, .rotate = 0.26, .shear = 0.26, .scale = 0.15}},
    {45, 70, 45, 70, {.elastic = 4, .sigma = 3, .rotate = 3.1, .scale = 0.5}},
    {70, 45, 64, 64, {.elastic = 1, .sigma = 50, .rotate = 0.1, .shear = 0.78}},
    {3, 130, 3, 130, {.elastic = 2, .sigma = 0.1}},
    {9, 7, 33, 33, {.scale = 0.3, .shift = 1}},
    {28, 28, 40, 40, {.elastic = 0}},
    {28, 28, 7, 7, {.elastic = 0}},
};

enum { GUARD = 64, UNTOUCHED = 0xA5 };

void augment_images_open(struct augment_images *images, const struct augment_case *one) {
    struct augmentation amounts = one->amounts;
    amounts.gentle[1] = amounts.gentle[7] = true;
    augment_plan_make(&images->plan, &amounts, 12345678901, one->height, one->width, one->to_height,
                      one->to_width);
    images->pixels = one->height * one->width;
    images->to_pixels = one->to_height * one->to_width;
    images->originals = malloc(AUGMENT_IMAGES * images->pixels);
    assert_non_null(images->originals);
    struct rng rng = rng_open(9, RNG_TEST, (uint32_t)images->pixels);
    for (size_t i = 0; i < AUGMENT_IMAGES * images->pixels; i++)
        images->originals[i] = (uint8_t)rng_below(&rng, 256);
    for (size_t i = 0; i < AUGMENT_IMAGES; i++) images->labels[i] = (uint8_t)(i % 10);
}

void augment_images_close(struct augment_images *images) {
    free(images->originals);
}

uint8_t *augment_images_deform(const struct augment_images *images, struct compute *compute, uint32_t epoch,
                               size_t count) {
    struct device *device = &compute->device;
    const struct device_driver *driver = device->driver;
    const size_t bytes = count * images->pixels, to_bytes = count * images->to_pixels;
    uint8_t *originals = driver->alloc(device, bytes), *labels = driver->alloc(device, count),
            *deformed = driver->alloc(device, to_bytes + GUARD), *result = malloc(to_bytes + GUARD);
    assert_true(originals && labels && deformed && result);
    memset(result, UNTOUCHED, to_bytes + GUARD);
    driver->upload(device, originals, images->originals, bytes);
    driver->upload(device, labels, images->labels, count);
    driver->upload(device, deformed, result, to_bytes + GUARD);
    driver->ops(device, GEMM_F32)
        ->augment(device->ops_context, &images->plan, epoch, count, originals, labels, deformed);
    driver->download(device, result, deformed, to_bytes + GUARD);
    assert_status(driver->synchronize(device), STATUS_OK);
    for (size_t i = to_bytes; i < to_bytes + GUARD; i++) assert_int_equal(result[i], UNTOUCHED);
    driver->free(device, originals);
    driver->free(device, labels);
    driver->free(device, deformed);
    return result;
}
