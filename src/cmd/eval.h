/* Common to the files of ./train eval. */
#ifndef TESSERA_CMD_EVAL_H
#define TESSERA_CMD_EVAL_H

#include "src/base/files.h"
#include "src/base/logfile.h"
#include "src/nn/committee.h"
#include "src/nn/config.h"

/* The networks, the images to classify, and their answers. */
struct evaluator {
    struct config flags; /* of the command line */
    struct files files;
    struct config config; /* with the recipe of the newest checkpoint */
    struct compute compute;
    struct dataset_pair data;
    int64_t validation;         /* evaluate this many of the last training images; 0: the test set */
    bool foreign;               /* without a test set: all images of data that are not the checkpoint's own */
    struct dataset set;         /* those images: a view */
    size_t first;               /* index of the first one in its file */
    const char *part;           /* "test" or "validation" */
    struct tally *tally;        /* device */
    struct committee committee; /* of one network, or more */
    struct predictions predictions;
    struct logfile *log; /* NULL: none */
    int64_t tta;         /* deformed versions of each image */
    double tta_strength; /* of the deformation, relative to the recipe */
    const char *average; /* not NULL: use the moving average of the weights */
};

/* --- eval_log.c: JSON lines; nothing without a log --- */

void eval_log_header(const struct evaluator *eval);

/* `members`: NULL for a network; for the committee, whose `layers` are "", the spread of its members. */
void eval_log_result(const struct evaluator *eval, const char *name, const char *layers,
                     const struct evaluation *result, const struct statistics *members);

void eval_log_confusion(const struct evaluator *eval, const double *counts);

/* `image` of eval->set, which was predicted with this confidence. */
void eval_log_mistake(const struct evaluator *eval, size_t image, double confidence);

/* --- eval_mistakes.c: the most confident mistakes --- */

struct mistakes_wanted {
    size_t printed; /* as text */
    /* (optional) the file for their images: those printed; all, if none is printed; at most 600 */
    const char *picture;
};

/* Prints, draws and logs them. STATUS_FAILED without memory, or if the picture cannot be written. */
enum status eval_mistakes(const struct evaluator *eval, const struct mistakes_wanted *wanted);

#endif
