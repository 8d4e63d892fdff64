#include "src/nn/mlp.h"

#include <stdlib.h>

#include "kernels/activation.h"
#include "src/base/text.h"

/* --- arenas --- */

/* Weights begin at a multiple of 4096 bytes from the start of their arena. If the arena itself begins at one,
   rows of 2^n bytes are whole cache lines. */
enum { ALIGNMENT = 64, WEIGHT_ALIGNMENT = 4096 };

/* A bump allocator. With base NULL it only counts bytes. */
struct arena {
    char *base;
    size_t used;
    bool overflow;
};

static void arena_align(struct arena *arena, size_t alignment) {
    arena->used = (arena->used + alignment - 1) / alignment * alignment;
}

static void *arena_take(struct arena *arena, size_t rows, size_t cols, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(rows, cols, &bytes) || __builtin_mul_overflow(bytes, size, &bytes) ||
        bytes > SIZE_MAX / 2 - arena->used) {
        arena->overflow = true;
        return NULL;
    }
    void *piece = arena->base ? arena->base + arena->used : NULL;
    arena->used += bytes;
    arena_align(arena, ALIGNMENT);
    return piece;
}

/* Biases first: what products have not updated, or processes have not yet summed, is then in few pieces. */
static void lay_out_parameters(struct mlp *mlp, struct arena *values, struct arena *gradients) {
    const size_t size = dtype_size(mlp->dtype);
    for (size_t l = 0; l < mlp->depth; l++) {
        struct mlp_layer *layer = &mlp->layer[l];
        layer->bias = arena_take(values, 1, layer->ld, size);
        layer->bias_grad = arena_take(gradients, 1, layer->ld, size);
    }
    for (size_t l = 0; l < mlp->depth; l++) {
        struct mlp_layer *layer = &mlp->layer[l];
        arena_align(values, WEIGHT_ALIGNMENT);
        arena_align(gradients, WEIGHT_ALIGNMENT);
        layer->weight = arena_take(values, mlp_input_ld(mlp, l), layer->ld, size);
        layer->weight_grad = arena_take(gradients, mlp_input_ld(mlp, l), layer->ld, size);
    }
}

/* ReLU outputs are dropped in place: a dropped output is 0, where the derivative is 0 too, so the backward
   pass only has to scale. */
static bool drops_in_place(const struct mlp *mlp, size_t l) {
    return mlp->hidden_dropout == 0 || l + 1 == mlp->depth || mlp->layer[l].activation == ACTIVATION_RELU;
}

static void lay_out_activations(struct mlp *mlp, struct arena *arena) {
    const size_t size = dtype_size(mlp->activation_dtype), rows = mlp->capacity;
    mlp->input = mlp->dropped_input = arena_take(arena, rows, mlp->layer[0].in, size);
    if (mlp->adversarial > 0) mlp->input_grad = arena_take(arena, rows, mlp->layer[0].in, size);
    if (mlp->adversarial > 0 && mlp->input_dropout > 0) mlp->dropped_input = mlp->input_grad;
    mlp->labels = arena_take(arena, rows, 1, 1);
    for (size_t l = 0; l < mlp->depth; l++) {
        struct mlp_layer *layer = &mlp->layer[l];
        layer->pre = arena_take(arena, rows, layer->ld, size);
        layer->output =
            activation_needs_input(layer->activation) ? arena_take(arena, rows, layer->ld, size) : layer->pre;
        layer->dropped = drops_in_place(mlp, l) ? layer->output : arena_take(arena, rows, layer->ld, size);
        layer->grad = arena_take(arena, rows, layer->ld, size);
    }
}

/* The element of the low-precision copy that corresponds to `weight`; without a copy, `weight`. */
static const void *gemm_weight_of(const struct mlp *mlp, const void *weight) {
    const size_t bytes = (size_t)((const char *)weight - (const char *)mlp->parameters);
    return mlp->low_precision ? (const char *)mlp->low_precision +
                                    bytes / dtype_size(mlp->dtype) * dtype_size(mlp->activation_dtype)
                              : weight;
}

static enum status allocate(struct mlp *mlp) {
    struct device *device = &mlp->compute->device;
    struct arena values = {0}, gradients = {0}, activations = {0};
    lay_out_parameters(mlp, &values, &gradients);
    lay_out_activations(mlp, &activations);
    if (values.overflow || gradients.overflow || activations.overflow)
        return status_set(STATUS_FAILED,
                          "the network does not fit into the address space: use smaller layers");

    values.base = mlp->parameters = device->driver->alloc(device, values.used);
    gradients.base = mlp->gradients = values.base ? device->driver->alloc(device, gradients.used) : NULL;
    activations.base = mlp->activations =
        gradients.base ? device->driver->alloc(device, activations.used) : NULL;
    mlp->parameter_elements = values.used / dtype_size(mlp->dtype);
    const size_t low_precision_bytes =
        mlp->activation_dtype == mlp->dtype ? 0 : mlp->parameter_elements * dtype_size(mlp->activation_dtype);
    if (activations.base && low_precision_bytes)
        mlp->low_precision = device->driver->alloc(device, low_precision_bytes);
    if (!activations.base || (low_precision_bytes && !mlp->low_precision))
        return status_context(STATUS_FAILED,
                              "the network needs %s for weights and gradients and %s for activations",
                              text_bytes((double)(values.used + gradients.used + low_precision_bytes)).text,
                              text_bytes((double)activations.used).text);
    values.used = gradients.used = activations.used = 0;
    lay_out_parameters(mlp, &values, &gradients);
    lay_out_activations(mlp, &activations);
    for (size_t l = 0; l < mlp->depth; l++)
        mlp->layer[l].gemm_weight = gemm_weight_of(mlp, mlp->layer[l].weight);
    return STATUS_OK;
}

/* The width of layer l in memory: in tf32 and mixed precision rounded up to the row alignment of the device.
   Padding stays zero, because its weights and biases are zero and act(0) = 0. Layers are not padded if
   act(0) != 0 (sigmoid), or with dropout, whose random numbers are indexed by element; nor are the logits. */
static size_t padded_width(const struct mlp *mlp, size_t l) {
    const struct mlp_layer *layer = &mlp->layer[l];
    const size_t step = mlp->compute->device.driver->row_alignment;
    if (mlp->compute->precision == GEMM_TRUE || l + 1 == mlp->depth ||
        activate(layer->activation, 0.0) != 0 || mlp->hidden_dropout > 0)
        return layer->out;
    return (layer->out + step - 1) / step * step;
}

/* Shapes, dtypes and rates; allocates nothing. */
static struct mlp describe(struct compute *compute, const struct config *config, size_t capacity) {
    struct mlp mlp = {
        .compute = compute,
        .dtype = (enum gemm_dtype)config->dtype,
        .activation_dtype = dtype_of_operands(compute->precision, (enum gemm_dtype)config->dtype),
        .gradient_scale = 1,
        .depth = config->layers.count - 1,
        .capacity = capacity,
        .many_rows = 2048,
        .input_dropout = config->input_dropout,
        .hidden_dropout = config->dropout,
        .seed = (uint64_t)config->seed,
        .adversarial = config->adversarial * input_width((enum input_range)config->input_range)};
    mlp.ops = compute->device.driver->ops(&compute->device, mlp.activation_dtype);
    for (size_t l = 0; l < mlp.depth; l++) {
        mlp.layer[l].in = config->layers.width[l];
        mlp.layer[l].out = config->layers.width[l + 1];
        mlp.layer[l].activation = l + 1 < mlp.depth ? (enum activation)config->activation : ACTIVATION_NONE;
        mlp.layer[l].ld = padded_width(&mlp, l);
    }
    return mlp;
}

struct layer_list mlp_widths(struct compute *compute, const struct config *config) {
    const struct mlp mlp = describe(compute, config, 0);
    struct layer_list widths = config->layers;
    for (size_t l = 0; l < mlp.depth; l++) widths.width[l + 1] = mlp.layer[l].ld;
    return widths;
}

enum status mlp_open(struct mlp *mlp, struct compute *compute, const struct config *config, size_t capacity) {
    *mlp = describe(compute, config, capacity);
    const enum status status = allocate(mlp);
    if (status) mlp_close(mlp);
    return status;
}

static void lay_out_next(struct mlp *mlp, struct arena *arena) {
    mlp->next.input = arena_take(arena, mlp->capacity, mlp->layer[0].in, dtype_size(mlp->activation_dtype));
    mlp->next.labels = arena_take(arena, mlp->capacity, 1, 1);
}

enum status mlp_open_next(struct mlp *mlp) {
    struct device *device = &mlp->compute->device;
    struct arena arena = {0};
    if (mlp->next.input) return STATUS_OK;
    lay_out_next(mlp, &arena);
    arena.base = mlp->next.memory = device->driver->alloc(device, arena.used);
    if (!arena.base)
        return status_context(STATUS_FAILED, "the images of the next batch need %s",
                              text_bytes((double)arena.used).text);
    arena.used = 0;
    lay_out_next(mlp, &arena);
    return STATUS_OK;
}

void mlp_advance(struct mlp *mlp) {
    void *const input = mlp->input;
    uint8_t *const labels = mlp->labels;
    if (mlp->dropped_input == input) mlp->dropped_input = mlp->next.input;
    mlp->input = mlp->next.input;
    mlp->labels = mlp->next.labels;
    mlp->next.input = input;
    mlp->next.labels = labels;
}

void mlp_close(struct mlp *mlp) {
    if (!mlp->compute) return;
    struct device *device = &mlp->compute->device;
    device->driver->free(device, mlp->parameters);
    device->driver->free(device, mlp->gradients);
    device->driver->free(device, mlp->activations);
    device->driver->free(device, mlp->low_precision);
    device->driver->free(device, mlp->next.memory);
    for (size_t i = 0; i < mlp->state_count; i++) device->driver->free(device, mlp->state[i].memory);
    *mlp = (struct mlp){0};
}

enum status mlp_add_state(struct mlp *mlp, const char *prefix, enum mlp_missing missing, void **memory) {
    struct device *device = &mlp->compute->device;
    const size_t bytes = mlp->parameter_elements * dtype_size(mlp->dtype);
    *memory = device->driver->alloc(device, bytes);
    if (!*memory)
        return status_context(STATUS_FAILED, "%s needed for %slayers.N, as much as for the weights",
                              text_bytes((double)bytes).text, prefix);
    mlp->state[mlp->state_count++] = (struct mlp_state){prefix, *memory, missing};
    return STATUS_OK;
}

struct mlp mlp_with_parameters(const struct mlp *mlp, void *parameters) {
    struct mlp other = *mlp;
    other.parameters = parameters;
    for (size_t l = 0; l < mlp->depth; l++) {
        struct mlp_layer *layer = &other.layer[l];
        layer->weight = mlp_counterpart(mlp, layer->weight, parameters);
        layer->bias = mlp_counterpart(mlp, layer->bias, parameters);
        layer->gemm_weight = gemm_weight_of(&other, layer->weight);
    }
    return other;
}

size_t mlp_parameter_count(const struct mlp *mlp) {
    size_t count = 0;
    for (size_t l = 0; l < mlp->depth; l++) count += (mlp->layer[l].in + 1) * mlp->layer[l].out;
    return count;
}

void *mlp_counterpart(const struct mlp *mlp, const void *tensor, void *arena) {
    return (char *)arena + ((const char *)tensor - (const char *)mlp->parameters);
}

static void *element_of(const void *memory, size_t index, enum gemm_dtype dtype) {
    return memory ? (char *)memory + index * dtype_size(dtype) : NULL;
}

struct update mlp_update_from(const struct mlp *mlp, const struct update *update, size_t first) {
    struct update part = *update;
    part.weights = element_of(part.weights, first, mlp->dtype);
    part.grad = element_of(part.grad, first, mlp->dtype);
    part.moment1 = element_of(part.moment1, first, mlp->dtype);
    part.moment2 = element_of(part.moment2, first, mlp->dtype);
    part.average = element_of(part.average, first, mlp->dtype);
    part.rounded = element_of(part.rounded, first, mlp->activation_dtype);
    return part;
}

size_t mlp_first_weight(const struct mlp *mlp, size_t l) {
    const char *const first = mlp->parameters;
    return l < mlp->depth ? (size_t)((const char *)mlp->layer[l].weight - first) / dtype_size(mlp->dtype)
                          : mlp->parameter_elements;
}

size_t mlp_ranges_left(const struct mlp *mlp, struct mlp_range *list) {
    size_t first = 0, count = 0;
    for (size_t l = 0; l <= mlp->depth && !mlp->rest_updated; l++) {
        if (l < mlp->depth && !mlp->layer[l].updated && !mlp->layer[l].updated_beside) continue;
        const size_t end = mlp_first_weight(mlp, l);
        if (end > first) list[count++] = (struct mlp_range){first, end - first};
        if (l < mlp->depth) first = mlp_first_weight(mlp, l + 1);
    }
    return count;
}

void mlp_parameters_changed(struct mlp *mlp) {
    if (mlp->low_precision)
        mlp->ops->round(mlp->compute->device.ops_context, mlp->parameter_elements, mlp->parameters,
                        mlp->low_precision);
}
