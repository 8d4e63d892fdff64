/* The images that `predict` is given: pictures, IDX and CSV files, made as the network takes them. */
#ifndef TESSERA_CMD_PREDICT_IMAGES_H
#define TESSERA_CMD_PREDICT_IMAGES_H

#include "src/data/dataset.h"

struct predict_options {
    size_t features; /* of the network */
    enum transpose transpose;
    bool invert, like_mnist, scale;
};

/* Images of one file. */
struct predict_source {
    const char *path;
    size_t count;
};

/* Adds the images of a file ("-": standard input) to `set`, whose height and width are those that the network
   takes, or 0 x 0 if they are unknown. STATUS_BAD_DATA names the file; if an image is of another size, the
   message says which flag makes it fit. */
enum status predict_read(struct dataset *set, struct predict_source *source,
                         const struct predict_options *options);

#endif
