/* The fit of a readout over images, and the choice of its ridge on images that it has not seen. */
#ifndef TESSERA_WINDOW_RIDGE_H
#define TESSERA_WINDOW_RIDGE_H

#include "src/window/features.h"
#include "src/window/readout.h"

/* Images as a readout takes them; `labels` is host memory. */
struct readout_images {
    struct features *features;
    const struct samples *samples;
    const uint8_t *labels;
};

/* The images first .. first + count - 1. */
struct readout_part {
    size_t first, count;
};

/* The rows of these images enter the triangle, readout->shape.rows at a time. */
enum status ridge_fit(struct readout *readout, const struct readout_images *images, struct readout_part part,
                      const struct qr_matrix *triangle);

/* Scores `count` weights w (device, [count][n][classes]) on these images. */
enum status ridge_score(struct readout *readout, const struct readout_images *images,
                        struct readout_part part, const void *w, size_t count, struct readout_score *scores);

enum { RIDGE_MOST = 16 };

/* The ridges that were tried. */
struct ridges {
    size_t count, best;
    double value[RIDGE_MOST];
    double relative[RIDGE_MOST]; /* to the mean square of the norms of the centred columns; NaN: given */
    struct readout_score score[RIDGE_MOST];
};

/* The grid of --ridge auto: powers of 10 relative to `mean` (readout_mean_square). STATUS_FAILED if it is not
   finite, or if all features are constant. */
enum status ridge_grid(double mean, struct ridges *ridges);

/* Solves with each ridge, scores it on the images of `part` and sets ridges->best: the most correct answers,
   then the least squared error, then the larger ridge. The triangle does not change. If a ridge is too small
   for the rank, the others decide; if all are, STATUS_FAILED. */
enum status ridge_choose(struct readout *readout, const struct readout_images *images,
                         struct readout_part part, const struct qr_matrix *triangle, struct ridges *ridges);

#endif
