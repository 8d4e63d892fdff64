#include "src/cmd/train_ensemble.h"

#include <stdio.h>

#include "src/base/process.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cmd/console.h"
#include "src/comm/comm.h"
#include "src/nn/runlog.h"

/* What the observers write to. */
struct watch {
    struct runlog log;
    struct console console;
};

static void on_step(void *self, const struct member *member, size_t step, double loss) {
    runlog_step(&((struct watch *)self)->log, &member->config, step, loss);
}

static void on_epoch(void *self, const struct member *member) {
    runlog_epoch(&((struct watch *)self)->log, &member->config, &member->last);
}

static void on_progress(void *self, const struct member *member, size_t epoch, size_t step, size_t steps,
                        double loss) {
    struct watch *watch = self;
    char prefix[32];
    snprintf(prefix, sizeof prefix, "seed %lld  ", (long long)member->config.seed);
    watch->console.trainer = &member->trainer; /* the trainer of the previous member may be closed */
    console_progress(&watch->console, prefix, epoch, step, steps, loss);
}

static void on_warning(void *self, const struct member *member, const char *message) {
    (void)self;
    terminal_note("warning: seed %lld: %s", (long long)member->config.seed, message);
}

/* --- the table: a line for each network, then the committee --- */

static void print_titles(const struct ensemble *ensemble) {
    const bool average = ensemble->config->ema_decay > 0;
    const bool tested = ensemble->data->test.count > 0;
    const struct comm *comm = ensemble->comm;
    char shared[192] = "";
    if (comm_size(comm) > 1)
        snprintf(shared, sizeof shared, ", shared out to %d processes by %s", comm->size, comm->description);
    terminal_print(stdout, 0, "%zu networks%s, %s\n\n", ensemble->count, shared,
                   ensemble->concurrent ? "concurrently" : "one after the other");
    printf("seed    loss");
    console_title("train accuracy", "train");
    if (tested) console_title("test accuracy", "test");
    if (tested && average) console_title("of average weights", "average");
    if (ensemble->config->validation) console_title("validation accuracy", "held-out");
    if (ensemble->config->validation && average) console_title("of average weights", "average");
    printf("  epochs  seconds an epoch\n");
}

/* Prints the accuracy of the newest member of a committee, if it has any. */
static void print_newest(const struct ensemble_part *part) {
    const struct committee *committee = &part->committee;
    if (!committee->members) return;
    const struct evaluation *newest = &committee->member[committee->members - 1];
    console_cell(newest->correct, newest->total);
}

/* Prints the newest member with its final weights: with early stopping, those of its best epoch. */
static void on_done(void *self, const struct member *member) {
    struct watch *watch = self;
    const struct epoch_record *last = &member->last;
    const struct ensemble *ensemble = member->ensemble;
    runlog_summary(&watch->log, &member->config, &member->summary);
    terminal_clear_progress();
    if (last->epoch) {
        printf("%4lld  %6.4f", (long long)member->config.seed, last->train_loss);
    } else { /* its checkpoint was complete */
        printf("%4lld  %6s", (long long)member->config.seed, "-");
    }
    console_cell(last->train_correct, last->train_images);
    print_newest(&ensemble->test);
    print_newest(&ensemble->test_average);
    print_newest(&ensemble->validation);
    print_newest(&ensemble->validation_average);
    printf("  %6zu  %16.4f\n", member->summary.epochs, member->summary.median_epoch_seconds);
    fflush(stdout);
}

static void print_part(const char *title, const struct ensemble_part *part) {
    if (part->committee.members) console_committee(title, &part->accuracy, &part->evaluation);
}

static void print_committees(const struct ensemble *ensemble, bool interrupted) {
    printf("\n%s", interrupted ? "Interrupted; the numbers are of the steps done.\n" : "");
    print_part("validation accuracy", &ensemble->validation);
    print_part("of average weights", &ensemble->validation_average);
    print_part("test accuracy", &ensemble->test);
    print_part("of average weights", &ensemble->test_average);
    terminal_print(
        stdout, 20,
        "time                %s for all, %s, evaluation included; an epoch of all %s; start-up %s (not "
        "included)\n",
        text_seconds(ensemble->seconds).text, ensemble->concurrent ? "concurrently" : "one after the other",
        text_seconds(ensemble->epoch_seconds).text, text_seconds(ensemble->startup_seconds).text);
    for (size_t m = 0; ensemble->config->save[0] && m < ensemble->count; m++)
        if (ensemble->member[m].summary.done && ensemble->member[m].status != STATUS_FAILED)
            printf("checkpoint          %s\n", ensemble->member[m].config.save);
}

/* --- the run --- */

static enum status train(struct ensemble *ensemble, const struct ensemble_job *job) {
    struct watch watch;
    const struct ensemble_observer observer = {.self = &watch,
                                               .step = on_step,
                                               .epoch = on_epoch,
                                               .progress = on_progress,
                                               .warning = on_warning,
                                               .done = on_done};
    enum status status = runlog_open(&watch.log, &ensemble->member[0].trainer, job->data->name);
    if (status) return status;
    watch.console = console_open(&ensemble->member[0].trainer);
    print_titles(ensemble);
    fflush(stdout);
    process_catch_signals(job->stop);
    status = ensemble_run(ensemble, &observer, job->stop);
    if (ensemble_reported(ensemble)->committee.members) {
        runlog_ensemble(&watch.log, ensemble, status == STATUS_INTERRUPTED);
        print_committees(ensemble, status == STATUS_INTERRUPTED);
    }
    const char *signal = process_signal()[0] ? process_signal() : "a signal to another process";
    if (status == STATUS_INTERRUPTED && job->config->save[0]) {
        status_write("interrupted by %s; go on with --resume %s --ensemble %zu --seed %lld", signal,
                     job->config->save, ensemble->count, (long long)job->config->seed);
    } else if (status == STATUS_INTERRUPTED) {
        status_write("interrupted by %s", signal);
    }
    status = runlog_close(&watch.log, status);
    return status ? status
                  : console_check_target(job->config, dataset_reported(job->data),
                                         &ensemble_reported(ensemble)->evaluation);
}

/* What rank 0 prints before the training. */
static void print_header(const struct ensemble *ensemble, const struct ensemble_job *job) {
    const struct member *first = &ensemble->member[0];
    console_header(&first->trainer, job->data);
    if (job->verbose) console_plan(&first->trainer);
    if (job->dry_run && first->trainer.notice[0]) /* as trainer_run does */
        on_warning(NULL, first, first->trainer.notice);
}

/* Another rank than 0, which prints and logs nothing. */
static enum status train_quietly(struct ensemble *ensemble, const struct ensemble_job *job) {
    process_catch_signals(job->stop);
    return ensemble_run(ensemble, NULL, job->stop);
}

enum status train_ensemble(const struct ensemble_job *job) {
    struct ensemble ensemble;
    enum status status = ensemble_open(&ensemble, job->compute, job->config, job->data, job->comm,
                                       ensemble_is_concurrent(job->compute), job->started);
    const bool prints = comm_size(job->comm) == 1 || job->comm->rank == 0;
    if (status) return status;
    if (prints) print_header(&ensemble, job);
    if (job->dry_run) {
        status = ensemble_dry_run(&ensemble);
    } else {
        status = prints ? train(&ensemble, job) : train_quietly(&ensemble, job);
    }
    ensemble_close(&ensemble);
    return status;
}
