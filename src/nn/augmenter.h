/* Augmentation: new training images for every epoch (kernels/augment.h), a pure function of seed, epoch and
   image. A device that can prefetch deforms the images of the next epoch during the current one. */
#ifndef TESSERA_NN_AUGMENTER_H
#define TESSERA_NN_AUGMENTER_H

#include "src/nn/samples.h"

struct augmenter {
    struct augment_plan plan;
    uint8_t *originals;       /* device, [count][height][width]; NULL: no augmentation */
    uint8_t *prefetched;      /* device, [count][features]: images of a later epoch; NULL: no prefetch */
    int64_t prefetched_epoch; /* -1: none */
};

/* The augmentation of the config, even if it is switched off. */
struct augmentation augmenter_recipe(const struct config *config);

/* Uploads the original images of `samples`, if config->augment is on. */
enum status augmenter_open(struct augmenter *augmenter, struct device *device, const struct config *config,
                           const struct dataset *set, const struct samples *samples);
void augmenter_close(struct augmenter *augmenter, struct device *device);

/* Fills samples->images with the images of `epoch` for the work issued later. Counts as PART_AUGMENT. */
void augmenter_begin(struct augmenter *augmenter, struct device *device, struct samples *samples,
                     int64_t epoch);

/* If the device can prefetch: starts to deform the images of a later epoch on the copy stream. */
void augmenter_prefetch(struct augmenter *augmenter, struct device *device, const struct samples *samples,
                        int64_t epoch);

#endif
