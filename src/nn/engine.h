/* The engine seam: how the steps of an epoch are issued. Every engine computes the same function of the same
   seed. */
#ifndef TESSERA_NN_ENGINE_H
#define TESSERA_NN_ENGINE_H

#include "src/nn/trainer.h"

/* The most steps of a captured graph or of one kernel launch. A graph node takes about a kilobyte, and a step
   has about a dozen nodes. */
enum { ENGINE_MAX_STEPS = 4096 };

struct engine {
    const char *name;
    size_t stride; /* the most steps between two reads of the tally; 0: steps_ahead of the device driver */

    /* (optional) False, with the reason in `why`, if the engine cannot be used here. May set
       trainer->engine_state. */
    bool (*open)(struct trainer *trainer, char *why, size_t size);

    /* (optional) Called once, after warm-up and before the first step. */
    enum status (*prepare)(struct trainer *trainer);

    /* Runs steps first .. first + *count - 1 of the epoch whose order, scalars and tally are on the device:
       batch, forward, loss, backward, update. May return before the work is done. May run fewer steps, but at
       least one, and then sets *count to their number. */
    enum status (*run)(struct trainer *trainer, size_t first, size_t *count);

    /* (optional) May the training end before `step` of an epoch, and resume with the same bits? NULL: yes. */
    bool (*may_end)(const struct trainer *trainer, size_t step);

    /* (optional) */
    void (*close)(struct trainer *trainer);
};

/* Op by op: works on every device, and times each op. */
extern const struct engine engine_eager;

/* The calls of eager for a whole epoch, captured once and replayed. Needs a device that can capture. */
extern const struct engine engine_graph;

/* Whole steps inside the backend (kernels/fused.h). */
extern const struct engine engine_fused;

/* Can epochs be captured here? If not, the reason is in `why`. */
bool engine_graph_available(const struct trainer *trainer, char *why, size_t size);

/* Returns the first option of the recipe that engine fused does not support, or NULL. */
const char *engine_fused_unsupported(const struct config *config);

/* The backend's description of its fused steps for this network: a phrase, or "". */
void engine_fused_describe(const struct trainer *trainer, char *text, size_t size);

/* A line for each variant of engine fused: its estimated time, or why it cannot be used. */
void engine_fused_explain(const struct trainer *trainer, char *text, size_t size);

/* Sets trainer->engine by config->engine. `auto` is the first of fused, graph, eager that is available. If
   `fused` is unavailable, the engine is eager, and trainer->notice says why. STATUS_UNAVAILABLE if `graph` is
   unavailable. */
enum status engine_select(struct trainer *trainer);

/* The name and description of the engine: "fused (..)". */
void engine_describe(const struct trainer *trainer, char *text, size_t size);

/* A line for each engine and each variant of fused, with the reason if it is unavailable; then the selected
   engine. */
void engine_explain(const struct trainer *trainer, char *text, size_t size);

/* The number of images of a step: a full batch, or the rest in the last step. */
static inline size_t engine_rows(const struct trainer *trainer, size_t step) {
    const size_t left = trainer->train.count - step * trainer->batch;
    return left < trainer->batch ? left : trainer->batch;
}

/* Images [first, first + rows) of the batch of a step, which has `batch` images. */
struct batch_part {
    size_t step, first, rows, batch;
    double *loss;        /* device: receives the mean loss of these images; NULL: not wanted */
    struct tally *tally; /* device */
};

/* Batch, forward, loss and gradients of a part, without the update: its share of the mean over the batch. In
   adversarial training the gradients are the mean over the original and the attacked images; tally and losses
   are of the original images. */
enum status engine_part_gradients(struct trainer *trainer, const struct batch_part *part);

/* The same of the first `rows` images of a step, as a batch of its own. */
enum status engine_gradients(struct trainer *trainer, size_t step, size_t rows);

#endif
