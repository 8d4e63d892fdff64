/* ./train [train]: trains a network. */
#include <stdio.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/base/platform.h"
#include "src/base/text.h"
#include "src/cmd/backend.h"
#include "src/cmd/command.h"
#include "src/cmd/console.h"
#include "src/cmd/options.h"
#include "src/nn/runlog.h"

static volatile sig_atomic_t interrupted;

/* The first signal asks to stop after the step; the second has the default effect. */
static void on_signal(int signal) {
    (void)signal;
    interrupted = 1;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* Everything that a run holds; closed in the opposite order. */
struct run {
    struct config config;
    struct profile profile;
    struct compute compute;
    struct dataset_pair data;
    struct checkpoint checkpoint;
    struct trainer trainer;
    struct runlog log;
    struct console console;
};

static void on_step(void *self, size_t step, double loss) {
    runlog_step(&((struct run *)self)->log, step, loss);
}

static void on_epoch(void *self, const struct epoch_record *record) {
    struct run *run = self;
    runlog_epoch(&run->log, record);
    console_epoch(&run->console, record);
}

static void on_progress(void *self, size_t epoch, size_t step, size_t steps, double loss) {
    console_progress(&((struct run *)self)->console, epoch, step, steps, loss);
}

static void on_warning(void *self, const char *message) {
    (void)self;
    fprintf(stderr, "train: warning: %s\n", message);
}

static void close_run(struct run *run) {
    trainer_close(&run->trainer);
    checkpoint_close(&run->checkpoint);
    dataset_pair_free(&run->data);
    compute_close(&run->compute);
}

static enum status open_data(struct run *run) {
    struct config *config = &run->config;
    enum status status = dataset_load(&run->data, config->data, DATASET_ALL);
    if (status) return status;
    if (strcmp(config->data, "auto") == 0) {
        if (strcmp(run->data.name, "synthetic") == 0)
            fprintf(stderr, "train: no MNIST in data/mnist: training on the embedded synthetic digits "
                            "(data/fetch.sh downloads MNIST)\n");
        snprintf(config->data, sizeof config->data, "%s", run->data.name); /* what a checkpoint should name */
    }
    return config_check_data(config, &run->data);
}

static enum status open_run(struct run *run) {
    struct config *config = &run->config;
    const struct gemm_backend *backend;
    enum status status = registry_find(config->backend, &backend); /* before the data is read */
    if (!status && config->save[0]) status = safetensors_writable(config->save);
    if (!status && config->save_init[0]) status = safetensors_writable(config->save_init);
    if (!status) status = open_data(run);
    if (!status) status = backend_open(config, &run->compute);
    if (status) return status;
    run->compute.device.profile = &run->profile;
    status = trainer_open(&run->trainer, &run->compute, config, &run->data,
                          config->resume[0] ? &run->checkpoint : NULL);
    run->trainer.stop = &interrupted;
    return status;
}

static enum status train(struct run *run) {
    const struct config *config = &run->config;
    const struct trainer_observer observer = {
        .self = run, .step = on_step, .epoch = on_epoch, .progress = on_progress, .warning = on_warning};
    struct run_summary summary;
    enum status status = runlog_open(&run->log, &run->trainer, run->data.name);
    if (status) return status;
    run->console = console_open(&run->trainer);
    if (run->trainer.state.epoch >= config->epochs)
        printf("The checkpoint is at epoch %lld of %lld: nothing to train. --epochs N goes on.\n",
               (long long)run->trainer.state.epoch, (long long)config->epochs);
    console_epoch_titles(&run->console);
    fflush(stdout);
    catch_signals();
    status = trainer_run(&run->trainer, &observer, &summary);
    if (summary.done) {
        runlog_summary(&run->log, &summary);
        console_summary(&run->console, &summary);
        if (config->save[0] && status != STATUS_FAILED) printf("checkpoint         %s\n", config->save);
    }
    if (status == STATUS_INTERRUPTED)
        status_write("interrupted%s%s", config->save[0] ? "; go on with --resume " : "", config->save);
    const enum status closed = runlog_close(&run->log);
    if (status) return status;
    return closed ? closed : console_check_target(config, &summary.test);
}

static enum status save_initial(struct run *run) {
    if (!run->config.save_init[0]) return STATUS_OK;
    return checkpoint_save(run->config.save_init, &run->trainer.mlp, &run->config, NULL);
}

static enum status run_train(int argc, char **argv) {
    static struct run run; /* zero */
    const char *dry_run = NULL, *dump_config = NULL;
    const struct option_extra extras[] = {
        {"dry-run", NULL, "load, allocate and print the header, but train nothing", &dry_run},
        {"dump-config", NULL, "print the effective config and where each value is from, and stop",
         &dump_config},
    };
    const struct option_set set = {
        .usage = "[train] [--config FILE] [--KEY VALUE]...",
        .details = "Trains a multi-layer perceptron on MNIST (or any IDX image set) with the GEMM backend of "
                   "your choice.\n"
                   "  ./train --config configs/validation.cfg --backend openmp",
        .extras = extras,
        .extra_count = sizeof extras / sizeof *extras,
    };
    bool help;
    profile_start(&run.profile);
    enum status status = options_parse(&set, argc, argv, &run.config, &help);
    if (status || help) return status;
    if (run.config.resume[0]) {
        status = checkpoint_open(&run.checkpoint, run.config.resume);
        if (!status) status = checkpoint_recipe(&run.checkpoint, &run.config);
    }
    if (!status && dump_config) {
        config_dump(&run.config, stdout, false, true);
    } else if (!status) {
        status = open_run(&run);
        checkpoint_close(&run.checkpoint); /* what it held is in the network now */
        if (!status) {
            console_header(&run.trainer, &run.data);
            status = save_initial(&run);
        }
        if (!status && !dry_run) status = train(&run);
    }
    close_run(&run);
    return status;
}

const struct command command_train = {"train", "train a network (the default command)", run_train};
