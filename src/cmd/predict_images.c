#define _GNU_SOURCE
#include "src/cmd/predict_images.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/base/input.h"
#include "src/base/text.h"
#include "src/data/csv.h"
#include "src/data/file_set.h"
#include "src/data/idx.h"
#include "src/data/picture.h"

/* --- one image --- */

static enum status wrong_size(const struct dataset *set, const struct picture *picture, const char *path) {
    return status_set(
        STATUS_BAD_DATA,
        "%s: %zu x %zu pixels, but the network takes %zu x %zu: --like-mnist cuts out what is drawn "
        "and centres it, --scale scales the whole picture",
        path, picture->height, picture->width, set->height, set->width);
}

static enum status fit(const struct dataset *set, struct picture *picture,
                       const struct predict_options *options, const char *path) {
    const size_t pixels = picture->height * picture->width;
    for (size_t i = 0; options->invert && i < pixels; i++)
        picture->pixels[i] = (uint8_t)(255 - picture->pixels[i]);
    if (options->like_mnist && set->height != set->width)
        return status_set(STATUS_USAGE, "--like-mnist is for networks that take square images, not %zu x %zu",
                          set->height, set->width);
    if (options->like_mnist) return picture_like_mnist(picture, set->height, path);
    if (options->scale) return picture_scale(picture, set->height, set->width);
    return picture->height == set->height && picture->width == set->width ? STATUS_OK
                                                                          : wrong_size(set, picture, path);
}

/* If the network's size is unknown, that of the first image with its number of pixels is it. */
static enum status find_size(struct dataset *set, const struct picture *picture,
                             const struct predict_options *options, const char *path) {
    if (set->height) return STATUS_OK;
    if (picture->height * picture->width != options->features)
        return status_set(STATUS_BAD_DATA, "%s: %zu x %zu pixels, but the network takes %zu", path,
                          picture->height, picture->width, options->features);
    set->height = picture->height;
    set->width = picture->width;
    return STATUS_OK;
}

/* Takes over the pixels of the picture. */
static enum status add(struct dataset *set, struct picture *picture, const struct predict_options *options,
                       const char *path) {
    enum status status = find_size(set, picture, options, path);
    if (!status) status = fit(set, picture, options, path);
    if (!status) status = dataset_append(set, picture->pixels, 0);
    picture_free(picture);
    return status;
}

/* --- one file --- */

static enum status add_all(struct dataset *set, const struct dataset *images,
                           const struct predict_options *options, const char *path) {
    enum status status = STATUS_OK;
    const size_t pixels = images->height * images->width;
    for (size_t i = 0; i < images->count && !status; i++) {
        struct picture picture;
        status = picture_alloc(&picture, images->height, images->width, path);
        if (status) return status;
        memcpy(picture.pixels, images->images + i * pixels, pixels);
        status = add(set, &picture, options, path);
    }
    return status;
}

/* IDX: raw or gzip. */
static enum status is_idx(const char *path, bool *found) {
    uint8_t start[2] = {1};
    int fd;
    const enum status status = input_open(&fd, "", path);
    if (status) return status;
    const ssize_t got = read(fd, start, sizeof start);
    close(fd);
    *found = got == 2 && ((start[0] == 0 && start[1] == 0) || (start[0] == 0x1f && start[1] == 0x8b));
    return STATUS_OK;
}

static enum status read_idx(struct dataset *images, const char *path) {
    struct idx idx;
    const enum status status = idx_read(&idx, path, 3);
    if (!status)
        *images = (struct dataset){
            .count = idx.dim[0], .height = idx.dim[1], .width = idx.dim[2], .images = idx.values};
    return status;
}

static enum status read_file(struct dataset *set, const char *path, const struct predict_options *options) {
    struct dataset images = {0};
    struct picture picture;
    const bool csv = csv_has_name(path);
    bool several = csv;
    enum status status = csv ? csv_read(&images, path, options->features) : is_idx(path, &several);
    if (!status && !several) {
        status = picture_read(&picture, path);
        return status ? status : add(set, &picture, options, path);
    }
    if (!status && !csv) status = read_idx(&images, path);
    if (!status && (options->transpose == TRANSPOSE_ON ||
                    (options->transpose == TRANSPOSE_AUTO && file_set_is_emnist(path))))
        status = dataset_transpose(&images);
    if (!status) status = add_all(set, &images, options, path);
    dataset_free(&images);
    return status;
}

/* --- standard input, as a file in memory --- */

static enum status copy_input(int fd) {
    char buffer[1 << 16];
    size_t total = 0;
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, stdin)) > 0; total += got)
        if (total + got > PICTURE_MOST_BYTES || write(fd, buffer, got) != (ssize_t)got)
            return status_set(STATUS_BAD_DATA, "standard input: more than %s",
                              text_bytes(PICTURE_MOST_BYTES).text);
    return ferror(stdin) ? status_set(STATUS_FAILED, "standard input: %s", strerror(errno)) : STATUS_OK;
}

static enum status read_input(struct dataset *set, const struct predict_options *options) {
    char path[32];
    const int fd = memfd_create("standard input", MFD_CLOEXEC);
    if (fd < 0) return status_set(STATUS_FAILED, "standard input: %s", strerror(errno));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    enum status status = copy_input(fd);
    if (!status) status = read_file(set, path, options);
    close(fd);
    return status ? status_context(status, "standard input") : STATUS_OK;
}

enum status predict_read(struct dataset *set, struct predict_source *source,
                         const struct predict_options *options) {
    const size_t before = set->count;
    const enum status status =
        strcmp(source->path, "-") == 0 ? read_input(set, options) : read_file(set, source->path, options);
    source->count = set->count - before;
    return status;
}
