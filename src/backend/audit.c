#include "src/backend/audit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/audit_values.h"
#include "src/backend/surroundings.h"
#include "src/base/profile.h"
#include "src/base/secret.h"

static const double SHARE = 0.005;        /* of the time, for all audits */
static const double BYTES_A_SECOND = 1e9; /* a guess for the first audit: copies, conversion and products */
enum { FIRST_CALLS = 64, THREADS_GROW = 3 };

/* --- which calls --- */

uint64_t audit_draw(struct audit *audit) {
    return secret_draw(&audit->random);
}

void audit_start(struct audit *audit, enum audit_mode mode) {
    *audit = (struct audit){.mode = mode, .started = clock_seconds(), .random = secret_seed()};
    audit->next = 1 + audit_draw(audit) % FIRST_CALLS;
}

double audit_elapsed(const struct audit *audit) {
    return clock_seconds() - audit->started;
}

bool audit_affords(const struct audit *audit, double seconds) {
    return audit->spent + seconds <= SHARE * audit_elapsed(audit);
}

static double bytes_of(const struct gemm_call *call) {
    const double m = (double)call->m, n = (double)call->n, k = (double)call->k;
    return (double)dtype_size(call->dtype) * (m * k + k * n + 2 * m * n);
}

bool audit_due(struct audit *audit, const struct gemm_call *call) {
    audit->calls++;
    if (audit->mode != AUDIT_SAMPLE) return audit->mode == AUDIT_ALL;
    if (audit->calls < audit->next) return false;
    if (audit_affords(audit, bytes_of(call) / BYTES_A_SECOND)) return true;
    audit->next = audit->calls + 1 + audit_draw(audit) % FIRST_CALLS; /* not yet affordable */
    return false;
}

/* Draws the next call, so that the mean gap pays for an audit like those so far. */
static void schedule(struct audit *audit) {
    const double elapsed = audit_elapsed(audit);
    const double gap = audit->spent / (double)audit->checked / SHARE * (double)audit->calls / elapsed;
    audit->next = audit->calls + 1 + audit_draw(audit) % (uint64_t)fmax(2 * gap, FIRST_CALLS);
}

/* --- one audited call --- */

static enum status check_call(struct audit *audit, struct compute *compute, const struct gemm_call *call,
                              const struct audit_copy *before, const struct surroundings *around) {
    struct surroundings now;
    char what[256];
    surroundings_observe(&now);
    const char *change = surroundings_changed(around, &now);
    audit->grown = now.threads > around->threads ? audit->grown + 1 : 0;
    if (audit->grown >= THREADS_GROW) change = "it starts threads in every call and leaves them";
    enum status status = compute->device.driver->synchronize(&compute->device);
    if (!status && change) {
        snprintf(what, sizeof what, "%s", change);
        status = STATUS_VERIFY_FAILED;
    }
    if (!status) status = audit_values(&audit->random, compute, before, call, what, sizeof what);
    if (status != STATUS_VERIFY_FAILED) return status;
    return status_set(STATUS_VERIFY_FAILED,
                      "backend '%s' is wrong: audit of call %llu of this run (%s %s m=%zu n=%zu k=%zu "
                      "alpha=%g beta=%g%s): %s",
                      compute->backend->name, (unsigned long long)audit->calls, dtype_name(call->dtype),
                      gemm_op_name(call->op), call->m, call->n, call->k, call->alpha, call->beta,
                      call->epilogue   ? " with bias and activation"
                      : call->backward ? " backward through the activation"
                                       : "",
                      what);
}

struct audit_pause audit_pause(struct compute *compute) {
    struct profile *profile = compute->device.profile;
    struct audit_pause pause = {0};
    compute->device.driver->synchronize(&compute->device);
    if (!profile) return pause;
    profile_lap(profile, (struct profile_slot){.part = PART_OTHER});
    pause = (struct audit_pause){profile->diverted, profile->divert};
    profile->diverted = true;
    profile->divert = PART_AUDIT;
    return pause;
}

void audit_resume(struct compute *compute, struct audit_pause pause) {
    struct profile *profile = compute->device.profile;
    compute->device.driver->synchronize(&compute->device);
    if (!profile) return;
    profile_lap(profile, (struct profile_slot){.part = PART_AUDIT});
    profile->diverted = pause.diverted;
    profile->divert = pause.divert;
}

/* What is compared after the call. */
static bool prepare(struct audit_copy *before, struct surroundings *around, struct compute *compute,
                    const struct gemm_call *call) {
    surroundings_observe(around);
    return audit_copy_open(before, compute, call);
}

enum status audit_call(struct audit *audit, struct compute *compute, const struct gemm_call *call,
                       enum status (*run)(struct compute *compute, const struct gemm_call *call)) {
    const bool host = compute->device.driver->host_memory;
    const bool surprise = host && call->beta == 0 && audit_draw(audit) % 2;
    struct profile *profile = compute->device.profile;
    struct surroundings around;
    struct audit_copy before = {0};
    struct audit_pause pause = {0};
    bool copied = true;
    double start = clock_seconds();
    if (!surprise) {
        pause = audit_pause(compute);
        copied = prepare(&before, &around, compute, call);
        if (host) audit_resume(compute, pause);
        audit->spent += clock_seconds() - start;
    }
    enum status status = STATUS_FAILED;
    if (copied) {
        status = run(compute, call);
    } else {
        status_write("out of memory");
    }

    start = clock_seconds();
    if (!status && surprise && !prepare(&before, &around, compute, call))
        status = status_set(STATUS_FAILED, "out of memory");
    if (!status) status = check_call(audit, compute, call, &before, &around);
    audit_copy_close(&before);
    const double seconds = clock_seconds() - start;
    audit->spent += seconds;
    audit->checked++;
    schedule(audit);
    if (!host) {
        audit_resume(compute, pause);
    } else if (profile) { /* the time of the call itself stays in the open lap */
        profile->last += seconds;
        profile->seconds[PART_AUDIT] += seconds;
    }
    return status;
}
