#include "src/nn/lockstep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/nn/engine.h"

const struct lockstep_bound lockstep_float32 = {
    .loss = 1e-6, .update = 1e-4, .whole = 1e-6, .stored = 0x1p-24, .correct = 1e-3, .perturbed = 0x1p-18};

const struct lockstep_bound lockstep_float64 = {
    .loss = 1e-12, .update = 1e-10, .whole = 1e-12, .stored = 0x1p-53, .correct = 0, .perturbed = 0x1p-40};

struct lockstep_bound lockstep_rounded(double unit) {
    return (struct lockstep_bound){.loss = 8 * unit,
                                   .update = 8 * unit,
                                   .whole = unit,
                                   .stored = 0x1p-24,
                                   .correct = 8 * unit,
                                   .perturbed = 4 * unit};
}

struct lockstep_bound lockstep_bound(const struct config *config) {
    if (config->precision == GEMM_TF32 || config->precision == GEMM_MIXED_F16)
        return lockstep_rounded(0x1p-11);
    if (config->precision == GEMM_MIXED_BF16) return lockstep_rounded(0x1p-8);
    return config->dtype == GEMM_F64 ? lockstep_float64 : lockstep_float32;
}

/* --- states --- */

size_t lockstep_state_count(const struct trainer *trainer) {
    return (1 + trainer->mlp.state_count) * mlp_parameter_count(&trainer->mlp);
}

/* Copies an arena in host memory to a dense state, or back. */
static void copy_arena(const struct mlp *mlp, void *arena, double *dense, bool to_arena) {
    size_t at = 0;
    for (size_t l = 0; l < mlp->depth; l++) {
        const struct mlp_layer *layer = &mlp->layer[l];
        void *weight = mlp_counterpart(mlp, layer->weight, arena),
             *bias = mlp_counterpart(mlp, layer->bias, arena);
        for (size_t i = 0; i <= layer->in; i++)
            for (size_t j = 0; j < layer->out; j++, at++) {
                void *tensor = i < layer->in ? weight : bias;
                const size_t index = i < layer->in ? i * layer->ld + j : j;
                if (to_arena) {
                    dtype_set(mlp->dtype, tensor, index, dense[at]);
                } else {
                    dense[at] = dtype_get(mlp->dtype, tensor, index);
                }
            }
    }
}

/* Copies every arena from the device to `state`; with `to_device`, `state` to the device. */
static bool copy_state(struct trainer *trainer, double *state, bool to_device) {
    struct device *device = &trainer->compute->device;
    struct mlp *mlp = &trainer->mlp;
    const size_t bytes = mlp->parameter_elements * dtype_size(mlp->dtype), count = mlp_parameter_count(mlp);
    char *arena = malloc(bytes);
    if (!arena || !state) {
        free(arena);
        return false;
    }
    for (size_t a = 0; a <= mlp->state_count; a++) {
        void *memory = a ? mlp->state[a - 1].memory : mlp->parameters;
        device->driver->download(device, arena, memory, bytes);
        copy_arena(mlp, arena, state + a * count, to_device);
        if (to_device) device->driver->upload(device, memory, arena, bytes);
    }
    free(arena);
    if (to_device) mlp_parameters_changed(mlp);
    return true;
}

double *lockstep_state(struct trainer *trainer) {
    double *state = malloc(lockstep_state_count(trainer) * sizeof *state);
    if (copy_state(trainer, state, false)) return state;
    free(state);
    return NULL;
}

bool lockstep_set_state(struct trainer *trainer, const double *state) {
    return copy_state(trainer, (double *)state, true); /* only reads it */
}

enum status lockstep_run(struct trainer *trainer, const struct engine *engine, size_t step, double *loss) {
    struct device *device = &trainer->compute->device;
    size_t count = 1;
    const enum status status = engine->run(trainer, step, &count);
    if (status) return status;
    trainer->state.step++;
    trainer->state.updates++;
    device->driver->download(device, loss, trainer->losses + step, sizeof *loss);
    return device->driver->synchronize(device);
}

/* --- norms --- */

enum { MOST_TENSORS = 2 * PROFILE_MAX_LAYERS * (1 + MLP_MAX_STATE) };

/* Euclidean norms for each tensor of a state: weights and biases alternate. */
struct norms {
    double apart[MOST_TENSORS];  /* of x - y */
    double update[MOST_TENSORS]; /* of x - start */
    double size[MOST_TENSORS];   /* of x */
    double whole[MOST_TENSORS];  /* of x - start, of the whole arena that the tensor belongs to */
};

double lockstep_distance(const double *x, const double *y, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (x[i] - (y ? y[i] : 0)) * (x[i] - (y ? y[i] : 0));
    return sqrt(sum);
}

static size_t take_norms(const struct mlp *mlp, const double *start, const double *x, const double *y,
                         struct norms *norms) {
    const size_t arena = mlp_parameter_count(mlp);
    size_t tensor = 0, at = 0;
    for (size_t a = 0; a <= mlp->state_count; a++) {
        const double whole = lockstep_distance(x + a * arena, start + a * arena, arena);
        for (size_t l = 0; l < mlp->depth; l++)
            for (size_t bias = 0; bias < 2; bias++, tensor++) {
                const size_t count = (bias ? 1 : mlp->layer[l].in) * mlp->layer[l].out;
                norms->apart[tensor] = lockstep_distance(x + at, y + at, count);
                norms->update[tensor] = lockstep_distance(x + at, start + at, count);
                norms->size[tensor] = lockstep_distance(x + at, NULL, count);
                norms->whole[tensor] = whole;
                at += count;
            }
    }
    return tensor;
}

/* --- float64 steps with perturbed pre-activations --- */

struct jumps {
    double tensor[MOST_TENSORS], loss;
};

static enum status run_from(const struct lockstep *lockstep, struct trainer *exact, const double *start,
                            size_t step, double *loss, double *end) {
    const struct engine *engine = lockstep->engine ? lockstep->engine : &engine_eager;
    if (!lockstep_set_state(exact, start)) return status_set(STATUS_FAILED, "out of memory");
    const enum status status = lockstep_run(exact, engine, step, loss);
    if (status) return status;
    return copy_state(exact, end, false) ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
}

/* Adds how far the step, which ends in `end`, changes when the biases of one layer move by `by`.
   `at`: their place in a state. `moved` and `moved_end` are memory for two states. */
static enum status add_jump(const struct lockstep *lockstep, struct trainer *exact, const double *end,
                            double loss, size_t step, size_t at, size_t biases, double by, double *moved,
                            struct jumps *jumps) {
    const size_t count = lockstep_state_count(exact);
    double *moved_end = moved + count, moved_loss;
    struct norms norms;
    memcpy(moved, lockstep->start, count * sizeof *moved);
    for (size_t j = 0; j < biases; j++) moved[at + j] += by;
    const enum status status = run_from(lockstep, exact, moved, step, &moved_loss, moved_end);
    if (status) return status;
    for (size_t j = 0; j < biases; j++) moved_end[at + j] -= by;
    const size_t tensors = take_norms(&exact->mlp, lockstep->start, end, moved_end, &norms);
    for (size_t t = 0; t < tensors; t++) jumps->tensor[t] += norms.apart[t];
    jumps->loss += fabs(moved_loss - loss);
    return STATUS_OK;
}

/* How far the step changes in float64 when the biases of one layer move by `perturbed`, summed over layers
   and directions. */
static enum status take_jumps(struct lockstep *lockstep, size_t step, struct jumps *jumps) {
    struct trainer *exact = lockstep->exact ? lockstep->exact(lockstep->self) : NULL;
    if (!exact) return STATUS_OK;
    const size_t count = lockstep_state_count(exact);
    double *memory = malloc(3 * count * sizeof *memory), *end = memory, loss;
    if (!memory) return status_set(STATUS_FAILED, "out of memory");
    enum status status = run_from(lockstep, exact, lockstep->start, step, &loss, end);
    size_t at = 0;
    for (size_t l = 0; l < exact->mlp.depth && !status; l++) {
        const struct mlp_layer *layer = &exact->mlp.layer[l];
        at += layer->in * layer->out;
        for (int up = 0; up < 2 && !status; up++)
            status =
                add_jump(lockstep, exact, end, loss, step, at, layer->out,
                         up ? lockstep->bound.perturbed : -lockstep->bound.perturbed, memory + count, jumps);
        at += layer->out;
    }
    free(memory);
    return status;
}

/* --- the comparison --- */

/* Returns the largest difference as a fraction of the allowed one; *where: its tensor. */
static double worst_update(const struct norms *norms, size_t tensors, const struct lockstep_bound *bound,
                           const struct jumps *jumps, size_t *where) {
    double worst = 0;
    for (size_t t = 0; t < tensors; t++) {
        const double allowed = bound->update * norms->update[t] + bound->whole * norms->whole[t] +
                               bound->stored * norms->size[t] + jumps->tensor[t];
        const double part = norms->apart[t] == 0 ? 0 : norms->apart[t] / allowed;
        if (!(part <= worst)) { /* NaN too */
            worst = part;
            *where = t;
        }
        if (isnan(part)) return part;
    }
    return worst;
}

/* Compares the ends of a step, which both started from `start`. */
static enum status compare_step(struct lockstep *lockstep, size_t step, const double *losses) {
    const struct mlp *mlp = &lockstep->reference->mlp;
    const struct lockstep_bound *bound = &lockstep->bound;
    struct lockstep_seen *seen = &lockstep->seen;
    struct norms norms;
    struct jumps jumps = {0};
    const size_t tensors = take_norms(mlp, lockstep->start, lockstep->end[0], lockstep->end[1], &norms);
    const double apart = fabs(losses[1] - losses[0]), scale = fmax(1, fabs(losses[0]));
    size_t where = 0;
    seen->steps++;
    if (!isfinite(losses[0]) && !isfinite(losses[1])) return STATUS_OK; /* both diverge */
    double update = worst_update(&norms, tensors, bound, &jumps, &where),
           loss = apart / (bound->loss * scale);
    if (!(update <= 1) || !(loss <= 1)) {
        const enum status status = take_jumps(lockstep, step, &jumps);
        if (status) return status;
        update = worst_update(&norms, tensors, bound, &jumps, &where);
        loss = apart / (bound->loss * scale + jumps.loss);
        seen->discontinuous++;
    }
    if (!(apart / scale <= seen->drift)) {
        seen->drift = isnan(apart) ? INFINITY : apart / scale;
        seen->worst = seen->steps;
    }
    for (size_t l = 0; l < mlp->depth; l++)
        if (norms.update[2 * l] > 0)
            seen->weights[l] = fmax(seen->weights[l], norms.apart[2 * l] / norms.update[2 * l]);
    seen->loss = fmax(seen->loss, loss);
    seen->update = fmax(seen->update, update);
    if (!(loss <= 1))
        return status_set(STATUS_VERIFY_FAILED,
                          "the loss of step %zu is %.9g and should be %.9g; a difference of %.1g is allowed",
                          seen->steps, losses[1], losses[0], apart / loss);
    const double wrong = fabs(norms.apart[where] / norms.update[where]); /* no -nan */
    if (!(update <= 1))
        return status_set(
            STATUS_VERIFY_FAILED,
            "step %zu: the update of the %s%s of layer %zu is wrong by %.1e of its size; %.1e is allowed",
            seen->steps, where / 2 / mlp->depth ? "optimiser state of the " : "",
            where % 2 ? "biases" : "weights", where / 2 % mlp->depth + 1, wrong, wrong / update);
    return STATUS_OK;
}

enum status lockstep_open(struct lockstep *lockstep) {
    const size_t count = lockstep_state_count(lockstep->reference);
    lockstep->seen = (struct lockstep_seen){0};
    lockstep->start = lockstep_state(lockstep->reference);
    for (int i = 0; i < 2; i++) lockstep->end[i] = malloc(count * sizeof(double));
    if (lockstep->start && lockstep->end[0] && lockstep->end[1]) return STATUS_OK;
    lockstep_close(lockstep);
    return status_set(STATUS_FAILED, "out of memory");
}

void lockstep_close(struct lockstep *lockstep) {
    free(lockstep->start);
    for (int i = 0; i < 2; i++) free(lockstep->end[i]);
    lockstep->start = lockstep->end[0] = lockstep->end[1] = NULL;
}

enum status lockstep_step(struct lockstep *lockstep, size_t step) {
    struct trainer *const sides[] = {lockstep->reference, lockstep->other};
    const size_t count = lockstep_state_count(sides[0]);
    double losses[2], *start = lockstep->start;
    if (lockstep->halve && lockstep->seen.steps == 1)
        for (size_t i = 0; i < mlp_parameter_count(&sides[0]->mlp); i++) start[i] *= 0.5;
    if (sides[1]->mlp.dtype == GEMM_F32)
        for (size_t i = 0; i < count; i++) start[i] = (double)(float)start[i];
    for (int s = 1; s >= 0; s--) { /* the reference last: of one trainer, it leaves right results in memory */
        if (!lockstep_set_state(sides[s], start)) return status_set(STATUS_FAILED, "out of memory");
        const struct engine *engine = s == 0 && lockstep->engine ? lockstep->engine : sides[s]->engine;
        const enum status status = lockstep_run(sides[s], engine, step, &losses[s]);
        if (status) return status;
        if (!copy_state(sides[s], lockstep->end[s], false)) return status_set(STATUS_FAILED, "out of memory");
    }
    const enum status status = compare_step(lockstep, step, losses);
    memcpy(start, lockstep->end[0], count * sizeof *start);
    return status;
}
