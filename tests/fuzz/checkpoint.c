/* Any bytes as a checkpoint: read as eval and --resume do. Nothing is loaded or written, and no key outside
   of the recipe is set. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/backend/registry.h"
#include "src/nn/checkpoint.h"
#include "src/nn/optimizer.h"
#include "tests/fuzz/fuzz.h"

enum { MOST_WEIGHTS = 1 << 16, BATCH = 8, STEPS = 10 };

static struct compute compute;
static char path[64]; /* of a file in memory */
static int file = -1;

static void fail(const char *what) {
    fprintf(stderr, "FAILED: %s\n", what);
    abort();
}

static void prepare(void) {
    const struct gemm_backend *backend;
    file = memfd_create("checkpoint", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (file < 0 || registry_find("serial", &backend) ||
        compute_open(&compute, backend, &(struct compute_options){.threads = 1}))
        fail("no file in memory, or no backend");
}

static void check_orders(const struct config *config) {
    for (size_t i = 0; i < config_key_count(); i++)
        if (!config_key_at(i)->recipe && config->origin[i] != FROM_DEFAULT) fail(config_key_at(i)->name);
}

static int is_small(const struct config *config) {
    size_t weights = 0;
    for (size_t l = 0; l + 1 < config->layers.count; l++)
        weights += config->layers.width[l] * config->layers.width[l + 1];
    return weights <= MOST_WEIGHTS;
}

/* The weights, and the state that a resumed run needs. */
static void restore(const struct checkpoint *checkpoint, const struct config *config) {
    struct mlp mlp = {0};
    struct optimizer optimizer = {0};
    struct train_state state = {0};
    enum status status = mlp_open(&mlp, &compute, config, BATCH);
    if (!status) status = optimizer_open(&optimizer, &mlp, config);
    if (!status) {
        checkpoint_restore_average(checkpoint, &mlp);
        status = checkpoint_restore(checkpoint, &mlp, &state);
        if (!status) checkpoint_check_epoch(checkpoint, config, &state, BATCH, STEPS);
        optimizer_close(&optimizer, &mlp);
    }
    mlp_close(&mlp);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct config config;
    struct checkpoint checkpoint;
    const struct gemm_backend *backend;
    if (file < 0) prepare();
    if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != (ssize_t)size) fail("cannot fill the file");
    forbid_writing(1);
    config_defaults(&config);
    enum status status = checkpoint_open(&checkpoint, path);
    if (!status) status = checkpoint_recipe(&checkpoint, &config);
    check_orders(&config);
    if (!status) status = registry_find(config.backend, &backend); /* where a plug-in would be loaded */
    if (!status) status = config_check_recipe(&config);
    if (!status && is_small(&config)) restore(&checkpoint, &config);
    checkpoint_close(&checkpoint);
    forbid_writing(0);
    return 0;
}
