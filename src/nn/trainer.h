/* The training loop: epochs of steps, evaluation, checkpoints, and the events for logs and tables. */
#ifndef TESSERA_NN_TRAINER_H
#define TESSERA_NN_TRAINER_H

#include <signal.h>

#include "src/backend/audit.h"
#include "src/backend/core_use.h"
#include "src/backend/surroundings.h"
#include "src/nn/augmenter.h"
#include "src/nn/checkpoint.h"
#include "src/nn/early_stopping.h"
#include "src/nn/epoch_feed.h"
#include "src/nn/optimizer.h"
#include "src/nn/samples.h"

struct engine;

enum { TRAINER_TIMED_EPOCHS = 1 << 16 }; /* the median epoch time is of the last epochs, up to this many */

/* An epoch of training and its evaluation. */
struct epoch_record {
    size_t epoch; /* 1 is the first */
    double train_loss;
    uint64_t train_correct, train_images; /* counted in training, each image before the update of its step */
    bool on_validation;                   /* `evaluation` is of the validation set, not of the test set */
    struct evaluation evaluation;         /* total 0: not evaluated (--evaluate-every) */
    struct evaluation average;            /* of the moving average of the weights; total 0: none */
    double seconds, images_per_second;    /* of training without evaluation */
    struct profile time;                  /* of this epoch */
};

struct run_summary {
    uint64_t calls, audited; /* GEMM calls of the run, and those that were checked */
    uint64_t steps_audited;  /* whole steps */
    bool done;               /* the summary is valid */
    size_t epochs;           /* finished in this run */
    const char *part;        /* of `test` and `average`: dataset_reported */
    struct evaluation test;
    struct evaluation average; /* of the moving average of the weights; total 0: none */
    bool stopped_early;
    int64_t best_epoch;          /* with early stopping: the epoch of the final weights; else 0 */
    double median_epoch_seconds; /* 0 if no epoch was finished */
    bool noisy;                  /* that median, as in struct statistics */
    struct profile time;         /* of the whole run */
    bool interrupted;
};

/* Receives the events of a run. Any function may be NULL. */
struct trainer_observer {
    void *self;
    /* The first --log-steps steps of the run; step 1 is the first. */
    void (*step)(void *self, size_t step, double loss);
    void (*epoch)(void *self, const struct epoch_record *record);
    /* `step` of `steps` of this epoch are done; `loss` is the mean so far. Called often: must be cheap. */
    void (*progress)(void *self, size_t epoch, size_t step, size_t steps, double loss);
    /* A failure that does not stop the training, such as that of --save-every. */
    void (*warning)(void *self, const char *message);
};

/* The audit of whole steps (step_audit.h). */
struct step_audit {
    uint64_t checked; /* steps */
    /* private */
    uint64_t next; /* the number of updates at which the next audit starts */
    size_t audits;
    double seconds;                   /* of all audits */
    struct compute *trusted;          /* a built-in backend on the same memory; NULL: there is none */
    uint64_t inputs, images;          /* of the epoch: hashes of what steps only read; 0: not taken */
    uint64_t held_out;                /* of the test and validation sets */
    struct surroundings surroundings; /* at the start */
    struct core_use cores;            /* of all epochs */
};

/* One part of each batch, or several, of those that all processes train on together (data_parallel.h). */
struct data_parallel {
    int parts;                  /* of a batch, in all processes; 1: it is not divided */
    int first, count;           /* parts of this process */
    struct part_memory *memory; /* device: what is summed beside the gradients */
    void *sum[2];               /* device: gradients of one part and of two, while others are computed */
    size_t unsummed;            /* of the gradients, the first so many elements: their sum has not begun */
};

struct trainer {
    const struct config *config;
    struct compute *compute;
    const struct dataset_pair *data;
    const struct engine *engine;
    void *engine_state;   /* a captured graph, or the state of the backend's fused steps */
    size_t engine_stride; /* engine fused: on the host, steps of the next call; 0: none was made, now one */
    char notice[320];     /* why the engine is not the requested one; "" if it is */
    struct audit audit;   /* of the GEMM calls since trainer_open */
    struct step_audit step_audit;
    struct mlp mlp;
    struct optimizer optimizer;
    struct early_stopping stopping;
    struct data_parallel parallel;
    struct samples train, validation, test;
    struct augmenter augmenter;        /* of `train` */
    struct epoch_feed feed;            /* order of the images and scalars of the steps */
    size_t batch, steps;               /* rows of a full batch, steps of an epoch */
    const volatile sig_atomic_t *stop; /* not 0: stop after the current step; NULL: never */
    struct train_state state;          /* progress; its tally is of the epoch in progress */
    double *epoch_seconds; /* ring buffer [TRAINER_TIMED_EPOCHS]: times of the complete epochs of this run */
    size_t epochs_done;    /* complete epochs of this run */
    struct evaluation last_test;    /* of the reported part (dataset_reported); valid if `tested` */
    struct evaluation last_average; /* the same of the moving average of the weights */
    bool tested;                    /* both are of the current weights */
    double *losses;                 /* device, [steps]: mean loss of each batch */
    struct tally *tally;            /* device, of the epoch */
    double *host_losses;            /* [steps] */
};

/* config_check_training accepts `data`, which is used until trainer_close. Copies it to the device, splits
   off the validation set, allocates everything, and draws the initial weights, or restores them and the state
   from `resume` (may be NULL). Ends with a warm-up step that changes no weight. */
enum status trainer_open(struct trainer *trainer, struct compute *compute, const struct config *config,
                         const struct dataset_pair *data, const struct checkpoint *resume);
void trainer_close(struct trainer *trainer);

/* Trains to config->epochs, or until early stopping, which restores the weights of the best epoch.
   STATUS_FAILED if a loss is not finite (epoch, step and layer in the message) or the last checkpoint cannot
   be written; STATUS_INTERRUPTED when stopped. The summary is filled unless a loss was not finite. */
enum status trainer_run(struct trainer *trainer, const struct trainer_observer *observer,
                        struct run_summary *summary);

/* Rows of the largest pass on this backend: of a batch, or of an evaluation; `train`, `test` are counts. */
size_t trainer_capacity(const struct config *config, const struct gemm_backend *backend, size_t batch,
                        size_t train, size_t test);

/* Uploads order, scalars and tally of the epoch in progress, for the steps of an engine. trainer_run calls
   it. */
void trainer_begin_epoch(struct trainer *trainer);

/* Writes a checkpoint of the current state. */
enum status trainer_save(struct trainer *trainer, const char *path);

#endif
