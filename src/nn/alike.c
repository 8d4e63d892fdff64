#include "src/nn/alike.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/hash.h"
#include "src/base/platform.h"

struct common {
    uint64_t data, weights, value[CONFIG_MAX_KEYS]; /* of the keys that decide what is computed, and how */
};

/* A path may be another on each host; only rank 0 writes, resumes from the same state, and has a target. */
static bool must_agree(const struct config_key *key) {
    static const char *const others[] = {"dtype",    "engine",       "precision", "reduction",
                                         "ensemble", "comm-timeout", NULL};
    for (size_t i = 0; others[i]; i++)
        if (strcmp(others[i], key->name) == 0) return true;
    return key->recipe && strcmp(key->name, "data") != 0;
}

static uint64_t hash_set(uint64_t hash, const struct dataset *set) {
    hash = hash_bytes(hash, set->images, set->count * set->height * set->width);
    return hash_bytes(hash, set->labels, set->count);
}

static struct common common_of(const struct config *config, const struct dataset_pair *data,
                               uint64_t weights) {
    char value[CONFIG_TEXT];
    struct common common = {.data = hash_set(hash_set(HASH_START, &data->train), &data->test),
                            .weights = weights};
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        config_value(config, key, value, sizeof value);
        if (must_agree(key)) common.value[i] = hash_bytes(HASH_START, value, strlen(value));
    }
    return common;
}

/* What differs, or NULL. */
static const char *difference(const struct common *one, const struct common *other, char text[CONFIG_TEXT]) {
    for (size_t i = 0; i < config_key_count(); i++)
        if (one->value[i] != other->value[i]) {
            snprintf(text, CONFIG_TEXT, "the value of --%s", config_key_at(i)->name);
            return text;
        }
    if (one->data != other->data) return "the images or labels";
    return one->weights != other->weights ? "the weights or the epoch of its checkpoint" : NULL;
}

static enum status refuse(int rank, const char *what) {
    return status_set(STATUS_USAGE, "rank %d differs from rank 0 in %s", rank, what);
}

/* First of all: another version may exchange other bytes. */
static enum status check_versions(struct comm *comm) {
    const uint64_t mine = hash_bytes(HASH_START, platform_commit(), strlen(platform_commit()));
    uint64_t all[LAUNCH_MOST_RANKS];
    comm_gather(comm, &mine, all, sizeof mine);
    for (int r = 1; r < comm_size(comm); r++)
        if (all[r] != all[0]) return refuse(r, "the version of the program");
    return STATUS_OK;
}

enum status alike_check(struct comm *comm, const struct config *config, const struct dataset_pair *data,
                        uint64_t weights) {
    const int size = comm_size(comm);
    char text[CONFIG_TEXT];
    enum status status = size > 1 ? check_versions(comm) : STATUS_OK;
    if (status || size == 1) return status;
    struct common *all = calloc((size_t)size, sizeof *all);
    if (!all) return status_set(STATUS_FAILED, "out of memory");
    const struct common mine = common_of(config, data, weights);
    comm_gather(comm, &mine, all, sizeof mine);
    for (int r = 1; r < size && !status; r++) {
        const char *what = difference(&all[0], &all[r], text);
        if (what) status = refuse(r, what);
    }
    free(all);
    return status;
}
