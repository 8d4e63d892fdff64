#include "src/bench/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/backend/backend_options.h"
#include "src/backend/registry.h"
#include "src/base/text.h"
#include "src/bench/serve.h"

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
static bool matters(int key, const struct contest_backend *backend, const struct config *config) {
    const bool gpu = backend->device != GEMM_ON_HOST;
    if (key == THREADS) return !gpu && backend->has_threads;
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

/* --- the backends --- */

/* What is known of a backend of the list. */
struct found {
    enum status status;
    char message[640];
};

static bool same_file(const char *a, const char *b) {
    struct stat one, other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/* Tables and logs tell plug-ins apart by name: if another file has the same name, adds the path. */
static void tell_apart(const struct contest_backend *backends, size_t count, const char *value) {
    struct contest_backend *last = (struct contest_backend *)&backends[count];
    const char *options = backend_options_in(value);
    for (size_t i = 0; i < count; i++) {
        if (!last->path[0] || strcmp(backends[i].bare, last->bare) != 0 ||
            same_file(backends[i].path, last->path))
            continue;
        text_append(last->bare, sizeof last->bare, " (%s)", last->path);
        last->name[0] = '\0';
        text_append(last->name, sizeof last->name, "%s%s%s", last->bare, options[0] ? ":" : "", options);
        return;
    }
}

/* Built-in backends are found in this process: none of their code runs but `probe`. */
static enum status find(struct contest_backend *backend, const struct config *config, const char *value) {
    struct contest_request request = {.task = CONTEST_FIND, .config = *config};
    struct contest_reply reply = {0};
    struct contestant contestant = {0};
    struct server here = {0};
    snprintf(request.config.backend, sizeof request.config.backend, "%s", value);
    const enum status status = backend_options_of_plugin(value)
                                   ? contestant_ask(&contestant, "loading", &request, &reply)
                                   : serve_task(&here, &request, &reply);
    contestant_end(&contestant);
    serve_close(&here);
    *backend = reply.backend;
    if (status) snprintf(backend->name, sizeof backend->name, "%s", value);
    return status;
}

/* With "all", an unusable backend is not an error; a plug-in that crashes gets a row. */
static enum status find_all(struct sweep *sweep, const struct config *config, const struct axis *axis,
                            bool all, struct found *found) {
    for (size_t i = 0; i < axis->count; i++) {
        if (all && !registry_usable(registry_at(i), found[i].message, sizeof found[i].message)) {
            found[i].status = STATUS_UNAVAILABLE;
            snprintf(sweep->backends[i].name, sizeof sweep->backends[i].name, "%s", axis->value[i]);
            continue;
        }
        const enum status status = found[i].status = find(&sweep->backends[i], config, axis->value[i]);
        if (status) snprintf(found[i].message, sizeof found[i].message, "%s", status_message());
        if (status && status != STATUS_VERIFY_FAILED && !(status == STATUS_UNAVAILABLE && all)) return status;
        if (!status) tell_apart(sweep->backends, i, axis->value[i]);
    }
    return STATUS_OK;
}

/* --- the rows --- */

static void set_backend(struct sweep_row *row, const struct contest_backend *backend,
                        const struct found *found) {
    if (found->status == STATUS_UNAVAILABLE) {
        snprintf(row->left_out, sizeof row->left_out, "%.255s", found->message);
    } else {
        row->backend = backend;
        if (found->status) snprintf(row->wrong, sizeof row->wrong, "%s", found->message);
    }
    snprintf(row->name, sizeof row->name, "%s", backend->name);
    text_append(row->label, sizeof row->label, "%s", row->name);
}

/* Sets the row of one combination. *same: it repeats an earlier row. */
static enum status combine(const struct axis *axes, size_t index, const struct contest_backend *backends,
                           const struct found *found, struct sweep_row *row, bool *same) {
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
        const enum status status = config_set(&row->config, axes[a].key, value, FROM_FLAG, where);
        if (status) return status;
        if (a == BACKEND) set_backend(row, &backends[chosen[a]], &found[chosen[a]]);
        const bool counts = row->backend ? matters(a, row->backend, &row->config) : a == BACKEND;
        if (!counts && chosen[a] > 0) *same = true;
        if (a != BACKEND && counts && axes[a].count > 1) append_value(row, a, value);
    }
    return STATUS_OK;
}

static enum status fill_rows(struct sweep *sweep, const struct config *config, const struct axis *axes,
                             const struct found *found) {
    size_t combinations = 1;
    for (int a = 0; a < AXES; a++) combinations *= axes[a].count;
    if (combinations > 4096)
        return status_set(STATUS_USAGE, "%zu combinations are too many to compare", combinations);
    sweep->rows = calloc(combinations, sizeof *sweep->rows);
    sweep->contestants = calloc(combinations, sizeof *sweep->contestants);
    if (!sweep->rows || !sweep->contestants) return status_set(STATUS_FAILED, "out of memory");
    for (size_t i = 0; i < combinations; i++) {
        struct sweep_row *row = &sweep->rows[sweep->count];
        bool same;
        *row = (struct sweep_row){.config = *config, .contestant = &sweep->contestants[sweep->count]};
        const enum status status = combine(axes, i, sweep->backends, found, row, &same);
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
    const bool all = lists->backends && strcmp(lists->backends, "all") == 0;
    struct axis *axes = calloc(AXES, sizeof *axes);
    struct found *found = calloc(MOST_VALUES, sizeof *found);
    *sweep = (struct sweep){.backends = calloc(MOST_VALUES, sizeof *sweep->backends)};
    enum status status =
        axes && found && sweep->backends ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    for (int a = 0; a < AXES && !status; a++) {
        axes[a].key = keys[a];
        status = fill(&axes[a], given[a], config);
        if (!status && axes[a].count == 0) status = status_set(STATUS_USAGE, "--%s lists nothing", keys[a]);
    }
    if (!status) status = find_all(sweep, config, &axes[BACKEND], all, found);
    if (!status) status = fill_rows(sweep, config, axes, found);
    free(axes);
    free(found);
    if (status) sweep_close(sweep);
    return status;
}

bool sweep_row_is(const struct sweep_row *row, const char *backend) {
    return row->backend && (strcmp(row->name, backend) == 0 || strcmp(row->backend->bare, backend) == 0);
}

void sweep_close(struct sweep *sweep) {
    for (size_t i = 0; i < sweep->count; i++) contestant_end(&sweep->contestants[i]);
    free(sweep->rows);
    free(sweep->backends);
    free(sweep->contestants);
    *sweep = (struct sweep){0};
}
