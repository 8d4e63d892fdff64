/* Augmentation: new random deformations of the images in every epoch. This file defines the result for every
   device; kernels/host/ops/augment.c and kernels/cuda/ops/augment.cu compute it.

   Pixel (x, y) of the result is the original, interpolated bilinearly at

     c + diag(1/fx, 1/fy) T ((x, y) - c') + shift + displacement(x, y)       c, c': the centres of both

   with background (0) outside. fx and fy are uniform in 1 +- scale. T is a rotation or a horizontal shear by
   a uniform angle up to the maximum (half of it for gentle labels); if both are on, one random bit chooses.
   shift is uniform in both directions. If the result has another size than the original, the original is also
   scaled to it, centre to centre. All lengths are in pixels of the result.

   displacement (Simard, Steinkraus, Platt 2003; Ciresan et al. 2010, arXiv 1003.0358) has a field for x and
   one for y: independent uniform numbers, one per pixel, smoothed by a Gaussian of 21 taps along rows, then
   along columns. Each field is divided by the norm of the taps that lie inside the image, so that the root
   mean square length of the displacement is `elastic` at every pixel. (Simard's alpha 34 and sigma 4 are
   elastic 2.0; Ciresan's 36 to 38 and 5 to 6 are 1.6 to 1.9.)

   Random numbers are Philox of the counter (draw, image, epoch, RNG_AUGMENT) with the seed as key, so that
   the order of the work does not matter. All devices produce the same bits. Taps and random numbers are
   small integers, so that a float holds every sum of products exactly, with or without FMA. Positions are
   integer multiples of 2^-17 pixel. The few other products and sums are written so that the compiler cannot
   contract them. */
#ifndef TESSERA_KERNELS_AUGMENT_H
#define TESSERA_KERNELS_AUGMENT_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/philox.h"

enum {
    AUGMENT_REACH = 10,       /* taps on either side */
    AUGMENT_MOST_SIDE = 4096, /* of an image: a position fits 32 bits */
    AUGMENT_GROUP = 8,        /* pixels of a row that share a random block */
    AUGMENT_PIXEL_BITS = 17   /* fraction bits of a position */
};

/* The options. All zero changes the size only. */
struct augmentation {
    double elastic, sigma; /* pixels: root mean square of the displacement; sigma of the Gaussian */
    double rotate, shear;  /* maximum, in radians */
    double scale;          /* a fraction, below 1 */
    double shift;          /* maximum, in pixels */
    bool gentle[256];      /* labels that are rotated and sheared half as much */
};

/* The options, prepared for one image size. */
struct augment_plan {
    uint32_t key[2];
    int32_t height, width, to_height, to_width;
    float taps[AUGMENT_REACH + 1];   /* by distance: integers; all 21 sum to less than 4096; 0: not elastic */
    float energy[AUGMENT_REACH + 1]; /* taps[1]^2 + .. + taps[k]^2 */
    float strength;                  /* displacement, in positions, for a smoothed field of 1 */
    float ratio_x, ratio_y;          /* size of the original / size of the result */
    float rotate, shear, scale;
    float shift;        /* in positions */
    uint32_t gentle[8]; /* one bit per label */
};

/* Prepares the options. Sides are at most AUGMENT_MOST_SIDE. */
void augment_plan_make(struct augment_plan *plan, const struct augmentation *augmentation, uint64_t seed,
                       size_t height, size_t width, size_t to_height, size_t to_width);

/* Random block `draw` of an image. */
HOST_DEVICE void augment_draw(const struct augment_plan *plan, uint32_t epoch, uint32_t image, uint32_t draw,
                              uint32_t block[4]) {
    const uint32_t counter[4] = {draw, image, epoch, RNG_AUGMENT};
    philox4x32(counter, plan->key, block);
}

/* --- the linear part --- */

/* Uniform in [-1, 1), exact. */
HOST_DEVICE float augment_unit(uint32_t bits) {
    return (float)(bits >> 8) * 0x1p-23f - 1;
}

/* Cosine and sine of an angle in [-pi, pi], by their series: math libraries differ in the last bit. */
HOST_DEVICE void augment_cos_sin(float angle, float *cosine, float *sine) {
    const float square = angle * angle;
    float c = 1, s = 1;
    for (int k = 18; k > 0; k -= 2) {
        c = fmaf(-square * (1.0f / (float)(k * (k - 1))), c, 1);
        s = fmaf(-square * (1.0f / (float)(k * (k + 1))), s, 1);
    }
    *cosine = c;
    *sine = angle * s;
}

/* Maps pixel (x, y) of the result to the position (2 x xx + 2 y xy + x0, 2 x yx + 2 y yy + y0) in the
   original. */
struct augment_map {
    int32_t xx, xy, x0, yx, yy, y0;
};

/* Positions per half pixel of the result. */
HOST_DEVICE int32_t augment_step(float of_pixel) {
    return (int32_t)roundf(of_pixel * (float)(1 << (AUGMENT_PIXEL_BITS - 1)));
}

HOST_DEVICE struct augment_map augment_map_of(const struct augment_plan *plan, uint32_t epoch, uint32_t image,
                                              uint8_t label) {
    uint32_t a[4], b[4];
    float cosine, sine;
    struct augment_map map;
    augment_draw(plan, epoch, image, 0, a);
    augment_draw(plan, epoch, image, 1, b);
    const bool sheared = plan->shear > 0 && (plan->rotate == 0 || b[2] >> 31);
    const bool gentle = plan->gentle[label / 32] >> label % 32 & 1;
    const float most = sheared ? plan->shear : plan->rotate;
    augment_cos_sin(augment_unit(a[0]) * (gentle ? 0.5f * most : most), &cosine, &sine);
    const float x = plan->ratio_x / fmaf(plan->scale, augment_unit(a[1]), 1);
    const float y = plan->ratio_y / fmaf(plan->scale, augment_unit(a[2]), 1);
    map.xx = augment_step(sheared ? x : x * cosine);
    map.xy = augment_step(-x * (sheared ? sine / cosine : sine));
    map.yx = augment_step(sheared ? 0 : y * sine);
    map.yy = augment_step(sheared ? y : y * cosine);
    /* centre to centre */
    const int32_t half = 1 << (AUGMENT_PIXEL_BITS - 1), across = 1 - plan->to_width,
                  down = 1 - plan->to_height;
    map.x0 = map.xx * across + map.xy * down + (plan->width - 1) * half +
             (int32_t)(plan->ratio_x * (plan->shift * augment_unit(b[0])));
    map.y0 = map.yx * across + map.yy * down + (plan->height - 1) * half +
             (int32_t)(plan->ratio_y * (plan->shift * augment_unit(b[1])));
    return map;
}

/* --- the displacement --- */

/* The random block of row y and columns 8 group .. 8 group + 7: words 0 and 1 are for x, 2 and 3 for y. */
HOST_DEVICE void augment_noise_draw(const struct augment_plan *plan, uint32_t epoch, uint32_t image,
                                    int32_t y, int32_t group, uint32_t block[4]) {
    const int32_t groups = (plan->to_width + AUGMENT_GROUP - 1) / AUGMENT_GROUP;
    augment_draw(plan, epoch, image, (uint32_t)(2 + y * groups + group), block);
}

/* The random number of one column of a group: odd, from -255 to 255. */
HOST_DEVICE float augment_noise(const uint32_t words[2], int column) {
    return (float)((int32_t)(words[column / 4] >> column % 4 * 8 & 255) * 2 - 255);
}

/* An exact row sum divided by 256 and rounded to an integer: a float has no fraction bits after 1.5 * 2^23 is
   added. */
HOST_DEVICE float augment_row_sum(float sum) {
    return sum * 0x1p-8f + 0x1.8p23f - 0x1.8p23f;
}

/* 1 / norm of the taps that lie inside a row or column of `size` pixels: normalises the variance of the
   smoothed noise. */
HOST_DEVICE float augment_gain(const struct augment_plan *plan, int32_t at, int32_t size) {
    const int32_t after = size - 1 - at;
    const float energy = plan->taps[0] * plan->taps[0] +
                         plan->energy[at < AUGMENT_REACH ? at : AUGMENT_REACH] +
                         plan->energy[after < AUGMENT_REACH ? after : AUGMENT_REACH]; /* exact */
    return 1 / sqrtf(energy);
}

/* Displacement as a position. `gain` is that of the row, times that of the column, times `strength`. */
HOST_DEVICE int32_t augment_displacement(float smooth, float gain, float ratio) {
    return (int32_t)(smooth * gain * ratio);
}

/* --- the pixel --- */

HOST_DEVICE int32_t augment_at(const struct augment_plan *plan, const uint8_t *image, int32_t x, int32_t y) {
    const bool inside = (uint32_t)x < (uint32_t)plan->width && (uint32_t)y < (uint32_t)plan->height;
    return inside ? image[y * plan->width + x] : 0;
}

/* Bilinear interpolation; the weights `right` and `below` are in 256ths. */
HOST_DEVICE uint8_t augment_blend(int32_t left_upper, int32_t right_upper, int32_t left_lower,
                                  int32_t right_lower, int32_t right, int32_t below) {
    const int32_t upper = left_upper * (256 - right) + right_upper * right;
    const int32_t lower = left_lower * (256 - right) + right_lower * right;
    return (uint8_t)((upper * (256 - below) + lower * below + (1 << 15)) >> 16);
}

/* A position rounded to 256ths of a pixel. */
HOST_DEVICE int32_t augment_fine(int32_t position) {
    return (position + (1 << (AUGMENT_PIXEL_BITS - 9))) >> (AUGMENT_PIXEL_BITS - 8);
}

/* The original at a position in 256ths of a pixel. */
HOST_DEVICE uint8_t augment_read(const struct augment_plan *plan, const uint8_t *image, int32_t fine_x,
                                 int32_t fine_y) {
    const int32_t x = fine_x >> 8, y = fine_y >> 8;
    return augment_blend(augment_at(plan, image, x, y), augment_at(plan, image, x + 1, y),
                         augment_at(plan, image, x, y + 1), augment_at(plan, image, x + 1, y + 1),
                         fine_x & 255, fine_y & 255);
}

#endif
