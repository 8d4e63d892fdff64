/* An ensemble: N networks of one config with the seeds s, s + 1, .. s + N - 1. Each gives the results of a
   single run with its seed. On a GPU they train concurrently, each with a host thread and a CUDA stream; on
   the host they train one after the other, each with all threads. Several processes share them out: member m
   trains on rank m mod size, and rank 0 has all results. */
#ifndef TESSERA_NN_ENSEMBLE_H
#define TESSERA_NN_ENSEMBLE_H

#include "src/nn/committee.h"
#include "src/nn/trainer.h"

/* What members are evaluated on, with their weights or with the moving average of these. */
enum ensemble_part_index {
    ENSEMBLE_TEST,
    ENSEMBLE_TEST_AVERAGE,
    ENSEMBLE_VALIDATION,
    ENSEMBLE_VALIDATION_AVERAGE,
    ENSEMBLE_PARTS
};

struct member_step {
    size_t step;
    double loss;
};

/* The events of a member on another rank than 0, which is told of them in the end. */
struct member_history {
    struct member_step *step;
    struct epoch_record *epoch;
    size_t steps, step_capacity, epochs, epoch_capacity;
    char warning[256]; /* the last one; "": none */
};

struct member {
    struct config config;    /* with its own seed and files: ensemble_path */
    struct compute *compute; /* &own, or the one given to ensemble_open */
    struct compute own;      /* of all but the first member of a concurrent ensemble */
    struct profile profile;
    struct trainer trainer;   /* open during training; in a concurrent ensemble until ensemble_close */
    struct epoch_record last; /* its last epoch in this run; epoch 0: none */
    struct run_summary summary;
    enum status status; /* of its run, with `message` */
    char message[1024];
    bool ended;                              /* it has been trained, or will not be */
    struct committee result[ENSEMBLE_PARTS]; /* of this member alone, until it is in the committees */
    struct member_history *history;          /* not on rank 0 */
    struct ensemble *ensemble;
};

/* As struct trainer_observer, for one member at a time: calls never overlap. Any function may be NULL. */
struct ensemble_observer {
    void *self;
    void (*step)(void *self, const struct member *member, size_t step, double loss);
    void (*epoch)(void *self, const struct member *member);
    void (*progress)(void *self, const struct member *member, size_t epoch, size_t step, size_t steps,
                     double loss);
    void (*warning)(void *self, const struct member *member, const char *message);
    /* The member has been trained and added to the committee. Called in the order of the seeds. */
    void (*done)(void *self, const struct member *member);
};

/* Results on the validation set or the test set. */
struct ensemble_part {
    struct committee committee;   /* with each member's evaluation */
    struct statistics accuracy;   /* of the members, as fractions */
    struct evaluation evaluation; /* of the committee */
};

struct ensemble {
    const struct config *config;
    const struct dataset_pair *data;
    struct comm *comm; /* processes that share the members out; NULL: one */
    size_t count;
    size_t first;                /* member of this process; the others follow at intervals of comm_size */
    size_t next;                 /* member for the committees, on rank 0 */
    struct member *member;       /* [count] */
    bool concurrent;             /* all members train at the same time */
    volatile sig_atomic_t *stop; /* not 0: every member stops after its step. Also set if a member fails */
    const struct ensemble_observer *observer;
    void *lock; /* serialises calls of the observer */

    /* Set by ensemble_run. Committees hold the members that trained, in the order of their seeds. */
    struct ensemble_part validation, test;                 /* empty without that part */
    struct ensemble_part validation_average, test_average; /* of the moving averages of the weights */
    double startup_seconds;                                /* wall-clock time before training */
    double seconds;                                        /* of training with its evaluations */
    double epoch_seconds; /* of one epoch of all members: the largest median if concurrent, else the sum */
};

/* The part that is reported in the end (dataset_reported). */
static inline const struct ensemble_part *ensemble_reported(const struct ensemble *ensemble) {
    return ensemble->data->test.count ? &ensemble->test : &ensemble->validation;
}

struct ensemble_part *ensemble_part_at(struct ensemble *ensemble, int index);

/* The rank that trains a member. */
int ensemble_rank_of(const struct ensemble *ensemble, size_t member);

/* The file of the network of config->seed: `path`, or "model-seed3.safetensors" for "model.safetensors" if
   there are several networks. STATUS_USAGE if the name is too long. */
enum status ensemble_path(const struct config *config, const char *path, char *text, size_t size);

/* Opens all members if `concurrent`, else the first. The first uses `compute`; further concurrent members
   share its backend and device, with a stream of their own. With config->resume each member resumes from its
   file; if the file of a member other than the first is missing, that member starts from initial weights.
   `started` is clock_seconds() at the beginning of start-up. All this is of the members of this process: with
   more processes in `comm` (NULL: one) than members, one may have none. On failure nothing is open. */
enum status ensemble_open(struct ensemble *ensemble, struct compute *compute, const struct config *config,
                          const struct dataset_pair *data, struct comm *comm, bool concurrent,
                          double started);
void ensemble_close(struct ensemble *ensemble);

/* For --dry-run, instead of ensemble_run: opens and closes the members that ensemble_open did not open, which
   reads and writes their files. */
enum status ensemble_dry_run(struct ensemble *ensemble);

/* Can several networks train concurrently on this device? */
bool ensemble_is_concurrent(const struct compute *compute);

/* Trains all members and evaluates them and their committees. If a member fails, the others stop:
   STATUS_FAILED, with its seed in the message. STATUS_INTERRUPTED when stopped. In all cases the results
   cover the members that trained. With several processes, results and status are those of all members on
   rank 0, and on the others STATUS_OK or STATUS_INTERRUPTED; `observer` is that of rank 0, which hears of
   members of other ranks when its own are trained. */
enum status ensemble_run(struct ensemble *ensemble, const struct ensemble_observer *observer,
                         volatile sig_atomic_t *stop);

#endif
