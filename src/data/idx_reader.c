/* Reads a directory of the four files of MNIST: IDX, raw or gzip, in any of their usual spellings. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/data/idx.h"
#include "src/data/reader.h"

/* Reads an image file and its label file, whose counts must agree. `set` is empty on failure. */
static enum status read_files(struct dataset *set, const char *images_path, const char *labels_path) {
    struct idx images, labels;
    *set = (struct dataset){0};
    enum status status = idx_read(&labels, labels_path, 1); /* the small file first */
    if (status) return status;
    status = idx_read(&images, images_path, 3);
    if (!status && images.dim[0] != labels.dim[0])
        status = status_set(STATUS_BAD_DATA,
                            "%s has %zu images, but %s has %zu labels: they belong to different sets",
                            images_path, images.dim[0], labels_path, labels.dim[0]);
    if (status) {
        free(labels.values);
        free(images.values);
        return status;
    }
    *set = (struct dataset){.count = images.dim[0],
                            .height = images.dim[1],
                            .width = images.dim[2],
                            .images = images.values,
                            .labels = labels.values};
    for (size_t i = 0; i < set->count; i++)
        if (set->labels[i] >= set->classes) set->classes = set->labels[i] + 1u;
    return STATUS_OK;
}

/* Writes the path of "<stem>-<suffix>" in the first spelling that exists; false if none does. */
static bool find_file(const char *directory, const char *stem, const char *suffix, char *path, size_t size) {
    static const struct {
        char separator;
        const char *ending;
    } spellings[] = {{'-', ""}, {'.', ""}, {'-', ".gz"}, {'.', ".gz"}};
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        snprintf(path, size, "%s/%s%c%s%s", directory, stem, spellings[i].separator, suffix,
                 spellings[i].ending);
        if (access(path, F_OK) == 0) return true;
    }
    return false;
}

static enum status find(const char *directory, const char *stem, const char *suffix, char *path,
                        size_t size) {
    if (find_file(directory, stem, suffix, path, size)) return STATUS_OK;
    return status_set(STATUS_BAD_DATA,
                      "'%s' has no %s-%s (nor .%s, nor .gz): run data/fetch.sh, or name another directory "
                      "with --data",
                      directory, stem, suffix, suffix);
}

static enum status read_part(struct dataset *set, const char *directory, const char *part) {
    char stem[32], images[1024], labels[1024];
    snprintf(stem, sizeof stem, "%s-images", part);
    enum status status = find(directory, stem, "idx3-ubyte", images, sizeof images);
    snprintf(stem, sizeof stem, "%s-labels", part);
    if (!status) status = find(directory, stem, "idx1-ubyte", labels, sizeof labels);
    return status ? status : read_files(set, images, labels);
}

static enum status load_directory(struct dataset_pair *pair, const char *directory,
                                  enum dataset_parts parts) {
    struct stat info;
    if (stat(directory, &info) != 0)
        return status_set(STATUS_BAD_DATA,
                          "the data directory '%s': %s; run data/fetch.sh, or use --data synthetic",
                          directory, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return status_set(STATUS_BAD_DATA,
                          "'%s' is not a directory: --data takes the directory of the four files", directory);
    const enum status status = parts == DATASET_ALL ? read_part(&pair->train, directory, "train") : STATUS_OK;
    return status ? status : read_part(&pair->test, directory, "t10k");
}

/* True if the directory has a file of training images. Loading it reports a damaged file. */
static bool recognises(const char *source) {
    char path[1024];
    return find_file(source, "train-images", "idx3-ubyte", path, sizeof path);
}

static void list_files(const char *source, struct dataset_files *files) {
    static const char *const names[][2] = {{"train-images", "idx3-ubyte"},
                                           {"train-labels", "idx1-ubyte"},
                                           {"t10k-images", "idx3-ubyte"},
                                           {"t10k-labels", "idx1-ubyte"}};
    for (size_t i = 0; i < 4; i++)
        files->count +=
            find_file(source, names[i][0], names[i][1], files->path[files->count], sizeof files->path[0]);
}

const struct dataset_reader dataset_idx = {recognises, load_directory, list_files};
