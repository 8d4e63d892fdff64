/* ./train eval: what its files share. */
#ifndef TESSERA_CMD_EVAL_H
#define TESSERA_CMD_EVAL_H

#include <stdio.h>

#include "src/nn/committee.h"
#include "src/nn/config.h"

/* The networks, the images that they are asked about, and their answers. */
struct evaluator {
    struct config flags;  /* what the user said */
    struct config config; /* with the recipe of the newest checkpoint */
    struct compute compute;
    struct dataset_pair data;
    int64_t validation;  /* ask about the last of the training images, so many; 0: about the test set */
    struct dataset set;  /* those images: a view */
    size_t first;        /* the number of the first of them, in the file that they are of */
    const char *part;    /* "test" or "validation" */
    struct tally *tally; /* device */
    struct committee committee; /* of one network, or more */
    struct predictions predictions;
    FILE *log;           /* NULL: none */
    int64_t tta;         /* deformations that each image is seen in, beside as it is */
    double tta_strength; /* of them, times what the recipe asks for */
    const char *average; /* not NULL: the moving average of the weights, and not they themselves */
};

/* --- eval_log.c: JSON lines; nothing without a log --- */

void eval_log_header(const struct evaluator *eval);

/* Of a network, or (layers "", with the spread of the members) of the committee. */
void eval_log_result(const struct evaluator *eval, const char *name, const char *layers,
                     const struct evaluation *result, const struct statistics *members);

void eval_log_confusion(const struct evaluator *eval, const double *counts);

/* `image` of eval->set, which was predicted with this confidence. */
void eval_log_mistake(const struct evaluator *eval, size_t image, double confidence);

/* --- eval_mistakes.c: the most confident mistakes --- */

struct mistakes_wanted {
    size_t printed;      /* as text */
    const char *picture; /* a file to draw as many into, or all if none are printed; NULL: none */
};

/* Prints, draws and logs them. STATUS_FAILED without memory, or if the picture cannot be written. */
enum status eval_mistakes(const struct evaluator *eval, const struct mistakes_wanted *wanted);

#endif
