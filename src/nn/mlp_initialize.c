/* The initial weights. */
#include <math.h>
#include <stdlib.h>

#include "src/base/pages.h"
#include "src/base/platform.h"
#include "src/base/rng.h"
#include "src/base/text.h"
#include "src/nn/mlp.h"

enum { SMALL = 1 << 14 }; /* weights that one thread draws in a millisecond */

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

/* Numbers of 32 bits that a draw takes. */
static size_t words_of(enum init init) {
    return init == INIT_HE || init == INIT_KMEANS ? 4 : 2;
}

/* Row by row, in parallel: a normal number takes 80 ns. The generator of a row starts where that of the
   previous row ends. */
static void draw_layer(const struct mlp *mlp, size_t l, enum init init, double range, uint64_t seed,
                       char *values) {
    const struct mlp_layer *layer = &mlp->layer[l];
    const struct compute *compute = mlp->compute;
    void *weight = mlp_counterpart(mlp, layer->weight, values),
         *bias = mlp_counterpart(mlp, layer->bias, values);
    const size_t row_words = layer->out * words_of(init);
    const int threads = compute->device.driver->host_memory ? compute->threads : platform_threads(0);
#pragma omp parallel for schedule(static) num_threads(threads) if (layer->in * layer->out > SMALL)
    for (size_t i = 0; i < layer->in; i++) {
        struct rng rng = rng_open_at(seed, RNG_INIT, (uint32_t)l, i * row_words);
        for (size_t j = 0; j < layer->out; j++)
            dtype_set(mlp->dtype, weight, i * layer->ld + j, draw(&rng, init, range, layer));
    }
    if (init != INIT_UNIFORM) return;
    struct rng rng = rng_open_at(seed, RNG_INIT, (uint32_t)l, layer->in * row_words);
    for (size_t i = 0; i < layer->out; i++) dtype_set(mlp->dtype, bias, i, draw(&rng, init, range, layer));
}

enum status mlp_initialize(struct mlp *mlp, enum init init, double range, uint64_t seed) {
    struct device *device = &mlp->compute->device;
    const size_t bytes = mlp->parameter_elements * dtype_size(mlp->dtype);
    if (pages_check(bytes)) return STATUS_FAILED;
    char *values = calloc(bytes, 1);
    if (!values) return status_set(STATUS_FAILED, "out of memory: %s needed", text_bytes((double)bytes).text);
    for (size_t l = 0; l < mlp->depth; l++) draw_layer(mlp, l, init, range, seed, values);
    device->driver->upload(device, mlp->parameters, values, bytes);
    mlp_parameters_changed(mlp);
    free(values);
    return STATUS_OK;
}
