/* The files that a command reads and writes. No two outputs may be one file, and no output may be an input.
   Files are compared by device and inode, and one that does not exist yet by the inode of its directory and
   its name, so that links and different spellings of a path are seen. */
#ifndef TESSERA_BASE_FILES_H
#define TESSERA_BASE_FILES_H

#include <stddef.h>

#include "src/base/status.h"

enum file_use {
    FILE_READ,
    FILE_WRITTEN,
    FILE_RESUMED, /* read, but FILE_SAVED may replace it: --resume x --save x */
    FILE_SAVED
};

struct file_entry;

/* Start with zero. */
struct files {
    struct file_entry *list;
    size_t count, capacity;
};

/* Adds a file. `flag` names it in messages ("--log"). A path that is "" or NULL, or names a device, a pipe or
   a folder, is ignored. */
void files_add(struct files *files, const char *flag, const char *path, enum file_use use);

/* STATUS_USAGE names the first two that are one file. Empties the list. */
enum status files_check(struct files *files);

/* Makes a folder unless there is one. STATUS_FAILED with the reason. */
enum status files_make_folder(const char *path);

void files_free(struct files *files);

#endif
