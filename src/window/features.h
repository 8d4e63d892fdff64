/* Rows for a readout: [1 | features | one-hot targets] of images. The features are the activations of the
   last hidden layer of a network, whose weights stay as they are. */
#ifndef TESSERA_WINDOW_FEATURES_H
#define TESSERA_WINDOW_FEATURES_H

#include "src/nn/samples.h"
#include "src/window/qr.h"

/* Images of a batch of the network: those of an evaluation by ./train eval, so that both have the same
   bits. */
enum { FEATURES_BATCH = 1000 };

struct features {
    struct mlp *mlp;
    const struct qr_ops *ops;
    size_t count, classes; /* features and targets of a row */
    void *targets;         /* device, [FEATURES_BATCH][1 + classes] */
    void *staging;         /* host, the same */
    double seconds;        /* of features_rows so far */
};

/* `mlp` has a hidden layer and room for FEATURES_BATCH rows. Call features_close also after a failure. */
enum status features_open(struct features *features, struct mlp *mlp);
void features_close(struct features *features);

/* Columns of a row: 1 + features + classes. The constant 1 comes first. */
static inline size_t features_columns(const struct features *features) {
    return 1 + features->count + features->classes;
}

/* to [count][features_columns] = rows of the images first .. first + count - 1. `labels` is host memory with
   the labels of all images of `samples`. Laps: PART_BATCH, PART_GEMM_NN. */
enum status features_rows(struct features *features, const struct samples *samples, const uint8_t *labels,
                          size_t first, size_t count, const struct qr_matrix *to);

/* Searches the images first .. first + count - 1 for a feature that is not finite. STATUS_FAILED names image
   and feature. `rows` is memory for `room` rows. */
enum status features_check(struct features *features, const struct samples *samples, const uint8_t *labels,
                           size_t first, size_t count, const struct qr_matrix *rows, size_t room);

#endif
