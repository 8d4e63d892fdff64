/* Common to the files of ./train readout. */
#ifndef TESSERA_CMD_READOUT_H
#define TESSERA_CMD_READOUT_H

#include "src/backend/audit.h"
#include "src/base/files.h"
#include "src/base/logfile.h"
#include "src/nn/checkpoint.h"
#include "src/window/drift.h"
#include "src/window/stream.h"

/* Seconds of the steps of a fit; without start-up. */
struct readout_times {
    double features; /* of those that entered: pixels, hidden layers, targets */
    double factor;   /* they enter the triangle */
    double ridge;    /* each ridge: solution and validation */
    double test;
};

struct readout_job {
    struct config config;
    const char *model; /* NULL: none */
    struct files files;
    struct profile profile;
    struct compute compute;
    struct audit audit;
    struct checkpoint checkpoint; /* of `model` */
    struct dataset_pair data;
    size_t validation; /* of the last training images */
    bool all_enter;    /* those of the validation, too, once the ridge is chosen */
    struct mlp mlp;
    struct tally *tally; /* device */
    struct samples train, test;
    struct features features;
    struct readout readout;
    struct ridges ridges;
    struct evaluation evaluation; /* of the test or the validation part */
    struct readout_times times;
    bool streams;
    struct image_drift drift;
    struct stream_options stream;
    struct stream_result result;
    struct logfile *log; /* NULL: none */
};

/* --- readout_network.c: the hidden layers, and the result as a checkpoint --- */

/* Before the data is read: opens MODEL and takes its recipe, checks --features and what goes with it. */
enum status readout_open_model(struct readout_job *job);
/* When the data is there: the layers of the recipe. */
enum status readout_set_layers(struct readout_job *job);
/* Opens the network with its hidden layers. */
enum status readout_open_network(struct readout_job *job);
/* Sets the last layer to w (device, [n][classes]). */
enum status readout_set_last_layer(struct readout_job *job, const void *w);
enum status readout_save(struct readout_job *job);

/* --- readout_options.c: --ridge, --window, --forgetting, --drift --- */

enum status readout_read_options(struct readout_job *job);

/* --- readout_console.c: standard output --- */
void readout_print_header(const struct readout_job *job);
void readout_print_ridges(const struct ridges *ridges, const char *part);
void readout_print_result(const struct readout_job *job);
void readout_print_titles(const struct readout_job *job);
void readout_print_block(const struct readout_job *job, const struct stream_record *record);
void readout_print_stream(const struct readout_job *job);

/* The readout of the stream with the most right answers; the first of several. */
size_t readout_best(const struct readout_job *job);
/* "1,000", "all", "forgetting 0.999". */
struct readout_name {
    char text[48];
};
struct readout_name readout_memory_name(const struct stream_memory *memory);

/* --- readout_log.c: JSON lines; nothing without a log --- */
void readout_log_header(const struct readout_job *job);
void readout_log_ridges(const struct readout_job *job, const struct ridges *ridges);
void readout_log_result(const struct readout_job *job);
void readout_log_block(const struct readout_job *job, const struct stream_record *record);
void readout_log_stream(const struct readout_job *job);

#endif
