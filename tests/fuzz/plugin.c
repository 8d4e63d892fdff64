/* Any bytes as the table that a plug-in exports (struct gemm_plugin, its backend and options), as the options
   that a user gives it, and as the value of --backend. The dynamic linker reads the ELF file. The table is
   the first thing that our own code reads of it.

   The input: ABI, device, size of the table, slots (bits), then lines: name, summary, options of the user,
   --backend, and key, values, fallback and help of each option. The line "-" is a NULL. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/backend_options.h"
#include "src/backend/plugin.h"
#include "src/backend/registry.h"
#include "src/base/text.h"
#include "tests/fuzz/fuzz.h"

enum { HEADER = 4, MOST = GEMM_MOST_OPTIONS + 2 };
enum {
    WITH_BACKEND = 1,
    WITH_SUPPORTS = 2,
    WITH_GEMM = 4,
    WITH_CREATE = 8,
    WITH_OPTIONS = 16,
    REST_SET = 32
};

static bool supports(enum gemm_dtype dtype, enum gemm_op op) {
    (void)dtype, (void)op;
    fuzz_fail("a slot was called");
}

static enum gemm_status multiply(void *context, const struct gemm_call *call) {
    (void)context, (void)call;
    fuzz_fail("a slot was called");
}

static void *create(const struct gemm_setup *setup, char *why, size_t size) {
    (void)setup, (void)why, (void)size;
    fuzz_fail("a slot was called");
}

/* The next line of the text, cut off; NULL for "-". */
static char *take_line(char **text) {
    char *line = *text, *end = strchr(line, '\n');
    *text = end ? end + 1 : line + strlen(line);
    if (end) *end = '\0';
    return strcmp(line, "-") == 0 ? NULL : line;
}

/* `size` bytes of a table, so that a sanitizer sees what is read behind them. */
static struct gemm_backend *table_of(const struct gemm_backend *whole, size_t size, bool rest_set) {
    char *table = malloc(size ? size : 1);
    if (!table) abort();
    for (size_t i = 0; i < size; i++)
        table[i] = i < sizeof *whole ? ((const char *)whole)[i] : rest_set ? 1 : 0;
    return (struct gemm_backend *)table;
}

static void check_table(const struct gemm_backend *backend, size_t size) {
    if (!backend->name || !backend->name[0] || !backend->summary || !backend->supports || !backend->gemm ||
        (backend->options && !backend->create))
        fuzz_fail("accepted with an empty slot");
    if (backend->device != GEMM_ON_HOST && backend->device != GEMM_ON_CUDA) fuzz_fail("accepted device");
    for (size_t i = size; i < sizeof *backend; i++)
        if (((const char *)backend)[i]) fuzz_fail("a slot behind the table of %zu bytes is set", size);
}

/* Is the text one of "a|b|c"? */
static bool is_choice(const char *values, const char *text) {
    for (const char *at = values;; at++) {
        const size_t word = strcspn(at, "|");
        if (word == strlen(text) && strncmp(at, text, word) == 0) return true;
        at += word;
        if (!*at) return false;
    }
}

static void check_value(const struct gemm_option *option, const struct gemm_value *value) {
    long least, most;
    char rest;
    if (!value->text) fuzz_fail("option '%s' has no value", option->key);
    if (strchr(option->values, '|')) {
        if (!is_choice(option->values, value->text))
            fuzz_fail("'%s' is none of '%s'", value->text, option->values);
    } else if (sscanf(option->values, "%ld..%ld%c", &least, &most, &rest) == 2) {
        if (value->number < least || value->number > most)
            fuzz_fail("'%s' is not in %s", value->text, option->values);
    }
}

/* Accepted values as the text that a user would write give the same values. */
static void check_values(const struct gemm_backend *backend, const struct backend_values *values) {
    struct backend_values again;
    char text[2 * BACKEND_OPTIONS_TEXT] = "";
    for (size_t i = 0; i < GEMM_MOST_OPTIONS && backend->options && backend->options[i].key; i++) {
        if (!values->list[i].text && !backend->options[i].fallback) return; /* it must be given */
        check_value(&backend->options[i], &values->list[i]);
        if (strchr(values->list[i].text, ',')) return; /* a fallback that no user can write */
        text_append(text, sizeof text, "%s%s=%s", i ? "," : "", backend->options[i].key,
                    values->list[i].text);
    }
    if (strlen(text) >= BACKEND_OPTIONS_TEXT) return;
    if (backend_options_parse(backend, text, &again))
        fuzz_fail("the values '%s' are refused: %s", text, status_message());
    for (size_t i = 0; i < GEMM_MOST_OPTIONS && backend->options && backend->options[i].key; i++)
        if (again.list[i].number != values->list[i].number ||
            strcmp(again.list[i].text, values->list[i].text) != 0)
            fuzz_fail("option '%s' was '%s', then '%s'", backend->options[i].key, values->list[i].text,
                      again.list[i].text);
}

static void check_options(const struct gemm_backend *backend, const char *options) {
    struct backend_values values;
    char text[4096];
    backend_options_list(backend, text, sizeof text);
    backend_options_name(backend, options, text, sizeof text);
    const struct gemm_option *needed = backend_options_missing(backend, NULL);
    const enum status without = backend_options_parse(backend, NULL, &values);
    if (without != (needed ? STATUS_USAGE : STATUS_OK)) fuzz_fail("the fallbacks: %s", status_message());
    check_values(backend, &values);
    const enum status status = backend_options_parse(backend, options, &values);
    if (status && (status != STATUS_USAGE || !status_message()[0])) fuzz_fail("status %d", status);
    if (!status && backend_options_missing(backend, &values)) fuzz_fail("accepted without an option");
    if (!status) check_values(backend, &values);
}

/* The value of --backend, unless a plug-in would be loaded. */
static void check_backend(const char *text) {
    const struct gemm_backend *backend;
    const char *options = backend_options_in(text);
    if (options < text || options > text + strlen(text)) fuzz_fail("options outside of '%s'", text);
    if (!backend_options_of_plugin(text) && registry_find(text, &backend) == STATUS_OK &&
        strncmp(text, "auto", 4) != 0 && strncmp(text, backend->name, strlen(backend->name)) != 0)
        fuzz_fail("'%s' is the backend %s", text, backend->name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool prepared;
    const struct gemm_backend *openblas;
    if (!prepared) registry_find("openblas", &openblas); /* the one built-in backend that loads a library */
    prepared = true;
    if (size < HEADER) return 0;
    char *text = strndup((const char *)data + HEADER, size - HEADER), *rest = text;
    if (!text) abort();
    const int slots = data[3];
    struct gemm_backend whole = {.name = take_line(&rest), .summary = take_line(&rest)}, backend;
    char *options = take_line(&rest), *name = take_line(&rest);
    struct gemm_option list[MOST + 1] = {0};
    for (size_t i = 0; i < MOST && *rest; i++) {
        list[i].key = take_line(&rest);
        list[i].values = take_line(&rest);
        list[i].fallback = take_line(&rest);
        list[i].help = take_line(&rest);
    }
    whole.device = (enum gemm_device)(signed char)data[1];
    if (slots & WITH_SUPPORTS) whole.supports = supports;
    if (slots & WITH_GEMM) whole.gemm = multiply;
    if (slots & WITH_CREATE) whole.create = create;
    if (slots & WITH_OPTIONS) whole.options = list;
    const struct gemm_plugin plugin = {(signed char)data[0], data[2],
                                       table_of(&whole, data[2], slots & REST_SET)};
    const struct gemm_plugin empty = {plugin.abi, plugin.backend_size, NULL};

    forbid_writing(1);
    const enum status status = plugin_check("fuzz.so", slots & WITH_BACKEND ? &plugin : &empty, &backend);
    if (status && (status != STATUS_UNAVAILABLE || !status_message()[0])) fuzz_fail("status %d", status);
    if (!status) {
        check_table(&backend, plugin.backend_size);
        check_options(&backend, options);
    }
    if (name) check_backend(name);
    forbid_writing(0);
    free((void *)plugin.backend);
    free(text);
    return 0;
}
