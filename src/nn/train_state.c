#include "src/nn/train_state.h"

#include <inttypes.h>
#include <stdio.h>

#include "src/base/text.h"

/* Numbers as text; doubles in hexadecimal, which is exact. */
size_t train_state_write(const struct train_state *state, int64_t seed, struct train_state_text *text,
                         struct metadata *metadata) {
    static const char *const keys[TRAIN_STATE_KEYS] = {
        "tessera.epoch",      "tessera.step",         "tessera.updates",  "tessera.loss_sum",
        "tessera.images",     "tessera.correct",      "tessera.batches",  "tessera.rng",
        "tessera.best_epoch", "tessera.best_correct", "tessera.best_loss"};
    const size_t size = sizeof text->value[0],
                 count = TRAIN_STATE_KEYS - (state->best.epoch ? 0 : TRAIN_STATE_BEST_KEYS);
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

static bool read_integer(const struct safetensors *file, const char *key, int64_t *value) {
    const char *text = safetensors_metadata(file, key);
    return text && text_parse_int(text, value) && *value >= 0;
}

static bool read_count(const struct safetensors *file, const char *key, uint64_t *value) {
    int64_t integer;
    if (!read_integer(file, key, &integer)) return false;
    *value = (uint64_t)integer;
    return true;
}

static bool read_real(const struct safetensors *file, const char *key, double *value) {
    const char *text = safetensors_metadata(file, key);
    return text && text_parse_real(text, value);
}

enum status train_state_read(const struct safetensors *file, struct train_state *state) {
    struct tally *tally = &state->tally;
    struct best_epoch *best = &state->best;
    *state = (struct train_state){0};
    if (!safetensors_metadata(file, "tessera.epoch")) return STATUS_OK;
    if (!safetensors_metadata(file, "tessera.updates"))
        return status_set(STATUS_BAD_DATA,
                          "the checkpoint '%s' is of an earlier version: training cannot resume from it; "
                          "eval still reads it",
                          file->path);
    if (!read_integer(file, "tessera.epoch", &state->epoch) ||
        !read_integer(file, "tessera.step", &state->step) ||
        !read_count(file, "tessera.images", &tally->images) ||
        !read_count(file, "tessera.correct", &tally->correct) ||
        !read_count(file, "tessera.batches", &tally->batches) ||
        !read_count(file, "tessera.updates", &state->updates) || state->updates < (uint64_t)state->step ||
        !read_real(file, "tessera.loss_sum", &tally->loss_sum))
        return status_set(STATUS_BAD_DATA, "the checkpoint '%s' has invalid training state", file->path);
    if (!safetensors_metadata(file, "tessera.best_epoch")) return STATUS_OK;
    if (!read_integer(file, "tessera.best_epoch", &best->epoch) ||
        !read_count(file, "tessera.best_correct", &best->correct) ||
        !read_real(file, "tessera.best_loss", &best->loss))
        return status_set(STATUS_BAD_DATA, "the checkpoint '%s' has an invalid best epoch", file->path);
    return STATUS_OK;
}
