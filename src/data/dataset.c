#include "src/data/dataset.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/pages.h"
#include "src/base/share.h"
#include "src/data/reader.h"

static const char DEFAULT_DIRECTORY[] = "data/mnist";

void dataset_free(struct dataset *set) {
    free(set->images);
    free(set->labels);
    *set = (struct dataset){0};
}

struct dataset dataset_split(struct dataset *set, size_t count) {
    struct dataset tail = *set;
    set->count -= count;
    tail.count = count;
    tail.images += set->count * set->height * set->width;
    tail.labels += set->count;
    return tail;
}

/* The arrays have room for a power of two of images, and at least FIRST. */
enum status dataset_append(struct dataset *set, const uint8_t *pixels, uint8_t label) {
    enum { FIRST = 64 };
    const size_t features = set->height * set->width, count = set->count;
    if (count == 0 || (count >= FIRST && (count & (count - 1)) == 0)) {
        const size_t room = count ? 2 * count : FIRST;
        enum status fits = room <= SIZE_MAX / features ? pages_check(room * features) : STATUS_FAILED;
        if (fits) return fits;
        uint8_t *images = realloc(set->images, room * features);
        if (images) set->images = images;
        uint8_t *labels = images ? realloc(set->labels, room) : NULL;
        if (!labels) return status_set(STATUS_FAILED, "out of memory");
        set->labels = labels;
    }
    memcpy(set->images + count * features, pixels, features);
    set->labels[count] = label;
    set->count++;
    return STATUS_OK;
}

/* --- readers --- */

static const struct dataset_reader *const readers[] = {&dataset_synthetic, &dataset_idx, &dataset_csv,
                                                       &dataset_folder};
enum { READERS = sizeof readers / sizeof *readers };

static const struct dataset_reader *reader_of(const char *source) {
    for (size_t i = 0; i < READERS; i++)
        if (readers[i]->recognises(source)) return readers[i];
    return NULL;
}

/* A relative directory may also be one that comes with the program (share.h). */
static const char *resolve(const char *source) {
    static char path[512];
    const bool automatic = strcmp(source, "auto") == 0;
    for (enum share_folder i = SHARE_HERE;
         share_path(i, automatic ? DEFAULT_DIRECTORY : source, path, sizeof path); i++)
        if (reader_of(path)) return path;
    return automatic ? "synthetic" : source;
}

struct dataset_files dataset_files(const char *source) {
    struct dataset_files files = {0};
    source = resolve(source);
    const struct dataset_reader *reader = reader_of(source);
    if (reader && reader->files) reader->files(source, &files);
    return files;
}

static enum status not_a_data_set(const char *source) {
    struct stat info;
    if (stat(source, &info) != 0)
        return status_set(STATUS_BAD_DATA,
                          "the data set '%s': %s; --data DIR names another, --data synthetic needs no files",
                          source, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return status_set(STATUS_BAD_DATA, "'%s' is not a directory, nor a .csv or .csv.gz file", source);
    return status_set(
        STATUS_BAD_DATA,
        "'%s' has no train-images-idx3-ubyte (nor .gz), no train.csv, and no folder of pictures "
        "for each class (docs/formats.md, Data sets)",
        source);
}

/* --- after reading --- */

enum status dataset_transpose(struct dataset *set) {
    const size_t height = set->height, width = set->width, pixels = height * width;
    uint8_t *image = malloc(pixels ? pixels : 1);
    if (!image) return status_set(STATUS_FAILED, "out of memory");
    for (size_t i = 0; i < set->count; i++) {
        uint8_t *own = set->images + i * pixels;
        memcpy(image, own, pixels);
        for (size_t y = 0; y < height; y++)
            for (size_t x = 0; x < width; x++) own[x * height + y] = image[y * width + x];
    }
    free(image);
    set->height = width;
    set->width = height;
    return STATUS_OK;
}

/* Subtracts the offset from the labels and counts the classes. */
static enum status number_classes(struct dataset *set, const char *source, unsigned offset,
                                  const struct class_names *names) {
    set->classes = 0;
    for (size_t i = 0; i < set->count; i++) {
        if (set->labels[i] < offset)
            return status_set(STATUS_BAD_DATA, "'%s': image %zu has the label %u, less than label-offset %u",
                              source, i, set->labels[i], offset);
        set->labels[i] = (uint8_t)(set->labels[i] - offset);
        if (set->labels[i] >= set->classes) set->classes = set->labels[i] + 1u;
    }
    if (!names->count || set->classes <= names->count) return STATUS_OK;
    return status_set(STATUS_BAD_DATA, "'%s' has the label %u, but names for %zu classes%s", source,
                      set->classes - 1 + offset, names->count,
                      set->classes == names->count + 1 && !offset
                          ? ": if its labels start at 1, use --label-offset 1"
                          : "");
}

/* With an offset, the name of a class without one is its label in the file. */
static enum status name_by_label(struct dataset_pair *pair, unsigned offset) {
    const unsigned train = pair->train.classes, test = pair->test.classes;
    char name[16];
    enum status status = STATUS_OK;
    for (unsigned c = 0; c < (train > test ? train : test) && !status; c++) {
        snprintf(name, sizeof name, "%u", c + offset);
        status = classes_add(&pair->classes, name, pair->name);
    }
    return status;
}

static enum status arrange(struct dataset_pair *pair, const struct dataset_options *options) {
    struct dataset *train = &pair->train, *test = &pair->test;
    const bool transpose =
        options->transpose == TRANSPOSE_ON || (options->transpose == TRANSPOSE_AUTO && pair->transposed);
    enum status status = transpose ? dataset_transpose(train) : STATUS_OK;
    if (!status && transpose) status = dataset_transpose(test);
    if (!status) status = number_classes(train, pair->name, options->label_offset, &pair->classes);
    if (!status) status = number_classes(test, pair->name, options->label_offset, &pair->classes);
    if (!status && options->label_offset && !pair->classes.count)
        status = name_by_label(pair, options->label_offset);
    if (status) return status;
    if (!test->count) {
        test->height = train->height;
        test->width = train->width;
    }
    if (train->count && (train->height != test->height || train->width != test->width))
        return status_set(STATUS_BAD_DATA, "'%s': training images are %zux%zu, test images %zux%zu",
                          pair->name, train->height, train->width, test->height, test->width);
    return STATUS_OK;
}

enum status dataset_load(struct dataset_pair *pair, const char *source, struct dataset_options options) {
    *pair = (struct dataset_pair){0};
    source = resolve(source);
    snprintf(pair->name, sizeof pair->name, "%s", source);
    const struct dataset_reader *reader = reader_of(source);
    if (reader && options.like_mnist && reader != &dataset_folder)
        return status_set(STATUS_USAGE, "'%s' is no folder of pictures, which --like-mnist is for", source);
    enum status status = reader ? reader->load(pair, source, &options) : not_a_data_set(source);
    if (!status) status = arrange(pair, &options);
    if (status == STATUS_BAD_DATA && strcmp(source, DEFAULT_DIRECTORY) == 0)
        status_write("%s; data/fetch.sh downloads what is missing there", status_message());
    if (status) dataset_pair_free(pair);
    return status;
}

enum status dataset_adopt_classes(struct dataset_pair *pair, const struct class_names *names) {
    const struct class_names *own = &pair->classes;
    struct dataset *const sets[] = {&pair->train, &pair->test};
    uint8_t to[DATASET_MAX_CLASSES] = {0};
    if (!names->count) return STATUS_OK;
    for (size_t c = 0; c < own->count; c++) {
        const size_t index = classes_find(names, own->name[c]);
        if (index == names->count)
            return status_set(
                STATUS_BAD_DATA,
                "'%s' has the class '%s', which the checkpoint does not know: it has %zu classes, "
                "'%s' to '%s'",
                pair->name, own->name[c], names->count, names->name[0], names->name[names->count - 1]);
        to[c] = (uint8_t)index;
    }
    for (size_t s = 0; s < 2 && own->count; s++) {
        for (size_t i = 0; i < sets[s]->count; i++) sets[s]->labels[i] = to[sets[s]->labels[i]];
        sets[s]->classes = sets[s]->count ? (unsigned)names->count : 0;
    }
    pair->classes = *names;
    return STATUS_OK;
}

void dataset_pair_free(struct dataset_pair *pair) {
    dataset_free(&pair->train);
    dataset_free(&pair->test);
}
