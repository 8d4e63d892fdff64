#include "tests/lockstep.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/bf16.h"

const struct lockstep_bound lockstep_float32 = {
    .loss = 1e-6, .update = 1e-4, .whole = 1e-6, .correct = 1e-3, .perturbed = 0x1p-18};

struct lockstep_bound lockstep_rounded(double unit) {
    return (struct lockstep_bound){
        .loss = 8 * unit, .update = 8 * unit, .whole = unit, .correct = 8 * unit, .perturbed = 4 * unit};
}

/* --- states --- */

size_t lockstep_state_count(const struct bench *bench) {
    const struct mlp *mlp = &bench->trainer.mlp;
    return (1 + mlp->state_count) * mlp_parameter_count(mlp);
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
static void copy_state(struct bench *bench, double *state, bool to_device) {
    struct device *device = &bench->compute.device;
    struct mlp *mlp = &bench->trainer.mlp;
    const size_t bytes = mlp->parameter_elements * dtype_size(mlp->dtype), count = mlp_parameter_count(mlp);
    char *arena = malloc(bytes);
    assert_non_null(arena);
    for (size_t a = 0; a <= mlp->state_count; a++) {
        void *memory = a ? mlp->state[a - 1].memory : mlp->parameters;
        device->driver->download(device, arena, memory, bytes);
        copy_arena(mlp, arena, state + a * count, to_device);
        if (to_device) device->driver->upload(device, memory, arena, bytes);
    }
    free(arena);
    if (to_device) mlp_parameters_changed(mlp);
}

double *lockstep_state(struct bench *bench) {
    double *state = malloc(lockstep_state_count(bench) * sizeof *state);
    assert_non_null(state);
    copy_state(bench, state, false);
    return state;
}

void lockstep_set_state(struct bench *bench, const double *state) {
    copy_state(bench, (double *)state, true); /* only reads it */
}

double lockstep_step(struct bench *bench, size_t step) {
    struct trainer *trainer = &bench->trainer;
    struct device *device = &bench->compute.device;
    size_t count = 1;
    double loss;
    assert_status(trainer->engine->run(trainer, step, &count), STATUS_OK);
    assert_int_equal(count, 1);
    trainer->state.step++;
    trainer->state.updates++;
    device->driver->download(device, &loss, trainer->losses + step, sizeof loss);
    assert_status(device->driver->synchronize(device), STATUS_OK);
    return loss;
}

/* Asserts that the low-precision copy is that of the updated weights. */
static void check_copy(struct bench *bench) {
    struct device *device = &bench->compute.device;
    const struct mlp *mlp = &bench->trainer.mlp;
    if (!mlp->low_precision) return;
    float *weights = malloc(mlp->parameter_elements * sizeof *weights);
    uint16_t *copy = malloc(mlp->parameter_elements * sizeof *copy);
    assert_true(weights && copy);
    device->driver->download(device, weights, mlp->parameters, mlp->parameter_elements * sizeof *weights);
    device->driver->download(device, copy, mlp->low_precision, mlp->parameter_elements * sizeof *copy);
    for (size_t i = 0; i < mlp->parameter_elements; i++)
        assert_int_equal(copy[i], bf16_from_float(weights[i]));
    free(weights);
    free(copy);
}

static struct tally end_epoch(struct bench *bench) {
    struct trainer *trainer = &bench->trainer;
    struct device *device = &bench->compute.device;
    struct tally tally;
    check_copy(bench);
    device->driver->download(device, &tally, trainer->tally, sizeof tally);
    assert_status(device->driver->synchronize(device), STATUS_OK);
    trainer->state =
        (struct train_state){.epoch = trainer->state.epoch + 1, .updates = trainer->state.updates};
    return tally;
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

static double distance(const double *x, const double *y, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (x[i] - (y ? y[i] : 0)) * (x[i] - (y ? y[i] : 0));
    return sqrt(sum);
}

static size_t take_norms(const struct mlp *mlp, const double *start, const double *x, const double *y,
                         struct norms *norms) {
    const size_t arena = mlp_parameter_count(mlp);
    size_t tensor = 0, at = 0;
    for (size_t a = 0; a <= mlp->state_count; a++) {
        const double whole = distance(x + a * arena, start + a * arena, arena);
        for (size_t l = 0; l < mlp->depth; l++)
            for (size_t bias = 0; bias < 2; bias++, tensor++) {
                const size_t count = (bias ? 1 : mlp->layer[l].in) * mlp->layer[l].out;
                norms->apart[tensor] = distance(x + at, y + at, count);
                norms->update[tensor] = distance(x + at, start + at, count);
                norms->size[tensor] = distance(x + at, NULL, count);
                norms->whole[tensor] = whole;
                at += count;
            }
    }
    return tensor;
}

/* --- float64 steps with perturbed pre-activations --- */

struct exact {
    const char *recipe;
    struct bench bench;
    bool open;
    double jump[MOST_TENSORS], loss_jump;
};

static double exact_step(struct exact *exact, const double *start, size_t step, double *end) {
    lockstep_set_state(&exact->bench, start);
    const double loss = lockstep_step(&exact->bench, step);
    copy_state(&exact->bench, end, false);
    return loss;
}

/* How far step `step` of the reference's epoch changes from `start` when the biases of one layer move by
   `perturbed`, summed over layers and directions. */
static void take_jumps(struct exact *exact, const struct bench *reference, const double *start, size_t step,
                       double perturbed) {
    const struct mlp *mlp = &reference->trainer.mlp;
    const size_t bytes = lockstep_state_count(reference) * sizeof *start;
    if (!exact->open) {
        char settings[1024];
        snprintf(settings, sizeof settings, "%s backend=tuned engine=eager dtype=f64 threads=2",
                 exact->recipe);
        bench_open(&exact->bench, settings, NULL);
        exact->bench.trainer.state.epoch = -1;
        exact->open = true;
    }
    struct trainer *trainer = &exact->bench.trainer;
    if (trainer->state.epoch != reference->trainer.state.epoch) {
        trainer->state = reference->trainer.state;
        trainer->state.tally = (struct tally){0};
        trainer_begin_epoch(trainer);
    }
    double *moved = malloc(bytes), *end = malloc(bytes), *moved_end = malloc(bytes);
    assert_true(moved && end && moved_end);
    memset(exact->jump, 0, sizeof exact->jump);
    exact->loss_jump = 0;
    const double loss = exact_step(exact, start, step, end);
    size_t at = 0;
    for (size_t l = 0; l < mlp->depth; l++) {
        at += mlp->layer[l].in * mlp->layer[l].out;
        for (int up = 0; up < 2; up++) {
            struct norms norms;
            memcpy(moved, start, bytes);
            for (size_t j = 0; j < mlp->layer[l].out; j++) moved[at + j] += up ? perturbed : -perturbed;
            exact->loss_jump += fabs(exact_step(exact, moved, step, moved_end) - loss);
            for (size_t j = 0; j < mlp->layer[l].out; j++) moved_end[at + j] -= up ? perturbed : -perturbed;
            const size_t tensors = take_norms(mlp, start, end, moved_end, &norms);
            for (size_t t = 0; t < tensors; t++) exact->jump[t] += norms.apart[t];
        }
        at += mlp->layer[l].out;
    }
    free(moved);
    free(end);
    free(moved_end);
}

/* --- the comparison --- */

/* Returns the largest difference as a fraction of the allowed one; *where: its tensor. */
static double worst_update(const struct norms *norms, size_t tensors, const struct lockstep_bound *bound,
                           const double *jump, size_t *where) {
    double worst = 0;
    for (size_t t = 0; t < tensors; t++) {
        const double stored = 0x1p-24 * norms->size[t]; /* half an ulp of float32 */
        const double allowed =
            bound->update * norms->update[t] + bound->whole * norms->whole[t] + stored + (jump ? jump[t] : 0);
        const double part = norms->apart[t] == 0 ? 0 : norms->apart[t] / allowed;
        if (!(part <= worst)) { /* NaN too */
            worst = part;
            *where = t;
        }
        if (isnan(part)) return part;
    }
    return worst;
}

static void compare_step(struct bench *reference, const double *start, const double *x, const double *y,
                         const double *losses, size_t step, const struct lockstep_bound *bound,
                         struct exact *exact, struct lockstep_seen *seen) {
    const struct mlp *mlp = &reference->trainer.mlp;
    struct norms norms;
    const size_t tensors = take_norms(mlp, start, x, y, &norms);
    const double apart = fabs(losses[1] - losses[0]), scale = fmax(1, fabs(losses[0]));
    size_t where = 0;
    double update = worst_update(&norms, tensors, bound, NULL, &where), loss = apart / (bound->loss * scale);
    if (!(update <= 1) || !(loss <= 1)) {
        take_jumps(exact, reference, start, step, bound->perturbed);
        update = worst_update(&norms, tensors, bound, exact->jump, &where);
        loss = apart / (bound->loss * scale + exact->loss_jump);
        seen->discontinuous++;
    }
    if (!(update <= 1))
        fail_msg(
            "epoch %lld, step %zu: the update of tensor %zu of layer %zu (%s) is %.3g, and %.3g apart: %.3g "
            "times what is allowed",
            (long long)reference->trainer.state.epoch + 1, step + 1, where / 2 / mlp->depth,
            where / 2 % mlp->depth + 1, where % 2 ? "biases" : "weights", norms.update[where],
            norms.apart[where], update);
    if (!(loss <= 1))
        fail_msg("epoch %lld, step %zu: losses %.17g and %.17g are %.3g times as far apart as is allowed",
                 (long long)reference->trainer.state.epoch + 1, step + 1, losses[0], losses[1], loss);
    for (size_t l = 0; l < mlp->depth; l++)
        if (norms.update[2 * l] > 0)
            seen->weights[l] = fmax(seen->weights[l], norms.apart[2 * l] / norms.update[2 * l]);
    seen->loss = fmax(seen->loss, loss);
    seen->update = fmax(seen->update, update);
    seen->steps++;
}

static void compare_tallies(const struct tally *x, const struct tally *y, size_t images,
                            const struct lockstep_bound *bound) {
    const double differ = fabs((double)x->correct - (double)y->correct);
    assert_true(x->images == images && y->images == images);
    assert_true(x->batches == y->batches && !x->bad_step && !y->bad_step);
    if (!(differ <= fmax(1, bound->correct * (double)images)))
        fail_msg("%llu and %llu images were classified right", (unsigned long long)x->correct,
                 (unsigned long long)y->correct);
    assert_near(y->loss_sum / x->loss_sum, 1, bound->loss * 2);
}

struct lockstep_seen lockstep_check(struct bench *reference, struct bench *other, const char *recipe,
                                    const struct lockstep_bound *bound) {
    struct lockstep_seen seen = {0};
    struct exact *exact = calloc(1, sizeof *exact);
    struct bench *const benches[] = {reference, other};
    double *start = lockstep_state(reference), *ends[] = {lockstep_state(reference), lockstep_state(other)};
    assert_non_null(exact);
    exact->recipe = recipe;
    assert_int_equal(lockstep_state_count(reference), lockstep_state_count(other));
    assert_int_equal(reference->trainer.steps, other->trainer.steps);
    for (int64_t epoch = 0; epoch < reference->config.epochs; epoch++) {
        struct tally tallies[2];
        for (int b = 0; b < 2; b++) trainer_begin_epoch(&benches[b]->trainer);
        for (size_t step = 0; step < reference->trainer.steps; step++) {
            double losses[2];
            if (seen.steps == 1) { /* detects a stale copy of the weights */
                for (size_t i = 0; i < mlp_parameter_count(&reference->trainer.mlp); i++) start[i] *= 0.5;
                lockstep_set_state(reference, start);
            }
            lockstep_set_state(other, start);
            for (int b = 0; b < 2; b++) {
                losses[b] = lockstep_step(benches[b], step);
                copy_state(benches[b], ends[b], false);
            }
            compare_step(reference, start, ends[0], ends[1], losses, step, bound, exact, &seen);
            memcpy(start, ends[0], lockstep_state_count(reference) * sizeof *start);
        }
        for (int b = 0; b < 2; b++) tallies[b] = end_epoch(benches[b]);
        compare_tallies(&tallies[0], &tallies[1], reference->trainer.train.count, bound);
    }
    free(start);
    for (int b = 0; b < 2; b++) free(ends[b]);
    if (exact->open) bench_close(&exact->bench);
    free(exact);
    return seen;
}

void lockstep_print(const struct lockstep_seen *seen) {
    print_message("  %zu steps: losses up to %.2g of the bound, updates %.2g; %zu discontinuous\n",
                  seen->steps, seen->loss, seen->update, seen->discontinuous);
}
