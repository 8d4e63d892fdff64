/* The sources of points: images, random numbers, a safetensors file. */
#include <stdlib.h>
#include <string.h>

#include "src/base/pages.h"
#include "src/base/rng.h"
#include "src/cluster/point_stream.h"

enum { BLOCK_ROWS = 4096 /* of random points: one stream each */, UNIFORM_SEED = 1 };
static const char UNIFORM[] = "uniform:", ENDING[] = ".safetensors";

static bool is_file(const char *data) {
    const size_t length = strlen(data), ending = sizeof ENDING - 1;
    return length > ending && strcmp(data + length - ending, ENDING) == 0;
}

static bool is_uniform(const char *data) {
    return strncmp(data, UNIFORM, sizeof UNIFORM - 1) == 0;
}

bool points_are_values(const char *data) {
    return is_uniform(data) || is_file(data);
}

static bool is_streamed(const struct device *device, const struct config *config) {
    return config->residency == RESIDENCY_HOST && point_stream_usable(device);
}

static struct point_place place_of(const struct config *config) {
    return (struct point_place){.pinned = config->pin, .threads = config_compute(config).threads};
}

/* --- images --- */

static enum status load_part(struct points *points, struct device *device, const struct config *config,
                             const struct dataset *set) {
    const enum gemm_dtype dtype = (enum gemm_dtype)config->dtype;
    const struct point_place place = place_of(config);
    const size_t features = set->height * set->width;
    const enum status status =
        is_streamed(device, config)
            ? points_on_host(points, device, dtype, set->count, features, true, set->images, false, &place)
            : points_from_bytes(points, device, dtype, set->count, features, set->images);
    points->label = set->labels;
    return status;
}

static enum status load_images(struct point_sets *sets, struct device *device, const struct config *config) {
    enum status status = dataset_load(&sets->images, config->data, config_dataset(config, DATASET_ALL));
    if (status) return status;
    snprintf(sets->name, sizeof sets->name, "%s", sets->images.name);
    sets->scale = 1.0 / 255;
    struct dataset train = sets->images.train; /* a view */
    if ((size_t)config->validation >= train.count)
        return status_set(STATUS_USAGE, "validation holds out %lld of %zu training images: leave some",
                          (long long)config->validation, train.count);
    const struct dataset validation = dataset_split(&train, (size_t)config->validation);
    status = load_part(&sets->train, device, config, &train);
    if (!status) status = load_part(&sets->validation, device, config, &validation);
    if (!status) status = load_part(&sets->test, device, config, &sets->images.test);
    return status;
}

/* --- random points --- */

/* "1024MB,32" */
static bool parse_uniform(const char *text, size_t element, size_t *count, size_t *features) {
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"KB", 1024.0}, {"MB", 1048576.0}, {"GB", 1073741824.0}};
    char *end;
    const double amount = strtod(text, &end);
    double bytes = 0;
    for (size_t u = 0; u < sizeof units / sizeof *units; u++)
        if (strncmp(end, units[u].unit, 2) == 0) bytes = amount * units[u].bytes;
    if (!(bytes >= 1) || !(bytes < 1e15) || end[2] != ',') return false;
    const char *number = end + 3;
    const unsigned long long columns = strtoull(number, &end, 10);
    if (*number < '1' || *number > '9' || *end || columns > 1 << 20) return false;
    *features = (size_t)columns;
    *count = (size_t)bytes / element / *features;
    return *count > 0;
}

static void draw(enum gemm_dtype dtype, size_t count, size_t features, void *values) {
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < count; first += BLOCK_ROWS) {
        struct rng rng = rng_open(UNIFORM_SEED, RNG_POINTS, (uint32_t)(first / BLOCK_ROWS));
        const size_t end = first + BLOCK_ROWS < count ? first + BLOCK_ROWS : count;
        for (size_t i = first * features; i < end * features; i++)
            dtype_set(dtype, values, i, rng_uniform(&rng));
    }
}

static enum status load_uniform(struct point_sets *sets, struct device *device, const struct config *config) {
    const enum gemm_dtype dtype = (enum gemm_dtype)config->dtype;
    size_t count, features;
    if (!parse_uniform(config->data + sizeof UNIFORM - 1, dtype_size(dtype), &count, &features))
        return status_set(STATUS_USAGE,
                          "'%s' must be uniform:SIZE,FEATURES with a size in KB, MB or GB, as in "
                          "uniform:1024MB,32",
                          config->data);
    const struct point_place place = place_of(config);
    const bool streamed = is_streamed(device, config);
    void *values = point_stream_alloc(device, streamed && place.pinned, count * features * dtype_size(dtype));
    if (!values) return STATUS_FAILED;
    draw(dtype, count, features, values);
    if (streamed)
        return points_on_host(&sets->train, device, dtype, count, features, false, values, true, &place);
    const enum status status = points_from_values(&sets->train, device, dtype, count, features, values);
    free(values);
    return status;
}

/* --- a file --- */

static enum status load_file(struct point_sets *sets, struct device *device, const struct config *config) {
    const enum gemm_dtype dtype = (enum gemm_dtype)config->dtype;
    const struct point_place place = place_of(config);
    struct safetensors *file = &sets->file;
    enum status status = safetensors_read_as(file, "file of points", config->data);
    const struct tensor *tensor = status ? NULL : safetensors_find(file, "points");
    if (!status && (!tensor || tensor->rank != 2 || !tensor->shape[0] || !tensor->shape[1]))
        status = status_set(STATUS_BAD_DATA, "'%s' has no tensor 'points' of count x features", config->data);
    if (!status && tensor->dtype != dtype)
        status = status_set(STATUS_USAGE, "the points of '%s' are %s: use --dtype %s", config->data,
                            dtype_name(tensor->dtype), dtype_name(tensor->dtype));
    const bool streamed = is_streamed(device, config);
    if (!status && streamed)
        status = points_on_host(&sets->train, device, dtype, tensor->shape[0], tensor->shape[1], false,
                                (void *)(uintptr_t)tensor->data, false, &place);
    if (!status && !streamed)
        status =
            points_from_values(&sets->train, device, dtype, tensor->shape[0], tensor->shape[1], tensor->data);
    if (status || !streamed || place.pinned) safetensors_free(file); /* the points have their own copy */
    return status;
}

enum status points_load(struct point_sets *sets, struct device *device, const struct config *config) {
    *sets = (struct point_sets){.scale = 1};
    if (!points_are_values(config->data)) return load_images(sets, device, config);
    snprintf(sets->name, sizeof sets->name, "%s", config->data);
    if (config->validation)
        return status_set(STATUS_USAGE, "validation holds out images: '%s' has none", config->data);
    return is_file(config->data) ? load_file(sets, device, config) : load_uniform(sets, device, config);
}

void points_close(struct point_sets *sets, struct device *device) {
    struct points *const parts[] = {&sets->train, &sets->validation, &sets->test};
    for (size_t i = 0; i < 3; i++)
        if (parts[i]->features) points_free(parts[i], device);
    dataset_pair_free(&sets->images);
    safetensors_free(&sets->file);
}
