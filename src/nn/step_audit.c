#include "src/nn/step_audit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/plugin.h"
#include "src/nn/engine.h"
#include "src/nn/lockstep.h"

enum { SINGLE_STEPS = 4 };
static const double ASTRAY = 0.05, ROUNDINGS = 8; /* the bound of step_audit.h */
static const double FIRST_SECONDS = 0.1;          /* a guess: an audit of a small network */

/* --- which steps --- */

/* A random step of the epoch that starts after `updates`. */
static void draw_step(struct trainer *trainer, uint64_t updates) {
    trainer->step_audit.next = updates + audit_draw(&trainer->audit) % trainer->steps;
}

void step_audit_start(struct trainer *trainer) {
    draw_step(trainer, trainer->state.updates);
    if (trainer->engine != &engine_fused || trainer->audit.mode == AUDIT_OFF)
        trainer->step_audit.next = UINT64_MAX;
}

static bool affordable(const struct trainer *trainer) {
    const struct step_audit *audit = &trainer->step_audit;
    const bool foreign = plugin_path(trainer->compute->backend) != NULL;
    const bool last = trainer->state.epoch + 1 == trainer->config->epochs;
    if (trainer->audit.mode == AUDIT_ALL || (foreign && (audit->audits == 0 || last))) return true;
    return audit_affords(&trainer->audit,
                         audit->audits ? audit->seconds / (double)audit->audits : FIRST_SECONDS);
}

bool step_audit_due(struct trainer *trainer, size_t *count) {
    struct step_audit *audit = &trainer->step_audit;
    const uint64_t now = trainer->state.updates;
    if (trainer->audit.mode == AUDIT_ALL && audit->next != UINT64_MAX) audit->next = now;
    if (audit->next >= now + *count) return false;
    if (!affordable(trainer)) {
        draw_step(trainer, now + *count);
        return false;
    }
    if (audit->next <= now && trainer->engine_stride) return true; /* the first call is never audited */
    if (audit->next > now) *count = (size_t)(audit->next - now);
    return false;
}

/* The number of steps of the engine's next call: on the host it takes no more than engine_stride. */
static size_t steps_of_call(const struct trainer *trainer, size_t count) {
    const bool limited = trainer->compute->device.driver->host_memory;
    return limited && trainer->engine_stride < count ? trainer->engine_stride : count;
}

/* The next audit is in the next epoch. */
static void schedule(struct trainer *trainer) {
    const struct train_state *state = &trainer->state;
    draw_step(trainer, state->updates - (uint64_t)state->step + trainer->steps);
}

/* --- the same steps with both engines --- */

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
                                .engine = &engine_eager,
                                .bound = lockstep_bound(trainer->config),
                                .exact = same_trainer,
                                .self = trainer};
    const size_t audited = first + audit_draw(audit) % count;
    enum status status = lockstep_open(&lockstep);
    for (size_t step = first; step < first + count && !status; step++) {
        audit->mode = step == audited ? AUDIT_ALL : AUDIT_OFF;
        status = lockstep_step(&lockstep, step);
    }
    trainer->step_audit.checked += lockstep.seen.steps;
    lockstep_close(&lockstep);
    return status;
}

/* Where `count` steps of eager lead, from weights that are off by a relative `error` at random. NULL if they
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
    if (!status) status = engine_eager.run(trainer, first, &count);
    free(moved);
    return status ? NULL : lockstep_state(trainer);
}

/* Steps of a call, with eager. */
struct way {
    double *end, *off; /* where it leads; the same with rounding errors at the start */
};

static enum status go(struct trainer *trainer, const struct snapshot *start, size_t first, size_t count,
                      struct way *way) {
    way->end = lead(trainer, start, first, count, 0);
    way->off = lead(trainer, start, first, count, lockstep_bound(trainer->config).perturbed);
    return way->end && way->off ? STATUS_OK : out_of_memory();
}

/* The weights after the call, against those of eager. */
static enum status check_call(struct trainer *trainer, const struct snapshot *start, const struct way *way,
                              size_t count) {
    const size_t weights = mlp_parameter_count(&trainer->mlp);
    double *end = lockstep_state(trainer);
    if (!end) return out_of_memory();
    const double apart = lockstep_distance(end, way->end, weights),
                 moved = lockstep_distance(way->end, start->weights, weights),
                 rounding = lockstep_distance(way->off, way->end, weights),
                 stored = lockstep_bound(trainer->config).stored * (double)count *
                          lockstep_distance(way->end, NULL, weights);
    free(end);
    if (apart <= ASTRAY * moved + ROUNDINGS * rounding + stored || !isfinite(moved)) return STATUS_OK;
    return status_set(STATUS_VERIFY_FAILED,
                      "%zu steps in one call end %.2g from where the same steps of engine eager end, which "
                      "moved the weights by %.2g",
                      count, apart, moved);
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
    const size_t planned = *count = steps_of_call(trainer, *count);
    double clock = clock_seconds(), seconds;
    struct audit_pause pause = audit_pause(trainer->compute);
    enum status status = take(trainer, &start);
    if (!status) status = check_steps(trainer, &start, first, planned, &way);
    audit_resume(trainer->compute, pause);
    seconds = clock_seconds() - clock;

    trainer->engine_stride = planned; /* the steps one by one have changed it */
    if (!status) status = trainer->engine->run(trainer, first, count);

    clock = clock_seconds();
    pause = audit_pause(trainer->compute);
    if (!status && *count == planned) status = check_call(trainer, &start, &way, planned);
    audit_resume(trainer->compute, pause);
    seconds += clock_seconds() - clock;
    audit->spent += seconds;
    trainer->step_audit.seconds += seconds;
    trainer->step_audit.audits++;
    schedule(trainer);
    free(start.weights);
    free(way.end);
    free(way.off);
    if (status != STATUS_VERIFY_FAILED) return status;
    return status_context(status, "backend '%s' is wrong: audit of engine %s from step %llu of this run",
                          trainer->compute->backend->name, trainer->engine->name,
                          (unsigned long long)trainer->state.updates + 1);
}
