#include "src/nn/step_way.h"

#include <math.h>
#include <stdlib.h>

#include "src/nn/lockstep.h"
#include "src/nn/step_audit.h"

/* The bounds of step_way.h. In right runs of four recipes, engine fused of the CPU and of a plug-in, 3 of
   4,672 comparisons of a tensor needed more than the eight roundings, at most 0.05 % of its way; calls had 1
   to 128 steps. */
static const double ROUNDINGS = 8, MISCOUNTED = 0.001, OF_ALL_WEIGHTS = 1e-4;

static enum status out_of_memory(void) {
    return status_set(STATUS_FAILED, "out of memory in the audit of a step");
}

enum status step_snapshot_take(struct trainer *trainer, struct step_snapshot *snapshot) {
    struct device *device = &trainer->compute->device;
    snapshot->state = trainer->state;
    snapshot->weights = lockstep_state(trainer);
    if (!snapshot->weights) return out_of_memory();
    device->driver->download(device, &snapshot->tally, trainer->tally, sizeof snapshot->tally);
    return device->driver->synchronize(device);
}

enum status step_snapshot_restore(struct trainer *trainer, const struct step_snapshot *snapshot) {
    struct device *device = &trainer->compute->device;
    trainer->state = snapshot->state;
    device->driver->upload(device, trainer->tally, &snapshot->tally, sizeof snapshot->tally);
    return lockstep_set_state(trainer, snapshot->weights) ? STATUS_OK : out_of_memory();
}

enum status step_end_take(struct trainer *trainer, size_t first, size_t count, struct step_end *end) {
    struct device *device = &trainer->compute->device;
    end->weights = lockstep_state(trainer);
    end->losses = malloc(count * sizeof *end->losses);
    if (!end->weights || !end->losses) return out_of_memory();
    device->driver->download(device, end->losses, trainer->losses + first, count * sizeof *end->losses);
    device->driver->download(device, &end->tally, trainer->tally, sizeof end->tally);
    return device->driver->synchronize(device);
}

void step_end_free(struct step_end *end) {
    free(end->weights);
    free(end->losses);
    *end = (struct step_end){0};
}

void step_way_free(struct step_way *way) {
    step_end_free(&way->exact);
    step_end_free(&way->rounded);
    step_end_free(&way->repeated);
}

/* The larger of both distances from the exact end. */
static double rounding_of(const struct step_way *way,
                          double (*distance)(const struct step_way *way, const struct step_end *end)) {
    return fmax(distance(way, &way->rounded), way->repeated.weights ? distance(way, &way->repeated) : 0);
}

/* --- the tally and the losses --- */

static enum status check_counts(const struct step_way *way, const struct tally *tally) {
    const struct tally *should = &way->exact.tally;
    if (tally->batches != should->batches)
        return status_set(STATUS_VERIFY_FAILED, "it counts %llu batches in this epoch, and should count %llu",
                          (unsigned long long)tally->batches, (unsigned long long)should->batches);
    if (tally->images == should->images) return STATUS_OK;
    return status_set(STATUS_VERIFY_FAILED, "it counts %llu images in this epoch, and should count %llu",
                      (unsigned long long)tally->images, (unsigned long long)should->images);
}

/* Images that one tally counts as right and the other does not. */
static double correct_apart(const struct step_way *way, const struct step_end *end) {
    return fabs((double)end->tally.correct - (double)way->exact.tally.correct);
}

static enum status check_correct(const struct step_way *way, const struct step_end *end, double images) {
    const double allowed =
        STEP_AUDIT_TIES + MISCOUNTED * images + ROUNDINGS * rounding_of(way, correct_apart);
    if (correct_apart(way, end) <= allowed) return STATUS_OK;
    return status_set(STATUS_VERIFY_FAILED,
                      "it counts %llu of %llu images as right in this epoch, and should count %llu",
                      (unsigned long long)end->tally.correct, (unsigned long long)end->tally.images,
                      (unsigned long long)way->exact.tally.correct);
}

/* The mean over steps: differences of their signs do not cancel, so that one sample of rounding tells its
   size. */
static double losses_apart(const struct step_way *way, const struct step_end *end) {
    double sum = 0;
    for (size_t s = 0; s < way->count; s++) sum += fabs(end->losses[s] - way->exact.losses[s]);
    return sum / (double)way->count;
}

static enum status check_losses(const struct step_way *way, const struct step_end *end, double images) {
    const double from = way->start->tally.loss_sum, got = (end->tally.loss_sum - from) / images,
                 should = (way->exact.tally.loss_sum - from) / images,
                 allowed = MISCOUNTED * fmax(1, should) + ROUNDINGS * rounding_of(way, losses_apart);
    if (!(fabs(got - should) <= allowed))
        return status_set(STATUS_VERIFY_FAILED,
                          "it adds a loss of %.9g an image to that of this epoch, and should add %.9g", got,
                          should);
    if (losses_apart(way, end) <= allowed) return STATUS_OK;
    return status_set(STATUS_VERIFY_FAILED, "the losses of %zu steps in one call are wrong by %.2g",
                      way->count, losses_apart(way, end));
}

/* --- the weights --- */

/* The weights or biases of a layer in lockstep_state, or what the optimiser keeps for them. */
struct part {
    size_t layer, at, count;
    bool bias, kept;
};

static enum status check_part(const struct step_way *way, const struct step_end *end, struct part part,
                              double share, double floor) {
    const size_t at = part.at, count = part.count;
    const double *exact = way->exact.weights + at, *repeated = way->repeated.weights;
    const double apart = lockstep_distance(end->weights + at, exact, count),
                 moved = lockstep_distance(exact, way->start->weights + at, count),
                 rounding = fmax(lockstep_distance(way->rounded.weights + at, exact, count),
                                 repeated ? lockstep_distance(repeated + at, exact, count) : 0);
    if (apart <= share * moved + ROUNDINGS * rounding + floor || !isfinite(moved)) return STATUS_OK;
    return status_set(
        STATUS_VERIFY_FAILED,
        "after %zu steps in one call the %s%s of layer %zu are %.2g from where the same steps end "
        "op by op, which move them by %.2g",
        way->count, part.bias ? "biases" : "weights", part.kept ? "' optimiser state" : "", part.layer + 1,
        apart, moved);
}

/* All weights, or one state of the optimiser for all of them: at `from` in lockstep_state. */
static enum status check_weights(const struct trainer *trainer, const struct step_way *way,
                                 const struct step_end *end, double share, size_t from) {
    const struct mlp *mlp = &trainer->mlp;
    const double *exact = way->exact.weights;
    const double all = OF_ALL_WEIGHTS *
                       lockstep_distance(exact + from, way->start->weights + from, mlp_parameter_count(mlp)),
                 stored = lockstep_bound(trainer->config).stored * (double)way->count;
    struct part part = {.at = from, .kept = from > 0};
    enum status status = STATUS_OK;
    for (size_t t = 0; t < 2 * mlp->depth && !status; t++, part.at += part.count) {
        const struct mlp_layer *layer = &mlp->layer[t / 2];
        part.layer = t / 2;
        part.bias = t % 2;
        part.count = (part.bias ? 1 : layer->in) * layer->out;
        const double size = lockstep_distance(exact + part.at, NULL, part.count);
        status = check_part(way, end, part, share, all + stored * size);
    }
    return status;
}

enum status step_way_check(struct trainer *trainer, const struct step_way *way, double share) {
    struct step_end end = {0};
    const double images = (double)(way->exact.tally.images - way->start->tally.images);
    enum status status = step_end_take(trainer, way->first, way->count, &end);
    const size_t all = lockstep_state_count(trainer), weights = mlp_parameter_count(&trainer->mlp);
    for (size_t from = 0; from < all && !status; from += weights)
        status = check_weights(trainer, way, &end, share, from);
    if (!status && !end.tally.bad_step && !way->exact.tally.bad_step) {
        status = check_counts(way, &end.tally);
        if (!status) status = check_correct(way, &end, images);
        if (!status) status = check_losses(way, &end, images);
    }
    step_end_free(&end);
    return status;
}
