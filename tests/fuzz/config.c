/* Any bytes as a config file. What was read, printed and read again gives the same values; a checkpoint with
   this text sets keys of the recipe alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/nn/config.h"
#include "tests/fuzz/fuzz.h"

static struct memory_file file;
static struct config defaults;
static uint8_t pixels[28 * 28], labels[] = {9};
static const struct dataset_pair digits = {.train = {1, 28, 28, 10, pixels, labels},
                                           .test = {1, 28, 28, 10, pixels, labels}};

static char *dump(const struct config *config, size_t *size, bool recipe_only, bool origins) {
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    if (!out) abort();
    config_dump(config, out, recipe_only, origins);
    fclose(out);
    return text;
}

static bool is_same(const struct config_key *key, const struct config *a, const struct config *b) {
    const char *x = (const char *)a + key->offset, *y = (const char *)b + key->offset;
    switch (key->kind) {
    case KEY_INT:
        return memcmp(x, y, sizeof(int64_t)) == 0;
    case KEY_REAL:
        return memcmp(x, y, sizeof(double)) == 0;
    case KEY_CHOICE:
        return memcmp(x, y, sizeof(int)) == 0;
    case KEY_CHOICE_FILE:
        return memcmp(x, y, sizeof(int)) == 0 &&
               strcmp(((const struct choice_file *)x)->file, ((const struct choice_file *)y)->file) == 0;
    case KEY_TEXT:
        return strcmp(x, y) == 0;
    case KEY_LAYERS:
        return memcmp(x, y, sizeof(struct layer_list)) == 0;
    case KEY_LABELS:
        return memcmp(x, y, sizeof(struct label_set)) == 0;
    }
    return false;
}

static void check_round_trip(const struct config *config, bool origins) {
    static struct config again;
    size_t size;
    char *text = dump(config, &size, false, origins);
    again = defaults;
    memory_file_fill(&file, text, size);
    if (config_read(&again, file.path)) fuzz_fail("printed as\n%sbut refused: %s", text, status_message());
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        if (!is_same(key, config, &again)) fuzz_fail("%s changes, printed as\n%s", key->name, text);
    }
    free(text);
}

/* The recipe as a checkpoint stores it. */
static void check_checkpoint(const struct config *config) {
    static struct config again;
    size_t size, other_size;
    char *text = dump(config, &size, true, false), *other;
    again = defaults;
    if (config_parse(&again, text, FROM_CHECKPOINT, "fuzz"))
        fuzz_fail("stored as\n%sbut refused: %s", text, status_message());
    other = dump(&again, &other_size, true, false);
    if (strcmp(text, other) != 0) fuzz_fail("stored as\n%sbut read as\n%s", text, other);
    free(text);
    free(other);
}

static void ignore(const char *line) {
    if (!line[0]) fuzz_fail("an empty warning");
}

/* The text as the recipe of a checkpoint. */
static void check_orders(const char *text) {
    static struct config config;
    config = defaults;
    config_parse(&config, text, FROM_CHECKPOINT, "fuzz");
    for (size_t i = 0; i < config_key_count(); i++)
        if (!config_key_at(i)->recipe && config.origin[i] != FROM_DEFAULT)
            fuzz_fail("the checkpoint set '%s'", config_key_at(i)->name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct config config;
    if (!file.fd) {
        memory_file_open(&file);
        config_defaults(&defaults);
    }
    memory_file_fill(&file, data, size);
    config = defaults;
    forbid_writing(1);
    const enum status status = config_read(&config, file.path);
    if (status && (status != STATUS_USAGE || !status_message()[0]))
        fuzz_fail("refused with status %d: %s", status, status_message());
    if (!status) {
        config_check_data(&config, &digits);
        config_warn_unused(&config, ignore);
        check_round_trip(&config, false);
        check_round_trip(&config, true);
        check_checkpoint(&config);
    }
    char *text = strndup((const char *)data, size);
    check_orders(text);
    free(text);
    forbid_writing(0);
    return 0;
}
