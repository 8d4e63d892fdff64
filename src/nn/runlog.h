/* The run as data: JSON lines (--log) and comma-separated epochs (--csv). */
#ifndef TESSERA_NN_RUNLOG_H
#define TESSERA_NN_RUNLOG_H

#include <stdio.h>

#include "src/nn/ensemble.h"

struct runlog {
    FILE *jsonl, *csv; /* NULL: not asked for */
    const char *jsonl_path, *csv_path;
    bool seeds;    /* of several networks: every line says of which seed it is */
    bool averages; /* there is a moving average of the weights, and columns for it */
};

/* Opens what the config asks for and writes the header line with all facts of the run. `data_name` is shown
   as the data set. STATUS_FAILED if a file cannot be written. */
enum status runlog_open(struct runlog *log, const struct trainer *trainer, const char *data_name);

/* One line each; written through, so that a killed run keeps them. `config` is that of the network. */
void runlog_step(struct runlog *log, const struct config *config, size_t step, double loss);
void runlog_epoch(struct runlog *log, const struct config *config, const struct epoch_record *record);
void runlog_summary(struct runlog *log, const struct config *config, const struct run_summary *summary);
void runlog_ensemble(struct runlog *log, const struct ensemble *ensemble, bool interrupted);

/* Closes both. STATUS_FAILED if anything could not be written. */
enum status runlog_close(struct runlog *log);

#endif
