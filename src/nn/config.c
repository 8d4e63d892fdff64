#define _GNU_SOURCE /* environ */
#include "src/nn/config.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/backend/backend_options.h"
#include "src/backend/registry.h"
#include "src/base/input.h"
#include "src/base/platform.h"
#include "src/base/text.h"

void config_defaults(struct config *config) {
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < config_key_count(); i++)
        config_set(config, config_key_at(i)->name, config_key_at(i)->fallback, FROM_DEFAULT, "default");
}

/* --- keys --- */

/* Keys of earlier versions that are now options of a backend. */
static const char *const moved_keys[] = {"tile", "shared", "order", "multiply", "isa"};
enum { MOVED_KEYS = sizeof moved_keys / sizeof *moved_keys };

enum status config_key_moved(const char *name, const char *value, const char *where) {
    const char *owner = registry_option_owner(name);
    for (int i = 0; i < MOVED_KEYS; i++)
        if (strcmp(name, moved_keys[i]) == 0)
            return status_set(STATUS_USAGE, "%s: '%s' is now an option of the backend: --backend %s:%s=%s",
                              where, name, owner ? owner : "NAME", name, value);
    return STATUS_OK;
}

enum status config_unknown_key(const char *name, const char *const *names, size_t count, const char *where) {
    const char *near = text_nearest(name, names, count);
    return status_set(STATUS_USAGE, "%s: unknown key '%s'%s%s%s (--help lists the keys)", where, name,
                      near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static enum status unknown_key(const char *name, const char *value, const char *where) {
    const enum status moved = config_key_moved(name, value, where);
    if (moved) return moved;
    const char *names[2 * CONFIG_MAX_KEYS];
    size_t count = 0;
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        names[count++] = key->name;
        if (key->alias) names[count++] = key->alias;
    }
    return config_unknown_key(name, names, count, where);
}

enum status config_set(struct config *config, const char *name, const char *value, enum config_origin origin,
                       const char *where) {
    const struct config_key *key = config_key_find(name);
    if (!key) return unknown_key(name, value, where);
    /* A checkpoint is data: it names no library to load and no file to write. */
    if (origin == FROM_CHECKPOINT && !key->recipe) return STATUS_OK;
    struct config trial = *config; /* a value of lower precedence is checked, but not stored */
    enum config_origin *from = &config->origin[key - config_key_at(0)];
    const bool wins = origin >= *from;
    const enum status status = config_parse_value(wins ? config : &trial, key, value, where);
    if (!status && wins) *from = origin;
    return status;
}

/* --- files and environment --- */

/* One line of a file, possibly a comment or blank. */
static enum status parse_line(char *line, const char *where, config_setter *set, void *fields) {
    line[config_comment(line)] = '\0';
    char *name = text_trim(line);
    if (!*name) return STATUS_OK;
    char *equals = strchr(name, '=');
    if (!equals) return status_set(STATUS_USAGE, "%s: expected 'key = value', found '%s'", where, name);
    *equals = '\0';
    return set(fields, text_trim(name), text_trim(equals + 1), where);
}

enum status config_parse_lines(const char *text, const char *where, config_setter *set, void *fields) {
    size_t number = 1;
    for (const char *at = text; *at; number++) {
        const size_t length = strcspn(at, "\n");
        char line[2 * CONFIG_TEXT], place[CONFIG_TEXT + 32];
        snprintf(place, sizeof place, "%s:%zu", where, number);
        if (length >= sizeof line) return status_set(STATUS_USAGE, "%s: the line is too long", place);
        memcpy(line, at, length);
        line[length] = '\0';
        const enum status status = parse_line(line, place, set, fields);
        if (status) return status;
        at += text_line_length(at);
    }
    return STATUS_OK;
}

struct target {
    struct config *config;
    enum config_origin origin;
};

static enum status set_in_target(void *fields, const char *name, const char *value, const char *where) {
    const struct target *target = fields;
    return config_set(target->config, name, value, target->origin, where);
}

enum status config_parse(struct config *config, const char *text, enum config_origin origin,
                         const char *where) {
    return config_parse_lines(text, where, set_in_target, &(struct target){config, origin});
}

static enum status cannot_read(const char *what, const char *path) {
    char kind[64];
    snprintf(kind, sizeof kind, "the %s ", what);
    return input_error(errno, kind, path) == STATUS_FAILED ? STATUS_FAILED : STATUS_USAGE;
}

enum status config_read_lines(const char *what, const char *path, config_setter *set, void *fields) {
    enum { LONGEST = 1 << 20 };
    FILE *file = fopen(path, "r");
    if (!file) return cannot_read(what, path);
    char *text = malloc(LONGEST + 1);
    const size_t length = text ? fread(text, 1, LONGEST, file) : 0;
    const bool failed = ferror(file) || !text, longer = length == LONGEST;
    fclose(file);
    enum status status;
    if (failed) {
        status = cannot_read(what, path);
    } else if (longer || memchr(text, '\0', length)) {
        status = status_set(STATUS_USAGE, "'%s' is not a %s: it is binary or too long", path, what);
    } else {
        text[length] = '\0';
        status = config_parse_lines(text, path, set, fields);
    }
    free(text);
    return status;
}

enum status config_read(struct config *config, const char *path) {
    const enum status status =
        config_read_lines("config file", path, set_in_target, &(struct target){config, FROM_FILE});
    snprintf(config->file, sizeof config->file, "%s", path);
    return status;
}

struct variable {
    char name[64];
};

/* TESSERA_BATCH_SIZE for batch-size. */
static struct variable variable_of(const char *key) {
    struct variable variable = {"TESSERA_"};
    size_t at = strlen(variable.name);
    for (const char *c = key; *c && at < sizeof variable.name - 1; c++)
        variable.name[at++] = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    return variable;
}

static enum status set_from_environment(struct config *config, const char *key) {
    const struct variable variable = variable_of(key);
    const char *value = getenv(variable.name);
    return value ? config_set(config, key, value, FROM_ENVIRONMENT, variable.name) : STATUS_OK;
}

enum status config_environment(struct config *config) {
    enum status status = STATUS_OK;
    for (size_t i = 0; i < config_key_count() && !status; i++)
        status = set_from_environment(config, config_key_at(i)->name);
    for (int i = 0; i < MOVED_KEYS && !status; i++) status = set_from_environment(config, moved_keys[i]);
    return status;
}

void config_warn_environment(void (*warn)(const char *line)) {
    struct variable variables[CONFIG_MAX_KEYS];
    const char *names[CONFIG_MAX_KEYS + 1];
    const size_t keys = config_key_count();
    for (size_t i = 0; i < keys; i++) {
        variables[i] = variable_of(config_key_at(i)->name);
        names[i] = variables[i].name;
    }
    names[keys] = "TESSERA_WIDE"; /* terminal.h */
    for (char **entry = environ; *entry; entry++) {
        char name[64], line[256];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        if (strncmp(name, "TESSERA_", 8) != 0 || strncmp(name, "TESSERA_TEST_", 13) == 0) continue;
        const char *near = text_nearest(name, names, keys + 1);
        if (near && strcmp(near, name) == 0) continue;
        snprintf(line, sizeof line, "the environment variable %s has no effect%s%s%s", name,
                 near ? "; did you mean " : ": no key has this name", near ? near : "", near ? "?" : "");
        warn(line);
    }
}

/* --- what the config says --- */

enum config_origin config_origin_of(const struct config *config, const char *name) {
    return config->origin[config_key_find(name) - config_key_at(0)];
}

void config_dump(const struct config *config, FILE *out, bool recipe_only, bool origins) {
    static const char *const names[] = {"default", "checkpoint", "file", "environment", "flag"};
    for (size_t i = 0; i < config_key_count(); i++) {
        char value[CONFIG_TEXT];
        const struct config_key *key = config_key_at(i);
        if (recipe_only && !key->recipe) continue;
        config_value(config, key, value, sizeof value);
        if (origins) {
            fprintf(out, "%-15s = %-20s # %s\n", key->name, value, names[config->origin[i]]);
        } else {
            fprintf(out, "%s = %s\n", key->name, value);
        }
    }
}

void config_for_inference(struct config *config) {
    config->validation = config->patience = 0;
    config->adversarial = 0;
}

struct dataset_options config_dataset(const struct config *config, enum dataset_parts parts) {
    return (struct dataset_options){.parts = parts,
                                    .transpose = (enum transpose)config->transpose,
                                    .label_offset = (unsigned)config->label_offset,
                                    .side = (size_t)config->input_size};
}

struct compute_options config_compute(const struct config *config) {
    return (struct compute_options){.threads = platform_threads((int)config->threads),
                                    .ordinal = (int)config->device,
                                    .residency = (enum residency)config->residency,
                                    .pinned = config->pin,
                                    .precision = (enum gemm_precision)config->precision,
                                    .options = backend_options_in(config->backend)};
}
