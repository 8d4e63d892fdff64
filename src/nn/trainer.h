/* The training loop: epochs of steps, evaluation, checkpoints, and the events that logs and tables are made
 * of. */
#ifndef TESSERA_NN_TRAINER_H
#define TESSERA_NN_TRAINER_H

#include <signal.h>

#include "src/nn/augmenter.h"
#include "src/nn/checkpoint.h"
#include "src/nn/early_stopping.h"
#include "src/nn/optimizer.h"
#include "src/nn/samples.h"
#include "src/nn/schedule.h"

struct engine;

/* After an epoch of training and its evaluation. */
struct epoch_record {
    size_t epoch; /* 1 is the first */
    double train_loss;
    uint64_t train_correct, train_images; /* while training: each image before the update of its step */
    bool on_validation;                   /* the evaluation read the validation part, not the test set */
    struct evaluation evaluation;         /* total 0: --evaluate-every leaves this epoch out */
    struct evaluation average; /* the same of the moving average of the weights; total 0: there is none */
    double seconds, images_per_second; /* of training alone */
    struct profile time;               /* of this epoch */
};

struct run_summary {
    bool done;     /* filled */
    size_t epochs; /* finished in this run */
    struct evaluation test;
    struct evaluation average; /* of the moving average of the weights; total 0: there is none */
    bool stopped_early;
    int64_t best_epoch;          /* with early stopping: the weights are those after it; 0: without */
    double median_epoch_seconds; /* 0 if no epoch was finished */
    struct profile time;         /* of the whole run */
    bool interrupted;
};

/* Whoever wants to know. Any function may be NULL. */
struct trainer_observer {
    void *self;
    /* The first --log-steps steps of the run; step 1 is the first. */
    void (*step)(void *self, size_t step, double loss);
    void (*epoch)(void *self, const struct epoch_record *record);
    /* Often: `step` of `steps` of this epoch are done; `loss` is the mean so far. Must be cheap. */
    void (*progress)(void *self, size_t epoch, size_t step, size_t steps, double loss);
    /* Something failed that training can do without for now: a --save-every. */
    void (*warning)(void *self, const char *message);
};

struct trainer {
    const struct config *config;
    struct compute *compute;
    const struct engine *engine;
    void *engine_state;   /* the engine's: a captured epoch, or what fused steps keep */
    size_t engine_stride; /* of engine fused: steps of the next call; 0: one */
    char notice[320];     /* why the engine is not the one that was asked for; "" if it is */
    struct mlp mlp;
    struct optimizer optimizer;
    struct early_stopping stopping;
    struct samples train, validation, test;
    struct augmenter augmenter;        /* of train */
    size_t batch, steps;               /* rows of a full batch, steps of an epoch */
    const volatile sig_atomic_t *stop; /* not 0: finish the step and leave; NULL: never */
    struct train_state state;          /* what has been done; its tally is that of the epoch in progress */
    double *epoch_seconds;             /* of the epochs that this run did from their first step */
    size_t epochs_done;                /* of this run */
    struct evaluation last_test;       /* of the test set, when `tested` */
    struct evaluation last_average;    /* the same of the moving average of the weights */
    bool tested;                       /* both are those of the weights as they are */

    /* Device memory of one epoch. */
    uint32_t *order;              /* [train.count]: the images, batch after batch */
    struct step_scalars *scalars; /* [steps]: learning rates and the like */
    double *losses;               /* [steps]: mean loss of each batch */
    struct tally *tally;          /* of the epoch */
    /* The order and the scalars of the next epoch; NULL if the device cannot prefetch. */
    uint32_t *prefetched_order;
    struct step_scalars *prefetched_scalars;
    int64_t prefetched_epoch; /* -1: none */
    /* Host memory of the same sizes. */
    uint32_t *host_order;
    struct step_scalars *host_scalars;
    double *host_losses;
    int64_t drawn; /* the epoch that host_order and host_scalars are for; -1: none */
};

/* Takes up the data (pixels are copied to the device; the validation part is split off), allocates
   everything, and draws the initial weights, or takes them with the rest of the state from `resume` (may be
   NULL). Ends with one step's worth of work that changes no weight, so that nothing is done for the first
   time inside an epoch. */
enum status trainer_open(struct trainer *trainer, struct compute *compute, const struct config *config,
                         const struct dataset_pair *data, const struct checkpoint *resume);
void trainer_close(struct trainer *trainer);

/* Trains to config->epochs, or until there is nothing better for config->patience epochs; then the weights
   are those of the best epoch. STATUS_FAILED on a loss that is not finite (epoch, step and layer in the
   message), STATUS_INTERRUPTED when stopped, STATUS_FAILED when the last checkpoint could not be written.
   summary->done is set in all cases but the first, and the summary filled. */
enum status trainer_run(struct trainer *trainer, const struct trainer_observer *observer,
                        struct run_summary *summary);

/* The order and the learning rates of the epoch of trainer->state, and its tally so far, to the device: what
   the steps of an engine read. trainer_run does it by itself. */
void trainer_begin_epoch(struct trainer *trainer);

/* Writes the state as it is. */
enum status trainer_save(struct trainer *trainer, const char *path);

#endif
