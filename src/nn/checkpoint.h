/* Checkpoints: a safetensors file with the weights under the names and in the layout of a PyTorch
   nn.Sequential of nn.Linear (layers.N.weight [out, in], layers.N.bias [out]), what the optimiser keeps as
   optimizer.velocity.<name>, or optimizer.exp_avg.<name> and optimizer.exp_avg_sq.<name>, the moving average
   of the weights as ema.<name>, the best weights so far and their average as best.<name> and best.ema.<name>,
   and in the metadata the recipe and how far the run has come. The random numbers are counter-based
   (src/base/rng.h): seed, epoch and step are their whole state. */
#ifndef TESSERA_NN_CHECKPOINT_H
#define TESSERA_NN_CHECKPOINT_H

#include "src/nn/mlp.h"
#include "src/nn/safetensors.h"

/* The best of the evaluations on the validation part; epoch 0: none yet. */
struct best_epoch {
    int64_t epoch; /* 1 is the first */
    uint64_t correct;
    double loss;
};

struct train_state {
    int64_t epoch;      /* finished */
    int64_t step;       /* finished in the epoch after it */
    uint64_t updates;   /* of the weights, finished in all */
    struct tally tally; /* of those steps */
    struct best_epoch best;
};

struct checkpoint {
    struct safetensors file;
};

/* Writes weights and, unless `state` is NULL, it and all that the network keeps. `config` gives the
   recipe. */
enum status checkpoint_save(const char *path, struct mlp *mlp, const struct config *config,
                            const struct train_state *state);

enum status checkpoint_open(struct checkpoint *checkpoint, const char *path);
void checkpoint_close(struct checkpoint *checkpoint);

/* Puts the recipe into `config` as FROM_CHECKPOINT. A file without one (made elsewhere) gives layers and
   dtype by its tensors' shapes. */
enum status checkpoint_recipe(const struct checkpoint *checkpoint, struct config *config);

/* Weights into `mlp`; and, unless `state` is NULL, it and all that the network keeps. STATUS_BAD_DATA if the
   file is of another architecture or dtype, or has not what the optimiser kept where it is needed. */
enum status checkpoint_restore(const struct checkpoint *checkpoint, struct mlp *mlp,
                               struct train_state *state);

/* The moving average as the weights. STATUS_USAGE if there is none. */
enum status checkpoint_restore_average(const struct checkpoint *checkpoint, struct mlp *mlp);

/* Does the restored state fit this run: `steps` steps an epoch of `batch` images? Within an epoch the order
   of its images must be the same as when it began, and a best epoch has to be one on the same validation
   part. STATUS_BAD_DATA says what differs. */
enum status checkpoint_check_epoch(const struct checkpoint *checkpoint, const struct config *config,
                                   const struct train_state *state, size_t batch, size_t steps);

#endif
