/* Labelled images in host memory. Pixels stay uint8 until the compute device converts them. */
#ifndef TESSERA_DATA_DATASET_H
#define TESSERA_DATA_DATASET_H

#include <stddef.h>
#include <stdint.h>

#include "src/base/status.h"

struct dataset {
    size_t count, height, width;
    unsigned classes; /* 1 + the largest label */
    uint8_t *images;  /* [count][height][width], 0 is background; owned */
    uint8_t *labels;  /* [count]; owned */
};

/* A training and a test set of one image size, with the name shown to the user. */
struct dataset_pair {
    struct dataset train, test;
    char name[512];
};

enum {
    DATASET_MAX_CLASSES = 256,
    SYNTHETIC_TRAIN = 60000, /* images of the embedded set: as many as MNIST has */
    SYNTHETIC_TEST = 10000,
    SYNTHETIC_SIDE = 28
};

/* Draws `count` digits of 28x28 pixels from strokes, distorted at random. Image i is a pure function of
   (seed, first + i), and its label is (first + i) % 10. */
enum status dataset_synthesize(struct dataset *set, size_t count, uint64_t seed, size_t first);

void dataset_free(struct dataset *set);

enum dataset_parts { DATASET_ALL, DATASET_TEST_ONLY };

/* Loads `source`: a directory with the four MNIST files in any usual spelling, "synthetic", or "auto", which
   is data/mnist if that directory holds a data set, else synthetic. With DATASET_TEST_ONLY the training part
   stays empty and its files may be missing. */
enum status dataset_load(struct dataset_pair *pair, const char *source, enum dataset_parts parts);
void dataset_pair_free(struct dataset_pair *pair);

/* Paths of the files of a data set. */
struct dataset_files {
    char path[4][1024];
    size_t count;
};

/* The existing files that dataset_load would read: none for the embedded digits. */
struct dataset_files dataset_files(const char *source);

/* The last `count` images of `set` as a view that owns nothing; `set` keeps the rest. */
struct dataset dataset_split(struct dataset *set, size_t count);

#endif
