#include "src/base/files.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/replace.h"
#include "src/base/text.h"

struct file_entry {
    const char *flag;
    char *path;
    enum file_use use;
    dev_t device;
    ino_t inode;
    char *name; /* of a file that does not exist, in the directory `inode`; NULL if it does */
};

/* False: a device, a pipe, a folder, or in a folder that does not exist. */
static bool identify(struct file_entry *entry) {
    char target[PATH_MAX], directory[PATH_MAX];
    struct stat info;
    const bool exists = stat(entry->path, &info) == 0;
    if (exists && !S_ISREG(info.st_mode)) return false;
    if (!exists) {
        if (replace_resolve(entry->path, target, sizeof target)) return false;
        text_directory(target, directory, sizeof directory);
        if (stat(directory, &info) != 0) return false;
        const char *slash = strrchr(target, '/');
        entry->name = strdup(slash ? slash + 1 : target);
    }
    entry->device = info.st_dev;
    entry->inode = info.st_ino;
    return exists || entry->name;
}

static void free_entry(struct file_entry *entry) {
    free(entry->path);
    free(entry->name);
}

void files_add(struct files *files, const char *flag, const char *path, enum file_use use) {
    if (!path || !path[0]) return;
    if (files->count == files->capacity) {
        const size_t capacity = files->capacity ? 2 * files->capacity : 16;
        struct file_entry *list = realloc(files->list, capacity * sizeof *list);
        if (!list) return; /* the check is a courtesy: what follows fails for lack of memory */
        files->list = list;
        files->capacity = capacity;
    }
    struct file_entry *entry = &files->list[files->count];
    *entry = (struct file_entry){.flag = flag, .path = strdup(path), .use = use};
    if (entry->path && identify(entry)) {
        files->count++;
    } else {
        free_entry(entry);
    }
}

static bool is_one_file(const struct file_entry *a, const struct file_entry *b) {
    return a->device == b->device && a->inode == b->inode && !a->name == !b->name &&
           (!a->name || strcmp(a->name, b->name) == 0);
}

static bool may_be_one(const struct file_entry *a, const struct file_entry *b) {
    const bool a_written = a->use == FILE_WRITTEN || a->use == FILE_SAVED;
    const bool b_written = b->use == FILE_WRITTEN || b->use == FILE_SAVED;
    return (!a_written && !b_written) || (a->use == FILE_RESUMED && b->use == FILE_SAVED) ||
           (a->use == FILE_SAVED && b->use == FILE_RESUMED);
}

enum status files_check(struct files *files) {
    enum status status = STATUS_OK;
    for (size_t i = 0; i < files->count && !status; i++)
        for (size_t j = 0; j < i && !status; j++) {
            const struct file_entry *a = &files->list[j], *b = &files->list[i];
            if (may_be_one(a, b) || !is_one_file(a, b)) continue;
            const bool spelled_alike = strcmp(a->path, b->path) == 0;
            status = status_set(STATUS_USAGE, "%s and %s name the same file, '%s'%s%s%s: give each its own",
                                a->flag, b->flag, a->path, spelled_alike ? "" : " and '",
                                spelled_alike ? "" : b->path, spelled_alike ? "" : "'");
        }
    files_free(files);
    return status;
}

void files_free(struct files *files) {
    for (size_t i = 0; i < files->count; i++) free_entry(&files->list[i]);
    free(files->list);
    *files = (struct files){0};
}

enum status files_make_folder(const char *path) {
    struct stat info;
    if (mkdir(path, 0777) == 0 || (stat(path, &info) == 0 && S_ISDIR(info.st_mode))) return STATUS_OK;
    return status_set(STATUS_FAILED, "cannot make the folder '%s': %s", path, strerror(errno));
}
