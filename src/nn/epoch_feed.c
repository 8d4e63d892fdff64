#include "src/nn/epoch_feed.h"

#include <stdlib.h>

#include "src/base/rng.h"
#include "src/device/device.h"

static size_t bytes_of(const struct epoch_feed *feed) {
    return feed->steps * sizeof *feed->scalars + feed->images * sizeof *feed->order;
}

/* Behind the scalars. */
static uint32_t *order_in(const struct epoch_feed *feed, void *memory) {
    return (uint32_t *)((struct step_scalars *)memory + feed->steps);
}

enum status epoch_feed_open(struct epoch_feed *feed, struct device *device, const struct config *config,
                            size_t images, size_t steps) {
    const struct device_driver *driver = device->driver;
    *feed = (struct epoch_feed){.config = config, .images = images, .steps = steps};
    epoch_feed_reset(feed);
    feed->scalars = driver->alloc(device, bytes_of(feed));
    if (!feed->scalars) return STATUS_FAILED;
    feed->order = order_in(feed, feed->scalars);
    if (driver->prefetch_upload) {
        feed->prefetched = driver->alloc(device, bytes_of(feed));
        if (!feed->prefetched) return STATUS_FAILED;
    }
    feed->drawn = malloc(bytes_of(feed));
    return feed->drawn ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
}

void epoch_feed_close(struct epoch_feed *feed, struct device *device) {
    device->driver->free(device, feed->scalars);
    device->driver->free(device, feed->prefetched);
    free(feed->drawn);
    *feed = (struct epoch_feed){0};
}

/* Draws order and scalars into host memory. */
static void draw(struct epoch_feed *feed, struct device *device, int64_t epoch, uint64_t updates) {
    uint32_t *order = order_in(feed, feed->drawn);
    if (feed->drawn_epoch == epoch) return;
    if (feed->config->shuffle) {
        struct rng rng = rng_open((uint64_t)feed->config->seed, RNG_SHUFFLE, (uint32_t)epoch);
        rng_permutation(&rng, order, feed->images);
    } else {
        for (size_t i = 0; i < feed->images; i++) order[i] = (uint32_t)i;
    }
    schedule_epoch(feed->config, (size_t)epoch, feed->steps, updates, feed->drawn);
    feed->drawn_epoch = epoch;
    device_lap(device, PART_BATCH);
}

void epoch_feed_begin(struct epoch_feed *feed, struct device *device, int64_t epoch, uint64_t updates) {
    const struct device_driver *driver = device->driver;
    if (feed->prefetched && feed->prefetched_epoch == epoch) {
        driver->prefetch_commit(device, feed->scalars, feed->prefetched, bytes_of(feed));
    } else {
        draw(feed, device, epoch, updates);
        driver->upload(device, feed->scalars, feed->drawn, bytes_of(feed));
    }
    device_lap(device, PART_BATCH);
}

void epoch_feed_prefetch(struct epoch_feed *feed, struct device *device, int64_t epoch, uint64_t updates) {
    draw(feed, device, epoch, updates);
    if (!feed->prefetched || feed->prefetched_epoch == epoch) return;
    device->driver->prefetch_upload(device, feed->prefetched, feed->drawn, bytes_of(feed));
    feed->prefetched_epoch = epoch;
}
