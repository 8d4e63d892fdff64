/* The log of a run: JSON lines (--log) and epochs as comma-separated values (--csv). */
#ifndef TESSERA_NN_RUNLOG_H
#define TESSERA_NN_RUNLOG_H

#include "src/base/logfile.h"
#include "src/nn/ensemble.h"

struct runlog {
    struct logfile *jsonl, *csv; /* NULL: not requested */
    bool seeds;                  /* an ensemble: every line has the seed of its network */
    bool averages;               /* columns for the moving average of the weights */
};

/* Opens the files of the config and writes the header line with all facts of the run. `data_name` is the data
   set. STATUS_FAILED if a file cannot be written. */
enum status runlog_open(struct runlog *log, const struct trainer *trainer, const char *data_name);

/* Each appends one line, which survives a killed run. `config` is that of the network. */
void runlog_step(struct runlog *log, const struct config *config, size_t step, double loss);
void runlog_epoch(struct runlog *log, const struct config *config, const struct epoch_record *record);
void runlog_summary(struct runlog *log, const struct config *config, const struct run_summary *summary);
void runlog_ensemble(struct runlog *log, const struct ensemble *ensemble, bool interrupted);

/* Writes a line with the message of an error that ended the run, and closes both. Returns `status`, the end
   of the run, or STATUS_FAILED if that is STATUS_OK and a line could not be written. */
enum status runlog_close(struct runlog *log, enum status status);

#endif
