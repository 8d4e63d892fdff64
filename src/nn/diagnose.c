#include "src/nn/diagnose.h"

#include <math.h>
#include <stdlib.h>

#include "src/nn/engine.h"

static bool all_finite(enum gemm_dtype dtype, const void *values, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!isfinite(dtype_get(dtype, values, i))) return false;
    return true;
}

static bool device_finite(struct trainer *trainer, enum gemm_dtype dtype, const void *values, size_t count) {
    struct device *device = &trainer->compute->device;
    const size_t bytes = count * dtype_size(dtype);
    void *copy = malloc(bytes);
    if (!copy) return true; /* out of memory: a later layer may show it */
    device->driver->download(device, copy, values, bytes);
    const bool finite = all_finite(dtype, copy, count);
    free(copy);
    return finite;
}

/* The bad step did not change the weights, so it can be repeated layer by layer. */
enum status diagnose_divergence(struct trainer *trainer) {
    const size_t step = (size_t)trainer->state.tally.bad_step - 1, rows = engine_rows(trainer, step);
    const struct mlp *mlp = &trainer->mlp;
    char layer[160] = "the loss itself; all layers are finite";
    const enum status status = engine_gradients(trainer, step, rows);
    if (status) return status;
    for (size_t l = 0; l < mlp->depth; l++) {
        const struct mlp_layer *at = &mlp->layer[l];
        const bool weights = device_finite(trainer, mlp->dtype, at->weight, at->in * at->ld) &&
                             device_finite(trainer, mlp->dtype, at->bias, at->out);
        if (weights && device_finite(trainer, mlp->activation_dtype, at->output, rows * at->ld)) continue;
        snprintf(layer, sizeof layer, "layer %zu (%zu to %zu), whose %s", l + 1, at->in, at->out,
                 weights ? "weights are finite but whose output is not" : "weights are not finite");
        break;
    }
    return status_set(
        STATUS_FAILED,
        "the loss is not finite at epoch %lld, step %zu; it starts in %s. Try a lower --learning-rate or a "
        "--warmup-steps",
        (long long)trainer->state.epoch + 1, step + 1, layer);
}
