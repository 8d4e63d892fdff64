/* Any bytes as a checkpoint: read as eval and --resume do. Nothing is loaded or written, and no key outside
   of the recipe is set. What was restored, saved, restored and saved again gives the same file. */
#include <stdlib.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/base/text.h"
#include "src/nn/checkpoint.h"
#include "src/nn/optimizer.h"
#include "tests/fuzz/fuzz.h"

enum { MOST_WEIGHTS = 1 << 16, BATCH = 8, STEPS = 10 };

static struct compute compute;
static struct memory_file file, copy;

static void prepare(void) {
    const struct gemm_backend *backend;
    memory_file_open(&file);
    memory_file_open(&copy);
    forbid_except(copy.path);
    if (registry_find("serial", &backend) ||
        compute_open(&compute, backend, &(struct compute_options){.threads = 1}))
        fuzz_fail("no backend");
}

/* Names that the checkpoint gives to classes are safe to print. */
static void check_names(const struct checkpoint *checkpoint) {
    static struct image_kind kind;
    if (checkpoint_images(checkpoint, &kind)) return;
    for (size_t c = 0; c < kind.classes.count; c++)
        if (!kind.classes.name[c][0] || !text_is_printable(kind.classes.name[c])) fuzz_fail("name %zu", c);
}

static void check_orders(const struct config *config) {
    for (size_t i = 0; i < config_key_count(); i++)
        if (!config_key_at(i)->recipe && config->origin[i] != FROM_DEFAULT)
            fuzz_fail("the checkpoint set '%s'", config_key_at(i)->name);
}

static int is_small(const struct config *config) {
    size_t weights = 0;
    for (size_t l = 0; l + 1 < config->layers.count; l++)
        weights += config->layers.width[l] * config->layers.width[l + 1];
    return weights <= MOST_WEIGHTS;
}

/* Saves the network; the caller frees the bytes. */
static char *save(struct mlp *mlp, const struct config *config, const struct train_state *state,
                  size_t *size) {
    memory_file_fill(&copy, NULL, 0);
    if (checkpoint_save(copy.path, mlp, config, NULL, state)) fuzz_fail("not saved: %s", status_message());
    return memory_file_read(&copy, size);
}

static void check_round_trip(struct mlp *mlp, const struct config *config, const struct train_state *state) {
    struct checkpoint checkpoint;
    struct train_state again;
    size_t size, again_size;
    char *bytes = save(mlp, config, state, &size), *other;
    if (checkpoint_open(&checkpoint, copy.path) || checkpoint_restore(&checkpoint, mlp, &again))
        fuzz_fail("saved, but refused: %s", status_message());
    checkpoint_close(&checkpoint);
    other = save(mlp, config, &again, &again_size);
    if (again_size != size || memcmp(bytes, other, size) != 0) fuzz_fail("saved again, the file differs");
    free(bytes);
    free(other);
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
        if (!status) check_round_trip(&mlp, config, &state);
        optimizer_close(&optimizer, &mlp);
    }
    mlp_close(&mlp);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct config config;
    struct checkpoint checkpoint;
    const struct gemm_backend *backend;
    if (!file.fd) prepare();
    memory_file_fill(&file, data, size);
    forbid_writing(1);
    config_defaults(&config);
    enum status status = checkpoint_open(&checkpoint, file.path);
    if (!status) status = checkpoint_recipe(&checkpoint, &config);
    check_orders(&config);
    if (!status) check_names(&checkpoint);
    if (!status) status = registry_find(config.backend, &backend); /* where a plug-in would be loaded */
    if (!status) status = config_check_recipe(&config);
    if (!status && is_small(&config)) restore(&checkpoint, &config);
    checkpoint_close(&checkpoint);
    forbid_writing(0);
    return 0;
}
