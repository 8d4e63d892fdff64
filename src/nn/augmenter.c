#include "src/nn/augmenter.h"

#include <string.h>

struct augmentation augmenter_recipe(const struct config *config) {
    static const double DEGREE = 3.14159265358979323846 / 180;
    struct augmentation recipe = {.elastic = config->augment_elastic,
                                  .sigma = config->augment_sigma,
                                  .rotate = DEGREE * config->augment_rotate,
                                  .shear = DEGREE * config->augment_shear,
                                  .scale = 0.01 * config->augment_scale,
                                  .shift = config->augment_shift};
    memcpy(recipe.gentle, config->augment_gentle.has, sizeof recipe.gentle);
    return recipe;
}

enum status augmenter_open(struct augmenter *augmenter, struct device *device, const struct config *config,
                           const struct dataset *set, const struct samples *samples) {
    const struct device_driver *driver = device->driver;
    const size_t bytes = set->count * set->height * set->width;
    const struct augmentation recipe = augmenter_recipe(config);
    *augmenter = (struct augmenter){.prefetched_epoch = -1};
    if (!config->augment) return STATUS_OK;
    augment_plan_make(&augmenter->plan, &recipe, (uint64_t)config->seed, set->height, set->width,
                      samples->height, samples->width);
    augmenter->originals = driver->alloc(device, bytes);
    if (augmenter->originals && driver->prefetch_begin)
        augmenter->prefetched = driver->alloc(device, samples->count * samples->features);
    if (!augmenter->originals || (driver->prefetch_begin && !augmenter->prefetched)) {
        augmenter_close(augmenter, device);
        return status_context(STATUS_FAILED, "augmentation stores further copies of the images");
    }
    driver->upload(device, augmenter->originals, set->images, bytes);
    return STATUS_OK;
}

void augmenter_close(struct augmenter *augmenter, struct device *device) {
    device->driver->free(device, augmenter->originals);
    device->driver->free(device, augmenter->prefetched);
    *augmenter = (struct augmenter){0};
}

static void deform(const struct augmenter *augmenter, struct device *device, void *context,
                   const struct samples *samples, int64_t epoch, uint8_t *deformed) {
    device->driver->ops(device, GEMM_F32)
        ->augment(context, &augmenter->plan, (uint32_t)epoch, samples->count, augmenter->originals,
                  samples->labels, deformed);
}

void augmenter_begin(struct augmenter *augmenter, struct device *device, struct samples *samples,
                     int64_t epoch) {
    if (!augmenter->originals) return;
    if (augmenter->prefetched && augmenter->prefetched_epoch == epoch) {
        device->driver->prefetch_commit(device, samples->images, augmenter->prefetched,
                                        samples->count * samples->features);
    } else {
        deform(augmenter, device, device->ops_context, samples, epoch, samples->images);
    }
    device_lap(device, PART_AUGMENT);
}

void augmenter_prefetch(struct augmenter *augmenter, struct device *device, const struct samples *samples,
                        int64_t epoch) {
    if (!augmenter->prefetched || augmenter->prefetched_epoch == epoch) return;
    deform(augmenter, device, device->driver->prefetch_begin(device), samples, epoch, augmenter->prefetched);
    device->driver->prefetch_end(device);
    augmenter->prefetched_epoch = epoch;
}
