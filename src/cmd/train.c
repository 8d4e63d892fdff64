/* ./train [train]: trains a network. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/backend/plugin.h"
#include "src/backend/registry.h"
#include "src/base/process.h"
#include "src/base/share.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cmd/backend.h"
#include "src/cmd/command.h"
#include "src/cmd/console.h"
#include "src/cmd/options.h"
#include "src/cmd/train_ensemble.h"
#include "src/cmd/train_processes.h"
#include "src/data/dataset_loading.h"
#include "src/nn/runlog.h"

static volatile sig_atomic_t interrupted;

/* When the parts of start-up ended, in monotonic seconds. */
struct startup {
    double begun, found, opened, loaded;
};

/* The objects of a run; closed in reverse order. */
struct run {
    struct startup startup;
    struct config config;
    struct files files;
    struct profile profile;
    struct comm comm;
    struct compute compute;
    struct dataset_loading *loading; /* until `data` are there */
    struct dataset_pair data;
    struct checkpoint checkpoint;
    struct trainer trainer;
    struct runlog log;
    struct console console;
    double last_loss; /* of the training, in the last epoch; 0: none yet */
};

static void on_step(void *self, size_t step, double loss) {
    struct run *run = self;
    runlog_step(&run->log, &run->config, step, loss);
}

static void on_epoch(void *self, const struct epoch_record *record) {
    struct run *run = self;
    runlog_epoch(&run->log, &run->config, record);
    console_epoch(&run->console, record);
    run->last_loss = record->train_loss;
}

static void on_progress(void *self, size_t epoch, size_t step, size_t steps, double loss) {
    console_progress(&((struct run *)self)->console, "", epoch, step, steps, loss);
}

static void on_warning(void *self, const char *message) {
    (void)self;
    options_warn(message);
}

static void close_run(struct run *run) {
    files_free(&run->files);
    if (run->loading) dataset_loading_abandon(run->loading);
    trainer_close(&run->trainer);
    checkpoint_close(&run->checkpoint);
    dataset_pair_free(&run->data);
    compute_close(&run->compute);
}

/* data/fetch.sh downloads into its own folder; an installed one is told that of the user. */
static void note_missing_data(void) {
    char script[CONFIG_TEXT], folder[CONFIG_TEXT] = "";
    enum share_folder at = SHARE_HERE;
    while (share_path(at, "data/fetch.sh", script, sizeof script) && access(script, R_OK) != 0) at++;
    if (at == SHARE_INSTALLED) share_path(SHARE_OF_USER, "data/mnist", folder, sizeof folder);
    terminal_note(
        "no MNIST in data/mnist: training on the embedded synthetic digits (%s%s%s downloads MNIST)",
        at < SHARE_FOLDERS ? script : "data/fetch.sh", folder[0] ? " " : "", folder);
}

/* Waits for the data set, and checks the recipe against it; the second call does nothing. */
static enum status take_data(struct run *run) {
    struct config *config = &run->config;
    if (!run->loading) return STATUS_OK;
    enum status status = dataset_loading_end(run->loading, &run->data);
    run->loading = NULL;
    if (status) return status;
    if (strcmp(config->data, "auto") == 0) {
        if (strcmp(run->data.name, "synthetic") == 0) note_missing_data();
        /* so that a checkpoint names the data set */
        snprintf(config->data, sizeof config->data, "%s", run->data.name);
    }
    if (config->resume[0]) status = checkpoint_adopt_classes(&run->checkpoint, &run->data);
    return status ? status : config_check_training(config, &run->data);
}

/* Adds the file of --save, --save-init or --resume of the network with config->seed. One that is written must
   be writable. */
static enum status add_checkpoint(struct run *run, const struct config *config, const char *flag,
                                  const char *path, enum file_use use) {
    char file[CONFIG_TEXT];
    const enum status status = ensemble_path(config, path, file, sizeof file);
    if (status || !path[0]) return status;
    files_add(&run->files, flag, file, use);
    return use == FILE_RESUMED ? STATUS_OK : checkpoint_writable(file);
}

/* Checks all files of the run before any is written. */
static enum status check_files(struct run *run) {
    struct config member = run->config;
    enum status status = STATUS_OK;
    files_add(&run->files, "--csv", run->config.csv, FILE_WRITTEN);
    if (config_origin_of(&run->config, "init") != FROM_CHECKPOINT) /* whose file is not read */
        files_add(&run->files, "--init", run->config.init.file, FILE_READ);
    for (int64_t m = 0; m < run->config.ensemble && !status; m++, member.seed++) {
        status = add_checkpoint(run, &member, "--resume", member.resume, FILE_RESUMED);
        if (!status) status = add_checkpoint(run, &member, "--save", member.save, FILE_SAVED);
        if (!status) status = add_checkpoint(run, &member, "--save-init", member.save_init, FILE_WRITTEN);
    }
    return status ? status : options_check_files(&run->files, &run->config);
}

/* Opens data, device and backend: the data set is read while a driver starts, which takes about as long. A
   plug-in is verified when it is opened: afterwards, since this may take long and the data may be wrong. */
static enum status open_run(struct run *run) {
    struct config *config = &run->config;
    const struct gemm_backend *backend;
    enum status status = check_files(run);
    if (status) return status;
    run->loading = dataset_loading_begin(config->data, config_dataset(config, DATASET_ALL));
    if (!run->loading) return STATUS_FAILED;
    status = registry_find(config->backend, &backend);
    run->startup.found = clock_seconds();
    if (!status && plugin_path(backend)) status = take_data(run);
    if (!status) status = backend_open(config, &run->compute);
    run->startup.opened = clock_seconds();
    if (!status) status = take_data(run);
    run->startup.loaded = clock_seconds();
    return status ? status : backend_verify_run(config, backend, &run->data);
}

static enum status open_trainer(struct run *run) {
    run->compute.device.profile = &run->profile;
    if (run->comm.size > 1 || run->comm.fixed) run->compute.comm = &run->comm;
    const enum status status = trainer_open(&run->trainer, &run->compute, &run->config, &run->data,
                                            run->config.resume[0] ? &run->checkpoint : NULL);
    run->trainer.stop = &interrupted;
    checkpoint_close(&run->checkpoint); /* the network has its contents now */
    return status;
}

/* A network that knows nothing has the loss ln(classes). */
static void warn_of_guessing(const struct run *run) {
    const double guess = log((double)mlp_last(&run->trainer.mlp)->out);
    if (run->last_loss > guess)
        terminal_note("warning: the network has not learnt: its loss, %.4g, is higher than that of guessing, "
                      "%.4g; try a "
                      "smaller --learning-rate than %g",
                      run->last_loss, guess, run->config.learning_rate);
}

/* Warns if the checkpoint leaves nothing to train. */
static void warn_of_completion(const struct trainer *trainer) {
    const struct train_state *state = &trainer->state;
    const long long epoch = (long long)state->epoch, epochs = (long long)trainer->config->epochs;
    if (epoch >= epochs) {
        terminal_note(
            "warning: the checkpoint is at epoch %lld of %lld: nothing to train; --epochs counts from the "
            "first epoch on, so --epochs %lld trains one more",
            epoch, epochs, epoch + 1);
    } else if (early_stopping_due(&trainer->stopping, state)) {
        terminal_note(
            "warning: the checkpoint is at epoch %lld, its best is epoch %lld, and the patience has run "
            "out: nothing to train; a larger --patience goes on",
            epoch, (long long)state->best.epoch);
    }
}

static enum status train(struct run *run) {
    const struct config *config = &run->config;
    const struct trainer_observer observer = {
        .self = run, .step = on_step, .epoch = on_epoch, .progress = on_progress, .warning = on_warning};
    struct run_summary summary;
    enum status status = runlog_open(&run->log, &run->trainer, run->data.name);
    if (status) return status;
    run->console = console_open(&run->trainer);
    warn_of_completion(&run->trainer);
    process_catch_signals(&interrupted);
    if (run->trainer.state.epoch < config->epochs) console_epoch_titles(&run->console);
    fflush(stdout);
    status = trainer_run(&run->trainer, &observer, &summary);
    if (summary.done) {
        runlog_summary(&run->log, config, &summary);
        console_summary(&run->console, &summary);
        if (config->save[0] && status != STATUS_FAILED) printf("checkpoint         %s\n", config->save);
    }
    if (status == STATUS_INTERRUPTED)
        status_write("interrupted by %s%s%s",
                     process_signal()[0] ? process_signal() : "a signal to another process",
                     config->save[0] ? "; go on with --resume " : "", config->save);
    warn_of_guessing(run);
    status = runlog_close(&run->log, status);
    return status ? status : console_check_target(config, summary.part, &summary.test);
}

static enum status save_initial(struct run *run) {
    if (!run->config.save_init[0]) return STATUS_OK;
    return checkpoint_save(run->config.save_init, &run->trainer.mlp, &run->config, &run->data, NULL);
}

static enum status read_recipe(struct run *run) {
    char file[CONFIG_TEXT]; /* of the first, if there are several networks */
    if (!run->config.resume[0]) return STATUS_OK;
    enum status status = ensemble_path(&run->config, run->config.resume, file, sizeof file);
    if (!status) status = checkpoint_open(&run->checkpoint, file);
    return status ? status : checkpoint_recipe(&run->checkpoint, &run->config);
}

static void print_startup(const struct startup *startup) {
    enum { INDENT = 10 };
    terminal_print(
        stdout, INDENT,
        "start-up  %s until the backend is found (its driver), %s to open it, %s more for the data, "
        "%s for network, buffers and warm-up\n\n",
        text_seconds(startup->found - startup->begun).text,
        text_seconds(startup->opened - startup->found).text,
        text_seconds(startup->loaded - startup->opened).text,
        text_seconds(clock_seconds() - startup->loaded).text);
}

static enum status train_one(struct run *run, bool dry_run, bool verbose) {
    enum status status = open_trainer(run);
    if (status) return status;
    console_header(&run->trainer, &run->data);
    if (verbose) console_plan(&run->trainer);
    if (verbose) print_startup(&run->startup);
    if (dry_run && run->trainer.notice[0]) options_warn(run->trainer.notice); /* as trainer_run does */
    status = save_initial(run);
    return status || dry_run ? status : train(run);
}

static enum status train_several(struct run *run, bool dry_run, bool verbose) {
    const struct ensemble_job job = {.config = &run->config,
                                     .compute = &run->compute,
                                     .data = &run->data,
                                     .comm = &run->comm,
                                     .started = run->startup.begun,
                                     .stop = &interrupted,
                                     .dry_run = dry_run,
                                     .verbose = verbose};
    return train_ensemble(&job);
}

/* Before the first call of a driver. Processes that train together see the GPUs of each other. */
static void announce_use(const struct config *config) {
    const struct device_driver *gpu = registry_device(GEMM_ON_CUDA);
    struct launch launch;
    const bool alone = !plugin_is_path(config->backend) && !config->devices[0] &&
                       launch_find(&launch) == STATUS_OK && launch.size == 1;
    if (gpu && gpu->expect) gpu->expect((size_t)config->ensemble, alone ? (int)config->device : -1);
}

static enum status run_train(int argc, char **argv) {
    static struct run run; /* zero */
    run.startup.begun = clock_seconds();
    const char *dry_run = NULL, *dump_config = NULL, *verbose = NULL;
    const struct option_extra extras[] = {
        {"dry-run", NULL, "load, allocate and print the header, but train nothing", &dry_run},
        {"dump-config", NULL, "print the effective config and where each value is from, and stop",
         &dump_config},
        {"verbose", NULL, "also print the engines, the one chosen, and why", &verbose},
    };
    const struct option_set set = {
        .usage = "[train] [--config FILE] [--KEY VALUE]...",
        .details =
            "Trains a multi-layer perceptron on MNIST, or on images of your own, with the GEMM backend of "
            "your choice.\n"
            "  ./train --config configs/validation.cfg --backend openmp",
        OPTION_EXTRAS(extras),
        .files = &run.files,
    };
    bool help;
    profile_start(&run.profile);
    enum status status = options_parse(&set, argc, argv, &run.config, &help);
    if (status || help) return status;
    announce_use(&run.config);
    if (!dump_config) status = processes_join(&run.comm, &run.config, argc, argv);
    if (!status) status = read_recipe(&run);
    if (!status && dump_config) {
        config_dump(&run.config, stdout, false, true);
    } else if (!status) {
        config_warn_unused(&run.config, options_warn);
        status = open_run(&run);
        if (!status)
            status = run.config.ensemble > 1 ? train_several(&run, dry_run, verbose)
                                             : train_one(&run, dry_run, verbose);
    }
    close_run(&run);
    return processes_leave(&run.comm, status);
}

const struct command command_train = {"train", "train a network (the default command)", run_train};
