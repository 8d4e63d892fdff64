/* Common to the files of ./train kmeans. */
#ifndef TESSERA_CMD_KMEANS_H
#define TESSERA_CMD_KMEANS_H

#include "src/backend/audit.h"
#include "src/base/files.h"
#include "src/base/logfile.h"
#include "src/cluster/kmeans.h"
#include "src/cluster/quality.h"
#include "src/nn/checkpoint.h"

enum { KMEANS_PARTS = 3 };

/* A part of the data with its labels and what they are worth. */
struct kmeans_part {
    const char *name; /* "training", "validation", "test" */
    const struct points *points;
    const uint32_t *label; /* host */
    uint32_t *own;         /* the memory of `label`, unless it is the result's */
    double inertia;
    struct quality quality; /* points 0: there are no classes */
    double accuracy;        /* of the classifier that knows `majority` */
    double medoid_accuracy; /* of the one that knows the classes of the medoids alone */
};

struct kmeans_job {
    struct config config;
    struct files files;
    struct profile profile;
    struct compute compute;
    struct audit audit;
    struct point_sets sets;
    struct kmeans_options options;
    struct checkpoint resumed; /* of --resume, until its state was read */
    bool resumed_batches;      /* it is of mini-batches */
    struct kmeans_state start; /* of --resume */
    struct kmeans_result result;
    struct kmeans_part part[KMEANS_PARTS]; /* points NULL: there is no such part */
    uint32_t *medoid;                      /* [clusters]: rows of the training part (quality_medoids) */
    /* [clusters]: the classes of clusters, the majority's and the medoid's; NULL without classes. A cluster
       without points has class 0. */
    uint8_t *majority, *medoid_class;
    struct logfile *log;           /* NULL: none */
    const char *picture, *predict; /* files; NULL: none */
    bool titles;                   /* of the table of iterations are printed */
};

/* Do all labels have a certificate? */
static inline bool kmeans_is_exact(const struct kmeans_job *job) {
    return job->options.precision == NEAREST_EXACT && job->result.counts.uncertified == 0;
}

/* "no point changed", .. */
const char *kmeans_end_name(enum kmeans_end end);

/* --- kmeans_quality.c: labels and quality of every part --- */
enum status kmeans_measure_quality(struct kmeans_job *job);

/* --- kmeans_console.c: standard output --- */
void kmeans_print_header(const struct kmeans_job *job, const char *engine);
void kmeans_print_iteration(struct kmeans_job *job, const struct kmeans_record *record);
void kmeans_print_result(const struct kmeans_job *job);

/* --- kmeans_log.c: JSON lines; nothing without a log --- */
void kmeans_log_header(const struct kmeans_job *job, const char *engine);
void kmeans_log_iteration(const struct kmeans_job *job, const struct kmeans_record *record);
void kmeans_log_result(const struct kmeans_job *job);
void kmeans_log_centres(const struct kmeans_job *job); /* only of small images */

/* --- kmeans_checkpoint.c: nothing without their flags --- */

/* --save: the centres as a linear layer (docs/kmeans.md), with counts, labels and the state of the run. */
enum status kmeans_save(const struct kmeans_job *job);
/* --resume: opens the checkpoint, and takes its recipe and number of clusters; then, when the points are
   known, its state. */
enum status kmeans_open_resumed(struct kmeans_job *job);
enum status kmeans_read_resumed(struct kmeans_job *job);

/* --- kmeans_files.c: nothing without their flags --- */

/* Rounds the centre of a cluster of images to pixels [features]. */
void kmeans_centre_pixels(const struct kmeans_job *job, size_t cluster, uint8_t *pixels);
/* --picture: the centres as images, with their number of points and their class. */
enum status kmeans_draw(const struct kmeans_job *job);
/* --predict: the labels as comma-separated values. */
enum status kmeans_write_labels(const struct kmeans_job *job);

#endif
