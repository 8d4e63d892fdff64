/* The products of a training step. */
#ifndef TESSERA_BENCH_SHAPES_H
#define TESSERA_BENCH_SHAPES_H

#include "src/bench/problem.h"
#include "src/nn/config.h"

enum { SHAPES_MOST = 3 * PROFILE_MAX_LAYERS };

/* Forward (NN) and weight gradient (TN) of every layer and the input gradient (NT) of all layers but the
   first (adversarial training: of all), for a batch of `rows`. Returns their number. `name`: of the
   config. */
size_t shapes_of_training(const struct layer_list *layers, bool adversarial, size_t rows, const char *name,
                          struct gemm_shape list[SHAPES_MOST]);

/* The same product: op, size, and whether of pixels. */
bool shapes_equal(const struct gemm_shape *a, const struct gemm_shape *b);

/* "validation" for "configs/validation.cfg"; "defaults" without a file. */
void shapes_config_name(const char *path, char *name, size_t size);

#endif
