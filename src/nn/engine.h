/* The engine seam: how the steps of an epoch are issued. Every engine computes the same function of the same
 * seed. */
#ifndef TESSERA_NN_ENGINE_H
#define TESSERA_NN_ENGINE_H

#include "src/nn/trainer.h"

struct engine {
    const char *name;
    size_t stride; /* steps between two looks at losses and signals; 0: as many as the device likes */

    /* (optional) Once, before the first step: what would otherwise be done inside it. */
    enum status (*prepare)(struct trainer *trainer);

    /* Steps first .. first + *count - 1 of the epoch whose order, rates and tally are on the device: batch,
       forward, loss, backward, update. May return before the work is done. It may do fewer, at least one, and
       says so in *count. */
    enum status (*run)(struct trainer *trainer, size_t first, size_t *count);

    /* (optional) */
    void (*close)(struct trainer *trainer);
};

/* Op by op: the only engine that times each op by itself. Works on every device. */
extern const struct engine engine_eager;

/* The calls of eager for a whole epoch, captured once and replayed. For devices that can capture, and epochs
   that are not too long. */
extern const struct engine engine_graph;

/* Whole steps inside the backend (kernels/fused.h). For backends that can, and tensors where these are. */
extern const struct engine engine_fused;

/* The engine for config->engine on this device: auto is fused, else graph, where that can be.
   STATUS_UNAVAILABLE if graph was asked for and cannot be; where fused cannot be it is eager, and
   trainer->notice says why. */
enum status engine_select(struct trainer *trainer, const struct engine **engine);

/* Its name, and what it says of itself: "fused (..)". */
void engine_describe(const struct trainer *trainer, char *text, size_t size);

/* What there was to choose from, and why: a line for each engine, and for each way that engine fused has;
   then the choice. */
void engine_explain(const struct trainer *trainer, char *text, size_t size);

/* Images of step `step`: a full batch, or what is left. */
static inline size_t engine_rows(const struct trainer *trainer, size_t step) {
    const size_t left = trainer->train.count - step * trainer->batch;
    return left < trainer->batch ? left : trainer->batch;
}

/* Batch, forward, loss and gradients of one step into `mlp`, without the update. In adversarial training the
   gradients are the mean of those of the images and those of the images as mlp_attack moved them; tally and
   losses are of the images themselves. */
enum status engine_gradients(struct trainer *trainer, size_t step, size_t rows);

#endif
