/* ./train kmeans: clusters points with the GEMM of your choice. */
#include "src/cmd/kmeans.h"

#include <stdlib.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/backend/verify.h"
#include "src/base/process.h"
#include "src/base/replace.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cmd/backend.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"
#include "src/report/image_grid.h"

static volatile sig_atomic_t interrupted;

static void close_job(struct kmeans_job *job) {
    files_free(&job->files);
    if (job->compute.backend) points_close(&job->sets, &job->compute.device);
    for (size_t p = 0; p < KMEANS_PARTS; p++) free(job->part[p].own);
    free(job->majority);
    free(job->medoid_class);
    free(job->medoid);
    kmeans_free(&job->result);
    kmeans_state_free(&job->start);
    checkpoint_close(&job->resumed);
    compute_close(&job->compute);
}

/* --- before the run --- */

static enum status check_files(struct kmeans_job *job) {
    enum status status = STATUS_OK;
    files_add(&job->files, "--resume", job->config.resume, FILE_RESUMED);
    files_add(&job->files, "--save", job->config.save, FILE_SAVED);
    files_add(&job->files, "--picture", job->picture, FILE_WRITTEN);
    files_add(&job->files, "--predict", job->predict, FILE_WRITTEN);
    if (job->config.save[0]) status = checkpoint_writable(job->config.save);
    if (!status && job->picture) status = image_grid_check_name(job->picture);
    if (!status && job->picture) status = replace_check("", job->picture);
    if (!status && job->predict) status = replace_check("", job->predict);
    if (!status && job->picture && points_are_values(job->config.data))
        status = status_set(STATUS_USAGE, "--picture draws centres of images, and '%s' has none",
                            job->config.data);
    return status ? status : options_check_files(&job->files, &job->config);
}

static bool is_kernel(int step) {
    return step >= STEP_NAIVE && step <= STEP_PARTIAL;
}

/* The engine, residency and precision that --step stands for. */
static enum status set_step(struct kmeans_job *job, bool batches) {
    struct config *config = &job->config;
    const char *name = config_choice("step", config->step), *other = NULL;
    const bool kernel = is_kernel(config->step);
    if (!kernel && config_origin_of(config, "block-size") != FROM_DEFAULT)
        return status_set(STATUS_USAGE,
                          "block-size is for the steps naive to partial: add --step, or remove it");
    if (config->step == STEP_AUTO) return STATUS_OK;
    if (batches)
        return status_set(STATUS_USAGE, "steps are for Lloyd's algorithm: remove --step, or --batch-size");
    if (config_origin_of(config, "engine") != FROM_DEFAULT) other = "engine";
    if (config->kmeans_bounds == BOUNDS_ON) other = "bounds";
    if (kernel && config_origin_of(config, "kmeans-precision") != FROM_DEFAULT) other = "kmeans-precision";
    if (kernel && config_origin_of(config, "residency") != FROM_DEFAULT) other = "residency";
    if (other)
        return status_set(STATUS_USAGE, "step %s has its own %s: remove --%s, or --step", name, other, other);
    config->kmeans_bounds = BOUNDS_OFF;
    config->engine = config->step == STEP_NEAREST ? ENGINE_FUSED : ENGINE_EAGER;
    if (!kernel) return STATUS_OK;
    config->kmeans_precision = KMEANS_F32;
    config->residency = config->step < STEP_ATOMICS ? RESIDENCY_HOST : RESIDENCY_DEVICE;
    return STATUS_OK;
}

/* Before the data is read. */
static enum status check_step(const struct kmeans_job *job, const struct gemm_backend *backend) {
    const struct device_driver *driver = registry_device(backend->device);
    if (job->config.step == STEP_NEAREST && !backend->nearest)
        return status_set(
            STATUS_USAGE,
            "backend '%s' has no kernel for step nearest: use --step gemm, or --backend tuned or "
            "cuda-tuned",
            backend->name);
    if (!is_kernel(job->config.step) || (driver && driver->kmeans_steps)) return STATUS_OK;
    return status_set(
        STATUS_USAGE,
        "step %s is a kernel for GPUs, and backend '%s' runs on the host: use --backend cublas, "
        "or any other of a GPU; the steps gemm and nearest run on the host, too",
        config_choice("step", job->config.step), backend->name);
}

static enum status set_options(struct kmeans_job *job, const char *batch) {
    struct config *config = &job->config;
    const enum status status =
        batch ? config_set(config, "batch-size", batch, FROM_FLAG, "--batch-size") : STATUS_OK;
    if (status) return status;
    const bool batches = batch || job->resumed_batches;
    if (batch && config->resume[0] && !job->resumed_batches)
        return status_set(STATUS_USAGE, "'%s' is of Lloyd's algorithm: remove --batch-size, or --resume",
                          config->resume);
    const enum status stepped = set_step(job, batches);
    if (stepped) return stepped;
    if (batches && config->engine == ENGINE_FUSED)
        return status_set(STATUS_USAGE,
                          "mini-batches have no engine fused: remove --engine, or --batch-size");
    if (config->kmeans_precision == KMEANS_SCORES) config->kmeans_precision = KMEANS_F32;
    const bool rounded = config->kmeans_precision > KMEANS_F32;
    if (rounded && (batches || config->engine == ENGINE_EAGER))
        return status_set(STATUS_USAGE,
                          "labels of tf32 and bf16 need engine fused: remove --%s, or --kmeans-precision",
                          batches        ? "batch-size"
                          : config->step ? "step"
                                         : "engine eager");
    if (batches && config->kmeans_bounds == BOUNDS_ON)
        return status_set(STATUS_USAGE,
                          "bounds are for Lloyd's algorithm: remove --bounds on, or --batch-size");
    if (config->engine == ENGINE_EAGER && config->kmeans_bounds == BOUNDS_ON)
        return status_set(STATUS_USAGE, "bounds need engine fused: remove --engine eager, or --bounds on");
    static const char *const of_lloyd[] = {"empty", "change-limit"};
    for (size_t i = 0; batches && i < sizeof of_lloyd / sizeof *of_lloyd; i++)
        if (config_origin_of(config, of_lloyd[i]) != FROM_DEFAULT)
            return status_set(STATUS_USAGE, "%s is for Lloyd's algorithm: remove it, or --batch-size",
                              of_lloyd[i]);
    job->options =
        (struct kmeans_options){.clusters = (size_t)config->clusters,
                                .iterations = (size_t)config->iterations,
                                .restarts = (size_t)config->restarts,
                                .batch = batches ? (size_t)config->batch_size : 0,
                                .init = (enum kmeans_init)config->kmeans_init,
                                .empty = (enum kmeans_empty)config->kmeans_empty,
                                .tolerance = config->tolerance,
                                .change_limit = config->change_limit,
                                .seed = (uint64_t)config->seed,
                                .precision = (enum nearest_precision)config->kmeans_precision,
                                .engine = (enum engine_choice)config->engine,
                                .bounds = (enum kmeans_bounds)config->kmeans_bounds,
                                .step = is_kernel(config->step) ? config_choice("step", config->step) : NULL,
                                .block = (unsigned)config->block_size,
                                .stop = &interrupted};
    return STATUS_OK;
}

/* The products of this run: full chunks, or as many rows as the oracle multiplies in seconds, and the last
   one, as integers and reals. */
static enum status verify_products(struct kmeans_job *job) {
    const struct points *points = &job->sets.train;
    const size_t rows_in_seconds = ((size_t)1 << 32) / (job->options.clusters * points->features),
                 most = rows_in_seconds < NEAREST_BLOCK ? NEAREST_BLOCK : rows_in_seconds,
                 full = points_chunk(&job->compute.device, points->features, job->options.clusters,
                                     points->dtype, job->compute.threads),
                 chunk = full < most ? full : most;
    struct verify_case cases[4];
    for (size_t i = 0; i < 4; i++) {
        const size_t last = points->count % chunk, rows = points->count < chunk || i % 2 ? last : chunk;
        cases[i] = (struct verify_case){.dtype = points->dtype,
                                        .op = GEMM_NN,
                                        .m = rows ? rows : chunk,
                                        .n = job->options.clusters,
                                        .k = points->features,
                                        .alpha = 1,
                                        .integers = i < 2,
                                        .epilogue = i == 3,
                                        .seed = i};
    }
    return backend_verify_cases(&job->compute, cases, 4);
}

/* All but the points stays on the device with any residency, unless a step updates the centres on the
   host. */
static enum status open_compute(struct kmeans_job *job) {
    struct config config = job->config;
    if (!job->options.step) config.residency = RESIDENCY_DEVICE;
    return backend_open(&config, &job->compute);
}

static enum status open_job(struct kmeans_job *job) {
    const struct gemm_backend *backend;
    enum status status = check_files(job);
    if (!status) status = registry_find(job->config.backend, &backend); /* before the data is read */
    if (!status) status = check_step(job, backend);
    if (!status) status = open_compute(job);
    if (status) return status;
    job->compute.device.profile = &job->profile;
    status = points_load(&job->sets, &job->compute.device, &job->config);
    if (status) return status;
    if (job->options.batch > job->sets.train.count) job->options.batch = job->sets.train.count;
    job->options.scale = job->sets.scale;
    status = kmeans_read_resumed(job);
    if (status) return status;
    const struct points *const all[KMEANS_PARTS] = {&job->sets.train, &job->sets.validation, &job->sets.test};
    static const char *const names[KMEANS_PARTS] = {"training", "validation", "test"};
    for (size_t p = 0; p < KMEANS_PARTS; p++)
        job->part[p] = (struct kmeans_part){.name = names[p], .points = all[p]->count ? all[p] : NULL};
    status = job->options.clusters <= job->sets.train.count ? verify_products(job) : STATUS_OK;
    if (status) return status;
    audit_start(&job->audit, (enum audit_mode)job->config.audit);
    job->compute.audit = &job->audit;
    return logfile_open(&job->log, job->config.log, job->config.resume[0]);
}

/* --- the run --- */

/* What the points and the checkpoint are to each other is known now. */
static void note_start(const struct kmeans_job *job) {
    if (job->start.other_points)
        terminal_note(
            "the points are not those of '%s': its centres are the initial ones, and iterations count "
            "from 1",
            job->config.resume);
    if (job->options.start && job->start.iteration >= job->options.iterations)
        terminal_note(
            "warning: the checkpoint is at iteration %zu of %zu: nothing to do; --iterations counts "
            "from the first iteration on",
            job->start.iteration, job->options.iterations);
}

static void on_start(void *self, const char *engine) {
    note_start(self);
    kmeans_print_header(self, engine);
    kmeans_log_header(self, engine);
}

static void on_iteration(void *self, const struct kmeans_record *record) {
    kmeans_print_iteration(self, record);
    kmeans_log_iteration(self, record);
}

static enum status write_files(struct kmeans_job *job) {
    enum status status = kmeans_save(job);
    if (!status) status = kmeans_draw(job);
    if (!status) status = kmeans_write_labels(job);
    device_lap(&job->compute.device, PART_CHECKPOINT);
    return status;
}

static enum status cluster(struct kmeans_job *job) {
    const struct kmeans_observer observer = {.self = job, .start = on_start, .iteration = on_iteration};
    process_catch_signals(&interrupted);
    const enum status run =
        kmeans_run(&job->compute, &job->sets.train, &job->options, &observer, &job->result);
    enum status status = run == STATUS_INTERRUPTED ? STATUS_OK : run;
    if (!status) status = kmeans_measure_quality(job);
    if (!status) status = write_files(job);
    if (!status) {
        kmeans_log_result(job);
        kmeans_log_centres(job);
        kmeans_print_result(job);
    }
    if (!status && run == STATUS_INTERRUPTED) {
        status_write("interrupted by %s%s%s", process_signal(),
                     job->config.save[0] ? "; go on with --resume " : "", job->config.save);
        status = run;
    }
    return status;
}

static enum status run_kmeans(int argc, char **argv) {
    static struct kmeans_job job; /* zero */
    const char *batch = NULL;
    static const char *const keys[] = {
        "clusters",         "kmeans-init", "iterations", "tolerance",  "change-limit", "empty",  "restarts",
        "kmeans-precision", "bounds",      "step",       "block-size", "seed",         "data",   "validation",
        "label-offset",     "transpose",   "dtype",      "backend",    "threads",      "engine", "device",
        "residency",        "pin",         "audit",      "log",        "save",         "resume", NULL};
    const struct option_extra extras[] = {
        {"batch-size", "POINTS", "mini-batch k-means, with so many points a step [all: Lloyd's algorithm]",
         &batch},
        {"picture", "FILE", "draw the centres: .png or .pgm", &job.picture},
        {"predict", "FILE", "write the label of every point as comma-separated values", &job.predict},
    };
    static const struct option_help helps[] = {
        {"seed", "of the initial centres and of the order of mini-batches, the same on every backend"},
        {"validation", "number of images held out from the end of the training set: they get labels and "
                       "measures, but move no centre"},
        {"engine", "how points are assigned: eager, a GEMM and then a comparison; fused, inside the backend "
                   "(tuned, cuda-tuned); auto: fused if the backend has it for these points; k-means has no "
                   "engine graph"},
        {"residency",
         "where the points live if the backend runs on a GPU: device, or host, from where each pass streams "
         "them through two buffers on the GPU, for data that is larger than its memory"},
        {NULL, NULL}};
    const struct option_set set = {
        .usage = "kmeans [--clusters K] [--KEY VALUE]...",
        .details = "Clusters the training images, or other points, by k-means with the GEMM backend of your "
                   "choice (docs/kmeans.md). Data is also uniform:SIZE,FEATURES, random points, or "
                   "FILE.safetensors with a tensor 'points'.\n"
                   "  ./train kmeans --clusters 64 --picture centres.png\n"
                   "  ./train kmeans --data uniform:1024MB,32 --dtype f64 --clusters 64",
        .keys = keys,
        .config_files = true,
        .extras = extras,
        .extra_count = sizeof extras / sizeof *extras,
        .helps = helps,
        .files = &job.files,
    };
    bool help;
    profile_start(&job.profile);
    enum status status = options_parse(&set, argc, argv, &job.config, &help);
    if (status || help) return status;
    status = kmeans_open_resumed(&job);
    if (!status) status = set_options(&job, batch);
    if (!status) status = open_job(&job);
    if (!status) status = cluster(&job);
    status = logfile_close(job.log, status);
    close_job(&job);
    return status;
}

const struct command command_kmeans = {"kmeans", "cluster images or other points by k-means", run_kmeans};
