#include "src/nn/checkpoint_state.h"

#include <inttypes.h>
#include <string.h>

#include "src/base/text.h"

enum status checkpoint_bad(const struct checkpoint *checkpoint, const char *what) {
    return status_set(STATUS_BAD_DATA, "the checkpoint '%s' %s", checkpoint->file.path, what);
}

/* Numbers as text; doubles in hexadecimal, which is exact. */
size_t checkpoint_state_write(const struct train_state *state, int64_t seed, struct state_text *text,
                              struct metadata *metadata) {
    static const char *const keys[STATE_KEYS] = {
        "tessera.epoch",      "tessera.step",         "tessera.updates",  "tessera.loss_sum",
        "tessera.images",     "tessera.correct",      "tessera.batches",  "tessera.rng",
        "tessera.best_epoch", "tessera.best_correct", "tessera.best_loss"};
    const size_t size = sizeof text->value[0],
                 count = state->best.epoch ? STATE_KEYS : STATE_KEYS - BEST_KEYS;
    snprintf(text->value[0], size, "%" PRId64, state->epoch);
    snprintf(text->value[1], size, "%" PRId64, state->step);
    snprintf(text->value[2], size, "%" PRIu64, state->updates);
    snprintf(text->value[3], size, "%a", state->tally.loss_sum);
    snprintf(text->value[4], size, "%" PRIu64, state->tally.images);
    snprintf(text->value[5], size, "%" PRIu64, state->tally.correct);
    snprintf(text->value[6], size, "%" PRIu64, state->tally.batches);
    snprintf(text->value[7], size, "philox4x32-10 seed %" PRId64, seed);
    snprintf(text->value[8], size, "%" PRId64, state->best.epoch);
    snprintf(text->value[9], size, "%" PRIu64, state->best.correct);
    snprintf(text->value[10], size, "%a", state->best.loss);
    for (size_t i = 0; i < count; i++) metadata[i] = (struct metadata){keys[i], text->value[i]};
    return count;
}

static bool state_integer(const struct checkpoint *checkpoint, const char *key, int64_t *value) {
    const char *text = safetensors_metadata(&checkpoint->file, key);
    return text && text_parse_int(text, value) && *value >= 0;
}

static enum status read_best(const struct checkpoint *checkpoint, struct best_epoch *best) {
    int64_t correct;
    const char *loss = safetensors_metadata(&checkpoint->file, "tessera.best_loss");
    if (!safetensors_metadata(&checkpoint->file, "tessera.best_epoch")) return STATUS_OK;
    if (!state_integer(checkpoint, "tessera.best_epoch", &best->epoch) ||
        !state_integer(checkpoint, "tessera.best_correct", &correct) || !loss ||
        !text_parse_real(loss, &best->loss))
        return checkpoint_bad(checkpoint, "has a best epoch that cannot be read");
    best->correct = (uint64_t)correct;
    return STATUS_OK;
}

enum status checkpoint_state_read(const struct checkpoint *checkpoint, struct train_state *state) {
    int64_t images, correct, batches, updates;
    *state = (struct train_state){0};
    if (!safetensors_metadata(&checkpoint->file, "tessera.epoch")) return STATUS_OK;
    if (!safetensors_metadata(&checkpoint->file, "tessera.updates"))
        return checkpoint_bad(checkpoint,
                              "is of an earlier version, whose training cannot be gone on with; eval "
                              "still reads it");
    const char *loss = safetensors_metadata(&checkpoint->file, "tessera.loss_sum");
    if (!state_integer(checkpoint, "tessera.epoch", &state->epoch) ||
        !state_integer(checkpoint, "tessera.step", &state->step) ||
        !state_integer(checkpoint, "tessera.images", &images) ||
        !state_integer(checkpoint, "tessera.correct", &correct) ||
        !state_integer(checkpoint, "tessera.batches", &batches) || !loss ||
        !state_integer(checkpoint, "tessera.updates", &updates) || updates < state->step ||
        !text_parse_real(loss, &state->tally.loss_sum))
        return checkpoint_bad(checkpoint, "has training state that cannot be read");
    state->updates = (uint64_t)updates;
    state->tally.images = (uint64_t)images;
    state->tally.correct = (uint64_t)correct;
    state->tally.batches = (uint64_t)batches;
    return read_best(checkpoint, &state->best);
}

enum status checkpoint_check_epoch(const struct checkpoint *checkpoint, const struct config *config,
                                   const struct train_state *state, size_t batch, size_t steps) {
    static const char *const keys[] = {"validation", "batch-size", "seed", "shuffle"};
    const bool within = state->step > 0, best = state->best.epoch > 0;
    const struct tally *tally = &state->tally;
    struct config kept;
    char what[400];
    if (state->epoch > INT32_MAX || (size_t)state->step >= steps || tally->batches != (uint64_t)state->step ||
        (within && tally->correct > tally->images))
        return checkpoint_bad(
            checkpoint,
            "stands at an epoch and step that cannot be: it was trained on other data, or is corrupted");
    if (state->updates == 0) return STATUS_OK;
    config_defaults(&kept);
    const enum status status = checkpoint_recipe(checkpoint, &kept);
    if (status) return status;
    if (config->validation > kept.validation) {
        snprintf(
            what, sizeof what,
            "was trained on images that --validation %lld would hold out: hold out no more than then, %lld",
            (long long)config->validation, (long long)kept.validation);
        return checkpoint_bad(checkpoint, what);
    }
    if (!within && !best) return STATUS_OK;
    /* a best epoch is one of the same images */
    for (size_t i = 0; i < (within ? sizeof keys / sizeof *keys : 1); i++) {
        char now[CONFIG_TEXT], then[CONFIG_TEXT];
        config_value(config, config_key_find(keys[i]), now, sizeof now);
        config_value(&kept, config_key_find(keys[i]), then, sizeof then);
        if (strcmp(now, then) == 0) continue;
        snprintf(what, sizeof what, "%s, %s must be %.100s as then, not %.100s",
                 within ? "was written within an epoch: to go on there"
                        : "knows its best epoch: to go on with --patience",
                 keys[i], then, now);
        return checkpoint_bad(checkpoint, what);
    }
    if (!within) return STATUS_OK;
    if (tally->images == (uint64_t)state->step * batch) return STATUS_OK;
    return checkpoint_bad(
        checkpoint, "has counted another number of images: it was trained on other data, or is corrupted");
}
