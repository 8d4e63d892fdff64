/* Checkpoints: a safetensors file with the weights in the layout of PyTorch's nn.Linear (layers.N.weight
   [out, in], layers.N.bias [out]), and further tensors
   <prefix><name> with these prefixes: optimizer.velocity., or optimizer.exp_avg. and optimizer.exp_avg_sq.;
   ema. (the moving average of the weights); best. and best.ema. (the weights of the best epoch and their
   average). Recipe and progress are in the metadata. */
#ifndef TESSERA_NN_CHECKPOINT_H
#define TESSERA_NN_CHECKPOINT_H

#include "src/nn/mlp.h"
#include "src/nn/safetensors.h"
#include "src/nn/train_state.h"

struct checkpoint {
    struct safetensors file;
};

/* Writes the weights, the recipe of `config` and, unless they are NULL, the size and the classes of the
   images of `data`, and the state with the network's state tensors. */
enum status checkpoint_save(const char *path, struct mlp *mlp, const struct config *config,
                            const struct dataset_pair *data, const struct train_state *state);

/* Writes tensors of any model with the same metadata; `data` and `state` may be NULL. */
enum status checkpoint_write(const char *path, const struct tensor *tensors, size_t count,
                             const struct config *config, const struct dataset_pair *data,
                             const struct train_state *state);

/* Checks before a long run that checkpoint_save can write this file. An existing one must be empty or a
   checkpoint (STATUS_USAGE), and a regular file that may be written (STATUS_FAILED). */
enum status checkpoint_writable(const char *path);

enum status checkpoint_open(struct checkpoint *checkpoint, const char *path);
void checkpoint_close(struct checkpoint *checkpoint);

/* Sets the recipe in `config`, as FROM_CHECKPOINT; keys that are not of the recipe are ignored. A file of
   another program has no recipe: then sets layers and dtype from the tensors. STATUS_BAD_DATA if layers of
   the recipe are not those of the tensors. */
enum status checkpoint_recipe(const struct checkpoint *checkpoint, struct config *config);

/* What the network was trained on. Without that in the checkpoint, or NULL: no names, and 0 x 0 pixels
   (before input-size). STATUS_BAD_DATA if the names are not valid (classes.h), or the size is not. */
struct image_kind {
    size_t height, width;
    struct class_names classes;
};
enum status checkpoint_images(const struct checkpoint *checkpoint, struct image_kind *kind);

/* Numbers the classes of the data as the network does: dataset_adopt_classes. */
enum status checkpoint_adopt_classes(const struct checkpoint *checkpoint, struct dataset_pair *data);

/* Reads the weights and, unless `state` is NULL, the state with the network's state tensors. STATUS_BAD_DATA
   if the file is of another architecture or dtype, or lacks the optimiser's state. */
enum status checkpoint_restore(const struct checkpoint *checkpoint, struct mlp *mlp,
                               struct train_state *state);

/* Reads the moving average as the weights. STATUS_USAGE if there is none. */
enum status checkpoint_restore_average(const struct checkpoint *checkpoint, struct mlp *mlp);

/* Does the restored state fit this run, with `steps` steps of `batch` images an epoch? To resume within an
   epoch, the order of the images must be the same; a best epoch needs the same validation set.
   STATUS_BAD_DATA says what differs. */
enum status checkpoint_check_epoch(const struct checkpoint *checkpoint, const struct config *config,
                                   const struct train_state *state, size_t batch, size_t steps);

#endif
