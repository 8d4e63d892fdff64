#include "src/data/dataset.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/data/idx.h"

static const char DEFAULT_DIRECTORY[] = "data/mnist";
enum { SYNTHETIC_SEED = 1 }; /* the data set is one fixed set, whatever the seed of the training */

void dataset_free(struct dataset *set) {
    free(set->images);
    free(set->labels);
    *set = (struct dataset){0};
}

enum status dataset_read(struct dataset *set, const char *images_path, const char *labels_path) {
    struct idx images, labels;
    *set = (struct dataset){0};
    enum status status = idx_read(&labels, labels_path, 1); /* the small file first */
    if (status) return status;
    status = idx_read(&images, images_path, 3);
    if (!status && images.dim[0] != labels.dim[0])
        status =
            status_set(STATUS_BAD_DATA, "%s has %zu images, but %s has %zu labels: they are not of one set",
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

struct dataset dataset_split(struct dataset *set, size_t count) {
    struct dataset tail = *set;
    set->count -= count;
    tail.count = count;
    tail.images += set->count * set->height * set->width;
    tail.labels += set->count;
    return tail;
}

/* Looks for "<stem>-<kind>" in its usual spellings; false if there is none. */
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

static enum status read_part(struct dataset *set, const char *directory, const char *part) {
    char stem[32], images[1024], labels[1024];
    snprintf(stem, sizeof stem, "%s-images", part);
    if (!find_file(directory, stem, "idx3-ubyte", images, sizeof images))
        return status_set(STATUS_BAD_DATA,
                          "'%s' has no %s-idx3-ubyte (nor .idx3-ubyte, nor .gz): run data/fetch.sh, or name "
                          "another directory with --data",
                          directory, stem);
    snprintf(stem, sizeof stem, "%s-labels", part);
    if (!find_file(directory, stem, "idx1-ubyte", labels, sizeof labels))
        return status_set(STATUS_BAD_DATA,
                          "'%s' has no %s-idx1-ubyte (nor .idx1-ubyte, nor .gz): run data/fetch.sh, or name "
                          "another directory with --data",
                          directory, stem);
    return dataset_read(set, images, labels);
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
    enum status status = parts == DATASET_ALL ? read_part(&pair->train, directory, "train") : STATUS_OK;
    if (!status) status = read_part(&pair->test, directory, "t10k");
    if (!status && pair->train.count &&
        (pair->train.height != pair->test.height || pair->train.width != pair->test.width))
        status =
            status_set(STATUS_BAD_DATA, "'%s': training images are %zux%zu, test images %zux%zu", directory,
                       pair->train.height, pair->train.width, pair->test.height, pair->test.width);
    return status;
}

static enum status load_synthetic(struct dataset_pair *pair, enum dataset_parts parts) {
    const size_t train = parts == DATASET_ALL ? SYNTHETIC_TRAIN : 0;
    enum status status = dataset_synthesize(&pair->train, train, SYNTHETIC_SEED, 0);
    if (!status) status = dataset_synthesize(&pair->test, SYNTHETIC_TEST, SYNTHETIC_SEED, SYNTHETIC_TRAIN);
    return status;
}

/* Is there anything of a data set in the default directory? A broken one is reported, not passed over. */
static bool default_there(void) {
    char path[1024];
    return find_file(DEFAULT_DIRECTORY, "train-images", "idx3-ubyte", path, sizeof path);
}

enum status dataset_load(struct dataset_pair *pair, const char *source, enum dataset_parts parts) {
    *pair = (struct dataset_pair){0};
    if (strcmp(source, "auto") == 0) source = default_there() ? DEFAULT_DIRECTORY : "synthetic";
    snprintf(pair->name, sizeof pair->name, "%s", source);
    const enum status status =
        strcmp(source, "synthetic") == 0 ? load_synthetic(pair, parts) : load_directory(pair, source, parts);
    if (status) dataset_pair_free(pair);
    return status;
}

void dataset_pair_free(struct dataset_pair *pair) {
    dataset_free(&pair->train);
    dataset_free(&pair->test);
}
