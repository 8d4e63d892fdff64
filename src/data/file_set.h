/* The files of a data set: in one directory, with one prefix, as in "emnist-letters-" + "train.csv". --data
   names the directory or, if that holds several sets, directory/prefix. */
#ifndef TESSERA_DATA_FILE_SET_H
#define TESSERA_DATA_FILE_SET_H

#include <stdbool.h>
#include <stddef.h>

#include "src/data/classes.h"

struct file_set {
    char directory[1024];
    char prefix[128]; /* "", or it ends in '-', '_' or '.' */
};

/* Finds the prefix of the files with one of these endings (NULL-terminated). Returns how many sets there are:
   0, 1 or 2, which stands for more. `set` is the first in alphabetical order. */
size_t file_set_find(struct file_set *set, const char *source, const char *const *endings);

/* The same. STATUS_BAD_DATA, with their names, unless there is exactly one. */
enum status file_set_open(struct file_set *set, const char *source, const char *const *endings);

/* Writes the path of the first of these endings that exists; false if none does. */
bool file_set_path(const struct file_set *set, const char *const *endings, char *path, size_t size);

/* Reads the names of the classes, if there is one of these files: PREFIXclasses.txt, classes.txt, or EMNIST's
   PREFIXmapping.txt, whose lines have a label and the codes of its characters. */
enum status file_set_classes(const struct file_set *set, struct class_names *names);

/* EMNIST stores its images with rows and columns exchanged. True if the file or prefix has its name. */
bool file_set_is_emnist(const char *name);

#endif
