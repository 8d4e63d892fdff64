/* ./train readout: the last layer of a network by least squares. */
#include "src/cmd/readout.h"

#include <math.h>

#include "src/backend/registry.h"
#include "src/backend/verify.h"
#include "src/base/process.h"
#include "src/base/text.h"
#include "src/cmd/backend.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"

enum {
    DEFAULT_VALIDATION = 5000,
    ROWS = 2000,    /* that enter at once: they stay in the last-level cache */
    GPU_ROWS = 8000 /* the same on a GPU, whose panels take as long for few rows */
};

static volatile sig_atomic_t interrupted;

static void close_job(struct readout_job *job) {
    struct device *device = &job->compute.device;
    files_free(&job->files);
    if (job->compute.backend) {
        readout_close(&job->readout);
        features_close(&job->features);
        samples_close(&job->train, device);
        samples_close(&job->test, device);
        device->driver->free(device, job->tally);
        mlp_close(&job->mlp);
    }
    checkpoint_close(&job->checkpoint);
    dataset_pair_free(&job->data);
    compute_close(&job->compute);
}

/* --- before the run --- */

static enum status check_files(struct readout_job *job) {
    if (job->model) files_add(&job->files, "the network", job->model, FILE_RESUMED);
    if (job->config.features.choice == FEATURES_KMEANS)
        files_add(&job->files, "--features", job->config.features.file, FILE_READ);
    files_add(&job->files, "--save", job->config.save, FILE_SAVED);
    const enum status status = job->config.save[0] ? checkpoint_writable(job->config.save) : STATUS_OK;
    return status ? status : options_check_files(&job->files, &job->config);
}

/* The images that the ridge is chosen on. With a test set to report, they enter after that. */
static enum status split_data(struct readout_job *job) {
    const struct dataset_pair *data = &job->data;
    const size_t tenth = data->train.count / 10,
                 most = tenth < DEFAULT_VALIDATION ? tenth : DEFAULT_VALIDATION;
    const bool named = config_origin_of(&job->config, "validation") != FROM_DEFAULT && job->config.validation;
    job->all_enter = data->test.count > 0;
    job->validation = named                                        ? (size_t)job->config.validation
                      : job->stream.ridge < 0 || !data->test.count ? most
                                                                   : 0;
    if (job->streams) job->validation = 0;
    if (job->validation >= data->train.count)
        return status_set(STATUS_USAGE, "validation holds out %zu of %zu training images: leave some to fit",
                          job->validation, data->train.count);
    if (job->streams || job->validation || (job->stream.ridge >= 0 && data->test.count)) return STATUS_OK;
    return status_set(STATUS_USAGE,
                      "%zu training images have no part to choose the ridge on: set --validation or --ridge",
                      data->train.count);
}

static enum status load_data(struct readout_job *job) {
    struct config *config = &job->config;
    const int64_t validation = config->validation;
    enum status status = dataset_load(&job->data, config->data, config_dataset(config, DATASET_ALL));
    if (!status && !job->data.train.count)
        status = status_set(STATUS_BAD_DATA, "%s has no training images", job->data.name);
    if (!status && job->streams) status = stream_check(&job->stream, job->data.train.count);
    if (!status) status = split_data(job);
    if (!status) status = readout_set_layers(job);
    config_for_inference(config);
    if (!status) status = config_check_data(config, &job->data);
    config->validation = validation;
    if (!status && job->streams && config->drift[0]) status = drift_apply(&job->drift, &job->data.train);
    return status;
}

/* The products of this run, with as many rows as the oracle multiplies in seconds. */
static enum status verify_products(struct readout_job *job) {
    const enum gemm_dtype dtype = job->mlp.dtype;
    const struct mlp_layer *hidden = &job->mlp.layer[job->mlp.depth - 2];
    const size_t n = job->readout.shape.n + job->readout.shape.classes,
                 in_seconds = ((size_t)1 << 31) / (hidden->in * hidden->out),
                 rows = in_seconds < 64               ? 64
                        : in_seconds < FEATURES_BATCH ? in_seconds
                                                      : FEATURES_BATCH;
    const struct verify_case cases[] = {
        {.dtype = dtype,
         .op = GEMM_NN,
         .m = rows,
         .n = hidden->out,
         .k = hidden->in,
         .alpha = 1,
         .epilogue = true,
         .activation = hidden->activation,
         .seed = 1},
        {.dtype = dtype, .op = GEMM_NN, .m = QR_BLOCK, .n = n, .k = rows, .alpha = 1, .seed = 2},
        {.dtype = dtype, .op = GEMM_TN, .m = rows, .n = n, .k = QR_BLOCK, .alpha = -1, .beta = 1, .seed = 3},
    };
    return backend_verify_cases(&job->compute, cases, sizeof cases / sizeof *cases);
}

static struct readout_images images_of(struct readout_job *job) {
    return (struct readout_images){&job->features, &job->train, job->data.train.labels};
}

/* A GPU loads a kernel when it is first used: a portion of the images enters before the clock starts. */
static enum status load_kernels(struct readout_job *job) {
    static const double ridges[] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct readout *readout = &job->readout;
    const struct readout_images images = images_of(job);
    const size_t count = sizeof ridges / sizeof *ridges, rows = readout->shape.rows;
    if (job->compute.device.driver->host_memory) return STATUS_OK;
    struct qr_matrix triangles = readout_triangles(readout, count);
    enum status status = triangles.values ? STATUS_OK : STATUS_FAILED;
    const struct readout_part part = {0, rows < job->train.count ? rows : job->train.count};
    if (!status) status = ridge_fit(readout, &images, part, &triangles);
    if (!status) status = readout_add_ridges(readout, &triangles, count, ridges);
    if (!status) status = job->compute.device.driver->synchronize(&job->compute.device);
    readout_free(readout, &triangles);
    job->features.seconds = 0;
    return status;
}

static enum status open_readout(struct readout_job *job) {
    struct device *device = &job->compute.device;
    enum status status = features_open(&job->features, &job->mlp);
    const size_t rows = device->driver->host_memory ? ROWS : GPU_ROWS;
    const struct readout_shape shape = {.dtype = job->mlp.dtype,
                                        .n = 1 + job->features.count,
                                        .classes = job->features.classes,
                                        .rows = job->streams && job->stream.stride > rows ? job->stream.stride
                                                                                          : rows};
    if (!status) status = readout_open(&job->readout, &job->compute, &shape);
    if (!status) status = samples_open(&job->train, device, &job->config, &job->data.train);
    if (!status && job->data.test.count && !job->streams)
        status = samples_open(&job->test, device, &job->config, &job->data.test);
    if (status) return status;
    job->tally = device->driver->alloc(device, sizeof *job->tally);
    status = job->tally ? verify_products(job) : STATUS_FAILED;
    return status ? status : load_kernels(job);
}

static enum status open_job(struct readout_job *job) {
    const struct gemm_backend *backend;
    enum status status = registry_find(job->config.backend, &backend); /* before the data is read */
    if (!status) status = readout_read_options(job);
    if (!status) status = readout_open_model(job);
    if (!status) status = check_files(job);
    if (!status) status = load_data(job);
    if (!status) status = backend_open(&job->config, &job->compute);
    if (status) return status;
    job->compute.device.profile = &job->profile;
    status = readout_open_network(job);
    if (!status) status = open_readout(job);
    if (status) return status;
    device_lap(&job->compute.device, PART_STARTUP);
    audit_start(&job->audit, (enum audit_mode)job->config.audit);
    job->compute.audit = &job->audit;
    return logfile_open(&job->log, job->config.log, false);
}

/* --- a fit of all images --- */

/* The reason why a triangle is not finite. */
static enum status explain(struct readout_job *job) {
    const enum status found = features_check(&job->features, &job->train, job->data.train.labels, 0,
                                             job->train.count, &job->readout.rows, job->readout.shape.rows);
    if (found) return found;
    return status_set(STATUS_FAILED, "the triangle of the features overflows: use --dtype f64");
}

static enum status enter(struct readout_job *job, struct readout_part part,
                         const struct qr_matrix *triangle) {
    const struct readout_images images = images_of(job);
    const double before = job->features.seconds, start = clock_seconds();
    const enum status status = ridge_fit(&job->readout, &images, part, triangle);
    job->times.features += job->features.seconds - before;
    job->times.factor += clock_seconds() - start - (job->features.seconds - before);
    return status;
}

/* The grid, or the given ridge, with their scores if there are validation images. */
static enum status choose_ridge(struct readout_job *job, const struct qr_matrix *triangle, bool *finite) {
    const struct readout_images images = images_of(job);
    const struct readout_part part = {job->train.count - job->validation, job->validation};
    double mean;
    enum status status = readout_mean_square(&job->readout, triangle, &mean);
    *finite = status || isfinite(mean);
    if (!status && !*finite) status = status_set(STATUS_FAILED, "a feature is not finite");
    if (!status && job->stream.ridge < 0) status = ridge_grid(mean, &job->ridges);
    if (!status && job->stream.ridge >= 0)
        job->ridges =
            (struct ridges){.count = 1, .value = {job->stream.ridge}, .relative = {job->stream.ridge / mean}};
    if (!status && part.count) status = ridge_choose(&job->readout, &images, part, triangle, &job->ridges);
    return status;
}

/* w = the readout with the chosen ridge. */
static enum status solve(struct readout_job *job, const struct qr_matrix *triangle, void *w, bool *finite) {
    const enum status status =
        readout_add_ridges(&job->readout, triangle, 1, &job->ridges.value[job->ridges.best]);
    return status ? status : readout_solve(&job->readout, triangle, w, finite);
}

static enum status fit_triangle(struct readout_job *job, const struct qr_matrix *triangle, void *w) {
    const size_t fitted = job->train.count - job->validation;
    bool finite = true;
    enum status status = enter(job, (struct readout_part){0, fitted}, triangle);
    double start = clock_seconds();
    if (!status) status = choose_ridge(job, triangle, &finite);
    if (!finite) status = explain(job);
    job->times.ridge = clock_seconds() - start;
    if (!status && job->validation && job->all_enter)
        status = enter(job, (struct readout_part){fitted, job->validation}, triangle);
    start = clock_seconds();
    if (!status) {
        status = solve(job, triangle, w, &finite);
        if (!finite) status = explain(job);
    }
    job->times.ridge += clock_seconds() - start;
    return status ? status : readout_set_last_layer(job, w);
}

static enum status evaluate(struct readout_job *job) {
    struct samples part = job->train;
    const size_t fitted = job->train.count - job->validation;
    part.count = job->validation;
    part.images += fitted * part.features;
    part.labels += fitted;
    const double start = clock_seconds();
    const enum status status = samples_evaluate(job->data.test.count ? &job->test : &part, &job->mlp,
                                                job->tally, &job->evaluation, NULL);
    job->times.test = clock_seconds() - start;
    return status;
}

static enum status fit(struct readout_job *job) {
    struct device *device = &job->compute.device;
    struct qr_matrix triangle = readout_triangles(&job->readout, 1);
    void *w = device->driver->alloc(device, job->readout.shape.n * job->readout.shape.classes *
                                                dtype_size(job->readout.shape.dtype));
    enum status status = triangle.values && w ? STATUS_OK : STATUS_FAILED;
    if (!status) status = fit_triangle(job, &triangle, w);
    readout_free(&job->readout, &triangle);
    device->driver->free(device, w);
    if (!status) readout_print_ridges(&job->ridges, "validation");
    if (!status) readout_log_ridges(job, &job->ridges);
    if (!status) status = evaluate(job);
    if (!status) status = readout_save(job);
    device_lap(device, PART_CHECKPOINT);
    if (status) return status;
    readout_log_result(job);
    readout_print_result(job);
    return STATUS_OK;
}

/* --- a stream --- */

static void on_ridge(void *self, const struct stream_result *result) {
    const struct readout_job *job = self;
    if (result->ridges.count) {
        readout_print_ridges(&result->ridges, "second block");
        readout_log_ridges(job, &result->ridges);
    }
    readout_print_titles(job);
}

static void on_block(void *self, const struct stream_record *record) {
    readout_print_block(self, record);
    readout_log_block(self, record);
}

static enum status follow(struct readout_job *job) {
    const struct stream_observer observer = {job, on_ridge, on_block};
    const struct readout_images images = images_of(job);
    process_catch_signals(&interrupted);
    job->stream.stop = &interrupted;
    const enum status status = stream_run(&job->readout, &images, &job->stream, &observer, &job->result);
    if (status && status != STATUS_INTERRUPTED) return status;
    readout_log_stream(job);
    readout_print_stream(job);
    if (status) status_write("interrupted by %s", process_signal());
    return status;
}

/* --- the command --- */

static const struct option_help helps[] = {
    {"validation",
     "the last training images, on which --ridge auto chooses; then they enter, too, unless there is no test "
     "set; 0: as many as MODEL was trained without, or 5000, or a tenth of a small set"},
    {"init", "of random features: he, xavier or uniform, as for a training"},
    {"activation", "of the hidden layer of --features random and kmeans"},
    {"seed", "of the weights of random features, the same on every backend"},
    {"save",
     "the network with the fitted last layer, as a safetensors checkpoint for ./train eval, predict and "
     "export"},
    {NULL, NULL}};

static enum status run_readout(int argc, char **argv) {
    static struct readout_job job; /* zero */
    static const char *const keys[] = {"features",  "ridge",      "window",     "forgetting",  "drift",
                                       "stride",    "activation", "init",       "init-range",  "seed",
                                       "data",      "validation", "input-size", "input-range", "label-offset",
                                       "transpose", "dtype",      "backend",    "threads",     "device",
                                       "audit",     "log",        "save",       NULL};
    const struct option_set set = {
        .usage = "readout [MODEL.safetensors] [--features random:N] [--KEY VALUE]...",
        .details = "Fits the last layer of a network by least squares with one-hot targets, by QR on the "
                   "GEMM of your "
                   "choice, without backpropagation (docs/windows.md). The hidden layers stay as they are.\n"
                   "  ./train readout --features random:2048 --save random.safetensors\n"
                   "  ./train readout model.safetensors\n"
                   "With --window, --forgetting, --drift or --stride it follows the training images as a "
                   "stream, and "
                   "predicts each block of them before it enters.\n"
                   "  ./train readout --features random:512 --drift rotate:0..45 --forgetting 0.9998",
        .keys = keys,
        .config_files = true,
        .helps = helps,
        .positional = &job.model,
        .files = &job.files,
    };
    bool help;
    profile_start(&job.profile);
    enum status status = options_parse(&set, argc, argv, &job.config, &help);
    if (status || help) return status;
    status = open_job(&job);
    if (!status) readout_print_header(&job);
    if (!status) readout_log_header(&job);
    if (!status) status = job.streams ? follow(&job) : fit(&job);
    status = logfile_close(job.log, status);
    close_job(&job);
    return status;
}

const struct command command_readout = {"readout", "fit the last layer of a network by least squares",
                                        run_readout};
