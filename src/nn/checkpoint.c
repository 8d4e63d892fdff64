#include "src/nn/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/platform.h"
#include "src/base/text.h"

/* --- tensors --- */

/* One parameter tensor of the network: in memory [in][out] (bias: [1][out]), in the file [out, in] (bias:
 * [out]). */
struct parameter {
    char name[TENSOR_NAME];
    size_t in, out;
    const void *memory; /* in the parameter arena on the device */
    bool bias;
};

static struct parameter parameter_at(const struct mlp *mlp, size_t index, const char *prefix) {
    const struct mlp_layer *layer = &mlp->layer[index / 2];
    struct parameter parameter = {.bias = index % 2};
    parameter.in = parameter.bias ? 1 : layer->in;
    parameter.out = layer->out;
    parameter.memory = parameter.bias ? layer->bias : layer->weight;
    snprintf(parameter.name, sizeof parameter.name, "%slayers.%zu.%s", prefix, index / 2,
             parameter.bias ? "bias" : "weight");
    return parameter;
}

/* to[cols][rows] = from[rows][cols]^T, both of `size`-byte elements at any alignment. */
static void transpose(void *to, const void *from, size_t rows, size_t cols, size_t size) {
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            memcpy((char *)to + (c * rows + r) * size, (const char *)from + (r * cols + c) * size, size);
}

/* Copies an arena from the device and fills the table with its tensors as the file wants them; the caller
   frees tensor[i].data. */
static enum status collect(struct mlp *mlp, void *arena, const char *prefix, struct tensor *tensors) {
    struct device *device = &mlp->compute->device;
    const size_t size = dtype_size(mlp->dtype), bytes = mlp->parameter_elements * size;
    char *copy = malloc(bytes);
    if (!copy) return status_set(STATUS_FAILED, "out of memory: %s needed", text_bytes((double)bytes).text);
    device->driver->download(device, copy, arena, bytes);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < 2 * mlp->depth && !status; i++) {
        const struct parameter parameter = parameter_at(mlp, i, prefix);
        void *data = malloc(parameter.in * parameter.out * size);
        if (!data) {
            status = status_set(STATUS_FAILED, "out of memory");
            break;
        }
        transpose(data, mlp_counterpart(mlp, parameter.memory, copy), parameter.in, parameter.out, size);
        tensors[i] = (struct tensor){.dtype = mlp->dtype, .rank = parameter.bias ? 1 : 2, .data = data};
        memcpy(tensors[i].name, parameter.name, sizeof parameter.name);
        tensors[i].shape[0] = parameter.out;
        if (!parameter.bias) tensors[i].shape[1] = parameter.in;
    }
    free(copy);
    return status;
}

/* --- writing --- */

enum { STATE_KEYS = 8, BEST_KEYS = 3, STATE_TEXT = 64 };

/* The state as text; doubles in hexadecimal, which is exact. */
static size_t state_metadata(const struct train_state *state, int64_t seed, char text[STATE_KEYS][STATE_TEXT],
                             struct metadata *metadata) {
    static const char *const keys[STATE_KEYS] = {"tessera.epoch",  "tessera.step",    "tessera.loss_sum",
                                                 "tessera.images", "tessera.correct", "tessera.batches",
                                                 "tessera.rng",    "tessera.updates"};
    snprintf(text[0], STATE_TEXT, "%" PRId64, state->epoch);
    snprintf(text[1], STATE_TEXT, "%" PRId64, state->step);
    snprintf(text[2], STATE_TEXT, "%a", state->tally.loss_sum);
    snprintf(text[3], STATE_TEXT, "%" PRIu64, state->tally.images);
    snprintf(text[4], STATE_TEXT, "%" PRIu64, state->tally.correct);
    snprintf(text[5], STATE_TEXT, "%" PRIu64, state->tally.batches);
    snprintf(text[6], STATE_TEXT, "philox4x32-10 seed %" PRId64, seed);
    snprintf(text[7], STATE_TEXT, "%" PRIu64, state->updates);
    for (size_t i = 0; i < STATE_KEYS; i++) metadata[i] = (struct metadata){keys[i], text[i]};
    return STATE_KEYS;
}

static size_t best_metadata(const struct best_epoch *best, char text[BEST_KEYS][STATE_TEXT],
                            struct metadata *metadata) {
    static const char *const keys[BEST_KEYS] = {"tessera.best_epoch", "tessera.best_correct",
                                                "tessera.best_loss"};
    if (!best->epoch) return 0;
    snprintf(text[0], STATE_TEXT, "%" PRId64, best->epoch);
    snprintf(text[1], STATE_TEXT, "%" PRIu64, best->correct);
    snprintf(text[2], STATE_TEXT, "%a", best->loss);
    for (size_t i = 0; i < BEST_KEYS; i++) metadata[i] = (struct metadata){keys[i], text[i]};
    return BEST_KEYS;
}

/* The recipe as the text of a config file; to be freed. */
static char *recipe_text(const struct config *config) {
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (!memory) return NULL;
    config_dump(config, memory, true, false);
    fclose(memory);
    return text;
}

enum status checkpoint_save(const char *path, struct mlp *mlp, const struct config *config,
                            const struct train_state *state) {
    const size_t arenas = state ? mlp->kept_count : 0;
    const size_t parameters = 2 * mlp->depth, count = (1 + arenas) * parameters;
    char state_text[STATE_KEYS][STATE_TEXT], best_text[BEST_KEYS][STATE_TEXT];
    char *recipe = recipe_text(config);
    struct tensor *tensors = calloc(count, sizeof *tensors);
    struct metadata metadata[3 + STATE_KEYS + BEST_KEYS] = {
        {"format", "pt"}, {"tessera.version", TESSERA_VERSION}, {"tessera.config", recipe}};
    size_t entries = 3;
    if (state) entries += state_metadata(state, config->seed, state_text, metadata + entries);
    if (state) entries += best_metadata(&state->best, best_text, metadata + entries);

    enum status status = recipe && tensors ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    if (!status) status = collect(mlp, mlp->parameters, "", tensors);
    for (size_t i = 0; i < arenas && !status; i++)
        status = collect(mlp, mlp->kept[i].memory, mlp->kept[i].prefix, tensors + (1 + i) * parameters);
    if (!status) status = safetensors_write(path, tensors, count, metadata, entries);
    for (size_t i = 0; tensors && i < count; i++) free((void *)tensors[i].data);
    free(tensors);
    free(recipe);
    return status;
}

/* --- reading --- */

enum status checkpoint_open(struct checkpoint *checkpoint, const char *path) {
    return safetensors_read(&checkpoint->file, path);
}

void checkpoint_close(struct checkpoint *checkpoint) {
    safetensors_free(&checkpoint->file);
}

static enum status bad(const struct checkpoint *checkpoint, const char *what) {
    return status_set(STATUS_BAD_DATA, "the checkpoint '%s' %s", checkpoint->file.path, what);
}

/* layers and dtype from the shapes of layers.0.weight, layers.1.weight ... */
static enum status recipe_from_shapes(const struct checkpoint *checkpoint, struct config *config) {
    char layers[CONFIG_TEXT] = "", name[TENSOR_NAME];
    const struct tensor *first = NULL;
    for (size_t l = 0;; l++) {
        snprintf(name, sizeof name, "layers.%zu.weight", l);
        const struct tensor *weight = safetensors_find(&checkpoint->file, name);
        if (!weight || weight->rank != 2) break;
        if (!first) {
            first = weight;
            text_append(layers, sizeof layers, "%zu", weight->shape[1]);
        }
        text_append(layers, sizeof layers, "-%zu", weight->shape[0]);
    }
    if (!first) return bad(checkpoint, "has no tensor layers.0.weight: it is not of a perceptron");
    enum status status = config_set(config, "layers", layers, FROM_CHECKPOINT, checkpoint->file.path);
    if (!status)
        status =
            config_set(config, "dtype", dtype_name(first->dtype), FROM_CHECKPOINT, checkpoint->file.path);
    return status;
}

enum status checkpoint_recipe(const struct checkpoint *checkpoint, struct config *config) {
    const char *recipe = safetensors_metadata(&checkpoint->file, "tessera.config");
    const enum status status = recipe ? config_parse(config, recipe, FROM_CHECKPOINT, checkpoint->file.path)
                                      : recipe_from_shapes(checkpoint, config);
    return status == STATUS_USAGE ? STATUS_BAD_DATA : status; /* a wrong key in a file is not the user's */
}

static enum status check_tensor(const struct checkpoint *checkpoint, const struct mlp *mlp,
                                const struct parameter *wanted, const struct tensor *tensor) {
    char what[400];
    if (!tensor) {
        snprintf(what, sizeof what, "has no tensor %s: it is of another network", wanted->name);
        return bad(checkpoint, what);
    }
    if (tensor->dtype != mlp->dtype) {
        snprintf(what, sizeof what, "holds %s, not %s: use --dtype %s", dtype_name(tensor->dtype),
                 dtype_name(mlp->dtype), dtype_name(tensor->dtype));
        return bad(checkpoint, what);
    }
    const size_t in = tensor->rank == 2 ? tensor->shape[1] : 1;
    if (tensor->rank == (wanted->bias ? 1u : 2u) && tensor->shape[0] == wanted->out && in == wanted->in)
        return STATUS_OK;
    snprintf(what, sizeof what,
             "is of another architecture: its %s goes from %zu to %zu, the network's from %zu to %zu",
             wanted->name, in, tensor->shape[0], wanted->in, wanted->out);
    return bad(checkpoint, what);
}

/* The tensors named with `prefix` into an arena laid out as the parameters. */
static enum status restore_arena(const struct checkpoint *checkpoint, struct mlp *mlp, const char *prefix,
                                 void *arena) {
    struct device *device = &mlp->compute->device;
    const size_t size = dtype_size(mlp->dtype), bytes = mlp->parameter_elements * size;
    char *copy = calloc(bytes, 1);
    if (!copy) return status_set(STATUS_FAILED, "out of memory: %s needed", text_bytes((double)bytes).text);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < 2 * mlp->depth && !status; i++) {
        const struct parameter wanted = parameter_at(mlp, i, prefix);
        const struct tensor *tensor = safetensors_find(&checkpoint->file, wanted.name);
        status = check_tensor(checkpoint, mlp, &wanted, tensor);
        if (!status)
            transpose(mlp_counterpart(mlp, wanted.memory, copy), tensor->data, wanted.out, wanted.in, size);
    }
    if (!status) device->driver->upload(device, arena, copy, bytes);
    if (!status && arena == mlp->parameters) mlp_parameters_changed(mlp);
    free(copy);
    return status;
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
        return bad(checkpoint, "has a best epoch that cannot be read");
    best->correct = (uint64_t)correct;
    return STATUS_OK;
}

/* A file without state (--save-init, or made elsewhere) stands at the start. */
static enum status read_state(const struct checkpoint *checkpoint, struct train_state *state) {
    int64_t images, correct, batches, updates;
    *state = (struct train_state){0};
    if (!safetensors_metadata(&checkpoint->file, "tessera.epoch")) return STATUS_OK;
    const char *loss = safetensors_metadata(&checkpoint->file, "tessera.loss_sum");
    if (!state_integer(checkpoint, "tessera.epoch", &state->epoch) ||
        !state_integer(checkpoint, "tessera.step", &state->step) ||
        !state_integer(checkpoint, "tessera.images", &images) ||
        !state_integer(checkpoint, "tessera.correct", &correct) ||
        !state_integer(checkpoint, "tessera.batches", &batches) || !loss ||
        !state_integer(checkpoint, "tessera.updates", &updates) || updates < state->step ||
        !text_parse_real(loss, &state->tally.loss_sum))
        return bad(checkpoint, "has training state that cannot be read");
    state->updates = (uint64_t)updates;
    state->tally.images = (uint64_t)images;
    state->tally.correct = (uint64_t)correct;
    state->tally.batches = (uint64_t)batches;
    return read_best(checkpoint, &state->best);
}

/* One of the arenas that the network keeps. */
static enum status restore_kept(const struct checkpoint *checkpoint, struct mlp *mlp,
                                const struct mlp_kept *kept, struct train_state *state) {
    char what[300];
    snprintf(what, sizeof what, "%slayers.0.weight", kept->prefix);
    if (safetensors_find(&checkpoint->file, what))
        return restore_arena(checkpoint, mlp, kept->prefix, kept->memory);
    switch (kept->absent) {
    case ABSENT_IS_THE_WEIGHTS:
        return restore_arena(checkpoint, mlp, "", kept->memory);
    case ABSENT_IS_NOTHING:
        state->best = (struct best_epoch){0};
        return STATUS_OK;
    case ABSENT_IS_AN_ERROR:
        break;
    }
    snprintf(
        what, sizeof what,
        "was trained with another optimizer or without momentum, and has no %slayers.N to go on with: use "
        "its --optimizer and --momentum",
        kept->prefix);
    return bad(checkpoint, what);
}

static enum status restore_weights(const struct checkpoint *checkpoint, struct mlp *mlp, const char *prefix) {
    char extra[TENSOR_NAME];
    snprintf(extra, sizeof extra, "layers.%zu.weight", mlp->depth);
    if (safetensors_find(&checkpoint->file, extra))
        return bad(checkpoint, "is of another architecture: it has more layers than the network");
    return restore_arena(checkpoint, mlp, prefix, mlp->parameters);
}

enum status checkpoint_restore(const struct checkpoint *checkpoint, struct mlp *mlp,
                               struct train_state *state) {
    enum status status = restore_weights(checkpoint, mlp, "");
    if (!status && state) status = read_state(checkpoint, state);
    if (status || !state) return status;
    if (state->epoch == 0 && state->step == 0) return STATUS_OK; /* all of it starts at zero */
    for (size_t i = 0; i < mlp->kept_count && !status; i++)
        status = restore_kept(checkpoint, mlp, &mlp->kept[i], state);
    return status;
}

enum status checkpoint_restore_average(const struct checkpoint *checkpoint, struct mlp *mlp) {
    if (!safetensors_find(&checkpoint->file, "ema.layers.0.weight"))
        return status_set(STATUS_USAGE,
                          "the checkpoint '%s' has no moving average of the weights: it was trained without "
                          "--ema-decay",
                          checkpoint->file.path);
    return restore_weights(checkpoint, mlp, "ema.");
}

enum status checkpoint_check_epoch(const struct checkpoint *checkpoint, const struct config *config,
                                   const struct train_state *state, size_t batch, size_t steps) {
    static const char *const keys[] = {"batch-size", "seed", "shuffle", "validation"};
    const struct tally *tally = &state->tally;
    struct config kept;
    char what[400];
    if (state->epoch > INT32_MAX || (size_t)state->step >= steps || tally->batches != (uint64_t)state->step ||
        (state->step > 0 && tally->correct > tally->images))
        return bad(
            checkpoint,
            "stands at an epoch and step that cannot be: it was trained on other data, or is corrupted");
    if (state->step == 0) return STATUS_OK;
    config_defaults(&kept);
    const enum status status = checkpoint_recipe(checkpoint, &kept);
    if (status) return status;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char now[CONFIG_TEXT], then[CONFIG_TEXT];
        config_value(config, config_key_find(keys[i]), now, sizeof now);
        config_value(&kept, config_key_find(keys[i]), then, sizeof then);
        if (strcmp(now, then) == 0) continue;
        snprintf(what, sizeof what,
                 "was written within an epoch: to go on there, %s must be %.100s as then, not %.100s",
                 keys[i], then, now);
        return bad(checkpoint, what);
    }
    if (tally->images == (uint64_t)state->step * batch) return STATUS_OK;
    return bad(checkpoint,
               "has counted another number of images: it was trained on other data, or is corrupted");
}
