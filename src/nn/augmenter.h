/* The training images, deformed anew for every epoch (kernels/augment.h): a pure function of seed, epoch and
   image. On a device that works beside itself those of the next epoch are made while this one is trained. */
#ifndef TESSERA_NN_AUGMENTER_H
#define TESSERA_NN_AUGMENTER_H

#include "src/nn/samples.h"

struct augmenter {
    struct augment_plan plan;
    uint8_t *originals; /* device, [count][height][width]; NULL: nothing is deformed */
    uint8_t *early; /* device, [count][features]: the images of an epoch to come, where they are made early */
    int64_t ready;  /* that epoch; -1: none */
};

/* What the config asks for, whether or not it is switched on. */
struct augmentation augmenter_recipe(const struct config *config);

/* Takes up the originals of `samples`, if config->augment is on. */
enum status augmenter_open(struct augmenter *augmenter, struct device *device, const struct config *config,
                           const struct dataset *set, const struct samples *samples);
void augmenter_close(struct augmenter *augmenter, struct device *device);

/* Makes samples->images those of this epoch: what is issued from now on reads them. Counts as
   PART_AUGMENT. */
void augmenter_begin(struct augmenter *augmenter, struct device *device, struct samples *samples,
                     int64_t epoch);

/* Begins to make those of a later epoch beside the work that was issued, where the device can. */
void augmenter_begin_early(struct augmenter *augmenter, struct device *device, const struct samples *samples,
                           int64_t epoch);

#endif
