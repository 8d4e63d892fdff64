/* A labelled image set in device memory, and the evaluation of a network on it. */
#ifndef TESSERA_NN_SAMPLES_H
#define TESSERA_NN_SAMPLES_H

#include "src/data/dataset.h"
#include "src/nn/mlp.h"

struct samples {
    size_t count, height, width; /* images; size of an image after resizing */
    size_t features;             /* height x width */
    enum input_range range;      /* of a pixel as input of the network */
    uint8_t *images;             /* device, [count][features] */
    uint8_t *labels;             /* device, [count] */
};

/* Copies a data set to the device, resized to config->input_size. */
enum status samples_open(struct samples *samples, struct device *device, const struct config *config,
                         const struct dataset *set);
void samples_close(struct samples *samples, struct device *device);

struct evaluation {
    uint64_t total, correct;
    double loss; /* mean cross-entropy in nats */
};

/* The predictions for each image, in host memory. Any field may be NULL. */
struct predictions {
    uint8_t *label;          /* [count] */
    double *confidence;      /* [count]: the softmax probability of that label */
    double *log_probability; /* [count][classes]: the log softmax is added to it */
};

/* Runs the network on the whole set in file order. `tally` is scratch device memory; `predictions` may be
   NULL. All time counts as PART_EVALUATION. */
enum status samples_evaluate(const struct samples *samples, struct mlp *mlp, struct tally *tally,
                             struct evaluation *result, struct predictions *predictions);

#endif
