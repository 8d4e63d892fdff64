/* N networks of one config, with the seeds s, s + 1, .. s + N - 1: each becomes what a run of its own with
   that seed gives. On a GPU they are trained at once, each by a thread of the host with a stream of its own;
   on the host one after the other, each with all threads. */
#ifndef TESSERA_NN_ENSEMBLE_H
#define TESSERA_NN_ENSEMBLE_H

#include "src/nn/committee.h"
#include "src/nn/trainer.h"

struct member {
    struct config config;    /* with its seed, and files of its own: ensemble_path */
    struct compute *compute; /* its own if all are trained at once */
    struct compute own;
    struct profile profile;
    struct trainer trainer;   /* open while it trains; if all are trained at once, until ensemble_close */
    struct epoch_record last; /* of its last epoch in this run; epoch 0: none */
    struct run_summary summary;
    enum status status; /* of its run, with `message` */
    char message[1024];
    struct ensemble *ensemble;
};

/* Whoever wants to know: as struct trainer_observer, called for one member at a time. Any function may be
   NULL. */
struct ensemble_observer {
    void *self;
    void (*step)(void *self, const struct member *member, size_t step, double loss);
    void (*epoch)(void *self, const struct member *member);
    void (*progress)(void *self, const struct member *member, size_t epoch, size_t step, size_t steps,
                     double loss);
    void (*warning)(void *self, const struct member *member, const char *message);
    /* It has trained, and is in the committee; in the order of the seeds. */
    void (*done)(void *self, const struct member *member);
};

/* What was said of the images of the validation part, or of the test set. */
struct ensemble_part {
    struct committee committee;   /* with each member's evaluation */
    struct statistics accuracy;   /* of the members, as fractions */
    struct evaluation evaluation; /* of the committee */
};

struct ensemble {
    const struct config *config;
    const struct dataset_pair *data;
    size_t count;
    struct member *member; /* [count] */
    bool at_once;
    volatile sig_atomic_t
        *stop; /* not 0: every member finishes its step and leaves. Set, too, when one of them fails */
    const struct ensemble_observer *observer;
    void *lock; /* of the observer */

    /* After ensemble_run. The members of the parts are those that trained, in the order of their seeds. */
    struct ensemble_part validation, test;                 /* validation: of no image without that part */
    struct ensemble_part validation_average, test_average; /* of the moving averages of the weights */
    double startup_seconds,
        seconds; /* before and while they trained, evaluation included, as the clock on the wall has it */
    /* one epoch of all members: if they train concurrently, the largest of the median epoch times, else
       their sum */
    double epoch_seconds;
};

/* The file of the network of config->seed: `path` itself, or, of several networks, "model-seed3.safetensors"
   for "model.safetensors". STATUS_USAGE if that is too long a name. */
enum status ensemble_path(const struct config *config, const char *path, char *text, size_t size);

/* Opens the members, or the first where one follows the other, on `compute`, whose backend and device the
   others of a GPU share, but not its stream. With config->resume each goes on from its file; one that has
   none yet begins, but for the first. `at_once` is to be had from ensemble_at_once. `started`: the clock when
   start-up began. On failure nothing is open. */
enum status ensemble_open(struct ensemble *ensemble, struct compute *compute, const struct config *config,
                          const struct dataset_pair *data, bool at_once, double started);
void ensemble_close(struct ensemble *ensemble);

/* Opens and closes, instead of a run, the members that ensemble_open left for their turn: their files are
   read, and written. */
enum status ensemble_rehearse(struct ensemble *ensemble);

/* Are several networks trained at once there? On devices that are not the host. */
bool ensemble_at_once(const struct compute *compute);

/* Trains them all, and asks them and their committee. One that fails stops the others, which keep what they
   have: STATUS_FAILED, with its seed in the message; STATUS_INTERRUPTED when stopped. The parts are filled
   with those that trained in all cases; where none did they have no members. */
enum status ensemble_run(struct ensemble *ensemble, const struct ensemble_observer *observer,
                         volatile sig_atomic_t *stop);

#endif
