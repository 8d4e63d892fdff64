#include "src/nn/mlp.h"

#include <stdlib.h>

#include "kernels/dropout.h"
#include "src/base/text.h"

/* --- arenas --- */

enum { ALIGNMENT = 64 };

/* Hands out pieces of an arena; with base NULL it only measures. */
struct arena {
    char *base;
    size_t used;
    bool overflow;
};

static void *arena_take(struct arena *arena, size_t rows, size_t cols, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(rows, cols, &bytes) || __builtin_mul_overflow(bytes, size, &bytes) ||
        bytes > SIZE_MAX / 2 - arena->used) {
        arena->overflow = true;
        return NULL;
    }
    void *piece = arena->base ? arena->base + arena->used : NULL;
    arena->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return piece;
}

/* Elements from one row of what goes into layer l to the next: so many rows have its weights. */
static size_t input_ld(const struct mlp *mlp, size_t l) {
    return l ? mlp->layer[l - 1].ld : mlp->layer[0].in;
}

static void lay_out_parameters(struct mlp *mlp, struct arena *values, struct arena *gradients) {
    const size_t size = dtype_size(mlp->dtype);
    for (size_t l = 0; l < mlp->depth; l++) {
        struct mlp_layer *layer = &mlp->layer[l];
        layer->weight = arena_take(values, input_ld(mlp, l), layer->ld, size);
        layer->bias = arena_take(values, 1, layer->ld, size);
        layer->weight_grad = arena_take(gradients, input_ld(mlp, l), layer->ld, size);
        layer->bias_grad = arena_take(gradients, 1, layer->ld, size);
    }
}

/* Where the output of a hidden layer has dropout. Relu's may be overwritten: its derivative is 0 where it was dropped, and that of
   what stays is the same; the way back is then nothing but the scale. */
static bool drops_in_place(const struct mlp *mlp, size_t l) {
    return mlp->hidden_dropout == 0 || l + 1 == mlp->depth || mlp->layer[l].activation == ACTIVATION_RELU;
}

static void lay_out_activations(struct mlp *mlp, struct arena *arena) {
    const size_t size = dtype_size(mlp->stored), rows = mlp->capacity;
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

/* Where GEMM finds a weight matrix: the same element of the operands. */
static const void *operand_of(const struct mlp *mlp, const void *weight) {
    const size_t bytes = (size_t)((const char *)weight - (const char *)mlp->parameters);
    return mlp->operands
               ? (const char *)mlp->operands + bytes / dtype_size(mlp->dtype) * dtype_size(mlp->stored)
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
    const size_t operand_bytes =
        mlp->stored == mlp->dtype ? 0 : mlp->parameter_elements * dtype_size(mlp->stored);
    if (activations.base && operand_bytes) mlp->operands = device->driver->alloc(device, operand_bytes);
    if (!activations.base || (operand_bytes && !mlp->operands))
        return status_context(STATUS_FAILED,
                              "the network needs %s for weights and gradients and %s for activations",
                              text_bytes((double)(values.used + gradients.used + operand_bytes)).text,
                              text_bytes((double)activations.used).text);
    values.used = gradients.used = activations.used = 0;
    lay_out_parameters(mlp, &values, &gradients);
    lay_out_activations(mlp, &activations);
    for (size_t l = 0; l < mlp->depth; l++) mlp->layer[l].operand = operand_of(mlp, mlp->layer[l].weight);
    return STATUS_OK;
}

/* The width of layer l in memory: in mixed precision what the device likes rows to be. Padding is zero and stays so: no bias, no weights
   on either side, and 0 is the activation of 0 (not so of a sigmoid). There is none in the logits, nor with dropout, which counts
   elements without it. */
static size_t padded_width(const struct mlp *mlp, size_t l) {
    const struct mlp_layer *layer = &mlp->layer[l];
    const size_t size = dtype_size(mlp->stored), bytes = mlp->compute->device.driver->row_bytes,
                 step = bytes > size ? bytes / size : 1;
    if (mlp->stored == mlp->dtype || l + 1 == mlp->depth || layer->activation == ACTIVATION_SIGMOID ||
        mlp->hidden_dropout > 0)
        return layer->out;
    return (layer->out + step - 1) / step * step;
}

enum status mlp_open(struct mlp *mlp, struct compute *compute, const struct config *config, size_t capacity) {
    *mlp = (struct mlp){
        .compute = compute,
        .dtype = (enum gemm_dtype)config->dtype,
        .stored = compute->precision == GEMM_MIXED_BF16 ? GEMM_BF16 : (enum gemm_dtype)config->dtype,
        .depth = config->layers.count - 1,
        .capacity = capacity,
        .input_dropout = config->input_dropout,
        .hidden_dropout = config->dropout,
        .seed = (uint64_t)config->seed,
        .adversarial = config->adversarial * input_width((enum input_range)config->input_range)};
    mlp->ops = compute->device.driver->ops(&compute->device, mlp->stored);
    for (size_t l = 0; l < mlp->depth; l++) {
        mlp->layer[l].in = config->layers.width[l];
        mlp->layer[l].out = config->layers.width[l + 1];
        mlp->layer[l].activation = l + 1 < mlp->depth ? (enum activation)config->activation : ACTIVATION_NONE;
        mlp->layer[l].ld = padded_width(mlp, l);
    }
    const enum status status = allocate(mlp);
    if (status) mlp_close(mlp);
    return status;
}

void mlp_close(struct mlp *mlp) {
    if (!mlp->compute) return;
    struct device *device = &mlp->compute->device;
    device->driver->free(device, mlp->parameters);
    device->driver->free(device, mlp->gradients);
    device->driver->free(device, mlp->activations);
    device->driver->free(device, mlp->operands);
    for (size_t i = 0; i < mlp->kept_count; i++) device->driver->free(device, mlp->kept[i].memory);
    *mlp = (struct mlp){0};
}

enum status mlp_keep(struct mlp *mlp, const char *prefix, enum mlp_absent absent, void **memory) {
    struct device *device = &mlp->compute->device;
    const size_t bytes = mlp->parameter_elements * dtype_size(mlp->dtype);
    *memory = device->driver->alloc(device, bytes);
    if (!*memory)
        return status_context(STATUS_FAILED, "%s for %sN, as much as the weights take",
                              text_bytes((double)bytes).text, prefix);
    mlp->kept[mlp->kept_count++] = (struct mlp_kept){prefix, *memory, absent};
    return STATUS_OK;
}

struct mlp mlp_with_parameters(const struct mlp *mlp, void *parameters) {
    struct mlp other = *mlp;
    other.parameters = parameters;
    for (size_t l = 0; l < mlp->depth; l++) {
        struct mlp_layer *layer = &other.layer[l];
        layer->weight = mlp_counterpart(mlp, layer->weight, parameters);
        layer->bias = mlp_counterpart(mlp, layer->bias, parameters);
        layer->operand = operand_of(&other, layer->weight);
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

void mlp_parameters_changed(struct mlp *mlp) {
    if (mlp->operands)
        mlp->ops->round(mlp->compute->device.ops_context, mlp->parameter_elements, mlp->parameters,
                        mlp->operands);
}

/* --- the passes --- */

static const void *layer_input(const struct mlp *mlp, size_t l, bool training) {
    if (l == 0) return training ? mlp->dropped_input : mlp->input;
    return training ? mlp->layer[l - 1].dropped : mlp->layer[l - 1].output;
}

/* Dropout of what goes into layer l, or of its gradient. */
static void drop(struct mlp *mlp, size_t l, size_t rows, const struct step_scalars *step, const void *in,
                 void *out) {
    struct device *device = &mlp->compute->device;
    const struct dropout dropout = {.rate = l ? mlp->hidden_dropout : mlp->input_dropout,
                                    .seed = mlp->seed,
                                    .layer = (uint32_t)l,
                                    .step = step};
    if (dropout.rate == 0) return;
    mlp->ops->dropout(device->ops_context, rows * mlp->layer[l].in, &dropout, in, out);
    device_lap(device, PART_ELEMENTWISE);
}

/* Of layer l: NN is X W, TN is X^T dZ, NT is dZ W^T; padding is multiplied too. */
static struct gemm_call product(const struct mlp *mlp, size_t l, enum gemm_op op, size_t rows, const void *a,
                                const void *b, void *c) {
    const size_t in = input_ld(mlp, l), out = mlp->layer[l].ld;
    return (struct gemm_call){.dtype = mlp->stored,
                              .op = op,
                              .m = op == GEMM_TN ? in : rows,
                              .n = op == GEMM_NT ? in : out,
                              .k = op == GEMM_NN   ? in
                                   : op == GEMM_TN ? rows
                                                   : out,
                              .alpha = 1,
                              .a = a,
                              .lda = op == GEMM_NT ? out : in,
                              .b = b,
                              .ldb = out,
                              .beta = 0,
                              .c = c,
                              .ldc = op == GEMM_NT ? in : out};
}

/* A product of layer l, timed. */
static enum status multiply(struct mlp *mlp, size_t l, const struct gemm_call *call) {
    static const enum profile_part part[] = {
        [GEMM_NN] = PART_GEMM_NN, [GEMM_TN] = PART_GEMM_TN, [GEMM_NT] = PART_GEMM_NT};
    const enum status status = compute_gemm(mlp->compute, call);
    mlp->compute->device.driver->lap(
        &mlp->compute->device, profile_gemm_slot(part[call->op], l, call->op == GEMM_TN ? call->k : call->m,
                                                 mlp->layer[l].in, mlp->layer[l].out));
    return status;
}

static enum status layer_forward(struct mlp *mlp, size_t l, size_t rows, bool training) {
    struct device *device = &mlp->compute->device;
    const struct mlp_layer *layer = &mlp->layer[l];
    const struct gemm_epilogue epilogue = {.bias = layer->bias,
                                           .activation = layer->activation,
                                           .pre = layer->pre == layer->output ? NULL : layer->pre};
    struct gemm_call call =
        product(mlp, l, GEMM_NN, rows, layer_input(mlp, l, training), layer->operand, layer->output);
    call.epilogue = &epilogue;
    if (compute_fuses(mlp->compute, &call)) return multiply(mlp, l, &call);

    call.epilogue = NULL;
    call.c = layer->pre;
    const enum status status = multiply(mlp, l, &call);
    if (status) return status;
    mlp->ops->bias_activation(device->ops_context, rows, layer->ld, layer->activation, layer->bias,
                              layer->pre, layer->output);
    device_lap(device, PART_ELEMENTWISE);
    return STATUS_OK;
}

enum status mlp_forward(struct mlp *mlp, size_t rows, const struct step_scalars *step) {
    enum status status = STATUS_OK;
    device_range_begin(&mlp->compute->device, "forward");
    if (step) drop(mlp, 0, rows, step, mlp->input, mlp->dropped_input);
    for (size_t l = 0; l < mlp->depth && !status; l++) {
        status = layer_forward(mlp, l, rows, step != NULL);
        if (step && !status && l + 1 < mlp->depth)
            drop(mlp, l + 1, rows, step, mlp->layer[l].output, mlp->layer[l].dropped);
    }
    device_range_end(&mlp->compute->device);
    return status;
}

/* From dL/dY of layer l to dL/dZ and the gradient of its bias. */
static void activation_backward(struct mlp *mlp, size_t l, size_t rows, double keep) {
    const struct mlp_layer *layer = &mlp->layer[l];
    mlp->ops->bias_activation_backward(mlp->compute->device.ops_context, rows, layer->ld, layer->activation,
                                       layer->pre, layer->output, layer->grad, keep, layer->bias_grad);
    device_lap(&mlp->compute->device, PART_ELEMENTWISE);
}

/* The gradients of layer l from dL/dZ of its output, and dL/dZ of the layer below. */
static enum status layer_backward(struct mlp *mlp, size_t l, size_t rows, const struct step_scalars *step,
                                  double keep) {
    const struct mlp_layer *layer = &mlp->layer[l];
    struct gemm_call call =
        product(mlp, l, GEMM_TN, rows, layer_input(mlp, l, step != NULL), layer->grad, layer->weight_grad);
    call.c_f32 = mlp->stored == GEMM_BF16;
    call.alpha = 1 - keep;
    call.beta = keep;
    enum status status = multiply(mlp, l, &call);
    if (status || l == 0) return status; /* below the first layer only mlp_attack wants a gradient */

    const struct mlp_layer *below = &mlp->layer[l - 1];
    const struct gemm_backward backward = {.activation = below->activation,
                                           .pre = below->pre,
                                           .output = below->output,
                                           .bias_grad = below->bias_grad};
    call = product(mlp, l, GEMM_NT, rows, layer->grad, layer->operand, below->grad);
    const bool masks = step && below->dropped != below->output;
    if (step && mlp->hidden_dropout > 0 && !masks) call.alpha = dropout_scale(mlp->hidden_dropout);
    call.backward = &backward;
    if (!masks && keep == 0 && compute_fuses(mlp->compute, &call)) return multiply(mlp, l, &call);

    call.backward = NULL;
    status = multiply(mlp, l, &call);
    if (status) return status;
    if (masks) drop(mlp, l, rows, step, below->grad, below->grad);
    activation_backward(mlp, l - 1, rows, keep);
    return STATUS_OK;
}

enum status mlp_backward(struct mlp *mlp, size_t rows, const struct step_scalars *step, double keep) {
    enum status status = STATUS_OK;
    device_range_begin(&mlp->compute->device, "backward");
    activation_backward(mlp, mlp->depth - 1, rows, keep);
    for (size_t l = mlp->depth; l-- > 0 && !status;) status = layer_backward(mlp, l, rows, step, keep);
    device_range_end(&mlp->compute->device);
    return status;
}

/* The gradient may lie where dropped_input does, which is read for the last time by the pass before; it needs no mask of input
   dropout, since the next pass drops the same pixels again, wherever they are. */
enum status mlp_attack(struct mlp *mlp, size_t rows) {
    struct device *device = &mlp->compute->device;
    const struct mlp_layer *layer = &mlp->layer[0];
    const struct gemm_call call =
        product(mlp, 0, GEMM_NT, rows, layer->grad, layer->operand, mlp->input_grad);
    device_range_begin(device, "attack");
    const enum status status = multiply(mlp, 0, &call);
    if (!status)
        mlp->ops->sign_step(device->ops_context, rows * layer->in, mlp->adversarial, mlp->input_grad,
                            mlp->input);
    device_lap(device, PART_ELEMENTWISE);
    device_range_end(device);
    return status;
}
