#include "src/backend/backend_options.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/plugin.h"
#include "src/base/text.h"

size_t backend_options_key(const char *text) {
    size_t length = 0;
    while (isalnum((unsigned char)text[length]) || text[length] == '-' || text[length] == '_') length++;
    return length;
}

bool backend_options_begin(const char *text) {
    const size_t length = backend_options_key(text);
    return length && text[length] == '=';
}

const char *backend_options_in(const char *backend) {
    const char *end = backend + strlen(backend), *colon = strchr(backend, ':');
    const char *slash = strchr(backend, '/');
    if (end > backend && end[-1] == ':') return end;
    while (colon && slash && slash < colon && !backend_options_begin(colon + 1))
        colon = strchr(colon + 1, ':');
    return colon ? colon + 1 : end;
}

bool backend_options_of_plugin(const char *backend) {
    char name[BACKEND_OPTIONS_TEXT];
    const char *options = backend_options_in(backend);
    const size_t length = (size_t)(options - backend) - (options > backend && options[-1] == ':');
    snprintf(name, sizeof name, "%.*s", (int)length, backend);
    return plugin_is_path(name);
}

void backend_options_name(const struct gemm_backend *backend, const char *options, char *name, size_t size) {
    snprintf(name, size, "%s%s%s", backend->name, options && options[0] ? ":" : "", options ? options : "");
}

/* --- messages --- */

static size_t count_options(const struct gemm_backend *backend) {
    size_t count = 0;
    while (backend->options && count < GEMM_MOST_OPTIONS && backend->options[count].key) count++;
    return count;
}

void backend_options_list(const struct gemm_backend *backend, char *list, size_t size) {
    list[0] = '\0';
    for (size_t i = 0; i < count_options(backend); i++) {
        const struct gemm_option *option = &backend->options[i];
        text_append(list, size, "%s=%s: %s%s%s%s\n", option->key, option->values, option->help,
                    option->fallback ? " [" : ", must be given", option->fallback ? option->fallback : "",
                    option->fallback ? "]" : "");
    }
}

static enum status unknown_option(const struct gemm_backend *backend, const char *key) {
    const char *keys[GEMM_MOST_OPTIONS] = {NULL};
    char list[512] = "";
    const size_t count = count_options(backend);
    for (size_t i = 0; i < count; i++) {
        keys[i] = backend->options[i].key;
        text_append(list, sizeof list, "%s%s=%s", i ? ", " : "; its options are ", keys[i],
                    backend->options[i].values);
    }
    const char *near = text_nearest(key, keys, count);
    return status_set(STATUS_USAGE, "backend '%s' has no option '%s'%s%s%s%s", backend->name, key,
                      near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "",
                      count ? list : ", for it has none");
}

static enum status wrong_value(const struct gemm_backend *backend, const struct gemm_option *option,
                               const char *value, const char *near) {
    return status_set(STATUS_USAGE, "backend '%s': option %s must be %s, not '%s'%s%s%s", backend->name,
                      option->key, option->values, value, near ? " (did you mean '" : "", near ? near : "",
                      near ? "'?)" : "");
}

/* --- values --- */

/* The position of the text among "a|b|c"; -1 if it is none of them. */
static long choice_position(const char *choices, const char *text) {
    const size_t length = strlen(text);
    for (long i = 0;; i++) {
        const size_t word = strcspn(choices, "|");
        if (word == length && memcmp(choices, text, length) == 0) return i;
        if (!choices[word]) return -1;
        choices += word + 1;
    }
}

static enum status wrong_choice(const struct gemm_backend *backend, const struct gemm_option *option,
                                const char *text) {
    enum { MOST_CHOICES = 32 }; /* among which the nearest is suggested */
    char copy[BACKEND_OPTIONS_TEXT];
    const char *choices[MOST_CHOICES];
    size_t count = 0;
    snprintf(copy, sizeof copy, "%s", option->values);
    for (char *next, *word = strtok_r(copy, "|", &next); word && count < MOST_CHOICES;
         word = strtok_r(NULL, "|", &next))
        choices[count++] = word;
    return wrong_value(backend, option, text, text_nearest(text, choices, count));
}

/* Parses one of "a|b|c". */
static enum status take_choice(const struct gemm_backend *backend, const struct gemm_option *option,
                               const char *text, long *number) {
    int64_t whole;
    const long position = choice_position(option->values, text);
    if (position < 0) return wrong_choice(backend, option, text);
    *number = text_parse_int(text, &whole) ? (long)whole : position;
    return STATUS_OK;
}

static enum status take_value(const struct gemm_backend *backend, const struct gemm_option *option,
                              const char *text, struct gemm_value *value) {
    long least, most;
    int64_t number;
    char rest;
    *value = (struct gemm_value){.text = text};
    if (strchr(option->values, '|')) return take_choice(backend, option, text, &value->number);
    if (sscanf(option->values, "%ld..%ld%c", &least, &most, &rest) != 2) return STATUS_OK;
    if (!text_parse_int(text, &number) || number < least || number > most)
        return wrong_value(backend, option, text, NULL);
    value->number = (long)number;
    return STATUS_OK;
}

/* Parses one "key=value"; replaces its '=' by a null byte. The first option, if it must be given, needs no
   key. */
static enum status take_pair(const struct gemm_backend *backend, char *pair, struct backend_values *values) {
    const struct gemm_option *first = backend->options;
    char *equals = strchr(pair, '=');
    if (pair == values->text && count_options(backend) && !first->fallback && !backend_options_begin(pair))
        return take_value(backend, first, pair, &values->list[0]);
    if (!equals)
        return status_set(STATUS_USAGE,
                          "backend '%s': '%s' is no option: write --backend NAME:key=value,key=value",
                          backend->name, pair);
    *equals = '\0';
    for (size_t i = 0; i < count_options(backend); i++) {
        const struct gemm_option *option = &backend->options[i];
        if (strcmp(option->key, pair) != 0) continue;
        if (values->list[i].text)
            return status_set(STATUS_USAGE, "backend '%s': option %s is given twice", backend->name, pair);
        return take_value(backend, option, equals + 1, &values->list[i]);
    }
    return unknown_option(backend, pair);
}

enum status backend_options_fallbacks(const struct gemm_backend *backend, struct backend_values *values) {
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count_options(backend) && !status; i++) {
        const struct gemm_option *option = &backend->options[i];
        if (!values->list[i].text && option->fallback)
            status = take_value(backend, option, option->fallback, &values->list[i]);
    }
    return status;
}

const struct gemm_option *backend_options_missing(const struct gemm_backend *backend,
                                                  const struct backend_values *values) {
    for (size_t i = 0; i < count_options(backend); i++)
        if (!backend->options[i].fallback && !(values && values->list[i].text)) return &backend->options[i];
    return NULL;
}

enum status backend_options_parse(const struct gemm_backend *backend, const char *text,
                                  struct backend_values *values) {
    enum status status = STATUS_OK;
    *values = (struct backend_values){0};
    if (snprintf(values->text, sizeof values->text, "%s", text ? text : "") >= (int)sizeof values->text)
        return status_set(STATUS_USAGE, "the options of backend '%s' are too long", backend->name);
    for (char *pair = values->text[0] ? values->text : NULL; pair && !status;) {
        char *comma = strchr(pair, ',');
        if (comma) *comma = '\0';
        status = take_pair(backend, pair, values);
        pair = comma ? comma + 1 : NULL;
    }
    if (!status) status = backend_options_fallbacks(backend, values);
    const struct gemm_option *missing = status ? NULL : backend_options_missing(backend, values);
    if (!missing) return status;
    return status_set(STATUS_USAGE, "backend '%s' needs %s=%s, %s: --backend %s:%s%s", backend->name,
                      missing->key, missing->values, missing->help, backend->name,
                      missing == backend->options ? "" : missing->key,
                      missing == backend->options ? missing->values : "=..");
}
