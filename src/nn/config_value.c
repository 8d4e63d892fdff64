/* One value of a config: from text to the field of its key, and back. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/text.h"
#include "src/nn/config.h"

enum { MAX_WIDTH = 1 << 20 };

/* --- parsing --- */

/* Reads whole numbers from `min` to `max`, joined by `separator`. Returns their count, or -1. */
static int parse_list(const char *value, char separator, int64_t min, int64_t max, int64_t *numbers) {
    char copy[CONFIG_TEXT];
    int count = 0;
    if (snprintf(copy, sizeof copy, "%s", value) >= (int)sizeof copy) return -1;
    for (char *word = *text_trim(copy) ? copy : NULL; word; count++) {
        char *end = strchr(word, separator);
        if (end) *end = '\0';
        if (!text_parse_int(text_trim(word), &numbers[count])) return -1;
        if (numbers[count] < min || numbers[count] > max) return -1;
        word = end ? end + 1 : NULL;
    }
    return count;
}

static bool parse_layers(struct layer_list *layers, const char *value) {
    int64_t widths[CONFIG_TEXT];
    const int count = parse_list(value, '-', 1, MAX_WIDTH, widths);
    if (count < 2 || count > PROFILE_MAX_LAYERS + 1) return false;
    *layers = (struct layer_list){.count = (size_t)count};
    for (int i = 0; i < count; i++) layers->width[i] = (size_t)widths[i];
    return true;
}

/* "1,7"; "" is the empty set. */
static bool parse_labels(struct label_set *labels, const char *value) {
    int64_t members[CONFIG_TEXT];
    const int count = parse_list(value, ',', 0, DATASET_MAX_CLASSES - 1, members);
    if (count < 0) return false;
    *labels = (struct label_set){0};
    for (int i = 0; i < count; i++) labels->has[members[i]] = true;
    return true;
}

/* The characters of a choice that values have in common: of "kmeans:FILE", those of "kmeans:". */
static size_t fixed_part(const char *choice) {
    const size_t name = strcspn(choice, ":");
    return name + (choice[name] == ':');
}

static bool is_choice(const char *choice, const char *value) {
    const size_t fixed = fixed_part(choice);
    return choice[fixed] ? strncmp(choice, value, fixed) == 0 && value[fixed] : strcmp(choice, value) == 0;
}

static enum status parse_choice(const struct config_key *key, const char *value, const char *where,
                                int *choice) {
    char list[256] = "";
    for (int i = 0; key->choices[i]; i++) {
        text_append(list, sizeof list, "%s%s", i ? " | " : "", key->choices[i]);
        if (!is_choice(key->choices[i], value)) continue;
        *choice = i;
        return STATUS_OK;
    }
    return status_set(STATUS_USAGE, "%s: %s must be %s, not '%s'", where, key->name, list, value);
}

size_t config_comment(const char *line) {
    size_t at = 0;
    while (line[at] && line[at] != '\r' && line[at] != '\n' &&
           !(line[at] == '#' && (at == 0 || isspace((unsigned char)line[at - 1]))))
        at++;
    return at;
}

static enum status parse_integer(const struct config_key *key, const char *value, const char *where,
                                 int64_t *field) {
    int64_t integer;
    if (!text_parse_int(value, &integer) || (double)integer < key->min || (double)integer > key->max)
        return status_set(STATUS_USAGE, "%s: %s must be a whole number from %.0f to %.0f, not '%s'", where,
                          key->name, key->min, key->max, value);
    *field = integer;
    return STATUS_OK;
}

static enum status parse_real(const struct config_key *key, const char *value, const char *where,
                              double *field) {
    double real;
    if (!text_parse_real(value, &real) || real < key->min || real > key->max)
        return status_set(STATUS_USAGE, "%s: %s must be a number from %.10g to %.10g, not '%s'", where,
                          key->name, key->min, key->max, value);
    *field = real;
    return STATUS_OK;
}

static enum status parse_text(const struct config_key *key, const char *value, const char *where,
                              char *field) {
    if (strlen(value) >= CONFIG_TEXT)
        return status_set(STATUS_USAGE, "%s: %s is longer than %d characters", where, key->name,
                          CONFIG_TEXT - 1);
    if (value[config_comment(value)])
        return status_set(STATUS_USAGE, "%s: %s may not contain a line break, or '#' after white space",
                          where, key->name);
    memmove(field, value, strlen(value) + 1); /* `value` may be the field itself */
    return STATUS_OK;
}

static enum status parse_choice_file(const struct config_key *key, const char *value, const char *where,
                                     struct choice_file *field) {
    char text[CONFIG_TEXT];
    enum status status = parse_text(key, value, where, text);
    if (!status) status = parse_choice(key, text, where, &field->choice);
    if (status) return status;
    const char *choice = key->choices[field->choice];
    const size_t fixed = fixed_part(choice);
    snprintf(field->file, sizeof field->file, "%s", choice[fixed] ? text + fixed : "");
    return STATUS_OK;
}

enum status config_parse_value(void *fields, const struct config_key *key, const char *value,
                               const char *where) {
    void *field = (char *)fields + key->offset;
    switch (key->kind) {
    case KEY_INT:
        return parse_integer(key, value, where, field);
    case KEY_REAL:
        return parse_real(key, value, where, field);
    case KEY_CHOICE:
        return parse_choice(key, value, where, field);
    case KEY_CHOICE_FILE:
        return parse_choice_file(key, value, where, field);
    case KEY_TEXT:
        return parse_text(key, value, where, field);
    case KEY_LAYERS:
        if (!parse_layers(field, value))
            return status_set(
                STATUS_USAGE,
                "%s: layers must be 2 to %d widths from 1 to %d joined by '-', as in 784-128-10, not '%s'",
                where, PROFILE_MAX_LAYERS + 1, MAX_WIDTH, value);
        return STATUS_OK;
    case KEY_LABELS:
        if (!parse_labels(field, value))
            return status_set(
                STATUS_USAGE,
                "%s: %s must be labels from 0 to %d with commas between them, as in 1,7, not '%s'", where,
                key->name, DATASET_MAX_CLASSES - 1, value);
        return STATUS_OK;
    }
    return STATUS_OK;
}

/* --- back to text --- */

/* The shortest decimal that reads back to the same double. */
static void print_real(char *text, size_t size, double value) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, size, "%.*g", digits, value);
        if (strtod(text, NULL) == value) return;
    }
}

void config_value(const struct config *config, const struct config_key *key, char *text, size_t size) {
    const void *field = (const char *)config + key->offset;
    const struct layer_list *layers = field;
    const struct label_set *labels = field;
    const struct choice_file *with_file = field;
    const char *choice;
    text[0] = '\0';
    switch (key->kind) {
    case KEY_INT:
        snprintf(text, size, "%lld", (long long)*(const int64_t *)field);
        break;
    case KEY_REAL:
        print_real(text, size, *(const double *)field);
        break;
    case KEY_CHOICE:
        snprintf(text, size, "%s", key->choices[*(const int *)field]);
        break;
    case KEY_CHOICE_FILE:
        choice = key->choices[with_file->choice];
        snprintf(text, size, "%.*s%s", (int)fixed_part(choice), choice, with_file->file);
        break;
    case KEY_TEXT:
        snprintf(text, size, "%s", (const char *)field);
        break;
    case KEY_LAYERS:
        for (size_t i = 0; i < layers->count; i++)
            text_append(text, size, "%s%zu", i ? "-" : "", layers->width[i]);
        break;
    case KEY_LABELS:
        for (int label = 0; label < DATASET_MAX_CLASSES; label++)
            if (labels->has[label]) text_append(text, size, "%s%d", text[0] ? "," : "", label);
        break;
    }
}
