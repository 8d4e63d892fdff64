/* Forward pass, backward pass and the attack of adversarial training: the order of GEMMs and ops. */
#include "kernels/dropout.h"
#include "src/nn/mlp.h"
#include "src/nn/mlp_updates.h"

static const void *layer_input(const struct mlp *mlp, size_t l, bool training) {
    if (l == 0) return training ? mlp->dropped_input : mlp->input;
    return training ? mlp->layer[l - 1].dropped : mlp->layer[l - 1].output;
}

/* Applies dropout to the input of layer l, or to its gradient. */
static void drop(struct mlp *mlp, size_t l, size_t rows, const struct step_scalars *step, const void *in,
                 void *out) {
    struct device *device = &mlp->compute->device;
    const struct dropout dropout = {.rate = l ? mlp->hidden_dropout : mlp->input_dropout,
                                    .seed = mlp->seed,
                                    .layer = (uint32_t)l,
                                    .step = step,
                                    .first = mlp->first_row * mlp->layer[l].in};
    if (dropout.rate == 0) return;
    mlp->ops->dropout(device->ops_context, rows * mlp->layer[l].in, &dropout, in, out);
    device_lap(device, PART_ELEMENTWISE);
}

/* A GEMM of layer l: NN is X W, TN is X^T dZ, NT is dZ W^T. The sizes include padding. */
static struct gemm_call layer_gemm(const struct mlp *mlp, size_t l, enum gemm_op op, size_t rows,
                                   const void *a, const void *b, void *c) {
    const size_t in = mlp_input_ld(mlp, l), out = mlp->layer[l].ld;
    return (struct gemm_call){.dtype = mlp->activation_dtype,
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
                              .ldc = op == GEMM_NT ? in : out,
                              .beside_sums = mlp->beside_sums};
}

void mlp_lap_gemm(struct mlp *mlp, size_t l, const struct gemm_call *call) {
    static const enum profile_part part[] = {
        [GEMM_NN] = PART_GEMM_NN, [GEMM_TN] = PART_GEMM_TN, [GEMM_NT] = PART_GEMM_NT};
    mlp->compute->device.driver->lap(
        &mlp->compute->device, profile_gemm_slot(part[call->op], l, call->op == GEMM_TN ? call->k : call->m,
                                                 mlp->layer[l].in, mlp->layer[l].out));
}

static enum status run_gemm(struct mlp *mlp, size_t l, const struct gemm_call *call) {
    const enum status status = compute_gemm(mlp->compute, call);
    mlp_lap_gemm(mlp, l, call);
    return status;
}

/* *from_gemm: in, was a GEMM the last to write the input; out, the output? */
static enum status layer_forward(struct mlp *mlp, size_t l, size_t rows, bool training, bool *from_gemm) {
    struct device *device = &mlp->compute->device;
    const struct mlp_layer *layer = &mlp->layer[l];
    const struct gemm_epilogue epilogue = {.bias = layer->bias,
                                           .activation = layer->activation,
                                           .pre = layer->pre == layer->output ? NULL : layer->pre};
    struct gemm_call call =
        layer_gemm(mlp, l, GEMM_NN, rows, layer_input(mlp, l, training), layer->gemm_weight, layer->output);
    call.a_unchanged = *from_gemm;
    call.b_complete = l > 0; /* else the kernel before may have written the weights */
    call.epilogue = &epilogue;
    *from_gemm = compute_fuses(mlp->compute, &call);
    if (*from_gemm) return run_gemm(mlp, l, &call);

    call.epilogue = NULL;
    call.c = layer->pre;
    const enum status status = run_gemm(mlp, l, &call);
    if (status) return status;
    mlp->ops->bias_activation(device->ops_context, rows, layer->ld, layer->activation, layer->bias,
                              layer->pre, layer->output);
    device_lap(device, PART_ELEMENTWISE);
    return STATUS_OK;
}

/* Layers first .. end - 1. *from_gemm as in layer_forward. */
static enum status forward(struct mlp *mlp, size_t first, size_t end, size_t rows,
                           const struct step_scalars *step, bool *from_gemm) {
    enum status status = STATUS_OK;
    device_range_begin(&mlp->compute->device, "forward");
    if (step && first == 0) drop(mlp, 0, rows, step, mlp->input, mlp->dropped_input);
    for (size_t l = first; l < end && !status; l++) {
        status = layer_forward(mlp, l, rows, step != NULL, from_gemm);
        if (step && !status && l + 1 < mlp->depth)
            drop(mlp, l + 1, rows, step, mlp->layer[l].output, mlp->layer[l].dropped);
        if (step && mlp->hidden_dropout > 0) *from_gemm = false;
    }
    device_range_end(&mlp->compute->device);
    return status;
}

enum status mlp_forward(struct mlp *mlp, size_t rows, const struct step_scalars *step) {
    bool from_gemm = false;
    return forward(mlp, 0, mlp->depth, rows, step, &from_gemm);
}

enum status mlp_forward_hidden(struct mlp *mlp, size_t rows) {
    bool from_gemm = false;
    return forward(mlp, 0, mlp->depth - 1, rows, NULL, &from_gemm);
}

double mlp_gradient_scale(const struct mlp *mlp, size_t batch) {
    return mlp->activation_dtype == GEMM_F16 ? (double)batch * (1 << MLP_HALF_SHIFT) : 1;
}

/* Computes dL/dZ of layer l from dL/dY, in place, and the bias gradient. */
static void activation_backward(struct mlp *mlp, void *ops_context, size_t l, size_t rows, double beta) {
    const struct mlp_layer *layer = &mlp->layer[l];
    mlp->ops->bias_activation_backward(ops_context, rows, layer->ld, layer->activation, layer->pre,
                                       layer->output, layer->grad, (1 - beta) / mlp->gradient_scale, beta,
                                       layer->bias_grad);
    device_lap(&mlp->compute->device, PART_ELEMENTWISE);
}

struct gemm_call mlp_weight_gradient(const struct mlp *mlp, size_t l, size_t rows, bool training, double beta,
                                     bool from_gemm) {
    const struct mlp_layer *layer = &mlp->layer[l];
    struct gemm_call call =
        layer_gemm(mlp, l, GEMM_TN, rows, layer_input(mlp, l, training), layer->grad, layer->weight_grad);
    call.c_f32 = gemm_is_16bit(mlp->activation_dtype);
    call.alpha = (1 - beta) / mlp->gradient_scale;
    call.beta = beta;
    call.a_unchanged = true; /* since the forward pass */
    call.b_unchanged = from_gemm;
    return call;
}

static struct gemm_backward backward_of(const struct mlp *mlp, size_t l) {
    const struct mlp_layer *layer = &mlp->layer[l];
    return (struct gemm_backward){.activation = layer->activation,
                                  .pre = layer->pre,
                                  .output = layer->output,
                                  .bias_grad = layer->bias_grad,
                                  .bias_scale = 1 / mlp->gradient_scale};
}

/* Must dropout mask the input gradient of layer l? Not if its mask is in the output of the layer below. */
static bool masks_gradient(const struct mlp *mlp, size_t l, const struct step_scalars *step) {
    return step && mlp->layer[l - 1].dropped != mlp->layer[l - 1].output;
}

/* The input gradient of layer l, without epilogue. */
static struct gemm_call input_gradient_call(const struct mlp *mlp, size_t l, size_t rows,
                                            const struct step_scalars *step) {
    const struct mlp_layer *layer = &mlp->layer[l];
    struct gemm_call call =
        layer_gemm(mlp, l, GEMM_NT, rows, layer->grad, layer->gemm_weight, mlp->layer[l - 1].grad);
    if (step && mlp->hidden_dropout > 0 && !masks_gradient(mlp, l, step))
        call.alpha = dropout_scale(mlp->hidden_dropout);
    call.b_unchanged = call.b_complete = true; /* since the forward pass */
    call.sums_later = mlp_works_beside(mlp, rows);
    return call;
}

/* Does nothing but GEMMs read the dL/dZ of layer l that a GEMM writes? In a step that is recorded, for which
   updates overlap: beside others, audits and traces read it. The list of updates does not say that it is
   unchanged. */
static bool only_gemms_read_gradient(const struct mlp *mlp, size_t l, size_t rows,
                                     const struct step_scalars *step) {
    const struct gemm_call gradient = mlp_weight_gradient(mlp, l, rows, step != NULL, 0, true);
    return mlp->updates_overlap && mlp->adversarial == 0 && !mlp_fuses_update(mlp, l, &gradient);
}

/* Computes dL/dZ and bias gradient of the layer below from dL/dZ of layer l, which `unchanged` says that a
   GEMM has read or written. *from_gemm: was a GEMM the last to write dL/dZ of the layer below? */
static enum status input_gradient(struct mlp *mlp, size_t l, size_t rows, const struct step_scalars *step,
                                  double beta, bool unchanged, bool *from_gemm) {
    const struct mlp_layer *below = &mlp->layer[l - 1];
    const struct gemm_backward backward = backward_of(mlp, l - 1);
    const bool masked = masks_gradient(mlp, l, step);
    struct gemm_call call = input_gradient_call(mlp, l, rows, step);
    call.a_unchanged = unchanged;
    call.backward = &backward;
    call.c_only_operand = only_gemms_read_gradient(mlp, l - 1, rows, step);
    *from_gemm = !masked && beta == 0 && compute_fuses(mlp->compute, &call);
    if (*from_gemm) return run_gemm(mlp, l, &call);

    call.backward = NULL;
    call.c_only_operand = false;
    const enum status status = run_gemm(mlp, l, &call);
    if (status) return status;
    if (masked) drop(mlp, l, rows, step, below->grad, below->grad);
    activation_backward(mlp, mlp->compute->device.ops_context, l - 1, rows, beta);
    return STATUS_OK;
}

/* Computes the weight gradient of layer l, unless mlp_update_weights will, and dL/dZ and bias gradient of the
   layer below; only mlp_attack needs the input gradient of layer 0. *from_gemm: in, was a GEMM the last to
   write dL/dZ; out, that of the layer below? */
static enum status layer_backward(struct mlp *mlp, size_t l, size_t rows, const struct step_scalars *step,
                                  double beta, bool *from_gemm) {
    const struct gemm_call call = mlp_weight_gradient(mlp, l, rows, step != NULL, beta, *from_gemm);
    enum status status = STATUS_OK;
    mlp->layer[l].updated = mlp_fuses_update(mlp, l, &call);
    if (!mlp->layer[l].updated) status = run_gemm(mlp, l, &call);
    if (!status && mlp->on_gradients) status = mlp->on_gradients(mlp->on_gradients_self, l);
    if (status || l == 0) return status;
    status = input_gradient(mlp, l, rows, step, beta, !mlp->layer[l].updated || *from_gemm, from_gemm);
    if (!status) mlp_update_beside(mlp, l, rows);
    return status;
}

/* Layers depth - 1 .. 0, from dL/dZ and bias gradient of the last of them. aside: that bias gradient is
   computed aside. */
static enum status backward(struct mlp *mlp, size_t depth, size_t rows, const struct step_scalars *step,
                            double beta, bool from_gemm, bool aside) {
    struct device *device = &mlp->compute->device;
    enum status status = STATUS_OK;
    mlp->rest_updated = false;
    for (size_t l = 0; l < mlp->depth; l++) mlp->layer[l].updated_beside = false;
    device_range_begin(device, "backward");
    for (size_t l = depth; l-- > 0 && !status;) status = layer_backward(mlp, l, rows, step, beta, &from_gemm);
    for (size_t l = 0; l < mlp->depth; l++) aside |= mlp->layer[l].updated_beside;
    if (aside) device->driver->aside_join(device);
    if (!status && mlp->update) status = mlp_update_weights(mlp, rows, step);
    device_range_end(device);
    return status;
}

enum status mlp_backward(struct mlp *mlp, size_t rows, const struct step_scalars *step, double beta) {
    struct device *device = &mlp->compute->device;
    /* the output layer has no activation: its bias gradient is all that changes, and only updates need it */
    const bool aside = mlp->update && mlp->updates_overlap;
    activation_backward(mlp, aside ? device->driver->aside_begin(device) : device->ops_context,
                        mlp->depth - 1, rows, beta);
    return backward(mlp, mlp->depth, rows, step, beta, false, aside);
}

/* The output layer at once, if the backend can: *done. */
static enum status output_layer(struct mlp *mlp, size_t rows, const struct step_scalars *step,
                                struct output_layer layer, bool *done) {
    const size_t l = mlp->depth - 1;
    struct mlp_layer *const last = &mlp->layer[l];
    *done = false;
    if (l == 0 || masks_gradient(mlp, l, step)) return STATUS_OK;
    const struct gemm_epilogue bias = {.bias = last->bias, .activation = last->activation};
    const struct gemm_backward below = backward_of(mlp, l - 1);
    const struct gemm_call gradient = mlp_weight_gradient(mlp, l, rows, step != NULL, 0, false);
    struct gemm_call logits = layer_gemm(mlp, l, GEMM_NN, rows, layer_input(mlp, l, step != NULL),
                                         last->gemm_weight, last->output),
                     input_gradient = input_gradient_call(mlp, l, rows, step);
    logits.b_complete = true;
    logits.epilogue = &bias;
    input_gradient.backward = &below;
    input_gradient.c_only_operand = only_gemms_read_gradient(mlp, l - 1, rows, step);
    layer.logits = &logits;
    layer.gradient = &gradient;
    layer.input_gradient = &input_gradient;
    layer.bias_grad = last->bias_grad;
    last->updated = false;
    const enum status status = compute_output_layer(mlp->compute, &layer, done);
    if (*done) mlp_lap_gemm(mlp, l, &logits);
    return status || !*done || !mlp->on_gradients ? status : mlp->on_gradients(mlp->on_gradients_self, l);
}

enum status mlp_gradients(struct mlp *mlp, size_t rows, const struct step_scalars *step,
                          const struct output_layer *loss, double beta) {
    struct device *device = &mlp->compute->device;
    const struct mlp_layer *last = mlp_last(mlp);
    const size_t l = mlp->depth - 1;
    bool from_gemm = false, done = false;
    enum status status = forward(mlp, 0, l, rows, step, &from_gemm);
    mlp->gradient_scale = mlp_gradient_scale(mlp, loss->batch);
    if (!status && beta == 0) status = output_layer(mlp, rows, step, *loss, &done);
    if (done && !status) return backward(mlp, l, rows, step, 0, true, false);
    if (!status) status = forward(mlp, l, l + 1, rows, step, &from_gemm);
    if (status) return status;
    mlp->ops->softmax_cross_entropy(device->ops_context, rows, (double)loss->batch / mlp->gradient_scale,
                                    last->out, loss->smoothing, last->output, loss->labels, last->grad,
                                    loss->loss, loss->tally, loss->counted);
    device_lap(device, PART_ELEMENTWISE);
    return mlp_backward(mlp, rows, step, beta);
}

/* input_grad may overwrite dropped_input, which mlp_backward was the last to read. It needs no dropout mask:
   the next pass drops the same pixels again. */
enum status mlp_attack(struct mlp *mlp, size_t rows) {
    struct device *device = &mlp->compute->device;
    const struct mlp_layer *layer = &mlp->layer[0];
    const struct gemm_call call =
        layer_gemm(mlp, 0, GEMM_NT, rows, layer->grad, layer->gemm_weight, mlp->input_grad);
    device_range_begin(device, "attack");
    const enum status status = run_gemm(mlp, 0, &call);
    if (!status)
        mlp->ops->sign_step(device->ops_context, rows * layer->in, mlp->adversarial, mlp->input_grad,
                            mlp->input);
    device_lap(device, PART_ELEMENTWISE);
    device_range_end(device);
    return status;
}
