/* Random images and their deformation on a device; shared by test_augment.c and test_gpu_augment.c. */
#ifndef TESSERA_TESTS_AUGMENT_BENCH_H
#define TESSERA_TESTS_AUGMENT_BENCH_H

#include "tests/support.h"

/* Shapes and amounts: one pixel, less and more than a tile, strips, larger and smaller results, each kind of
   deformation. */
struct augment_case {
    size_t height, width, to_height, to_width;
    struct augmentation amounts;
};
enum { AUGMENT_CASES = 10, AUGMENT_IMAGES = 24 };
extern const struct augment_case augment_cases[AUGMENT_CASES];

struct augment_images {
    struct augment_plan plan;
    size_t pixels, to_pixels; /* of an image */
    uint8_t *originals, labels[AUGMENT_IMAGES];
};

void augment_images_open(struct augment_images *images, const struct augment_case *one);
void augment_images_close(struct augment_images *images);

/* Deforms the first `count` images on this device and checks guard bytes behind the result. To be freed. */
uint8_t *augment_images_deform(const struct augment_images *images, struct compute *compute, uint32_t epoch,
                               size_t count);

#endif
