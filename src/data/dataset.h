/* Labelled images in host memory. Pixels stay uint8 until the compute device converts them. */
#ifndef TESSERA_DATA_DATASET_H
#define TESSERA_DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/status.h"
#include "src/data/classes.h"

struct dataset {
    size_t count, height, width;
    unsigned classes; /* 1 + the largest label */
    uint8_t *images;  /* [count][height][width], 0 is background; owned */
    uint8_t *labels;  /* [count]; owned */
};

/* A training and a test set of one image size, with the name shown to the user. Without a test set test.count
   is 0; height and width are there. */
struct dataset_pair {
    struct dataset train, test;
    struct class_names classes;
    bool transposed; /* by a reader: the files have rows and columns exchanged */
    char name[512];
};

enum {
    SYNTHETIC_TRAIN = 60000, /* images of the embedded set: as many as MNIST has */
    SYNTHETIC_TEST = 10000,
    SYNTHETIC_SIDE = 28
};

/* Draws `count` digits of 28x28 pixels from strokes, distorted at random. Image i is a pure function of
   (seed, first + i), and its label is (first + i) % 10. */
enum status dataset_synthesize(struct dataset *set, size_t count, uint64_t seed, size_t first);

void dataset_free(struct dataset *set);

enum dataset_parts { DATASET_ALL, DATASET_TEST_ONLY };
enum transpose { TRANSPOSE_AUTO, TRANSPOSE_OFF, TRANSPOSE_ON };

struct dataset_options {
    enum dataset_parts parts;
    enum transpose transpose; /* exchange rows and columns; auto: if the files have EMNIST's names */
    unsigned label_offset;    /* the first label; it becomes 0 */
    size_t side;              /* pictures are scaled to squares of this side; 0: all must be of one size */
    bool like_mnist;          /* picture_like_mnist for each picture */
};

/* Loads `source`: a directory or file that one of the readers recognises (docs/formats.md), "synthetic", or
   "auto", which is data/mnist if that directory holds a data set, else synthetic. With DATASET_TEST_ONLY the
   training part stays empty and its files may be missing, unless there is no test set. */
enum status dataset_load(struct dataset_pair *pair, const char *source, struct dataset_options options);
void dataset_pair_free(struct dataset_pair *pair);

/* The part that a training reports in the end: "test" or, without a test set, "validation". */
static inline const char *dataset_reported(const struct dataset_pair *pair) {
    return pair->test.count ? "test" : "validation";
}

/* Paths of the files of a data set. */
struct dataset_files {
    char path[4][1300];
    size_t count;
};

/* The existing files that dataset_load would read: none for the embedded digits and for pictures. */
struct dataset_files dataset_files(const char *source);

/* Appends an image of set->height x set->width pixels to a set that owns its memory. Its classes are not
   counted. STATUS_FAILED if memory ran out: the set is unchanged. */
enum status dataset_append(struct dataset *set, const uint8_t *pixels, uint8_t label);

/* Exchanges rows and columns of all images. */
enum status dataset_transpose(struct dataset *set);

/* Takes over `names`, which are those of a network, unless it has none. If the data have names too, labels
   change: the same name, the same label. STATUS_BAD_DATA if the data have a class that `names` lacks. */
enum status dataset_adopt_classes(struct dataset_pair *pair, const struct class_names *names);

/* The last `count` images of `set` as a view that owns nothing; `set` keeps the rest. */
struct dataset dataset_split(struct dataset *set, size_t count);

#endif
