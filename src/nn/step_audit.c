#include "src/nn/step_audit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/plugin.h"
#include "src/backend/registry.h"
#include "src/nn/engine.h"
#include "src/nn/lockstep.h"

enum { SINGLE_STEPS = 4, STRETCH = 128, PIECE = 16 };
/* The bounds of step_audit.h. Right runs of nine recipes (SGD, momentum, bf16, lr 0.5 and 1.5, batch 8 to
   1100, a fused plug-in) used at most 0.13 of the bound of the weights, and 0.06 of that of the tally; one of
   600 longer ones exceeded it (check_again). */
static const double ASTRAY = 0.05, ROUNDINGS = 8, MISCOUNTED = 0.001;
static const double FOREIGN_SHARE = 0.05; /* of the time, for audits of a plug-in's steps */
static const double FIRST_SECONDS = 0.1;  /* a guess: an audit of a small network */

/* --- which steps --- */

static bool is_foreign(const struct trainer *trainer) {
    return plugin_path(trainer->compute->backend) != NULL;
}

/* A random step of the epoch that starts after `updates`. */
static void draw_step(struct trainer *trainer, uint64_t updates) {
    trainer->step_audit.next = updates + audit_draw(&trainer->audit) % trainer->steps;
}

static void open_trusted(struct trainer *trainer) {
    struct compute *trusted = calloc(1, sizeof *trusted);
    const struct compute_options options = {.threads = trainer->compute->threads,
                                            .precision = trainer->compute->precision};
    const struct gemm_backend *backend;
    if (trusted && !registry_find("tuned", &backend) && !compute_open(trusted, backend, &options)) {
        trainer->step_audit.trusted = trusted;
    } else {
        free(trusted);
    }
}

void step_audit_start(struct trainer *trainer) {
    const bool on = trainer->audit.mode != AUDIT_OFF;
    if (on && is_foreign(trainer) && trainer->compute->device.driver->host_memory) open_trusted(trainer);
    surroundings_observe(&trainer->step_audit.surroundings);
    draw_step(trainer, trainer->state.updates);
    if (!on || (trainer->engine != &engine_fused && !trainer->step_audit.trusted))
        trainer->step_audit.next = UINT64_MAX;
}

void step_audit_stop(struct trainer *trainer) {
    if (trainer->step_audit.trusted) compute_close(trainer->step_audit.trusted);
    free(trainer->step_audit.trusted);
    trainer->step_audit.trusted = NULL;
}

bool step_audit_affords(const struct trainer *trainer) {
    const struct step_audit *audit = &trainer->step_audit;
    const double mean = audit->audits ? audit->seconds / (double)audit->audits : FIRST_SECONDS;
    const bool first = trainer->epochs_done == 0, last = trainer->state.epoch + 1 >= trainer->config->epochs;
    if (trainer->audit.mode == AUDIT_ALL) return true;
    if (!is_foreign(trainer)) return audit_affords(&trainer->audit, mean);
    return first || last || audit->seconds + mean <= FOREIGN_SHARE * audit_elapsed(&trainer->audit);
}

bool step_audit_due(struct trainer *trainer, size_t *count) {
    struct step_audit *audit = &trainer->step_audit;
    const uint64_t now = trainer->state.updates;
    if (trainer->audit.mode == AUDIT_ALL && audit->next != UINT64_MAX) audit->next = now;
    if (audit->next >= now + *count) return false;
    if (!step_audit_affords(trainer)) {
        draw_step(trainer, now + *count);
        return false;
    }
    const bool first_call = trainer->engine == &engine_fused && trainer->engine_stride == 0 &&
                            trainer->compute->device.driver->host_memory;
    if (audit->next <= now && !first_call) return true;
    if (audit->next > now) *count = (size_t)(audit->next - now);
    return false;
}

/* The number of steps of the engine's next call. On the host, engine fused takes no more than engine_stride;
   a plug-in's single steps are audited STRETCH at a time, for a fault may be rare. */
static size_t steps_of_call(const struct trainer *trainer, size_t first, size_t count) {
    const size_t left = trainer->steps - first;
    if (!trainer->compute->device.driver->host_memory) return count;
    if (trainer->engine == &engine_fused)
        return trainer->engine_stride < count ? trainer->engine_stride : count;
    if (trainer->audit.mode == AUDIT_ALL) return count;
    return left < STRETCH ? left : STRETCH;
}

/* After audited steps from `first`: the last step of the epoch, or a random one of the next epoch. */
static void schedule(struct trainer *trainer, size_t first) {
    const uint64_t next_epoch = trainer->state.updates - (uint64_t)trainer->state.step + trainer->steps;
    draw_step(trainer, next_epoch);
    if (first + 1 < trainer->steps) trainer->step_audit.next = next_epoch - 1;
}

/* --- the same steps, op by op --- */

void step_audit_swap(struct trainer *trainer) {
    struct compute *compute = trainer->compute, *trusted = trainer->step_audit.trusted;
    const struct gemm_backend *const backend = compute->backend;
    void *const context = compute->context;
    if (!trusted) return;
    compute->backend = trusted->backend;
    compute->context = trusted->context;
    trusted->backend = backend;
    trusted->context = context;
}

/* Engine eager on the trusted backend, if there is one. */
static enum status run_trusted(struct trainer *trainer, size_t first, size_t *count) {
    step_audit_swap(trainer);
    const enum status status = engine_eager.run(trainer, first, count);
    step_audit_swap(trainer);
    return status;
}

static const struct engine op_by_op = {.name = "eager", .run = run_trusted};

/* What a training is restored from. */
struct snapshot {
    double *weights; /* and optimiser state, as of lockstep.h */
    struct train_state state;
    struct tally tally;
};

static enum status out_of_memory(void) {
    return status_set(STATUS_FAILED, "out of memory in the audit of a step");
}

static enum status take(struct trainer *trainer, struct snapshot *snapshot) {
    struct device *device = &trainer->compute->device;
    snapshot->state = trainer->state;
    snapshot->weights = lockstep_state(trainer);
    if (!snapshot->weights) return out_of_memory();
    device->driver->download(device, &snapshot->tally, trainer->tally, sizeof snapshot->tally);
    return device->driver->synchronize(device);
}

static enum status restore(struct trainer *trainer, const struct snapshot *snapshot) {
    struct device *device = &trainer->compute->device;
    trainer->state = snapshot->state;
    device->driver->upload(device, trainer->tally, &snapshot->tally, sizeof snapshot->tally);
    return lockstep_set_state(trainer, snapshot->weights) ? STATUS_OK : out_of_memory();
}

static struct trainer *same_trainer(void *self) {
    return self;
}

static enum status check_single_steps(struct trainer *trainer, size_t first, size_t count) {
    struct audit *audit = &trainer->audit;
    struct lockstep lockstep = {.reference = trainer,
                                .other = trainer,
                                .engine = &op_by_op,
                                .bound = lockstep_bound(trainer->config),
                                .exact = same_trainer,
                                .self = trainer};
    const size_t audited = first + audit_draw(audit) % count;
    enum status status = lockstep_open(&lockstep);
    for (size_t step = first; step < first + count && !status; step++) {
        audit->mode = step == audited && !trainer->step_audit.trusted ? AUDIT_ALL : AUDIT_OFF;
        status = lockstep_step(&lockstep, step);
    }
    trainer->step_audit.checked += lockstep.seen.steps;
    lockstep_close(&lockstep);
    return status;
}

/* Where `count` steps lead op by op, from weights that are off by a relative `error` at random. NULL if they
   fail or memory ran out. */
static double *lead(struct trainer *trainer, const struct snapshot *start, size_t first, size_t count,
                    double error) {
    const size_t weights = mlp_parameter_count(&trainer->mlp), all = lockstep_state_count(trainer);
    double *moved = malloc(all * sizeof *moved);
    struct snapshot from = *start;
    if (!moved) return NULL;
    memcpy(moved, start->weights, all * sizeof *moved);
    for (size_t i = 0; i < weights && error > 0; i++)
        moved[i] *= audit_draw(&trainer->audit) & 1 ? 1 + error : 1 - error;
    from.weights = moved;
    enum status status = restore(trainer, &from);
    trainer->audit.mode = AUDIT_OFF;
    if (!status) status = op_by_op.run(trainer, first, &count);
    free(moved);
    return status ? NULL : lockstep_state(trainer);
}

/* The steps of a call, op by op. */
struct way {
    double *end, *off; /* where it leads; the same with rounding errors at the start */
    struct tally tally, off_tally;
};

static enum status go(struct trainer *trainer, const struct snapshot *start, size_t first, size_t count,
                      struct way *way) {
    struct device *device = &trainer->compute->device;
    way->end = lead(trainer, start, first, count, 0);
    device->driver->download(device, &way->tally, trainer->tally, sizeof way->tally);
    way->off = lead(trainer, start, first, count, lockstep_bound(trainer->config).perturbed);
    device->driver->download(device, &way->off_tally, trainer->tally, sizeof way->off_tally);
    return way->end && way->off ? STATUS_OK : out_of_memory();
}

/* Images that one tally counts as right and the other does not. */
static enum status check_tally(struct trainer *trainer, const struct snapshot *start, const struct way *way) {
    struct device *device = &trainer->compute->device;
    struct tally tally;
    device->driver->download(device, &tally, trainer->tally, sizeof tally);
    const enum status status = device->driver->synchronize(device);
    const double images = (double)(way->tally.images - start->tally.images),
                 apart = fabs((double)tally.correct - (double)way->tally.correct),
                 rounding = fabs((double)way->off_tally.correct - (double)way->tally.correct);
    if (status || tally.bad_step || way->tally.bad_step) return status;
    if (tally.images == way->tally.images && tally.batches == way->tally.batches &&
        apart <= STEP_AUDIT_TIES + MISCOUNTED * images + ROUNDINGS * rounding)
        return STATUS_OK;
    return status_set(STATUS_VERIFY_FAILED,
                      "it counts %llu of %llu images as right in this epoch, and should count %llu of %llu",
                      (unsigned long long)tally.correct, (unsigned long long)tally.images,
                      (unsigned long long)way->tally.correct, (unsigned long long)way->tally.images);
}

/* The weights after the call, against those of the same steps op by op; `astray` of the way is allowed. */
static enum status check_call(struct trainer *trainer, const struct snapshot *start, const struct way *way,
                              size_t count, double astray) {
    const size_t weights = mlp_parameter_count(&trainer->mlp);
    double *end = lockstep_state(trainer);
    if (!end) return out_of_memory();
    const double apart = lockstep_distance(end, way->end, weights),
                 moved = lockstep_distance(way->end, start->weights, weights),
                 rounding = lockstep_distance(way->off, way->end, weights),
                 stored = lockstep_bound(trainer->config).stored * (double)count *
                          lockstep_distance(way->end, NULL, weights);
    free(end);
    if (apart <= astray * moved + ROUNDINGS * rounding + stored || !isfinite(moved)) return STATUS_OK;
    return status_set(STATUS_VERIFY_FAILED,
                      "%zu steps in one call end %.2g from where the same steps end op by op, which move the "
                      "weights by %.2g",
                      count, apart, moved);
}

static enum status check_end(struct trainer *trainer, const struct snapshot *start, const struct way *way,
                             size_t count, double astray) {
    const enum status status = check_call(trainer, start, way, count, astray);
    return status ? status : check_tally(trainer, start, way);
}

static void way_free(struct way *way) {
    free(way->end);
    free(way->off);
}

/* The next steps of the engine, up to PIECE of them, compared with the same steps op by op. */
static enum status check_piece(struct trainer *trainer, size_t first, size_t *count, double astray) {
    struct snapshot start = {0};
    struct way way = {0};
    const size_t planned = *count = *count < PIECE ? *count : PIECE;
    enum status status = take(trainer, &start);
    if (!status) status = go(trainer, &start, first, planned, &way);
    if (!status) status = restore(trainer, &start);
    if (trainer->engine_stride) trainer->engine_stride = planned;
    if (!status) status = trainer->engine->run(trainer, first, count);
    if (!status) status = check_end(trainer, &start, &way, *count, astray);
    free(start.weights);
    way_free(&way);
    return status;
}

/* Where learning rates are high, right steps diverge: no bound of hundreds of steps tells rounding from
   faults. So a call that ended astray is repeated piece by piece, each compared from its own start. Pieces
   may be astray by so much less that all of them in one direction are within the bound of the call, if the
   way is as crooked as a random one. Then the call must end as near to the pieces as these do to the steps op
   by op: an engine with the same bits for any length of a call ends where they do. */
static enum status check_again(struct trainer *trainer, const struct snapshot *start, size_t first,
                               size_t count, struct way *way) {
    struct snapshot end = {0};
    const struct audit before = trainer->audit;
    const volatile sig_atomic_t *stop = trainer->stop;
    struct device *device = &trainer->compute->device;
    double *losses = malloc(count * sizeof *losses);
    if (!losses) return out_of_memory();
    device->driver->download(device, losses, trainer->losses + first, count * sizeof *losses);
    enum status status = take(trainer, &end);
    if (!status) status = restore(trainer, start);
    trainer->stop = NULL; /* all pieces are compared */
    for (size_t done = 0, piece; done < count && !status; done += piece) {
        piece = count - done;
        status = check_piece(trainer, first + done, &piece, ASTRAY * sqrt((double)PIECE / (double)count));
    }
    trainer->stop = stop;
    free(way->off);
    way->off = status ? NULL : lockstep_state(trainer);
    device->driver->download(device, &way->off_tally, trainer->tally, sizeof way->off_tally);
    trainer->audit = before;
    device->driver->upload(device, trainer->losses + first, losses, count * sizeof *losses);
    free(losses);
    const enum status restored = end.weights ? restore(trainer, &end) : STATUS_OK;
    free(end.weights);
    if (!status && !way->off) status = out_of_memory();
    if (!status) status = restored;
    return status ? status : check_end(trainer, start, way, count, ASTRAY);
}

/* Leaves the trainer at the start. */
static enum status check_steps(struct trainer *trainer, const struct snapshot *start, size_t first,
                               size_t count, struct way *way) {
    struct audit *audit = &trainer->audit, before = *audit;
    enum status status = check_single_steps(trainer, first, count < SINGLE_STEPS ? count : SINGLE_STEPS);
    if (!status) status = go(trainer, start, first, count, way);
    audit->mode = before.mode;
    audit->calls = before.calls; /* those were none of the run */
    audit->checked = before.checked;
    audit->next = before.next;
    audit->spent = before.spent;
    const enum status restored = restore(trainer, start);
    return status ? status : restored;
}

enum status step_audit_run(struct trainer *trainer, size_t first, size_t *count) {
    struct audit *audit = &trainer->audit;
    struct snapshot start = {0};
    struct way way = {0};
    const size_t planned = *count = steps_of_call(trainer, first, *count);
    double clock = clock_seconds(), seconds;
    struct audit_pause pause = audit_pause(trainer->compute);
    enum status status = take(trainer, &start);
    if (!status) status = check_steps(trainer, &start, first, planned, &way);
    audit_resume(trainer->compute, pause);
    seconds = clock_seconds() - clock;

    if (trainer->engine_stride) trainer->engine_stride = planned; /* the steps one by one have changed it */
    if (!status) status = trainer->engine->run(trainer, first, count);

    clock = clock_seconds();
    pause = audit_pause(trainer->compute);
    if (!status && *count == planned) {
        status = check_end(trainer, &start, &way, planned, ASTRAY);
        if (status == STATUS_VERIFY_FAILED && planned > PIECE)
            status = check_again(trainer, &start, first, planned, &way);
    }
    audit_resume(trainer->compute, pause);
    seconds += clock_seconds() - clock;
    audit->spent += seconds;
    trainer->step_audit.seconds += seconds;
    trainer->step_audit.audits++;
    schedule(trainer, first);
    free(start.weights);
    way_free(&way);
    if (status != STATUS_VERIFY_FAILED) return status;
    return status_context(status, "backend '%s' is wrong: audit of engine %s from step %llu of this run",
                          trainer->compute->backend->name, trainer->engine->name,
                          (unsigned long long)trainer->state.updates + 1);
}
