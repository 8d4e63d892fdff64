#include "src/nn/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/memstream.h"
#include "src/base/pages.h"
#include "src/base/platform.h"
#include "src/base/text.h"

/* --- tensors --- */

/* A parameter tensor: in memory [in][out] (bias: [1][out]), in the file [out, in] (bias: [out]). */
struct parameter {
    char name[TENSOR_NAME];
    size_t in, out, ld; /* ld in memory */
    const void *memory; /* in the parameter arena on the device */
    bool bias;
};

static struct parameter parameter_at(const struct mlp *mlp, size_t index, const char *prefix) {
    const struct mlp_layer *layer = &mlp->layer[index / 2];
    struct parameter parameter = {.bias = index % 2};
    parameter.in = parameter.bias ? 1 : layer->in;
    parameter.out = layer->out;
    parameter.ld = layer->ld;
    parameter.memory = parameter.bias ? layer->bias : layer->weight;
    snprintf(parameter.name, sizeof parameter.name, "%slayers.%zu.%s", prefix, index / 2,
             parameter.bias ? "bias" : "weight");
    return parameter;
}

/* to[cols][rows] = from[rows][cols]^T, with leading dimensions to_ld and from_ld; `size`-byte elements of any
   alignment. */
static void transpose(void *to, size_t to_ld, const void *from, size_t from_ld, size_t rows, size_t cols,
                      size_t size) {
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            memcpy((char *)to + (c * to_ld + r) * size, (const char *)from + (r * from_ld + c) * size, size);
}

/* Copies an arena from the device and fills `tensors` in the layout of the file. The caller frees
   tensors[i].data. */
static enum status collect(struct mlp *mlp, void *arena, const char *prefix, struct tensor *tensors) {
    struct device *device = &mlp->compute->device;
    const size_t size = dtype_size(mlp->dtype), bytes = mlp->parameter_elements * size;
    char *copy = pages_alloc(bytes);
    if (!copy) return STATUS_FAILED;
    device->driver->download(device, copy, arena, bytes);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < 2 * mlp->depth && !status; i++) {
        const struct parameter parameter = parameter_at(mlp, i, prefix);
        void *data = pages_alloc(parameter.in * parameter.out * size);
        if (!data) {
            status = STATUS_FAILED;
            break;
        }
        transpose(data, parameter.in, mlp_counterpart(mlp, parameter.memory, copy), parameter.ld,
                  parameter.in, parameter.out, size);
        tensors[i] = (struct tensor){.dtype = mlp->dtype, .rank = parameter.bias ? 1 : 2, .data = data};
        memcpy(tensors[i].name, parameter.name, sizeof parameter.name);
        tensors[i].shape[0] = parameter.out;
        if (!parameter.bias) tensors[i].shape[1] = parameter.in;
    }
    free(copy);
    return status;
}

/* --- writing --- */

enum { IMAGE_KEYS = 2 };

struct image_text {
    char size[48], classes[CLASSES_TEXT + 1];
};

/* The recipe as the text of a config file, in UTF-8; the caller frees it. */
static char *recipe_text(const struct config *config) {
    struct memstream memory;
    enum status status = memstream_open(&memory);
    if (!status) config_dump(config, memory.out, true, false);
    status = memstream_close(&memory, status);
    char *clean = status ? NULL : text_utf8(memory.text);
    free(memory.text);
    return clean;
}

/* Size and classes of the images, as metadata; returns the number of entries. */
static size_t write_images(const struct dataset_pair *data, struct image_text *text,
                           struct metadata *entries) {
    if (!data) return 0;
    snprintf(text->size, sizeof text->size, "%zux%zu", data->test.height, data->test.width);
    classes_text(&data->classes, text->classes);
    entries[0] = (struct metadata){"tessera.image_size", text->size};
    entries[1] = (struct metadata){"tessera.classes", text->classes};
    return data->classes.count ? 2 : 1;
}

enum status checkpoint_write(const char *path, const struct tensor *tensors, size_t count,
                             const struct config *config, const struct dataset_pair *data,
                             const struct train_state *state) {
    struct train_state_text text;
    struct image_text images;
    char *recipe = recipe_text(config);
    struct metadata metadata[3 + IMAGE_KEYS + TRAIN_STATE_KEYS] = {
        {"format", "pt"}, {"tessera.version", TESSERA_VERSION}, {"tessera.config", recipe}};
    size_t entries = 3;
    if (!recipe) return status_set(STATUS_FAILED, "out of memory");
    entries += write_images(data, &images, metadata + entries);
    if (state) entries += train_state_write(state, config->seed, &text, metadata + entries);
    const enum status status = safetensors_write(path, tensors, count, metadata, entries);
    free(recipe);
    return status;
}

enum status checkpoint_save(const char *path, struct mlp *mlp, const struct config *config,
                            const struct dataset_pair *data, const struct train_state *state) {
    const size_t arenas = state ? mlp->state_count : 0;
    const size_t parameters = 2 * mlp->depth, count = (1 + arenas) * parameters;
    struct tensor *tensors = calloc(count, sizeof *tensors);
    enum status status = tensors ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    if (!status) status = collect(mlp, mlp->parameters, "", tensors);
    for (size_t i = 0; i < arenas && !status; i++)
        status = collect(mlp, mlp->state[i].memory, mlp->state[i].prefix, tensors + (1 + i) * parameters);
    if (!status) status = checkpoint_write(path, tensors, count, config, data, state);
    for (size_t i = 0; tensors && i < count; i++) free((void *)tensors[i].data);
    free(tensors);
    return status;
}

enum status checkpoint_writable(const char *path) {
    struct stat info;
    struct checkpoint old;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0)
        return safetensors_writable(path);
    enum status status = safetensors_read_header(&old.file, path);
    if (!status && !safetensors_find(&old.file, "layers.0.weight"))
        status = status_set(STATUS_BAD_DATA, "'%s' has no tensor layers.0.weight", path);
    checkpoint_close(&old);
    if (!status) return safetensors_writable(path);
    if (status != STATUS_BAD_DATA) return status;
    return status_set(STATUS_USAGE,
                      "the file '%s' exists and is not a checkpoint: it is not replaced. Save under another "
                      "name, or remove it first (%s)",
                      path, status_message());
}

/* --- reading --- */

enum status checkpoint_open(struct checkpoint *checkpoint, const char *path) {
    return safetensors_read(&checkpoint->file, path);
}

void checkpoint_close(struct checkpoint *checkpoint) {
    safetensors_free(&checkpoint->file);
}

/* Sets layers and dtype from layers.0.weight, layers.1.weight ... */
static enum status recipe_from_shapes(const struct checkpoint *checkpoint, struct config *config) {
    char layers[CONFIG_TEXT] = "", name[TENSOR_NAME];
    const char *path = checkpoint->file.path;
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
    if (!first)
        return status_set(STATUS_BAD_DATA,
                          "the checkpoint '%s' has no tensor layers.0.weight: it is not a perceptron", path);
    const enum status status = config_set(config, "layers", layers, FROM_CHECKPOINT, path);
    return status ? status : config_set(config, "dtype", dtype_name(first->dtype), FROM_CHECKPOINT, path);
}

/* The network of the recipe is allocated before its weights are read: its layers must be those of the
   tensors. */
static enum status check_layers(const struct checkpoint *checkpoint, const struct config *config) {
    const struct layer_list *layers = &config->layers;
    if (config_origin_of(config, "layers") != FROM_CHECKPOINT) return STATUS_OK;
    for (size_t l = 0; l + 1 < layers->count; l++) {
        char name[TENSOR_NAME];
        snprintf(name, sizeof name, "layers.%zu.weight", l);
        const struct tensor *weight = safetensors_find(&checkpoint->file, name);
        if (!weight || weight->rank != 2 || weight->shape[0] != layers->width[l + 1] ||
            weight->shape[1] != layers->width[l])
            return status_set(STATUS_BAD_DATA,
                              "the checkpoint '%s' has no tensor %s with the %zu x %zu "
                              "weights of its recipe (corrupted)",
                              checkpoint->file.path, name, layers->width[l + 1], layers->width[l]);
    }
    return STATUS_OK;
}

enum status checkpoint_recipe(const struct checkpoint *checkpoint, struct config *config) {
    const char *recipe = safetensors_metadata(&checkpoint->file, "tessera.config");
    enum status status = recipe ? config_parse(config, recipe, FROM_CHECKPOINT, checkpoint->file.path)
                                : recipe_from_shapes(checkpoint, config);
    if (!status) status = check_layers(checkpoint, config);
    return status == STATUS_USAGE ? STATUS_BAD_DATA : status; /* the checkpoint is wrong, not a flag */
}

/* "28x28" */
static bool parse_size(const char *text, struct image_kind *kind) {
    enum { MOST = 1 << 20 };
    char height[16];
    int64_t rows, columns;
    const char *cross = strchr(text, 'x');
    if (!cross || cross - text >= (ptrdiff_t)sizeof height) return false;
    snprintf(height, sizeof height, "%.*s", (int)(cross - text), text);
    if (!text_parse_int(height, &rows) || !text_parse_int(cross + 1, &columns) || rows < 1 || rows > MOST ||
        columns < 1 || columns > MOST)
        return false;
    kind->height = (size_t)rows;
    kind->width = (size_t)columns;
    return true;
}

enum status checkpoint_images(const struct checkpoint *checkpoint, struct image_kind *kind) {
    const char *path = checkpoint->file.path;
    const char *size = safetensors_metadata(&checkpoint->file, "tessera.image_size"),
               *classes = safetensors_metadata(&checkpoint->file, "tessera.classes");
    *kind = (struct image_kind){0};
    if (size && !parse_size(size, kind))
        return status_set(STATUS_BAD_DATA, "the checkpoint '%s' has an invalid tessera.image_size", path);
    return classes ? classes_parse(&kind->classes, classes, path) : STATUS_OK;
}

enum status checkpoint_adopt_classes(const struct checkpoint *checkpoint, struct dataset_pair *data) {
    struct image_kind kind;
    const enum status status = checkpoint_images(checkpoint, &kind);
    return status ? status : dataset_adopt_classes(data, &kind.classes);
}

static enum status check_tensor(const struct checkpoint *checkpoint, const struct mlp *mlp,
                                const struct parameter *wanted, const struct tensor *tensor) {
    const char *path = checkpoint->file.path;
    if (!tensor)
        return status_set(STATUS_BAD_DATA, "the checkpoint '%s' has no tensor %s: it is of another network",
                          path, wanted->name);
    if (tensor->dtype != mlp->dtype)
        return status_set(STATUS_BAD_DATA, "the checkpoint '%s' holds %s, not %s: use --dtype %s", path,
                          dtype_name(tensor->dtype), dtype_name(mlp->dtype), dtype_name(tensor->dtype));
    const size_t in = tensor->rank == 2 ? tensor->shape[1] : 1;
    if (tensor->rank == (wanted->bias ? 1u : 2u) && tensor->shape[0] == wanted->out && in == wanted->in)
        return STATUS_OK;
    return status_set(STATUS_BAD_DATA,
                      "the checkpoint '%s' is of another architecture: its %s maps %zu to %zu, the network's "
                      "maps %zu to %zu",
                      path, wanted->name, in, tensor->shape[0], wanted->in, wanted->out);
}

/* Uploads the tensors with this prefix to an arena of the parameters' layout. */
static enum status restore_arena(const struct checkpoint *checkpoint, struct mlp *mlp, const char *prefix,
                                 void *arena) {
    struct device *device = &mlp->compute->device;
    const size_t size = dtype_size(mlp->dtype), bytes = mlp->parameter_elements * size;
    if (pages_check(bytes)) return STATUS_FAILED;
    char *copy = calloc(bytes, 1);
    if (!copy) return status_set(STATUS_FAILED, "out of memory: %s needed", text_bytes((double)bytes).text);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < 2 * mlp->depth && !status; i++) {
        const struct parameter wanted = parameter_at(mlp, i, prefix);
        const struct tensor *tensor = safetensors_find(&checkpoint->file, wanted.name);
        status = check_tensor(checkpoint, mlp, &wanted, tensor);
        if (!status)
            transpose(mlp_counterpart(mlp, wanted.memory, copy), wanted.ld, tensor->data, wanted.in,
                      wanted.out, wanted.in, size);
    }
    if (!status) device->driver->upload(device, arena, copy, bytes);
    if (!status && arena == mlp->parameters) mlp_parameters_changed(mlp);
    free(copy);
    return status;
}

/* Restores one state arena of the network. */
static enum status restore_state(const struct checkpoint *checkpoint, struct mlp *mlp,
                                 const struct mlp_state *arena, struct train_state *state) {
    char name[TENSOR_NAME];
    snprintf(name, sizeof name, "%slayers.0.weight", arena->prefix);
    if (safetensors_find(&checkpoint->file, name))
        return restore_arena(checkpoint, mlp, arena->prefix, arena->memory);
    switch (arena->missing) {
    case MISSING_COPIES_WEIGHTS:
        return restore_arena(checkpoint, mlp, "", arena->memory);
    case MISSING_IS_EMPTY:
        state->best = (struct best_epoch){0};
        return STATUS_OK;
    case MISSING_IS_AN_ERROR:
        break;
    }
    return status_set(
        STATUS_BAD_DATA,
        "the checkpoint '%s' was trained with another optimizer or without momentum, and has no "
        "%slayers.N to resume from: use its --optimizer and --momentum",
        checkpoint->file.path, arena->prefix);
}

static enum status restore_weights(const struct checkpoint *checkpoint, struct mlp *mlp, const char *prefix) {
    char extra[TENSOR_NAME];
    snprintf(extra, sizeof extra, "layers.%zu.weight", mlp->depth);
    if (safetensors_find(&checkpoint->file, extra))
        return status_set(
            STATUS_BAD_DATA,
            "the checkpoint '%s' is of another architecture: it has more layers than the network",
            checkpoint->file.path);
    return restore_arena(checkpoint, mlp, prefix, mlp->parameters);
}

enum status checkpoint_restore(const struct checkpoint *checkpoint, struct mlp *mlp,
                               struct train_state *state) {
    enum status status = restore_weights(checkpoint, mlp, "");
    if (!status && state) status = train_state_read(&checkpoint->file, state);
    if (status || !state) return status;
    if (state->epoch == 0 && state->step == 0) return STATUS_OK; /* state tensors start at zero */
    for (size_t i = 0; i < mlp->state_count && !status; i++)
        status = restore_state(checkpoint, mlp, &mlp->state[i], state);
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
