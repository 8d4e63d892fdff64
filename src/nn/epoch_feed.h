/* The order of the images of an epoch and the scalars of its steps, drawn on the host and uploaded. If the
   device can prefetch, those of the next epoch are uploaded during the current one. Both lie in one piece of
   memory, scalars first: one copy. */
#ifndef TESSERA_NN_EPOCH_FEED_H
#define TESSERA_NN_EPOCH_FEED_H

#include "src/nn/schedule.h"

struct epoch_feed {
    const struct config *config;
    size_t images, steps;         /* of an epoch */
    struct step_scalars *scalars; /* device, [steps]: learning rates and the like */
    uint32_t *order;              /* device, [images]: image indices, batch after batch */

    void *prefetched;         /* device, both of a later epoch; NULL if the device cannot prefetch */
    int64_t prefetched_epoch; /* -1: none */

    void *drawn;         /* host memory, both */
    int64_t drawn_epoch; /* -1: none */
};

enum status epoch_feed_open(struct epoch_feed *feed, struct device *device, const struct config *config,
                            size_t images, size_t steps);
void epoch_feed_close(struct epoch_feed *feed, struct device *device);

/* Puts order and scalars of `epoch` (0 is the first) into device memory for the work issued later. `updates`
   is the number of updates before that epoch. Counts as PART_BATCH. */
void epoch_feed_begin(struct epoch_feed *feed, struct device *device, int64_t epoch, uint64_t updates);

/* Draws a later epoch and, if the device can prefetch, starts its upload. */
void epoch_feed_prefetch(struct epoch_feed *feed, struct device *device, int64_t epoch, uint64_t updates);

/* Discards all drawn and prefetched values. */
static inline void epoch_feed_reset(struct epoch_feed *feed) {
    feed->drawn_epoch = feed->prefetched_epoch = -1;
}

#endif
