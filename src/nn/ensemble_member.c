#include "src/nn/ensemble_member.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/comm/comm.h"

int ensemble_rank_of(const struct ensemble *ensemble, size_t member) {
    return (int)(member % (size_t)comm_size(ensemble->comm));
}

size_t ensemble_stride(const struct ensemble *ensemble) {
    return (size_t)comm_size(ensemble->comm);
}

size_t ensemble_own_members(const struct ensemble *ensemble) {
    const size_t first = ensemble->first, count = ensemble->count, stride = ensemble_stride(ensemble);
    return first < count ? (count - first + stride - 1) / stride : 0;
}

enum status ensemble_path(const struct config *config, const char *path, char *text, size_t size) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    const size_t stem = dot && dot > name ? (size_t)(dot - path) : strlen(path);
    const int length =
        config->ensemble == 1 || !path[0]
            ? snprintf(text, size, "%s", path)
            : snprintf(text, size, "%.*s-seed%lld%s", (int)stem, path, (long long)config->seed, path + stem);
    if (length >= 0 && (size_t)length < size) return STATUS_OK;
    return status_set(STATUS_USAGE, "the name '%s' is too long to add the seed of a member", path);
}

enum status member_config(struct member *member, const struct config *config, size_t index) {
    struct config *own = &member->config;
    *own = *config;
    own->seed += (int64_t)index;
    enum status status = ensemble_path(own, config->save, own->save, sizeof own->save);
    if (!status) status = ensemble_path(own, config->save_init, own->save_init, sizeof own->save_init);
    if (!status) status = ensemble_path(own, config->resume, own->resume, sizeof own->resume);
    return status;
}

static bool is_first(const struct member *member) {
    return member == member->ensemble->member + member->ensemble->first;
}

enum status member_status(const struct member *member, enum status status) {
    return status ? status_context(status, "seed %lld", (long long)member->config.seed) : STATUS_OK;
}

static enum status open_trainer(struct member *member) {
    const struct ensemble *ensemble = member->ensemble;
    const struct config *config = &member->config;
    struct checkpoint checkpoint = {0};
    const bool resume =
        config->resume[0] && (member == ensemble->member || access(config->resume, F_OK) == 0);
    profile_start(&member->profile);
    member->compute->device.profile = &member->profile;
    enum status status = resume ? checkpoint_open(&checkpoint, config->resume) : STATUS_OK;
    if (!status)
        status = trainer_open(&member->trainer, member->compute, config, ensemble->data,
                              resume ? &checkpoint : NULL);
    if (!status && config->save_init[0])
        status = checkpoint_save(config->save_init, &member->trainer.mlp, config, ensemble->data, NULL);
    if (resume) checkpoint_close(&checkpoint);
    if (!is_first(member)) member->trainer.notice[0] = '\0'; /* the first member reports it */
    return member_status(member, status);
}

enum status member_open(struct member *member, struct compute *first) {
    const struct ensemble *ensemble = member->ensemble;
    const bool own = ensemble->concurrent && !is_first(member);
    const struct compute_options options = config_compute(&member->config);
    member->compute = own ? &member->own : first;
    const enum status status = own ? compute_open(&member->own, first->backend, &options) : STATUS_OK;
    if (status) return member_status(member, status);
    member->compute->networks = ensemble->concurrent ? ensemble_own_members(ensemble) : 1;
    if (comm_size(ensemble->comm) > 1 && ensemble->comm->rank)
        member->history = calloc(1, sizeof *member->history);
    if (comm_size(ensemble->comm) > 1 && ensemble->comm->rank && !member->history)
        return status_set(STATUS_FAILED, "out of memory");
    return open_trainer(member);
}

void member_close(struct member *member) {
    trainer_close(&member->trainer);
    if (member->compute) member->compute->device.profile = NULL;
    if (member->compute == &member->own) compute_close(&member->own);
    member->compute = NULL;
}
