/* ./train kmeans --save, --picture, --predict. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/replace.h"
#include "src/base/text.h"
#include "src/cmd/kmeans.h"
#include "src/nn/checkpoint.h"
#include "src/report/image_grid.h"

enum { GRID_COLUMNS = 10, GRID_MOST = 600, GRID_PIXELS = 2000 };

/* --- a checkpoint --- */

/* weight = scale c, bias = -|scale c|^2 / 2: the logits of the network rank the centres as distances do. */
static void fill_layer(const struct kmeans_job *job, void *weight, void *bias) {
    const struct points *points = &job->sets.train;
    const size_t features = points->features;
    for (size_t j = 0; j < job->options.clusters; j++) {
        double squares = 0;
        for (size_t f = 0; f < features; f++) {
            const size_t at = j * features + f;
            dtype_set(points->dtype, weight, at,
                      job->sets.scale * dtype_get(points->dtype, job->result.values, at));
            squares += dtype_get(points->dtype, weight, at) * dtype_get(points->dtype, weight, at);
        }
        dtype_set(points->dtype, bias, j, -squares / 2);
    }
}

static struct tensor tensor_of(const char *name, enum gemm_dtype dtype, size_t rows, size_t columns,
                               const void *data) {
    struct tensor tensor = {.dtype = dtype, .rank = columns ? 2 : 1, .shape = {rows, columns}, .data = data};
    snprintf(tensor.name, sizeof tensor.name, "%s", name);
    return tensor;
}

/* The recipe of a network that is the linear layer. */
static enum status network_config(const struct kmeans_job *job, struct config *config) {
    char layers[64];
    *config = job->config;
    snprintf(layers, sizeof layers, "%zu-%zu", job->sets.train.features, job->options.clusters);
    const enum status status = config_set(config, "layers", layers, FROM_FLAG, "--save");
    snprintf(config->data, sizeof config->data, "%s", job->sets.name);
    return status;
}

enum status kmeans_save(const struct kmeans_job *job) {
    const struct points *points = &job->sets.train;
    const size_t clusters = job->options.clusters, size = dtype_size(points->dtype);
    struct config config;
    if (!job->config.save[0]) return STATUS_OK;
    void *weight = malloc(clusters * points->features * size), *bias = malloc(clusters * size);
    double *count = malloc(clusters * sizeof *count), *label = malloc(points->count * sizeof *label);
    enum status status =
        weight && bias && count && label ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    if (!status) status = network_config(job, &config);
    if (!status) {
        fill_layer(job, weight, bias);
        for (size_t j = 0; j < clusters; j++) count[j] = (double)job->result.count[j];
        for (size_t i = 0; i < points->count; i++) label[i] = job->result.label[i];
        const struct tensor tensors[] = {
            /* those of float64 first: aligned */
            tensor_of("kmeans.counts", GEMM_F64, clusters, 0, count),
            tensor_of("kmeans.labels", GEMM_F64, points->count, 0, label),
            tensor_of("layers.0.weight", points->dtype, clusters, points->features, weight),
            tensor_of("layers.0.bias", points->dtype, clusters, 0, bias)};
        const bool images = job->sets.images.train.count > 0;
        status = checkpoint_write(job->config.save, tensors, sizeof tensors / sizeof *tensors, &config,
                                  images ? &job->sets.images : NULL, NULL);
    }
    free(weight);
    free(bias);
    free(count);
    free(label);
    return status;
}

/* --- a picture --- */

static void draw_centre(const struct kmeans_job *job, size_t cluster, uint8_t *pixels, struct image *image) {
    const size_t features = job->sets.train.features;
    for (size_t f = 0; f < features; f++)
        pixels[f] = (uint8_t)lround(
            fmin(fmax(dtype_get(job->sets.train.dtype, job->result.values, cluster * features + f), 0), 255));
    image->pixels = pixels;
    if (!job->majority) return;
    snprintf(image->caption, sizeof image->caption, "%.20s\n%s",
             classes_label(&job->sets.images.classes, job->majority[cluster]).text,
             text_grouped(job->result.count[cluster]).text);
}

enum status kmeans_draw(const struct kmeans_job *job) {
    const struct dataset *set = &job->sets.images.train;
    const size_t features = job->sets.train.features,
                 shown = job->options.clusters < GRID_MOST ? job->options.clusters : GRID_MOST;
    if (!job->picture) return STATUS_OK;
    struct image_grid grid = {.height = set->height, .width = set->width};
    struct image *images = calloc(2 * shown + GRID_COLUMNS, sizeof *images); /* the last row is full */
    uint8_t *pixels = malloc(shown * features);
    enum status status = images && pixels ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    if (!status) {
        for (size_t j = 0; j < shown; j++) draw_centre(job, j, pixels + j * features, &images[j]);
        grid.images = images;
        grid.columns =
            image_grid_columns(grid, shown, shown < GRID_COLUMNS ? shown : GRID_COLUMNS, GRID_PIXELS);
        grid.rows = (shown + grid.columns - 1) / grid.columns;
        status = image_grid_write(&grid, job->picture);
    }
    free(images);
    free(pixels);
    return status;
}

/* --- labels --- */

static void write_rows(const struct kmeans_job *job, FILE *out) {
    fprintf(out, "part,row,cluster%s\n", job->majority ? ",class,majority" : "");
    for (size_t p = 0; p < KMEANS_PARTS; p++) {
        const struct kmeans_part *part = &job->part[p];
        for (size_t i = 0; part->points && i < part->points->count; i++) {
            fprintf(out, "%s,%zu,%u", part->name, i, part->label[i]);
            if (job->majority) fprintf(out, ",%u,%u", part->points->label[i], job->majority[part->label[i]]);
            fputc('\n', out);
        }
    }
}

enum status kmeans_write_labels(const struct kmeans_job *job) {
    if (!job->predict) return STATUS_OK;
    struct replacement file;
    const enum status status = replace_open(&file, "", job->predict);
    if (status) return status;
    write_rows(job, file.out);
    return replace_close(&file, STATUS_OK);
}
