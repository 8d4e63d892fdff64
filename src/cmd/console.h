/* The output of a training run: the table to stdout, the progress line to stderr if that is a terminal. */
#ifndef TESSERA_CMD_CONSOLE_H
#define TESSERA_CMD_CONSOLE_H

#include "src/base/statistics.h"
#include "src/nn/trainer.h"

struct console {
    const struct trainer *trainer;
    bool terminal;                    /* is stderr one? */
    double last_progress, first_time; /* of the progress line, in seconds; 0: none yet */
    size_t first_step;                /* of the run, at first_time */
};

struct console console_open(const struct trainer *trainer);

/* Prints all settings of the run. */
void console_header(const struct trainer *trainer, const struct dataset_pair *data);
void console_epoch_titles(const struct console *console);
void console_epoch(struct console *console, const struct epoch_record *record);
/* `prefix`: "", or the network of an ensemble. */
void console_progress(struct console *console, const char *prefix, size_t epoch, size_t step, size_t steps,
                      double loss);
void console_summary(const struct console *console, const struct run_summary *summary);

/* --verbose: prints the engines, which one was chosen, and why. */
void console_plan(const struct trainer *trainer);

/* "9,812/10,000 98.12 %" */
struct console_text {
    char text[80];
};
struct console_text console_accuracy(uint64_t correct, uint64_t total);

/* Prints the cell of a column of accuracies: console_accuracy with --wide, else "98.12 %"; "-" if the total
   is 0. `narrow` is the column's title without --wide. */
void console_cell(uint64_t correct, uint64_t total);
void console_title(const char *title, const char *narrow);

/* One standard error of an accuracy, in percentage points: 100 sqrt(p (1 - p) / n). */
double console_binomial_error(const struct evaluation *evaluation);

/* Prints the line of an evaluation; for several networks, a line of their mean and one of their committee. */
void console_evaluation(const char *title, const struct evaluation *evaluation);
void console_committee(const char *title, const struct statistics *members,
                       const struct evaluation *committee);

/* STATUS_TARGET_MISSED if --target-accuracy (per cent, or a fraction up to 1) is set and not reached.
   `part` is for the message: "test". */
enum status console_check_target(const struct config *config, const char *part,
                                 const struct evaluation *evaluation);

#endif
