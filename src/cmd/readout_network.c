/* ./train readout: the network whose last layer is fitted. */
#include <stdlib.h>

#include "src/base/pages.h"
#include "src/base/text.h"
#include "src/cmd/readout.h"
#include "src/nn/centre_layer.h"

enum { MOST_UNITS = 1 << 20 };

/* --- before the data is read --- */

static enum status take_model(struct readout_job *job) {
    struct config *config = &job->config;
    if (!job->model)
        return status_set(STATUS_USAGE, "--features hidden needs a network: ./train readout "
                                        "MODEL.safetensors, or --features random:N");
    enum status status = checkpoint_open(&job->checkpoint, job->model);
    if (!status) status = checkpoint_recipe(&job->checkpoint, config);
    if (!status && config->layers.count < 3)
        status = status_set(STATUS_USAGE, "the network '%s' has no hidden layer: use --features random:N",
                            job->model);
    return status;
}

static enum status take_random(struct config *config) {
    int64_t units;
    if (!text_parse_int(config->features.file, &units) || units < 1 || units > MOST_UNITS)
        return status_set(STATUS_USAGE,
                          "--features random:N: N must be a whole number from 1 to %d, not '%s'", MOST_UNITS,
                          config->features.file);
    return config->init.choice == INIT_KMEANS
               ? status_set(STATUS_USAGE, "random features are not of centres: use --features kmeans:FILE")
               : STATUS_OK;
}

static enum status take_centres(struct config *config) {
    if (config_origin_of(config, "init") != FROM_DEFAULT)
        return status_set(STATUS_USAGE, "the centres are the weights of --features kmeans: remove --init");
    config->init.choice = INIT_KMEANS;
    snprintf(config->init.file, sizeof config->init.file, "%s", config->features.file);
    return STATUS_OK;
}

enum status readout_open_model(struct readout_job *job) {
    struct config *config = &job->config;
    if (config->features.choice == FEATURES_HIDDEN) return take_model(job);
    if (job->model)
        return status_set(STATUS_USAGE,
                          "--features %s makes its own hidden layer: remove it, or the network '%s'",
                          config->features.choice == FEATURES_RANDOM ? "random" : "kmeans", job->model);
    return config->features.choice == FEATURES_RANDOM ? take_random(config) : take_centres(config);
}

/* --- layers --- */

static unsigned classes_of(const struct dataset_pair *data) {
    unsigned classes = data->train.classes > data->test.classes ? data->train.classes : data->test.classes;
    return classes > data->classes.count ? classes : (unsigned)data->classes.count;
}

static enum status count_centres(const char *path, size_t *count) {
    struct safetensors file;
    enum status status = safetensors_read_header(&file, path);
    const struct tensor *weight = status ? NULL : safetensors_find(&file, "layers.0.weight");
    if (!status && (!weight || weight->rank != 2 || weight->shape[0] > MOST_UNITS))
        status =
            status_set(STATUS_BAD_DATA, "'%s' has no centres: ./train kmeans --save FILE writes them", path);
    if (!status) *count = weight->shape[0];
    safetensors_free(&file);
    return status;
}

enum status readout_set_layers(struct readout_job *job) {
    struct config *config = &job->config;
    const struct dataset *set = &job->data.test;
    char layers[96];
    size_t units = 0;
    enum status status = STATUS_OK;
    if (job->model) return checkpoint_adopt_classes(&job->checkpoint, &job->data);
    if (config->features.choice == FEATURES_RANDOM) {
        units = (size_t)strtoull(config->features.file, NULL, 10);
    } else {
        status = count_centres(config->features.file, &units);
    }
    if (status) return status;
    snprintf(layers, sizeof layers, "%zu-%zu-%u",
             config_input_side(config, set->height) * config_input_side(config, set->width), units,
             classes_of(&job->data));
    return config_set(config, "layers", layers, FROM_FLAG, "--features");
}

enum status readout_open_network(struct readout_job *job) {
    struct config *config = &job->config;
    enum status status = mlp_open(&job->mlp, &job->compute, config, FEATURES_BATCH);
    if (status) return status;
    if (job->model) return checkpoint_restore(&job->checkpoint, &job->mlp, NULL);
    status =
        mlp_initialize(&job->mlp, (enum init)config->init.choice, config->init_range, (uint64_t)config->seed);
    if (!status && config->features.choice == FEATURES_KMEANS)
        status = centre_layer_load(&job->mlp, config->init.file);
    return status;
}

/* --- the result --- */

enum status readout_set_last_layer(struct readout_job *job, const void *w) {
    struct device *device = &job->compute.device;
    const struct mlp_layer *last = mlp_last(&job->mlp);
    const size_t size = dtype_size(job->mlp.dtype), row = last->out * size, bytes = (1 + last->in) * row;
    char *copy = pages_alloc(bytes);
    if (!copy) return STATUS_FAILED;
    device->driver->download(device, copy, w, bytes);
    device->driver->upload(device, last->bias, copy, row); /* the first row */
    device->driver->upload(device, last->weight, copy + row, last->in * row);
    mlp_parameters_changed(&job->mlp);
    free(copy);
    return STATUS_OK;
}

enum status readout_save(struct readout_job *job) {
    struct config config = job->config;
    if (!config.save[0]) return STATUS_OK;
    config.validation = job->all_enter ? 0 : (int64_t)job->validation;
    return checkpoint_save(config.save, &job->mlp, &config, &job->data, NULL);
}
