/* Does the state of a checkpoint fit this run? */
#include <string.h>

#include "src/nn/checkpoint.h"

/* The images that the state was trained on must not be in the validation set of this run. */
static enum status check_validation(const char *path, const struct config *config,
                                    const struct config *then) {
    if (config->validation <= then->validation) return STATUS_OK;
    return status_set(STATUS_BAD_DATA,
                      "the checkpoint '%s' was trained on images that --validation %lld would hold out: use "
                      "--validation %lld or less",
                      path, (long long)config->validation, (long long)then->validation);
}

/* To resume within an epoch, the order of the images must be the same; a best epoch needs the same validation
   part. */
static enum status check_keys(const char *path, const struct config *config, const struct config *then,
                              bool within) {
    static const char *const keys[] = {"validation", "batch-size", "seed", "shuffle"};
    for (size_t i = 0; i < (within ? sizeof keys / sizeof *keys : 1); i++) {
        char now[CONFIG_TEXT], before[CONFIG_TEXT];
        config_value(config, config_key_find(keys[i]), now, sizeof now);
        config_value(then, config_key_find(keys[i]), before, sizeof before);
        if (strcmp(now, before) == 0) continue;
        return status_set(STATUS_BAD_DATA, "the checkpoint '%s' %s, %s must be %.100s as before, not %.100s",
                          path,
                          within ? "was written within an epoch: to resume there"
                                 : "has a best epoch: to resume with --patience",
                          keys[i], before, now);
    }
    return STATUS_OK;
}

enum status checkpoint_check_epoch(const struct checkpoint *checkpoint, const struct config *config,
                                   const struct train_state *state, size_t batch, size_t steps) {
    const bool within = state->step > 0;
    const struct tally *tally = &state->tally;
    const char *path = checkpoint->file.path;
    struct config then;
    if (state->epoch > INT32_MAX || (size_t)state->step >= steps || tally->batches != (uint64_t)state->step ||
        (within && tally->correct > tally->images))
        return status_set(STATUS_BAD_DATA,
                          "the checkpoint '%s' has an impossible epoch and step: it was trained on other "
                          "data, or is corrupted",
                          path);
    if (state->updates == 0) return STATUS_OK;
    config_defaults(&then);
    enum status status = checkpoint_recipe(checkpoint, &then);
    if (!status) status = check_validation(path, config, &then);
    if (!status && (within || state->best.epoch)) status = check_keys(path, config, &then, within);
    if (status || !within || tally->images == (uint64_t)state->step * batch) return status;
    return status_set(STATUS_BAD_DATA,
                      "the checkpoint '%s' has another image count: it was trained on other data, or is "
                      "corrupted",
                      path);
}
