/* The initial weights. */
#include <math.h>
#include <stdlib.h>

#include "src/base/pages.h"
#include "src/base/rng.h"
#include "src/base/text.h"
#include "src/nn/mlp.h"

static double draw(struct rng *rng, enum init init, double range, const struct mlp_layer *layer) {
    const double in = (double)layer->in, out = (double)layer->out;
    switch (init) {
    case INIT_HE:
    case INIT_KMEANS: /* the first layer is replaced: centre_layer.h */
        return sqrt(2 / in) * rng_normal(rng);
    case INIT_XAVIER:
        return sqrt(6 / (in + out)) * (2 * rng_uniform(rng) - 1);
    case INIT_UNIFORM:
        return range > 0 ? range * (2 * rng_uniform(rng) - 1) : (2 * rng_uniform(rng) - 1) / sqrt(in);
    }
    return 0;
}

enum status mlp_initialize(struct mlp *mlp, enum init init, double range, uint64_t seed) {
    struct device *device = &mlp->compute->device;
    const size_t bytes = mlp->parameter_elements * dtype_size(mlp->dtype);
    if (pages_check(bytes)) return STATUS_FAILED;
    char *values = calloc(bytes, 1);
    if (!values) return status_set(STATUS_FAILED, "out of memory: %s needed", text_bytes((double)bytes).text);
    for (size_t l = 0; l < mlp->depth; l++) {
        const struct mlp_layer *layer = &mlp->layer[l];
        struct rng rng = rng_open(seed, RNG_INIT, (uint32_t)l);
        void *weight = mlp_counterpart(mlp, layer->weight, values),
             *bias = mlp_counterpart(mlp, layer->bias, values);
        for (size_t i = 0; i < layer->in; i++)
            for (size_t j = 0; j < layer->out; j++)
                dtype_set(mlp->dtype, weight, i * layer->ld + j, draw(&rng, init, range, layer));
        if (init == INIT_UNIFORM)
            for (size_t i = 0; i < layer->out; i++)
                dtype_set(mlp->dtype, bias, i, draw(&rng, init, range, layer));
    }
    device->driver->upload(device, mlp->parameters, values, bytes);
    mlp_parameters_changed(mlp);
    free(values);
    return STATUS_OK;
}
