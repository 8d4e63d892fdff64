#include "src/data/classes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/input.h"
#include "src/base/text.h"

size_t classes_find(const struct class_names *names, const char *name) {
    size_t index = 0;
    while (index < names->count && strcmp(names->name[index], name) != 0) index++;
    return index;
}

enum status classes_add(struct class_names *names, const char *name, const char *where) {
    char copy[4 * CLASS_NAME];
    const bool cut = snprintf(copy, sizeof copy, "%s", name) >= (int)sizeof copy;
    const char *own = text_trim(copy);
    if (names->count == DATASET_MAX_CLASSES)
        return status_set(STATUS_BAD_DATA, "%s: there are more than %d classes", where, DATASET_MAX_CLASSES);
    if (cut || !*own || strlen(own) >= CLASS_NAME || !text_is_printable(own))
        return status_set(
            STATUS_BAD_DATA,
            "%s: the name of class %zu must be 1 to %d bytes of UTF-8 without control characters", where,
            names->count, CLASS_NAME - 1);
    if (classes_find(names, own) < names->count)
        return status_set(STATUS_BAD_DATA, "%s: two classes are called '%s'", where, own);
    snprintf(names->name[names->count++], CLASS_NAME, "%s", own);
    return STATUS_OK;
}

enum status classes_parse(struct class_names *names, const char *text, const char *where) {
    enum status status = STATUS_OK;
    names->count = 0;
    while (!status && text[strspn(text, " \t\r\n")]) {
        char line[4 * CLASS_NAME];
        const size_t length = text_line_length(text);
        snprintf(line, sizeof line, "%.*s", (int)(length < sizeof line ? length : sizeof line), text);
        status = classes_add(names, line, where);
        text += length;
    }
    return status;
}

enum status classes_read(struct class_names *names, const char *path) {
    char *text;
    enum status status = input_text(&text, CLASSES_TEXT, path);
    if (status) return status;
    status = classes_parse(names, text, path);
    free(text);
    return status;
}

void classes_text(const struct class_names *names, char text[CLASSES_TEXT + 1]) {
    char *at = text;
    *at = '\0';
    for (size_t c = 0; c < names->count; c++)
        at += snprintf(at, CLASS_NAME + 1, "%s%s", c ? "\n" : "", names->name[c]);
}

struct class_label classes_label(const struct class_names *names, size_t class) {
    struct class_label label;
    if (class < names->count) {
        memcpy(label.text, names->name[class], sizeof label.text);
    } else {
        snprintf(label.text, sizeof label.text, "%zu", class);
    }
    return label;
}
