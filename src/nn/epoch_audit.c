#include "src/nn/epoch_audit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/hash.h"
#include "src/nn/lockstep.h"
#include "src/nn/step_audit.h"

/* --- what is only read --- */

static uint64_t hash_inputs(const struct trainer *trainer) {
    const struct epoch_feed *feed = &trainer->feed;
    uint64_t all = hash_bytes(HASH_START, trainer->train.labels, trainer->train.count);
    all = hash_bytes(all, feed->order, trainer->train.count * sizeof *feed->order);
    return hash_bytes(all, feed->scalars, trainer->steps * sizeof *feed->scalars) | 1;
}

static uint64_t hash_images(const struct samples *samples) {
    return hash_bytes(HASH_START, samples->images, samples->count * samples->features) | 1;
}

static uint64_t hash_held_out(const struct trainer *trainer) {
    const struct samples *test = &trainer->test, *validation = &trainer->validation;
    const uint64_t images = hash_images(test) ^ hash_images(validation);
    return hash_bytes(hash_bytes(images, test->labels, test->count), validation->labels, validation->count) |
           1;
}

static enum status wrong(const struct trainer *trainer, const char *what) {
    return status_set(STATUS_VERIFY_FAILED, "backend '%s' is wrong: in epoch %lld %s",
                      trainer->compute->backend->name, (long long)trainer->state.epoch + 1, what);
}

void epoch_audit_begin(struct trainer *trainer) {
    struct step_audit *audit = &trainer->step_audit;
    if (!audit->trusted) return;
    const struct audit_pause pause = audit_pause(trainer->compute);
    if (!audit->held_out) audit->held_out = hash_held_out(trainer);
    audit->inputs = hash_inputs(trainer);
    audit->images = step_audit_affords(trainer) ? hash_images(&trainer->train) : 0;
    audit_resume(trainer->compute, pause);
    core_use_begin(&audit->cores);
}

/* Three teams: that of the program, one of the plug-in, and that of the trusted backend. */
static size_t most_threads(const struct trainer *trainer) {
    enum { SOME = 64 };
    return trainer->step_audit.surroundings.threads + 3 * (size_t)trainer->compute->threads + SOME;
}

enum status epoch_audit_end(struct trainer *trainer) {
    struct step_audit *audit = &trainer->step_audit;
    if (!audit->trusted) return STATUS_OK;
    core_use_end(&audit->cores);
    const struct audit_pause pause = audit_pause(trainer->compute);
    struct surroundings now;
    surroundings_observe(&now);
    const char *changed = surroundings_changed(&audit->surroundings, &now);
    if (audit->inputs != hash_inputs(trainer))
        changed = "it changed the training labels, the order or learning rates";
    if (audit->images && audit->images != hash_images(&trainer->train))
        changed = "it changed the training images";
    if (now.threads > most_threads(trainer)) changed = "it starts more and more threads and leaves them";
    audit_resume(trainer->compute, pause);
    if (!changed && core_use_check(&audit->cores, trainer->compute)) changed = status_message();
    return changed ? wrong(trainer, changed) : STATUS_OK;
}

/* --- the evaluation --- */

/* `before`: the weights before the evaluation of `result`. */
static enum status repeat(struct trainer *trainer, const struct samples *samples, struct mlp *mlp,
                          const struct evaluation *result, const double *before) {
    const struct lockstep_bound bound = lockstep_bound(trainer->config);
    struct evaluation again;
    double *after = lockstep_state(trainer);
    if (!before || !after) {
        free(after);
        return status_set(STATUS_FAILED, "out of memory in the audit of an evaluation");
    }
    const bool same = memcmp(before, after, lockstep_state_count(trainer) * sizeof *after) == 0;
    free(after);
    if (!same) return wrong(trainer, "it changed the weights in an evaluation");
    if (trainer->step_audit.held_out != hash_held_out(trainer))
        return wrong(trainer, "it changed the images or labels of the test or validation set");
    step_audit_swap(trainer);
    const enum status status = samples_evaluate(samples, mlp, trainer->tally, &again, NULL);
    step_audit_swap(trainer);
    const double apart = fabs((double)result->correct - (double)again.correct);
    if (status ||
        (result->total == again.total && apart <= STEP_AUDIT_TIES + bound.correct * (double)again.total &&
         fabs(result->loss - again.loss) <= bound.loss * fmax(1, again.loss)))
        return status;
    return status_set(
        STATUS_VERIFY_FAILED,
        "backend '%s' is wrong: its evaluation after epoch %lld counts %llu of %llu images as right "
        "(loss %.9g), and should count %llu of %llu (loss %.9g)",
        trainer->compute->backend->name, (long long)trainer->state.epoch + 1,
        (unsigned long long)result->correct, (unsigned long long)result->total, result->loss,
        (unsigned long long)again.correct, (unsigned long long)again.total, again.loss);
}

enum status epoch_audit_evaluate(struct trainer *trainer, const struct samples *samples, struct mlp *mlp,
                                 struct evaluation *result) {
    const bool audited = trainer->step_audit.trusted && step_audit_affords(trainer);
    if (!audited) return samples_evaluate(samples, mlp, trainer->tally, result, NULL);
    double *before = lockstep_state(trainer), clock = clock_seconds();
    enum status status = samples_evaluate(samples, mlp, trainer->tally, result, NULL);
    const struct audit_pause pause = audit_pause(trainer->compute);
    if (!status && isfinite(result->loss)) status = repeat(trainer, samples, mlp, result, before);
    audit_resume(trainer->compute, pause);
    trainer->step_audit.seconds += clock_seconds() - clock;
    free(before);
    return status;
}
