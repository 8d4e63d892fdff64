/* SGD with momentum and weight decay, and the learning rate of every step. */
#ifndef TESSERA_NN_OPTIMIZER_H
#define TESSERA_NN_OPTIMIZER_H

#include "src/nn/mlp.h"

struct optimizer {
    double momentum, weight_decay;
    void *velocity; /* device arena laid out as the parameters; NULL without momentum */
};

enum status optimizer_open(struct optimizer *optimizer, struct mlp *mlp, const struct config *config);
void optimizer_close(struct optimizer *optimizer, struct mlp *mlp);

/* One update of all parameters. `learning_rate` and `guard` are device memory (see struct ops). */
void optimizer_step(struct optimizer *optimizer, struct mlp *mlp, const double *learning_rate,
                    const struct tally *guard);

/* The learning rates of the steps of one epoch (0 is the first):
   warm-up: lr (s + 1) / warmup_steps for global step s < warmup_steps; after it
   constant: lr;  step: lr gamma^floor(epoch / step_epochs);  exponential: lr gamma^epoch;
   cosine: min + (lr - min) (1 + cos(pi t / T)) / 2 with t steps after warm-up of T (Loshchilov and Hutter
   2016, arXiv 1608.03983, without restarts). */
void optimizer_schedule(const struct config *config, size_t epoch, size_t steps_per_epoch, double *rates);

#endif
