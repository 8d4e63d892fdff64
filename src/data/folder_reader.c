/* Reads pictures in one folder per class: DIR/CLASS/x.png, or DIR/train/CLASS and DIR/test/CLASS (or val).
   Classes and files are taken in natural order (2 before 10), and the images of the classes are interleaved
   in proportion: the last N, which --validation holds out, are the last files of every class. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/input.h"
#include "src/data/file_set.h"
#include "src/data/picture.h"
#include "src/data/reader.h"

enum { PATH = 2048 };

/* --- names --- */

struct list {
    char **names;
    size_t count;
};

static void list_free(struct list *list) {
    for (size_t i = 0; i < list->count; i++) free(list->names[i]);
    free(list->names);
    *list = (struct list){0};
}

static int in_natural_order(const void *a, const void *b) {
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    const int order = strverscmp(x, y);
    return order ? order : strcmp(x, y);
}

static enum status list_add(struct list *list, const char *name) {
    char *copy = strdup(name);
    char **names = copy ? realloc(list->names, (list->count + 1) * sizeof *names) : NULL;
    if (names) list->names = names;
    if (!names) {
        free(copy);
        return status_set(STATUS_FAILED, "out of memory");
    }
    list->names[list->count++] = copy;
    return STATUS_OK;
}

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool is_wanted(const char *folder, const char *name, bool pictures) {
    char path[PATH];
    if (name[0] == '.') return false;
    if (pictures) return picture_has_name(name);
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && is_folder(path);
}

/* The pictures, or the folders, in a folder; hidden ones are left out. The caller frees the list. */
static enum status list_folder(struct list *list, const char *folder, bool pictures) {
    enum status status = STATUS_OK;
    DIR *directory = opendir(folder);
    *list = (struct list){0};
    if (!directory) return input_error(errno, "the folder ", folder);
    for (struct dirent *entry; !status && (entry = readdir(directory));)
        if (is_wanted(folder, entry->d_name, pictures)) status = list_add(list, entry->d_name);
    closedir(directory);
    if (!status && list->count) qsort(list->names, list->count, sizeof *list->names, in_natural_order);
    if (status) list_free(list);
    return status;
}

/* --- files of a part, interleaved --- */

struct entry {
    char *path;
    uint8_t label;
    double position; /* 0 to 1 within its class */
};

struct part {
    struct entry *entries;
    size_t count;
};

static void part_free(struct part *part) {
    for (size_t i = 0; i < part->count; i++) free(part->entries[i].path);
    free(part->entries);
}

static int by_position(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->position != y->position) return x->position < y->position ? -1 : 1;
    return x->label - y->label;
}

static enum status add_class(struct part *part, const char *folder, uint8_t label) {
    struct list files;
    enum status status = list_folder(&files, folder, true);
    if (status) return status;
    if (!files.count)
        return status_set(STATUS_BAD_DATA, "the folder '%s' has no .png, .jpg or .pgm files", folder);
    struct entry *entries = realloc(part->entries, (part->count + files.count) * sizeof *entries);
    if (entries) part->entries = entries;
    for (size_t i = 0; entries && i < files.count; i++) {
        char *path = NULL;
        if (asprintf(&path, "%s/%s", folder, files.names[i]) < 0) {
            entries = NULL;
            break;
        }
        part->entries[part->count++] = (struct entry){path, label, ((double)i + 0.5) / (double)files.count};
    }
    list_free(&files);
    return entries ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
}

/* All files below folder/CLASS; `names` numbers the classes. */
static enum status list_part(struct part *part, const char *folder, const struct list *classes,
                             const struct class_names *names) {
    char path[PATH];
    enum status status = STATUS_OK;
    for (size_t c = 0; c < classes->count && !status; c++) {
        const size_t label = classes_find(names, classes->names[c]);
        snprintf(path, sizeof path, "%s/%s", folder, classes->names[c]);
        if (label == names->count)
            return status_set(STATUS_BAD_DATA, "'%s' is not one of the %zu classes", path, names->count);
        status = add_class(part, path, (uint8_t)label);
    }
    if (!status) qsort(part->entries, part->count, sizeof *part->entries, by_position);
    return status;
}

/* --- pictures --- */

static enum status read_picture(struct picture *picture, const char *path,
                                const struct dataset_options *options) {
    enum status status = picture_read(picture, path);
    if (!status && options->like_mnist)
        status = picture_like_mnist(picture, options->side ? options->side : SYNTHETIC_SIDE, path);
    if (!status && options->side) status = picture_scale(picture, options->side, options->side);
    return status;
}

static enum status read_part(struct dataset *set, const struct part *part,
                             const struct dataset_options *options) {
    enum status status = STATUS_OK;
    for (size_t i = 0; i < part->count && !status; i++) {
        struct picture picture;
        const struct entry *entry = &part->entries[i];
        status = read_picture(&picture, entry->path, options);
        if (!status && i == 0) {
            set->height = picture.height;
            set->width = picture.width;
        }
        if (!status && (picture.height != set->height || picture.width != set->width))
            status = status_set(
                STATUS_BAD_DATA,
                "'%s' has %zu x %zu pixels, but '%s' has %zu x %zu: --input-size 28 scales all "
                "to 28 x 28",
                entry->path, picture.height, picture.width, part->entries[0].path, set->height, set->width);
        if (!status) status = dataset_append(set, picture.pixels, entry->label);
        picture_free(&picture);
    }
    return status;
}

static enum status load_part(struct dataset *set, const char *folder, const struct class_names *names,
                             const struct dataset_options *options) {
    struct list classes;
    struct part part = {0};
    enum status status = list_folder(&classes, folder, false);
    if (status) return status;
    status = list_part(&part, folder, &classes, names);
    if (!status) status = read_part(set, &part, options);
    part_free(&part);
    list_free(&classes);
    return status;
}

/* --- the reader --- */

/* The folders of the classes of both parts. test[0] is '\0' if there is no test part. */
static void find_parts(const char *source, char train[PATH], char test[PATH]) {
    snprintf(train, PATH, "%s/train", source);
    snprintf(test, PATH, "%s/test", source);
    if (!is_folder(test)) snprintf(test, PATH, "%s/val", source);
    if (is_folder(train) && is_folder(test)) return;
    test[0] = '\0';
    if (!is_folder(train)) snprintf(train, PATH, "%s", source);
}

/* The names in classes.txt, which may order them otherwise, or those of the folders. */
static enum status find_names(struct class_names *names, const char *source, const char *train) {
    struct file_set set = {0};
    struct list classes;
    snprintf(set.directory, sizeof set.directory, "%s", source);
    enum status status = file_set_classes(&set, names);
    if (status || names->count) return status;
    status = list_folder(&classes, train, false);
    for (size_t c = 0; c < classes.count && !status; c++)
        status = classes_add(names, classes.names[c], train);
    list_free(&classes);
    return status;
}

/* Any folder with a folder in it. If memory ran out, loading it reports that. */
static bool recognises(const char *source) {
    struct list classes;
    if (!is_folder(source)) return false;
    const enum status status = list_folder(&classes, source, false);
    const bool any = classes.count > 0;
    list_free(&classes);
    return any || status == STATUS_FAILED;
}

static enum status load(struct dataset_pair *pair, const char *source,
                        const struct dataset_options *options) {
    char train[PATH], test[PATH];
    find_parts(source, train, test);
    enum status status = find_names(&pair->classes, source, train);
    if (!status && (options->parts == DATASET_ALL || !test[0]))
        status = load_part(&pair->train, train, &pair->classes, options);
    if (!status && test[0]) status = load_part(&pair->test, test, &pair->classes, options);
    return status;
}

const struct dataset_reader dataset_folder = {recognises, load, NULL};
