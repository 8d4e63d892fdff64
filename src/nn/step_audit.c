#include "src/nn/step_audit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/plugin.h"
#include "src/backend/registry.h"
#include "src/comm/comm.h"
#include "src/nn/engine.h"
#include "src/nn/lockstep.h"
#include "src/nn/step_way.h"

enum { SINGLE_STEPS = 4, STRETCH = 128, PIECE = 16 };
/* The bounds of step_audit.h. */
static const double ASTRAY = 0.05 /* of the way */, LOST = 0.5 /* of a step */;
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

/* The fastest backend of the host that has the precision of the training. */
static void open_trusted(struct trainer *trainer) {
    static const char *const names[] = {"tuned", "openmp", "serial"};
    struct compute *trusted = calloc(1, sizeof *trusted);
    const struct compute_options options = {.threads = trainer->compute->threads,
                                            .precision = trainer->compute->precision};
    const struct gemm_backend *backend;
    for (size_t i = 0; trusted && i < sizeof names / sizeof *names; i++)
        if (!registry_find(names[i], &backend) && !compute_open(trusted, backend, &options)) {
            trainer->step_audit.trusted = trusted;
            return;
        }
    free(trusted);
}

void step_audit_start(struct trainer *trainer) {
    /* the steps of several processes cannot be repeated by one of them */
    const bool on = trainer->audit.mode != AUDIT_OFF && comm_size(trainer->compute->comm) == 1;
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

static enum status out_of_memory(void) {
    return status_set(STATUS_FAILED, "out of memory in the audit of a step");
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

/* The end of the way's steps op by op, from weights that are off by a relative `error` at random. */
static enum status lead(struct trainer *trainer, const struct step_way *way, double error,
                        struct step_end *end) {
    const size_t weights = mlp_parameter_count(&trainer->mlp), all = lockstep_state_count(trainer);
    size_t count = way->count;
    struct step_snapshot from = *way->start;
    from.weights = malloc(all * sizeof *from.weights);
    if (!from.weights) return out_of_memory();
    memcpy(from.weights, way->start->weights, all * sizeof *from.weights);
    for (size_t i = 0; i < weights && error > 0; i++)
        from.weights[i] *= audit_draw(&trainer->audit) & 1 ? 1 + error : 1 - error;
    enum status status = step_snapshot_restore(trainer, &from);
    trainer->audit.mode = AUDIT_OFF;
    if (!status) status = op_by_op.run(trainer, way->first, &count);
    free(from.weights);
    return status ? status : step_end_take(trainer, way->first, way->count, end);
}

static enum status go(struct trainer *trainer, struct step_way *way) {
    const enum status status = lead(trainer, way, 0, &way->exact);
    if (status) return status;
    return lead(trainer, way, lockstep_bound(trainer->config).perturbed, &way->rounded);
}

/* Of its way, a call may be astray by this share. If all its steps were alike, one of them would be twice as
   much. */
static double share_of(size_t count) {
    return fmin(ASTRAY, LOST / (double)count);
}

/* The next steps of the engine, up to PIECE of them, compared with the same steps op by op. */
static enum status check_piece(struct trainer *trainer, size_t first, size_t *count, double share) {
    struct step_snapshot start = {0};
    *count = *count < PIECE ? *count : PIECE;
    struct step_way way = {.start = &start, .first = first, .count = *count};
    enum status status = step_snapshot_take(trainer, &start);
    if (!status) status = go(trainer, &way);
    if (!status) status = step_snapshot_restore(trainer, &start);
    if (trainer->engine_stride) trainer->engine_stride = way.count;
    if (!status) status = trainer->engine->run(trainer, first, count);
    if (!status && *count == way.count) status = step_way_check(trainer, &way, share);
    free(start.weights);
    step_way_free(&way);
    return status;
}

/* All steps of the way by the engine, each piece compared from its own start. */
static enum status repeat(struct trainer *trainer, struct step_way *way) {
    const double share = fmin(share_of(PIECE), ASTRAY * sqrt((double)PIECE / (double)way->count));
    const volatile sig_atomic_t *stop = trainer->stop;
    enum status status = step_snapshot_restore(trainer, way->start);
    trainer->stop = NULL; /* all pieces are compared */
    for (size_t done = 0, piece; done < way->count && !status; done += piece) {
        piece = way->count - done;
        status = check_piece(trainer, way->first + done, &piece, share);
    }
    trainer->stop = stop;
    return status ? status : step_end_take(trainer, way->first, way->count, &way->repeated);
}

/* Where learning rates are high, right steps diverge: no bound of hundreds of steps tells rounding from
   faults. So a call that ended astray is repeated piece by piece, each compared from its own start. Pieces
   may be astray by so much less that all of them in one direction are within 5 % of the way of the call, if
   it is as crooked as a random one. Then the call must end as near to the exact end as the pieces do: an
   engine with the same bits for any length of a call ends where they do. */
static enum status check_again(struct trainer *trainer, struct step_way *way) {
    struct step_snapshot end = {0};
    const struct audit before = trainer->audit;
    struct device *device = &trainer->compute->device;
    double *losses = malloc(way->count * sizeof *losses);
    if (!losses) return out_of_memory();
    device->driver->download(device, losses, trainer->losses + way->first, way->count * sizeof *losses);
    enum status status = step_snapshot_take(trainer, &end);
    if (!status) status = repeat(trainer, way);
    trainer->audit = before;
    device->driver->upload(device, trainer->losses + way->first, losses, way->count * sizeof *losses);
    const enum status restored = end.weights ? step_snapshot_restore(trainer, &end) : STATUS_OK;
    if (!status) status = restored ? restored : device->driver->synchronize(device);
    free(losses);
    free(end.weights);
    return status ? status : step_way_check(trainer, way, share_of(way->count));
}

/* Leaves the trainer at the start. */
static enum status check_steps(struct trainer *trainer, struct step_way *way) {
    struct audit *audit = &trainer->audit, before = *audit;
    const size_t single = way->count < SINGLE_STEPS ? way->count : SINGLE_STEPS;
    enum status status = check_single_steps(trainer, way->first, single);
    if (!status) status = go(trainer, way);
    audit->mode = before.mode;
    audit->calls = before.calls; /* those were none of the run */
    audit->checked = before.checked;
    audit->next = before.next;
    audit->spent = before.spent;
    const enum status restored = step_snapshot_restore(trainer, way->start);
    return status ? status : restored;
}

enum status step_audit_run(struct trainer *trainer, size_t first, size_t *count) {
    struct audit *audit = &trainer->audit;
    struct step_snapshot start = {0};
    const size_t planned = *count = steps_of_call(trainer, first, *count);
    struct step_way way = {.start = &start, .first = first, .count = planned};
    double clock = clock_seconds(), seconds;
    struct audit_pause pause = audit_pause(trainer->compute);
    enum status status = step_snapshot_take(trainer, &start);
    if (!status) status = check_steps(trainer, &way);
    audit_resume(trainer->compute, pause);
    seconds = clock_seconds() - clock;

    if (trainer->engine_stride) trainer->engine_stride = planned; /* the steps one by one have changed it */
    if (!status) status = trainer->engine->run(trainer, first, count);

    clock = clock_seconds();
    pause = audit_pause(trainer->compute);
    if (!status && *count == planned) {
        status = step_way_check(trainer, &way, share_of(planned));
        if (status == STATUS_VERIFY_FAILED && planned > PIECE) status = check_again(trainer, &way);
    }
    audit_resume(trainer->compute, pause);
    seconds += clock_seconds() - clock;
    audit->spent += seconds;
    trainer->step_audit.seconds += seconds;
    trainer->step_audit.audits++;
    schedule(trainer, first);
    free(start.weights);
    step_way_free(&way);
    if (status != STATUS_VERIFY_FAILED) return status;
    return status_context(status, "backend '%s' is wrong: audit of engine %s from step %llu of this run",
                          trainer->compute->backend->name, trainer->engine->name,
                          (unsigned long long)trainer->state.updates + 1);
}
