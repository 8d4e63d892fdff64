/* The names of the classes of a data set. They may come from folders, text files and checkpoints, so they are
   bounded and safe to print: text_is_printable. */
#ifndef TESSERA_DATA_CLASSES_H
#define TESSERA_DATA_CLASSES_H

#include <stddef.h>

#include "src/base/status.h"

enum { DATASET_MAX_CLASSES = 256, CLASS_NAME = 64, CLASSES_TEXT = DATASET_MAX_CLASSES * CLASS_NAME };

struct class_names {
    size_t count; /* 0: the classes have no names */
    char name[DATASET_MAX_CLASSES][CLASS_NAME];
};

/* Adds the name of the next class, without the white space around it. STATUS_BAD_DATA, with `where` in the
   message, if it is empty, longer than 63 bytes, not printable, or there already. */
enum status classes_add(struct class_names *names, const char *name, const char *where);

/* The index of a name, or `count` if there is none. */
size_t classes_find(const struct class_names *names, const char *name);

/* Reads one name a line, the first for class 0; blank lines at the end are ignored. */
enum status classes_parse(struct class_names *names, const char *text, const char *where);
enum status classes_read(struct class_names *names, const char *path);

/* The text that classes_parse reads; "" if there are no names. */
void classes_text(const struct class_names *names, char text[CLASSES_TEXT + 1]);

/* What to call a class: its name, or its number if it has none. */
struct class_label {
    char text[CLASS_NAME];
};
struct class_label classes_label(const struct class_names *names, size_t class);

#endif
