/* ./train augment: draws training images and their deformations. */
#include <stdio.h>
#include <stdlib.h>

#include "src/backend/registry.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cmd/backend.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"
#include "src/nn/augmenter.h"
#include "src/report/image_grid.h"

struct show {
    struct config config;
    struct compute compute;
    struct dataset_pair data;
    struct samples samples;
    struct augmenter augmenter;
    int64_t images, draws;
    uint8_t *pixels;    /* [1 + draws][images][features]: the originals, then epoch by epoch */
    struct image *list; /* [images][1 + draws] */
};

static void close_show(struct show *show) {
    if (show->compute.backend) {
        augmenter_close(&show->augmenter, &show->compute.device);
        samples_close(&show->samples, &show->compute.device);
    }
    free(show->pixels);
    free(show->list);
    dataset_pair_free(&show->data);
    compute_close(&show->compute);
}

static enum status open_show(struct show *show) {
    struct config *config = &show->config;
    const struct gemm_backend *backend;
    enum status status = registry_find(config->backend, &backend);
    if (!status) status = dataset_load(&show->data, config->data, config_dataset(config, DATASET_ALL));
    if (status) return status;
    struct dataset first = show->data.train; /* a view */
    if ((size_t)show->images < first.count) first.count = (size_t)show->images;
    show->images = (int64_t)first.count;
    config->augment = 1;
    status = config_check_images(config, &first);
    if (!status) status = backend_open(config, &show->compute);
    if (status) return status;
    struct device *device = &show->compute.device;
    status = samples_open(&show->samples, device, config, &first);
    if (!status) status = augmenter_open(&show->augmenter, device, config, &first, &show->samples);
    if (status) return status;
    const size_t columns = 1 + (size_t)show->draws;
    show->pixels = malloc(columns * first.count * show->samples.features);
    show->list = calloc(columns * first.count, sizeof *show->list);
    return show->pixels && show->list ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
}

static enum status draw(struct show *show) {
    struct device *device = &show->compute.device;
    struct samples *samples = &show->samples;
    const size_t columns = 1 + (size_t)show->draws;
    for (size_t column = 0; column < columns; column++) {
        if (column) augmenter_begin(&show->augmenter, device, samples, (int64_t)column - 1);
        uint8_t *to = show->pixels + column * samples->count * samples->features;
        device->driver->download(device, to, samples->images, samples->count * samples->features);
        for (size_t i = 0; i < samples->count; i++)
            show->list[i * columns + column].pixels = to + i * samples->features;
    }
    return device->driver->synchronize(device);
}

static enum status show_images(struct show *show, const char *path) {
    enum status status = open_show(show);
    if (!status) status = draw(show);
    const struct image_grid grid = {.rows = show->samples.count,
                                    .columns = 1 + (size_t)show->draws,
                                    .height = show->samples.height,
                                    .width = show->samples.width,
                                    .images = show->list,
                                    .separate = true};
    if (!status) status = image_grid_write(&grid, path);
    if (!status)
        terminal_print(stdout, 2,
                       "%s: %zu images of %s, each as it is and as it is in the first %lld epochs (%s)\n",
                       path, show->samples.count, show->data.name, (long long)show->draws,
                       show->compute.device.driver->name);
    return status;
}

static enum status parse_count(const char *flag, const char *text, int64_t *count) {
    if (!text || (text_parse_int(text, count) && *count >= 1 && *count <= 1000)) return STATUS_OK;
    return status_set(STATUS_USAGE, "--%s must be a whole number from 1 to 1000, not '%s'", flag, text);
}

static enum status run_augment(int argc, char **argv) {
    static struct show show = {.images = 10, .draws = 9};
    static struct files files;
    const char *images = NULL, *draws = NULL, *path = NULL;
    const struct option_extra extras[] = {
        {"show", "K", "the first K training images, a row each [10]", &images},
        {"draws", "N", "deformations of each, those of the first N epochs, next to the original [9]", &draws},
        {"output", "FILE", "the grid of images to write, a .png or a .pgm", &path},
        {"o", "FILE", "the same", &path},
    };
    const struct option_set set = {
        .usage = "augment -o sheet.png [--show K] [--draws N] [--config FILE] [--augment-elastic X]...",
        .details =
            "Draws training images next to their deformations in the first epochs of './train --augment on', "
            "by the same keys. The pixels do not depend on the device: --backend says which one computes "
            "them. The keys of the network and its training have no effect.",
        OPTION_EXTRAS(extras),
        .files = &files,
    };
    bool help;
    enum status status = options_parse(&set, argc, argv, &show.config, &help);
    if (status || help) return status;
    if (!path)
        return status_set(STATUS_USAGE, "augment needs a file to draw into: ./train augment -o sheet.png");
    status = image_grid_check_name(path);
    if (!status) status = parse_count("show", images, &show.images);
    if (!status) status = parse_count("draws", draws, &show.draws);
    files_add(&files, "--output", path, FILE_WRITTEN);
    if (!status) status = options_check_files(&files, &show.config);
    if (!status) status = show_images(&show, path);
    close_show(&show);
    return status;
}

const struct command command_augment = {"augment", "draw training images and their deformations",
                                        run_augment};
