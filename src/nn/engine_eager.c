/* Engine eager: one training step, op by op. */
#include "src/nn/data_parallel.h"
#include "src/nn/engine.h"

/* Forward pass, loss and backward pass of `input`: the images of the batch or, in the second pass, the
   attacked images. */
static enum status forward_backward(struct trainer *trainer, const struct batch_part *part, bool attacked) {
    const struct output_layer loss = {.batch = part->batch,
                                      .smoothing = trainer->config->label_smoothing,
                                      .labels = trainer->mlp.labels,
                                      .loss = attacked ? NULL : part->loss,
                                      .tally = part->tally,
                                      .counted = !attacked};
    return mlp_gradients(&trainer->mlp, part->rows, trainer->feed.scalars + part->step, &loss,
                         attacked ? 0.5 : 0);
}

static void gather(struct trainer *trainer, void *ops_context, const struct batch_part *part, void *input,
                   uint8_t *labels) {
    const struct samples *train = &trainer->train;
    trainer->mlp.ops->gather(ops_context, part->rows, train->features, train->range, train->images,
                             train->labels, trainer->feed.order + part->step * trainer->batch + part->first,
                             input, labels);
}

/* engine_part_gradients, with the images in mlp.input. */
static enum status gathered_gradients(struct trainer *trainer, const struct batch_part *part) {
    struct mlp *mlp = &trainer->mlp;
    mlp->first_row = part->first;
    enum status status = forward_backward(trainer, part, false);
    if (mlp->adversarial == 0) return status;
    if (!status) status = mlp_attack(mlp, part->rows);
    return status ? status : forward_backward(trainer, part, true);
}

enum status engine_part_gradients(struct trainer *trainer, const struct batch_part *part) {
    struct device *device = &trainer->compute->device;
    gather(trainer, device->ops_context, part, trainer->mlp.input, trainer->mlp.labels);
    device_lap(device, PART_BATCH);
    return gathered_gradients(trainer, part);
}

static struct batch_part whole_batch(const struct trainer *trainer, size_t step, size_t rows) {
    return (struct batch_part){
        .step = step, .rows = rows, .batch = rows, .loss = trainer->losses + step, .tally = trainer->tally};
}

enum status engine_gradients(struct trainer *trainer, size_t step, size_t rows) {
    const struct batch_part whole = whole_batch(trainer, step, rows);
    return engine_part_gradients(trainer, &whole);
}

/* engine_gradients of a step of first .. end - 1, beside which the images of the next one are gathered. */
static enum status overlapped_gradients(struct trainer *trainer, size_t first, size_t step, size_t end) {
    struct mlp *mlp = &trainer->mlp;
    struct device *device = &trainer->compute->device;
    const struct batch_part whole = whole_batch(trainer, step, engine_rows(trainer, step));
    if (step > first) {
        device->driver->aside_join(device);
        mlp_advance(mlp);
    } else {
        gather(trainer, device->ops_context, &whole, mlp->input, mlp->labels);
    }
    if (step + 1 < end) {
        const struct batch_part next = whole_batch(trainer, step + 1, engine_rows(trainer, step + 1));
        gather(trainer, mlp_beside(mlp, whole.rows), &next, mlp->next.input, mlp->next.labels);
    }
    const enum status status = gathered_gradients(trainer, &whole);
    if (status && step + 1 < end) device->driver->aside_join(device); /* a capture ends with all joined */
    return status;
}

static enum status run_step(struct trainer *trainer, size_t first, size_t step, size_t end) {
    if (trainer->parallel.parts > 1) return data_parallel_step(trainer, step);
    struct mlp *mlp = &trainer->mlp;
    const struct weight_update update = {trainer->optimizer.update, trainer->feed.scalars + step,
                                         trainer->tally, NULL};
    if (optimizer_divides(&trainer->optimizer) && mlp->adversarial == 0) mlp->update = &update;
    const enum status status = mlp->updates_overlap && mlp->next.input
                                   ? overlapped_gradients(trainer, first, step, end)
                                   : engine_gradients(trainer, step, engine_rows(trainer, step));
    mlp->update = NULL;
    if (!status) optimizer_step(&trainer->optimizer, mlp, update.step, update.guard);
    return status;
}

static enum status run(struct trainer *trainer, size_t first, size_t *count) {
    const size_t end = first + *count;
    enum status status = STATUS_OK;
    for (size_t step = first; step < end && !status; step++) status = run_step(trainer, first, step, end);
    return status;
}

const struct engine engine_eager = {.name = "eager", .run = run};
