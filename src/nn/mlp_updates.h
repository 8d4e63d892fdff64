/* Weight gradients that update their weights (gemm_update in kernels/gemm.h), for mlp_passes.c alone. */
#ifndef TESSERA_NN_MLP_UPDATES_H
#define TESSERA_NN_MLP_UPDATES_H

#include "src/nn/mlp.h"

/* Can the weight gradient of layer l, this call, update the weights? */
bool mlp_fuses_update(const struct mlp *mlp, size_t l, const struct gemm_call *call);

/* May work that only updates need run beside later products, which are large enough to hide it? */
bool mlp_works_beside(const struct mlp *mlp, size_t rows);

/* If mlp_works_beside: updates the weights of layer l, whose gradient is stored and which no later product
   reads, and of the layers above it that are not updated yet, beside the products of the layers below. */
void mlp_update_beside(struct mlp *mlp, size_t l, size_t rows);

/* Issues the weight gradients that update their weights, after all products that read these weights: at once
   and with all that they do not update, if nothing times each, and the backend can. The weights of layer 0
   are updated beside them, if their gradient is stored. */
enum status mlp_update_weights(struct mlp *mlp, size_t rows, const struct step_scalars *step);

/* mlp_passes.c. The weight gradient of layer l from dL/dZ. from_gemm: was a GEMM the last to write dL/dZ? */
struct gemm_call mlp_weight_gradient(const struct mlp *mlp, size_t l, size_t rows, bool training, double beta,
                                     bool from_gemm);

/* mlp_passes.c. Records the time of a GEMM of layer l. */
void mlp_lap_gemm(struct mlp *mlp, size_t l, const struct gemm_call *call);

#endif
