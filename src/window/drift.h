/* Drift: images that turn as a stream goes on. */
#ifndef TESSERA_WINDOW_DRIFT_H
#define TESSERA_WINDOW_DRIFT_H

#include "src/data/dataset.h"

/* Degrees at the first and the last image; a positive angle turns clockwise. */
struct image_drift {
    double from, to;
};

/* "rotate:0..45", -180 to 180 degrees. STATUS_USAGE says what is wrong. */
enum status drift_parse(const char *text, struct image_drift *drift);

/* Turns image i of `count` about its centre by from + (to - from) i / (count - 1) degrees, in place, with the
   bilinear interpolation of kernels/augment.h: the same bits everywhere, and none changes at 0 degrees.
   STATUS_USAGE if the images are too large for it. */
enum status drift_apply(const struct image_drift *drift, struct dataset *set);

#endif
