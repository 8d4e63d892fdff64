/* Runs two trainings in lockstep and finds the first tensor in which they differ. */
#include <math.h>
#include <stdlib.h>

#include "src/bench/agreement.h"
#include "src/nn/engine.h"

/* Both trainings, and the result. */
struct tracing {
    struct agreement_side reference, candidate;
    struct trace *trace;
    size_t step;
    void *buffer[2]; /* host memory for a tensor of each */
};

/* One tensor of both trainings: [rows][cols] with leading dimension ld. */
struct tensor_pair {
    const void *tensor[2]; /* reference, candidate */
    size_t rows, cols, ld[2];
    double scale; /* what the candidate's values are stored times: its gradient_scale; else 1 */
};

/* |x - reference| / |reference|, Frobenius norms; infinite if a value is not a number. */
static double difference(const struct tracing *both, const struct tensor_pair *pair,
                         const enum gemm_dtype dtype[2]) {
    const struct agreement_side *side[2] = {&both->reference, &both->candidate};
    for (int s = 0; s < 2; s++) {
        struct device *device = (struct device *)&side[s]->compute.device;
        device->driver->download(device, both->buffer[s], pair->tensor[s],
                                 pair->rows * pair->ld[s] * dtype_size(dtype[s]));
    }
    double error = 0, norm = 0;
    for (size_t r = 0; r < pair->rows; r++)
        for (size_t c = 0; c < pair->cols; c++) {
            const double want = dtype_get(dtype[0], both->buffer[0], r * pair->ld[0] + c),
                         got = dtype_get(dtype[1], both->buffer[1], r * pair->ld[1] + c) / pair->scale;
            error += (got - want) * (got - want);
            norm += want * want;
        }
    if (isnan(error)) return INFINITY;
    return norm > 0 ? sqrt(error / norm) : error > 0 ? INFINITY : 0;
}

/* Compares one tensor, unless an earlier one is past its tolerance. */
static void compare_tensor(struct tracing *both, size_t layer, const char *name, const void *reference,
                           const void *candidate, enum gemm_dtype dtype, size_t rows, double scale) {
    struct trace *trace = both->trace;
    if (trace->drifts) return;
    const struct mlp_layer *x = &both->reference.trainer.mlp.layer[layer],
                           *y = &both->candidate.trainer.mlp.layer[layer];
    const struct tensor_pair pair = {{reference, candidate}, rows, x->out, {x->ld, y->ld}, scale};
    const enum gemm_dtype dtypes[2] = {GEMM_F64, dtype};
    const double relative = difference(both, &pair, dtypes);
    if (relative < trace->relative) return;
    trace->relative = relative;
    trace->step = both->step + 1;
    trace->layer = layer + 1;
    trace->tensor = name;
    trace->drifts = relative > trace->tolerance;
}

/* In the order of computation. */
static void compare_gradients(struct tracing *both, size_t rows) {
    const struct mlp *a = &both->reference.trainer.mlp, *b = &both->candidate.trainer.mlp;
    /* not the last: a later tensor may share the memory of its logits */
    for (size_t l = 0; l + 1 < a->depth; l++)
        compare_tensor(both, l, "output", a->layer[l].output, b->layer[l].output, b->activation_dtype, rows,
                       1);
    for (size_t l = a->depth; l-- > 0;) {
        const struct mlp_layer *x = &a->layer[l], *y = &b->layer[l];
        compare_tensor(both, l, "output gradient", x->grad, y->grad, b->activation_dtype, rows,
                       b->gradient_scale);
        compare_tensor(both, l, "weight gradient", x->weight_grad, y->weight_grad, b->dtype, x->in, 1);
        compare_tensor(both, l, "bias gradient", x->bias_grad, y->bias_grad, b->dtype, 1, 1);
    }
}

static void compare_weights(struct tracing *both) {
    const struct mlp *a = &both->reference.trainer.mlp, *b = &both->candidate.trainer.mlp;
    for (size_t l = 0; l < a->depth; l++) {
        const struct mlp_layer *x = &a->layer[l], *y = &b->layer[l];
        compare_tensor(both, l, "weight", x->weight, y->weight, b->dtype, x->in, 1);
        compare_tensor(both, l, "bias", x->bias, y->bias, b->dtype, 1, 1);
    }
}

static enum status step_side(struct agreement_side *side, size_t step, bool update) {
    struct trainer *trainer = &side->trainer;
    if (!update) return engine_gradients(trainer, step, engine_rows(trainer, step));
    optimizer_step(&trainer->optimizer, &trainer->mlp, trainer->feed.scalars + step, trainer->tally);
    return STATUS_OK;
}

static enum status one_step(struct tracing *both, size_t step) {
    enum status status = step_side(&both->reference, step, false);
    if (!status) status = step_side(&both->candidate, step, false);
    if (status) return status;
    compare_gradients(both, engine_rows(&both->reference.trainer, step));
    status = step_side(&both->reference, step, true);
    if (!status) status = step_side(&both->candidate, step, true);
    if (!status) compare_weights(both);
    return status ? status
                  : both->candidate.compute.device.driver->synchronize(&both->candidate.compute.device);
}

/* Rounds the state of the reference to the candidate's dtype and gives it to both. */
static enum status share_state(struct tracing *both) {
    double *state = lockstep_state(&both->reference.trainer);
    bool done = state && lockstep_set_state(&both->candidate.trainer, state);
    free(state);
    state = done ? lockstep_state(&both->candidate.trainer) : NULL;
    done = state && lockstep_set_state(&both->reference.trainer, state);
    free(state);
    return done ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
}

static enum status open_buffers(struct tracing *both, const struct agreement *agreement) {
    const struct mlp *mlp = &both->candidate.trainer.mlp; /* the reference has no gaps between rows */
    size_t largest = 0;
    for (size_t l = 0; l < mlp->depth; l++) {
        const size_t rows = mlp->layer[l].in > agreement->rows ? mlp->layer[l].in : agreement->rows;
        if (rows * mlp->layer[l].ld > largest) largest = rows * mlp->layer[l].ld;
    }
    for (int s = 0; s < 2; s++) {
        both->buffer[s] = malloc(largest * sizeof(double));
        if (!both->buffer[s]) return status_set(STATUS_FAILED, "out of memory");
    }
    return STATUS_OK;
}

enum status agreement_trace(const struct agreement *agreement, const struct config *config,
                            const struct gemm_backend *backend, const struct dataset_pair *data,
                            struct trace *trace) {
    struct tracing *both = calloc(1, sizeof *both);
    if (!both) return status_set(STATUS_FAILED, "out of memory");
    /* a tensor of one step may differ more than its mean effect on an update */
    *trace = (struct trace){.tolerance = 4 * lockstep_bound(config).update, .tensor = "output"};
    both->trace = trace;
    struct config few = *config;
    few.batch_size = agreement->config.batch_size;
    few.epochs = agreement->config.epochs;
    few.engine = ENGINE_EAGER; /* a graph computes the same, but hides its tensors */
    enum status status = agreement_open_reference(&both->reference, &agreement->config, data);
    if (!status) status = agreement_open_side(&both->candidate, &few, backend, data);
    if (!status) status = open_buffers(both, agreement);
    for (size_t step = 0; step < agreement->steps && !status && !trace->drifts; step++) {
        struct trainer *a = &both->reference.trainer, *b = &both->candidate.trainer;
        const size_t at = step % a->steps;
        if (step && at == 0) {
            a->state.epoch = b->state.epoch = (int64_t)(step / a->steps);
            a->state.updates = b->state.updates = step;
            trainer_begin_epoch(a);
            trainer_begin_epoch(b);
        }
        both->step = step;
        status = share_state(both);
        if (!status) status = one_step(both, at);
    }
    agreement_close_side(&both->reference);
    agreement_close_side(&both->candidate);
    free(both->buffer[0]);
    free(both->buffer[1]);
    free(both);
    return status;
}
