#include "src/base/profile.h"

#include <string.h>
#include <time.h>

double clock_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void profile_start(struct profile *profile) {
    memset(profile, 0, sizeof *profile);
    profile->last = clock_seconds();
}

struct profile_slot profile_gemm_slot(enum profile_part part, size_t layer, size_t m, size_t n, size_t k) {
    return (struct profile_slot){
        .part = part, .layer = layer, .flops = 2.0 * (double)m * (double)n * (double)k};
}

void profile_take(struct profile *profile, struct profile_slot slot, double seconds) {
    profile->last += seconds;
    profile->seconds[profile->diverted ? profile->divert : slot.part] += seconds;
    if (profile->diverted || slot.part < PART_GEMM_NN || slot.part > PART_GEMM_NT) return;
    struct profile_gemm *gemm = &profile->gemm[slot.part - PART_GEMM_NN][slot.layer];
    gemm->seconds += seconds;
    gemm->flops += slot.flops;
    gemm->calls++;
}

void profile_lap(struct profile *profile, struct profile_slot slot) {
    profile_take(profile, slot, clock_seconds() - profile->last);
}

void profile_divert(struct profile *profile, enum profile_part part) {
    profile_lap(profile, (struct profile_slot){.part = PART_OTHER});
    profile->diverted = true;
    profile->divert = part;
}

void profile_restore(struct profile *profile) {
    profile_lap(profile, (struct profile_slot){.part = profile->divert});
    profile->diverted = false;
}

struct profile profile_since(const struct profile *later, const struct profile *earlier) {
    struct profile since = *later;
    for (size_t i = 0; i < PART_COUNT; i++) since.seconds[i] -= earlier->seconds[i];
    since.aside -= earlier->aside;
    for (size_t op = 0; op < PROFILE_OPS; op++)
        for (size_t l = 0; l < PROFILE_MAX_LAYERS; l++) {
            since.gemm[op][l].seconds -= earlier->gemm[op][l].seconds;
            since.gemm[op][l].flops -= earlier->gemm[op][l].flops;
            since.gemm[op][l].calls -= earlier->gemm[op][l].calls;
        }
    return since;
}

double profile_total(const struct profile *profile) {
    double sum = 0;
    for (size_t i = 0; i < PART_COUNT; i++) sum += profile->seconds[i];
    return sum;
}

bool profile_is_training(enum profile_part part) {
    return part != PART_STARTUP && part != PART_EVALUATION && part != PART_CHECKPOINT && part != PART_AUDIT;
}

double profile_training(const struct profile *profile) {
    double sum = 0;
    for (int part = 0; part < PART_COUNT; part++)
        if (profile_is_training((enum profile_part)part)) sum += profile->seconds[part];
    return sum;
}

double profile_transfer_ratio(const struct profile *profile) {
    const double training = profile_training(profile);
    return training > 0 ? (profile->seconds[PART_H2D] + profile->seconds[PART_D2H]) / training : 0;
}

double profile_hidden_communication(const struct profile *profile) {
    const double exposed = profile->seconds[PART_COMMUNICATION];
    return profile->aside > exposed ? profile->aside - exposed : 0;
}

static const struct {
    const char *key, *title;
} parts[PART_COUNT] = {
    [PART_STARTUP] = {"startup", "start-up"},
    [PART_H2D] = {"h2d", "copy host to device"},
    [PART_D2H] = {"d2h", "copy device to host"},
    [PART_GEMM_NN] = {"gemm_nn", "GEMM NN forward"},
    [PART_GEMM_TN] = {"gemm_tn", "GEMM TN weight gradient"},
    [PART_GEMM_NT] = {"gemm_nt", "GEMM NT input gradient"},
    [PART_PANEL] = {"panel", "panels"},
    [PART_ELEMENTWISE] = {"elementwise", "element-wise"},
    [PART_OPTIMIZER] = {"optimizer", "optimizer"},
    [PART_COMMUNICATION] = {"communication", "communication"},
    [PART_STEPS] = {"graph", "whole steps"},
    [PART_BATCH] = {"batch", "batch preparation"},
    [PART_AUGMENT] = {"augment", "augmentation"},
    [PART_EVALUATION] = {"evaluation", "evaluation"},
    [PART_CHECKPOINT] = {"checkpoint", "checkpoint"},
    [PART_AUDIT] = {"audit", "audit"},
    [PART_OTHER] = {"other", "other"},
};

const char *profile_part_title(enum profile_part part) {
    return parts[part].title;
}

const char *profile_part_key(enum profile_part part) {
    return parts[part].key;
}
