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

static double lap_seconds(struct profile *profile) {
    const double now = clock_seconds(), seconds = now - profile->last;
    profile->last = now;
    return seconds;
}

void profile_lap(struct profile *profile, enum profile_part part) {
    profile->seconds[profile->diverted ? profile->divert : part] += lap_seconds(profile);
}

void profile_lap_gemm(struct profile *profile, enum profile_part part, size_t layer, size_t m, size_t n,
                      size_t k) {
    if (profile->diverted) {
        profile_lap(profile, part);
        return;
    }
    const double seconds = lap_seconds(profile);
    struct profile_gemm *gemm = &profile->gemm[part - PART_GEMM_NN][layer];
    profile->seconds[part] += seconds;
    gemm->seconds += seconds;
    gemm->flops += 2.0 * (double)m * (double)n * (double)k;
    gemm->calls++;
}

void profile_divert(struct profile *profile, enum profile_part part) {
    profile_lap(profile, PART_OTHER);
    profile->diverted = true;
    profile->divert = part;
}

void profile_restore(struct profile *profile) {
    profile_lap(profile, profile->divert);
    profile->diverted = false;
}

struct profile profile_since(const struct profile *later, const struct profile *earlier) {
    struct profile since = *later;
    for (size_t i = 0; i < PART_COUNT; i++) since.seconds[i] -= earlier->seconds[i];
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

double profile_training(const struct profile *profile) {
    return profile_total(profile) - profile->seconds[PART_STARTUP] - profile->seconds[PART_EVALUATION] -
           profile->seconds[PART_CHECKPOINT];
}

double profile_transfer_ratio(const struct profile *profile) {
    const double training = profile_training(profile);
    return training > 0 ? (profile->seconds[PART_H2D] + profile->seconds[PART_D2H]) / training : 0;
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
    [PART_ELEMENTWISE] = {"elementwise", "element-wise"},
    [PART_OPTIMIZER] = {"optimizer", "optimizer"},
    [PART_BATCH] = {"batch", "batch preparation"},
    [PART_EVALUATION] = {"evaluation", "evaluation"},
    [PART_CHECKPOINT] = {"checkpoint", "checkpoint"},
    [PART_OTHER] = {"other", "other"},
};

const char *profile_part_title(enum profile_part part) {
    return parts[part].title;
}

const char *profile_part_key(enum profile_part part) {
    return parts[part].key;
}
