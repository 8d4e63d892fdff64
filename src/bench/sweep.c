#include "src/bench/sweep.h"

#include <stdlib.h>
#include <string.h>

#include "src/backend/backend_options.h"
#include "src/backend/registry.h"
#include "src/base/text.h"

enum { MOST_VALUES = 32, VALUE = 256 };

/* A key and its values. */
struct axis {
    const char *key;
    size_t count;
    char value[MOST_VALUES][VALUE];
};

enum { BACKEND, THREADS, DTYPE, PRECISION, ENGINE, RESIDENCY, PIN, AXES };

static enum status too_many(const char *key) {
    return status_set(STATUS_USAGE, "--%s lists more than %d values, or one that is too long", key,
                      MOST_VALUES);
}

/* The length of the first element. The options of a backend belong to it. */
static size_t element_length(const char *list, bool backends) {
    size_t length = strcspn(list, ",");
    while (backends && list[length] && backend_options_begin(list + length + 1))
        length += 1 + strcspn(list + length + 1, ",");
    return length;
}

static enum status split(struct axis *axis, const char *list) {
    const bool backends = strcmp(axis->key, "backend") == 0;
    while (*list) {
        const size_t length = element_length(list, backends);
        if (axis->count == MOST_VALUES || length >= VALUE) return too_many(axis->key);
        char *value = axis->value[axis->count++];
        snprintf(value, VALUE, "%.*s", (int)length, list);
        const size_t name = strcspn(value, ",");
        if (value[name] && !backend_options_in(value)[0])
            return status_set(STATUS_USAGE, "--backends: write '%.*s:%s' with a ':' before the first option",
                              (int)name, value, value + name + 1);
        list += length + (list[length] == ',');
    }
    return STATUS_OK;
}

static enum status all_backends(struct axis *axis) {
    for (size_t i = 0; i < registry_count(); i++) {
        if (axis->count == MOST_VALUES) return too_many(axis->key);
        snprintf(axis->value[axis->count++], VALUE, "%s", registry_at(i)->name);
    }
    return STATUS_OK;
}

static enum status fill(struct axis *axis, const char *list, const struct config *config) {
    if (list && strcmp(axis->key, "backend") == 0 && strcmp(list, "all") == 0) return all_backends(axis);
    if (list && *list) return split(axis, list);
    axis->count = 1;
    config_value(config, config_key_find(axis->key), axis->value[0], VALUE);
    return STATUS_OK;
}

/* Does the key change anything for this backend? */
static bool matters(int key, const struct gemm_backend *backend, const struct config *config) {
    const bool gpu = backend->device != GEMM_ON_HOST;
    if (key == THREADS) return !gpu && backend->set_threads;
    if (key == RESIDENCY) return gpu;
    if (key == PRECISION) return config->dtype == GEMM_F32;
    if (key == PIN) return gpu && config->residency == RESIDENCY_HOST;
    return true;
}

/* ", 2 threads", ", pinned", ", f64" */
static void append_value(struct sweep_row *row, int key, const char *value) {
    const char *unit = key != THREADS ? "" : strcmp(value, "1") == 0 ? " thread" : " threads";
    if (key == PIN) value = strcmp(value, "on") == 0 ? "pinned" : "pageable";
    text_append(row->label, sizeof row->label, ", %s%s", value, unit);
}

/* With "all", an unusable backend is not an error. */
static enum status leave_out(struct sweep_row *row, size_t index) {
    registry_usable(registry_at(index), row->left_out, sizeof row->left_out);
    return STATUS_OK;
}

/* Sets the row of one combination. *same: it repeats an earlier row. */
static enum status combine(const struct axis *axes, size_t index, bool all, struct sweep_row *row,
                           bool *same) {
    char where[64];
    size_t chosen[AXES];
    for (int a = AXES - 1; a >= 0; a--) { /* the backend changes slowest */
        chosen[a] = index % axes[a].count;
        index /= axes[a].count;
    }
    *same = false;
    for (int a = 0; a < AXES; a++) {
        const char *value = axes[a].value[chosen[a]];
        snprintf(where, sizeof where, a == BACKEND ? "--backends" : "--%s", axes[a].key);
        enum status status = config_set(&row->config, axes[a].key, value, FROM_FLAG, where);
        if (!status && a == BACKEND) {
            status = registry_find(value, &row->backend);
            if (status == STATUS_UNAVAILABLE && all) status = leave_out(row, chosen[a]);
        }
        if (status) return status;
        const bool counts = row->backend ? matters(a, row->backend, &row->config) : a == BACKEND;
        if (!counts && chosen[a] > 0) *same = true;
        if (a == BACKEND) {
            snprintf(row->name, sizeof row->name, "%s", value);
            if (row->backend)
                backend_options_name(row->backend, backend_options_in(value), row->name, sizeof row->name);
            text_append(row->label, sizeof row->label, "%s", row->name);
        } else if (counts && axes[a].count > 1) {
            append_value(row, a, value);
        }
    }
    return STATUS_OK;
}

static enum status fill_rows(struct sweep *sweep, const struct config *config, const struct axis *axes,
                             bool all) {
    size_t combinations = 1;
    for (int a = 0; a < AXES; a++) combinations *= axes[a].count;
    if (combinations > 4096)
        return status_set(STATUS_USAGE, "%zu combinations are too many to compare", combinations);
    sweep->rows = calloc(combinations, sizeof *sweep->rows);
    if (!sweep->rows) return status_set(STATUS_FAILED, "out of memory");
    for (size_t i = 0; i < combinations; i++) {
        struct sweep_row *row = &sweep->rows[sweep->count];
        bool same;
        *row = (struct sweep_row){.config = *config};
        const enum status status = combine(axes, i, all, row, &same);
        if (status) return status;
        sweep->count += !same;
    }
    return STATUS_OK;
}

enum status sweep_open(struct sweep *sweep, const struct config *config, const struct sweep_lists *lists) {
    const char *const given[AXES] = {lists->backends, lists->threads,     lists->dtypes, lists->precisions,
                                     lists->engines,  lists->residencies, lists->pins};
    static const char *const keys[AXES] = {"backend", "threads",   "dtype", "precision",
                                           "engine",  "residency", "pin"};
    *sweep = (struct sweep){0};
    struct axis *axes = calloc(AXES, sizeof *axes);
    if (!axes) return status_set(STATUS_FAILED, "out of memory");
    enum status status = STATUS_OK;
    for (int a = 0; a < AXES && !status; a++) {
        axes[a].key = keys[a];
        status = fill(&axes[a], given[a], config);
        if (!status && axes[a].count == 0) status = status_set(STATUS_USAGE, "--%s lists nothing", keys[a]);
    }
    if (!status)
        status = fill_rows(sweep, config, axes, lists->backends && strcmp(lists->backends, "all") == 0);
    free(axes);
    if (status) sweep_close(sweep);
    return status;
}

bool sweep_row_is(const struct sweep_row *row, const char *backend) {
    return row->backend && (strcmp(row->name, backend) == 0 || strcmp(row->backend->name, backend) == 0);
}

void sweep_close(struct sweep *sweep) {
    free(sweep->rows);
    *sweep = (struct sweep){0};
}
