/* Readouts that follow a stream of images: each block of images is predicted before it enters. */
#ifndef TESSERA_WINDOW_STREAM_H
#define TESSERA_WINDOW_STREAM_H

#include <signal.h>

#include "src/window/ridge.h"
#include "src/window/sliding.h"

enum { STREAM_MOST = 16 };

/* What a readout of the stream remembers. */
struct stream_memory {
    size_t window;     /* images; 0: all */
    double forgetting; /* 1: none */
};

struct stream_options {
    size_t stride; /* images of a block, between two fits */
    size_t count;  /* readouts */
    struct stream_memory memory[STREAM_MOST];
    double ridge;                      /* negative: chosen on the second block after a fit of the first */
    const volatile sig_atomic_t *stop; /* (optional) set by a signal: ends the stream after the block */
};

/* After a block: the images of it that were right, before it entered. */
struct stream_record {
    size_t block, images;              /* from 1; images of the stream up to and with this block */
    const struct readout_score *score; /* [count]: of this block */
};

struct stream_result {
    double ridge;
    struct ridges ridges; /* that were tried; count 0: --ridge was given */
    size_t blocks;        /* predicted */
    struct readout_score score[STREAM_MOST];
};

struct stream_observer {
    void *self;
    void (*ridge)(void *self, const struct stream_result *result); /* when the ridge is known */
    void (*block)(void *self, const struct stream_record *record);
};

/* STATUS_USAGE if the images are fewer than two blocks, or a window is no multiple of one. */
enum status stream_check(const struct stream_options *options, size_t images);

/* Runs through all whole blocks of the images. The first has no prediction. Needs stream_check.
   STATUS_INTERRUPTED with the result so far. STATUS_FAILED names the window of a fit that has no solution, or
   a feature that is not finite. */
enum status stream_run(struct readout *readout, const struct readout_images *images,
                       const struct stream_options *options, const struct stream_observer *observer,
                       struct stream_result *result);

/* Of two counts of right answers of the same number of images: their difference is more than two standard
   errors of it. Conservative: takes the answers as independent. */
bool stream_differs(const struct readout_score *a, const struct readout_score *b);

#endif
