#include "src/nn/epoch_feed.h"

#include <stdlib.h>

#include "src/base/rng.h"
#include "src/device/device.h"

static size_t order_bytes(const struct epoch_feed *feed) {
    return feed->images * sizeof *feed->order;
}

static size_t scalars_bytes(const struct epoch_feed *feed) {
    return feed->steps * sizeof *feed->scalars;
}

enum status epoch_feed_open(struct epoch_feed *feed, struct device *device, const struct config *config,
                            size_t images, size_t steps) {
    const struct device_driver *driver = device->driver;
    *feed = (struct epoch_feed){.config = config, .images = images, .steps = steps};
    epoch_feed_reset(feed);
    feed->order = driver->alloc(device, order_bytes(feed));
    feed->scalars = driver->alloc(device, scalars_bytes(feed));
    if (!feed->order || !feed->scalars) return STATUS_FAILED;
    if (driver->prefetch_upload) {
        feed->prefetched_order = driver->alloc(device, order_bytes(feed));
        feed->prefetched_scalars = driver->alloc(device, scalars_bytes(feed));
        if (!feed->prefetched_order || !feed->prefetched_scalars) return STATUS_FAILED;
    }
    feed->host_order = malloc(order_bytes(feed));
    feed->host_scalars = malloc(scalars_bytes(feed));
    return feed->host_order && feed->host_scalars ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
}

void epoch_feed_close(struct epoch_feed *feed, struct device *device) {
    void *const memory[] = {feed->order, feed->scalars, feed->prefetched_order, feed->prefetched_scalars};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) device->driver->free(device, memory[i]);
    free(feed->host_order);
    free(feed->host_scalars);
    *feed = (struct epoch_feed){0};
}

/* Draws order and scalars into host memory. */
static void draw(struct epoch_feed *feed, struct device *device, int64_t epoch, uint64_t updates) {
    if (feed->drawn_epoch == epoch) return;
    if (feed->config->shuffle) {
        struct rng rng = rng_open((uint64_t)feed->config->seed, RNG_SHUFFLE, (uint32_t)epoch);
        rng_permutation(&rng, feed->host_order, feed->images);
    } else {
        for (size_t i = 0; i < feed->images; i++) feed->host_order[i] = (uint32_t)i;
    }
    schedule_epoch(feed->config, (size_t)epoch, feed->steps, updates, feed->host_scalars);
    feed->drawn_epoch = epoch;
    device_lap(device, PART_BATCH);
}

void epoch_feed_begin(struct epoch_feed *feed, struct device *device, int64_t epoch, uint64_t updates) {
    const struct device_driver *driver = device->driver;
    if (feed->prefetched_order && feed->prefetched_epoch == epoch) {
        driver->prefetch_commit(device, feed->order, feed->prefetched_order, order_bytes(feed));
        driver->prefetch_commit(device, feed->scalars, feed->prefetched_scalars, scalars_bytes(feed));
    } else {
        draw(feed, device, epoch, updates);
        driver->upload(device, feed->order, feed->host_order, order_bytes(feed));
        driver->upload(device, feed->scalars, feed->host_scalars, scalars_bytes(feed));
    }
    device_lap(device, PART_BATCH);
}

void epoch_feed_prefetch(struct epoch_feed *feed, struct device *device, int64_t epoch, uint64_t updates) {
    const struct device_driver *driver = device->driver;
    draw(feed, device, epoch, updates);
    if (!feed->prefetched_order || feed->prefetched_epoch == epoch) return;
    driver->prefetch_upload(device, feed->prefetched_order, feed->host_order, order_bytes(feed));
    driver->prefetch_upload(device, feed->prefetched_scalars, feed->host_scalars, scalars_bytes(feed));
    feed->prefetched_epoch = epoch;
}
