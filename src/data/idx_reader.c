/* Reads IDX files, raw or gzip, under the names of MNIST, Fashion-MNIST and EMNIST. */
#include <stdlib.h>

#include "src/data/file_set.h"
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
    return STATUS_OK;
}

/* The usual spellings of a file. */
#define SPELLINGS(stem, kind) \
    stem "-" kind "-ubyte", stem "." kind "-ubyte", stem "-" kind "-ubyte.gz", stem "." kind "-ubyte.gz"
#define IMAGES "idx3"
#define LABELS "idx1"

/* A part of the set: the endings of its image and label file. EMNIST calls the test part "test". */
static const struct part {
    const char *images[9], *labels[9];
} train_part = {{SPELLINGS("train-images", IMAGES)}, {SPELLINGS("train-labels", LABELS)}},
  test_part = {{SPELLINGS("t10k-images", IMAGES), SPELLINGS("test-images", IMAGES)},
               {SPELLINGS("t10k-labels", LABELS), SPELLINGS("test-labels", LABELS)}};

static const char *const any_images[] = {SPELLINGS("train-images", IMAGES), SPELLINGS("t10k-images", IMAGES),
                                         SPELLINGS("test-images", IMAGES), NULL};

static enum status no_file(const struct file_set *set, const char *ending) {
    return status_set(STATUS_BAD_DATA, "'%s' has no %s%s, in any usual spelling (docs/formats.md)",
                      set->directory, set->prefix, ending);
}

static enum status read_part(struct dataset *set, const struct file_set *files, const struct part *part) {
    char images[1300], labels[1300];
    if (!file_set_path(files, part->images, images, sizeof images)) return no_file(files, part->images[0]);
    if (!file_set_path(files, part->labels, labels, sizeof labels)) return no_file(files, part->labels[0]);
    return read_files(set, images, labels);
}

static enum status load(struct dataset_pair *pair, const char *source,
                        const struct dataset_options *options) {
    struct file_set files;
    char path[1300];
    enum status status = file_set_open(&files, source, any_images);
    if (status) return status;
    const bool tested = file_set_path(&files, test_part.images, path, sizeof path);
    pair->transposed = file_set_is_emnist(files.prefix);
    if (options->parts == DATASET_ALL || !tested) status = read_part(&pair->train, &files, &train_part);
    if (!status && tested) status = read_part(&pair->test, &files, &test_part);
    return status ? status : file_set_classes(&files, &pair->classes);
}

/* True if there is a file of images. Loading it reports a damaged file. */
static bool recognises(const char *source) {
    struct file_set files;
    return file_set_find(&files, source, any_images) > 0;
}

static void list_files(const char *source, struct dataset_files *files) {
    const char *const *const names[] = {train_part.images, train_part.labels, test_part.images,
                                        test_part.labels};
    struct file_set set;
    if (!file_set_find(&set, source, any_images)) return;
    for (size_t i = 0; i < 4; i++)
        files->count += file_set_path(&set, names[i], files->path[files->count], sizeof files->path[0]);
}

const struct dataset_reader dataset_idx = {recognises, load, list_files};
