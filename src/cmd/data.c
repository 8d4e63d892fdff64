/* ./train data: describes a data set, converts it to IDX files and draws a sheet of its images. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/replace.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"
#include "src/data/idx.h"
#include "src/report/image_grid.h"

enum { SHEET_COLUMNS = 10, SHEET_CLASSES = 64, SHEET_PIXELS = 2000, MOST_CAPTIONED = 12 };

/* The files of a converted set. */
enum output { TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS, CLASSES, OUTPUTS };
static const char *const output_names[OUTPUTS] = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                                  "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
                                                  "classes.txt"};

struct job {
    struct config config;
    struct files files;
    struct dataset_pair data;
    const char *directory, *sheet; /* NULL: not asked for */
    char path[OUTPUTS][1024];
    size_t classes;
};

/* --- description --- */

static void count_images(const struct dataset *set, size_t *counts) {
    for (size_t i = 0; i < set->count; i++) counts[set->labels[i]]++;
}

/* " --KEY VALUE" if the user has set it, or "". */
struct flag_text {
    char text[64];
};

static struct flag_text flag_text(const struct config *config, const char *key) {
    struct flag_text flag = {""};
    char value[32];
    config_value(config, config_key_find(key), value, sizeof value);
    if (config_origin_of(config, key) == FROM_FLAG)
        snprintf(flag.text, sizeof flag.text, " --%s %s", key, value);
    return flag;
}

static void describe(const struct job *job) {
    const struct dataset_pair *data = &job->data;
    size_t train[DATASET_MAX_CLASSES] = {0}, test[DATASET_MAX_CLASSES] = {0};
    count_images(&data->train, train);
    count_images(&data->test, test);
    const bool exchanged = data->transposed && job->config.transpose == TRANSPOSE_AUTO;
    terminal_print(stdout, 2,
                   "%s: %s training images, %s test images of %zux%zu pixels (height x width), %zu "
                   "classes%s\n\n",
                   data->name, text_grouped(data->train.count).text, text_grouped(data->test.count).text,
                   data->test.height, data->test.width, job->classes,
                   exchanged ? "; rows and columns exchanged, as the files have EMNIST's names" : "");
    printf("label  training      test%s\n", data->classes.count ? "  name" : "");
    for (size_t c = 0; c < job->classes; c++)
        printf("%5zu  %8s  %8s%s%s\n", c, text_grouped(train[c]).text, text_grouped(test[c]).text,
               data->classes.count ? "  " : "",
               data->classes.count ? classes_label(&data->classes, c).text : "");
    printf("\n");
    terminal_print(stdout, 4, "to train on it: ./train --data %s%s%s --layers %zu-128-%zu%s\n",
                   job->config.data, flag_text(&job->config, "input-size").text,
                   flag_text(&job->config, "label-offset").text, data->test.height * data->test.width,
                   job->classes, data->test.count ? "" : " --validation N (there is no test set)");
}

/* --- conversion --- */

static enum status write_part(const struct dataset *set, const char *images, const char *labels) {
    const struct idx pixels = {3, {set->count, set->height, set->width}, set->images},
                     numbers = {1, {set->count}, set->labels};
    const enum status status = idx_write(&pixels, images);
    return status ? status : idx_write(&numbers, labels);
}

static enum status write_classes(const struct job *job) {
    static char text[CLASSES_TEXT + 1];
    struct replacement file;
    const enum status status = replace_open(&file, "", job->path[CLASSES]);
    if (status) return status;
    classes_text(&job->data.classes, text);
    fprintf(file.out, "%s\n", text);
    return replace_close(&file, STATUS_OK);
}

static enum status convert(const struct job *job) {
    const struct dataset_pair *data = &job->data;
    enum status status = files_make_folder(job->directory);
    if (!status && data->train.count)
        status = write_part(&data->train, job->path[TRAIN_IMAGES], job->path[TRAIN_LABELS]);
    if (!status && data->test.count)
        status = write_part(&data->test, job->path[TEST_IMAGES], job->path[TEST_LABELS]);
    if (!status && data->classes.count) status = write_classes(job);
    if (!status) printf("%s: written as IDX files; use it with --data %s\n", job->directory, job->directory);
    return status;
}

/* --- the sheet: the first images of every class, a row each; many classes in blocks side by side --- */

static enum status draw(const struct job *job) {
    const struct dataset *set = job->data.train.count ? &job->data.train : &job->data.test;
    const size_t classes = job->classes < SHEET_CLASSES ? job->classes : SHEET_CLASSES;
    size_t drawn[SHEET_CLASSES] = {0};
    /* the last block may not be full */
    struct image *images = calloc(2 * classes * SHEET_COLUMNS, sizeof *images);
    if (!images) return status_set(STATUS_FAILED, "out of memory");
    struct image_grid grid = {.height = set->height, .width = set->width, .images = images};
    const size_t blocks = image_grid_columns(grid, classes, 1, SHEET_PIXELS);
    grid.rows = (classes + blocks - 1) / blocks;
    grid.columns = blocks * SHEET_COLUMNS;
    for (size_t i = 0; i < set->count; i++) {
        const size_t label = set->labels[i];
        if (label >= classes || drawn[label] == SHEET_COLUMNS) continue;
        const size_t row = label % grid.rows, block = label / grid.rows;
        struct image *image = &images[row * grid.columns + block * SHEET_COLUMNS + drawn[label]++];
        image->pixels = set->images + i * set->height * set->width;
        if (classes <= MOST_CAPTIONED) snprintf(image->caption, sizeof image->caption, "%zu", label);
    }
    const enum status status = image_grid_write(&grid, job->sheet);
    if (!status)
        terminal_print(stdout, 2, "%s: the first %d %s images of %zu classes, a row each%s\n", job->sheet,
                       SHEET_COLUMNS, set == &job->data.train ? "training" : "test", classes,
                       blocks > 1 ? ", in blocks side by side" : "");
    free(images);
    return status;
}

/* --- the command --- */

/* Moves the last images of the training set into the empty test set. */
static enum status hold_out(struct dataset_pair *data, int64_t count) {
    const struct dataset *train = &data->train;
    const size_t images = (size_t)count;
    enum status status = STATUS_OK;
    if (data->test.count)
        return status_set(STATUS_USAGE, "--hold-out makes a test set, but %s has one", data->name);
    if (images >= train->count)
        return status_set(STATUS_USAGE, "--hold-out %zu: %s has %zu training images", images, data->name,
                          train->count);
    const size_t pixels = train->height * train->width;
    for (size_t i = train->count - images; i < train->count && !status; i++)
        status = dataset_append(&data->test, train->images + i * pixels, train->labels[i]);
    data->train.count -= images;
    return status;
}

static enum status check_files(struct job *job) {
    for (size_t i = 0; job->directory && i < OUTPUTS; i++) {
        if (snprintf(job->path[i], sizeof job->path[i], "%s/%s", job->directory, output_names[i]) >=
            (int)sizeof job->path[i])
            return status_set(STATUS_USAGE, "--output: the path '%s' is too long", job->directory);
        files_add(&job->files, "--output", job->path[i], FILE_WRITTEN);
    }
    files_add(&job->files, "--sheet", job->sheet, FILE_WRITTEN);
    const enum status status = job->sheet ? image_grid_check_name(job->sheet) : STATUS_OK;
    return status ? status : options_check_files(&job->files, &job->config);
}

static enum status run_job(struct job *job, bool like_mnist, int64_t held_out) {
    struct dataset_pair *data = &job->data;
    struct dataset_options options = config_dataset(&job->config, DATASET_ALL);
    options.like_mnist = like_mnist;
    enum status status = check_files(job);
    if (!status) status = dataset_load(data, job->config.data, options);
    if (!status && held_out) status = hold_out(data, held_out);
    if (status) return status;
    if (options.side && (data->test.height != options.side || data->test.width != options.side))
        return status_set(STATUS_USAGE,
                          "'data' scales only folders of pictures to input-size; './train' scales other "
                          "images when it reads them");
    job->classes = data->train.classes > data->test.classes ? data->train.classes : data->test.classes;
    describe(job);
    if (job->directory) status = convert(job);
    return !status && job->sheet ? draw(job) : status;
}

static enum status run_data(int argc, char **argv) {
    static struct job job;
    static const char *const keys[] = {"label-offset", "transpose", "input-size", NULL};
    const char *source = NULL, *like_mnist = NULL, *held_out = NULL;
    int64_t images = 0;
    const struct option_extra extras[] = {
        {"output", "DIR", "write the set as IDX files, with classes.txt", &job.directory},
        {"o", "DIR", "the same", &job.directory},
        {"sheet", "FILE", "draw the first 10 images of each class into a .png or a .pgm", &job.sheet},
        {"hold-out", "N",
         "make the last N training images the test set; of pictures, the last of every class", &held_out},
        {"like-mnist", NULL,
         "of pictures: make each look as those of MNIST do: bright on black, scaled into a box of 20/28 of "
         "input-size (28 if that is 0), centred by mass",
         &like_mnist},
    };
    const struct option_set set = {
        .usage = "data SOURCE [-o DIR] [--sheet FILE] [--hold-out N]...",
        .details =
            "Describes a data set: IDX or CSV files, or a folder of pictures for each class (png, jpg, "
            "pgm). Converts it to IDX files, which load faster, and draws a sheet of it.\n"
            "  ./train data photos --input-size 28 -o photos-28 --sheet photos.png",
        .keys = keys,
        OPTION_EXTRAS(extras),
        .positional = &source,
    };
    bool help;
    enum status status = options_parse(&set, argc, argv, &job.config, &help);
    if (status || help) return status;
    if (!source) return status_set(STATUS_USAGE, "data needs a data set: ./train data DIR (see data --help)");
    if (held_out && (!text_parse_int(held_out, &images) || images < 1))
        return status_set(STATUS_USAGE, "--hold-out must be a whole number from 1, not '%s'", held_out);
    status = config_set(&job.config, "data", source, FROM_FLAG, "data");
    if (!status) status = run_job(&job, like_mnist != NULL, images);
    dataset_pair_free(&job.data);
    files_free(&job.files);
    return status;
}

const struct command command_data = {"data", "describe a data set, convert it to IDX, draw a sheet of it",
                                     run_data};
