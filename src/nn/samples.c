#include "src/nn/samples.h"

#include <math.h>
#include <stdlib.h>

#include "src/comm/comm.h"

/* Uploads the images of `set`, resized if necessary. */
static enum status upload_images(struct samples *samples, struct device *device, const struct dataset *set) {
    const struct device_driver *driver = device->driver;
    const struct augmentation nothing = {0};
    const size_t bytes = set->count * set->height * set->width;
    struct augment_plan plan;
    if (samples->height == set->height && samples->width == set->width) {
        driver->upload(device, samples->images, set->images, bytes);
        return STATUS_OK;
    }
    uint8_t *originals = driver->alloc(device, bytes);
    if (!originals) return STATUS_FAILED;
    driver->upload(device, originals, set->images, bytes);
    augment_plan_make(&plan, &nothing, 0, set->height, set->width, samples->height, samples->width);
    driver->ops(device, GEMM_F32)
        ->augment(device->ops_context, &plan, 0, set->count, originals, samples->labels, samples->images);
    const enum status status = driver->synchronize(device);
    driver->free(device, originals);
    return status;
}

enum status samples_open(struct samples *samples, struct device *device, const struct config *config,
                         const struct dataset *set) {
    const struct device_driver *driver = device->driver;
    *samples = (struct samples){.count = set->count,
                                .height = config_input_side(config, set->height),
                                .width = config_input_side(config, set->width),
                                .range = (enum input_range)config->input_range};
    samples->features = samples->height * samples->width;
    samples->images = driver->alloc(device, samples->count * samples->features);
    samples->labels = samples->images ? driver->alloc(device, set->count) : NULL;
    if (samples->labels) driver->upload(device, samples->labels, set->labels, set->count);
    const enum status status = samples->labels ? upload_images(samples, device, set) : STATUS_FAILED;
    if (!status) return STATUS_OK;
    samples_close(samples, device);
    return status_context(STATUS_FAILED, "the data set does not fit on the device");
}

void samples_close(struct samples *samples, struct device *device) {
    device->driver->free(device, samples->images);
    device->driver->free(device, samples->labels);
    *samples = (struct samples){0};
}

static double logit(const struct mlp *mlp, const void *logits, size_t index) {
    return dtype_get(mlp->activation_dtype, logits, index);
}

/* The predictions for image `image` from its row of logits. The label is that of the first largest logit. */
static void predict_row(const struct mlp *mlp, const void *logits, size_t row, size_t classes, size_t image,
                        const struct predictions *to) {
    size_t best = 0;
    double sum = 0;
    for (size_t j = 1; j < classes; j++)
        if (logit(mlp, logits, row * classes + j) > logit(mlp, logits, row * classes + best)) best = j;
    for (size_t j = 0; j < classes; j++)
        sum += exp(logit(mlp, logits, row * classes + j) - logit(mlp, logits, row * classes + best));
    if (to->label) to->label[image] = (uint8_t)best;
    if (to->confidence) to->confidence[image] = 1 / sum;
    for (size_t j = 0; to->log_probability && j < classes; j++)
        to->log_probability[image * classes + j] +=
            logit(mlp, logits, row * classes + j) - logit(mlp, logits, row * classes + best) - log(sum);
}

static enum status evaluate_batch(const struct samples *samples, struct mlp *mlp, struct tally *tally,
                                  size_t first, size_t rows) {
    struct device *device = &mlp->compute->device;
    const struct mlp_layer *last = mlp_last(mlp);
    mlp->ops->gather(device->ops_context, rows, samples->features, samples->range,
                     samples->images + first * samples->features, samples->labels + first, NULL, mlp->input,
                     mlp->labels);
    const enum status status = mlp_forward(mlp, rows, NULL);
    if (status) return status;
    mlp->ops->softmax_cross_entropy(device->ops_context, rows, (double)rows, last->out, 0, last->output,
                                    mlp->labels, NULL, NULL, tally, true);
    return STATUS_OK;
}

/* Images [first, end). */
static enum status evaluate_range(const struct samples *samples, struct mlp *mlp, struct tally *tally,
                                  size_t first, size_t end, struct predictions *predictions, void *logits) {
    struct device *device = &mlp->compute->device;
    const size_t classes = mlp_last(mlp)->out;
    for (; first < end; first += mlp->capacity) {
        const size_t left = end - first, rows = left < mlp->capacity ? left : mlp->capacity;
        const enum status status = evaluate_batch(samples, mlp, tally, first, rows);
        if (status) return status;
        if (!predictions) continue;
        device->driver->download(device, logits, mlp_last(mlp)->output,
                                 rows * classes * dtype_size(mlp->activation_dtype));
        for (size_t r = 0; r < rows; r++) predict_row(mlp, logits, r, classes, first + r, predictions);
    }
    return device->driver->synchronize(device);
}

/* Each process evaluates its part of the images; with --reduction fixed, several, whose sums are a tree. */
static enum status evaluate_parts(const struct samples *samples, struct mlp *mlp, struct tally *tally,
                                  struct tally *total) {
    enum { LOSS, CORRECT, IMAGES, VALUES };
    struct comm *comm = mlp->compute->comm;
    struct device *device = &mlp->compute->device;
    const int size = comm_size(comm), count = comm_is_fixed(comm) ? COMM_SHARDS / size : 1;
    double values[COMM_SHARDS][VALUES];
    enum status status = STATUS_OK;
    for (int i = 0; i < count && !status; i++) {
        size_t first, end;
        comm_share(samples->count, (comm ? comm->rank : 0) * count + i, count * size, &first, &end);
        device->driver->zero(device, tally, sizeof *tally);
        status = evaluate_range(samples, mlp, tally, first, end, NULL, NULL);
        device->driver->download(device, total, tally, sizeof *total);
        values[i][LOSS] = total->loss_sum;
        values[i][CORRECT] = (double)total->correct;
        values[i][IMAGES] = (double)total->images;
    }
    if (status) return status;
    for (int apart = 1; apart < count; apart *= 2)
        for (int i = 0; i < count; i += 2 * apart) comm_add(values[i], values[i + apart], VALUES, GEMM_F64);
    comm_sum(comm, values[0], VALUES, GEMM_F64);
    *total = (struct tally){.loss_sum = values[0][LOSS],
                            .correct = (uint64_t)values[0][CORRECT],
                            .images = (uint64_t)values[0][IMAGES]};
    return STATUS_OK;
}

static enum status evaluate_all(const struct samples *samples, struct mlp *mlp, struct tally *tally,
                                struct tally *total, struct predictions *predictions, void *logits) {
    struct device *device = &mlp->compute->device;
    device->driver->zero(device, tally, sizeof *tally);
    const enum status status = evaluate_range(samples, mlp, tally, 0, samples->count, predictions, logits);
    device->driver->download(device, total, tally, sizeof *total);
    return status;
}

enum status samples_evaluate(const struct samples *samples, struct mlp *mlp, struct tally *tally,
                             struct evaluation *result, struct predictions *predictions) {
    struct device *device = &mlp->compute->device;
    const struct device_driver *driver = device->driver;
    void *logits = NULL;
    if (predictions) {
        logits = malloc(mlp->capacity * mlp_last(mlp)->out * dtype_size(mlp->activation_dtype));
        if (!logits) return status_set(STATUS_FAILED, "out of memory");
    }
    driver->synchronize(device); /* so that earlier work does not count as evaluation */
    if (device->profile) profile_divert(device->profile, PART_EVALUATION);
    struct tally total;
    const bool divided = mlp->compute->comm && !predictions; /* these are of all images */
    const enum status status = divided ? evaluate_parts(samples, mlp, tally, &total)
                                       : evaluate_all(samples, mlp, tally, &total, predictions, logits);
    *result = (struct evaluation){.total = total.images,
                                  .correct = total.correct,
                                  .loss = total.images ? total.loss_sum / (double)total.images : 0};
    if (device->profile) profile_restore(device->profile);
    free(logits);
    return status;
}
