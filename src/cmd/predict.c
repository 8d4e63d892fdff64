/* ./train predict: classifies images with a trained network. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/base/pages.h"
#include "src/base/text.h"
#include "src/cmd/backend.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"
#include "src/cmd/predict_images.h"
#include "src/nn/checkpoint.h"

enum { ROWS = 1000, BEST = 3, NAME = 4096 };

struct prediction_run {
    struct config config;
    struct compute compute;
    struct checkpoint checkpoint;
    struct image_kind kind;
    struct dataset images;
    struct predict_source *sources;
    size_t count, classes;
    double *log_probability; /* [images.count][classes] */
};

static void close_run(struct prediction_run *run) {
    checkpoint_close(&run->checkpoint);
    compute_close(&run->compute);
    dataset_free(&run->images);
    free(run->sources);
    free(run->log_probability);
}

/* --- the network --- */

static enum status open_network(struct prediction_run *run, const char *path) {
    struct config *config = &run->config;
    enum status status = checkpoint_open(&run->checkpoint, path);
    if (!status) status = checkpoint_recipe(&run->checkpoint, config);
    if (!status) status = checkpoint_images(&run->checkpoint, &run->kind);
    config_for_inference(config);
    run->classes = config->layers.width[config->layers.count - 1];
    return status;
}

/* Height and width of what the network takes: input-size, those of its training images, or a square. */
static void find_size(struct prediction_run *run) {
    const size_t features = run->config.layers.width[0], side = (size_t)lround(sqrt((double)features));
    size_t height = config_input_side(&run->config, run->kind.height),
           width = config_input_side(&run->config, run->kind.width);
    if (height * width != features) height = width = side * side == features ? side : 0;
    run->images.height = height;
    run->images.width = width;
}

static enum status run_network(struct prediction_run *run, const char *average) {
    struct mlp mlp = {0};
    struct samples samples = {0};
    struct evaluation ignored;
    struct device *device = &run->compute.device;
    const size_t values = run->images.count * run->classes;
    enum status status = pages_check(values * sizeof *run->log_probability);
    if (status) return status;
    run->log_probability = calloc(values, sizeof *run->log_probability);
    struct predictions predictions = {.log_probability = run->log_probability};
    struct tally *tally = device->driver->alloc(device, sizeof *tally);
    if (!tally || !run->log_probability) status = status_set(STATUS_FAILED, "out of memory");
    if (!status) status = samples_open(&samples, device, &run->config, &run->images);
    if (!status) status = mlp_open(&mlp, &run->compute, &run->config, ROWS);
    if (!status)
        status = average ? checkpoint_restore_average(&run->checkpoint, &mlp)
                         : checkpoint_restore(&run->checkpoint, &mlp, NULL);
    if (!status) status = samples_evaluate(&samples, &mlp, tally, &ignored, &predictions);
    mlp_close(&mlp);
    samples_close(&samples, device);
    device->driver->free(device, tally);
    return status;
}

/* --- the answers --- */

struct answer {
    size_t class;
    double probability;
};

/* The most probable classes of an image, in order; returns how many: 3, or all if there are fewer. */
static size_t find_best(const struct prediction_run *run, size_t image, struct answer best[BEST]) {
    const double *log_probability = run->log_probability + image * run->classes;
    size_t found = 0;
    for (size_t c = 0; c < run->classes; c++) {
        struct answer one = {c, exp(log_probability[c])};
        for (size_t i = 0; i < BEST; i++) {
            if (i < found && !(one.probability > best[i].probability)) continue;
            const struct answer next = best[i];
            best[i] = one;
            if (i == found) {
                found++;
                break;
            }
            one = next;
        }
    }
    return found;
}

/* "seven.png", or "images.idx#12" in a file with several images. */
static void image_name(const struct predict_source *source, size_t index, char *text, size_t size) {
    snprintf(text, size, "%s", source->path);
    if (source->count > 1) text_append(text, size, "#%zu", index);
}

/* A class with its name: "2 dog"; "2" without. */
static void class_text(const struct prediction_run *run, size_t class, char *text, size_t size) {
    snprintf(text, size, "%zu", class);
    if (class < run->kind.classes.count) text_append(text, size, " %s", run->kind.classes.name[class]);
}

static void print_row(const struct prediction_run *run, const char *name, size_t width, size_t image) {
    struct answer best[BEST];
    char text[CLASS_NAME + 24];
    const size_t found = find_best(run, image, best);
    printf("%s%*s", name, text_padding(name, width), "");
    for (size_t i = 0; i < found; i++) {
        class_text(run, best[i].class, text, sizeof text);
        printf("  %s%*s %8s", text, text_padding(text, run->kind.classes.count ? 16 : 4), "",
               text_percent(best[i].probability, 2).text);
    }
    printf("\n");
}

/* A field of a CSV file, in quotes if it needs them (RFC 4180). */
static void print_field(const char *text) {
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, stdout);
        return;
    }
    putchar('"');
    for (; *text; text++) printf(*text == '"' ? "\"\"" : "%c", *text);
    putchar('"');
}

static void print_csv_row(const struct prediction_run *run, const char *path, size_t index, size_t image) {
    struct answer best[BEST];
    const size_t found = find_best(run, image, best);
    print_field(path);
    printf(",%zu", index);
    for (size_t i = 0; i < found; i++) {
        printf(",%zu,", best[i].class);
        print_field(classes_label(&run->kind.classes, best[i].class).text);
        printf(",%.6f", best[i].probability);
    }
    printf("\n");
}

static size_t longest_name(const struct prediction_run *run) {
    char name[NAME];
    size_t longest = strlen("file");
    for (size_t s = 0; s < run->count; s++) {
        image_name(&run->sources[s], run->sources[s].count - 1, name, sizeof name);
        if (text_letters(name) > longest) longest = text_letters(name);
    }
    return longest;
}

static void print_answers(const struct prediction_run *run, bool csv) {
    static const char *const titles[BEST] = {"class,name,probability", "class_2,name_2,probability_2",
                                             "class_3,name_3,probability_3"};
    const size_t width = longest_name(run);
    const int column = run->kind.classes.count ? 26 : 14;
    char name[NAME];
    size_t image = 0;
    if (csv) {
        printf("file,image");
        for (size_t i = 0; i < BEST && i < run->classes; i++) printf(",%s", titles[i]);
        printf("\n");
    } else {
        printf("%-*s  %-*s%s\n", (int)width, "file", column + 1, "class",
               run->classes > 1 ? "next best" : "");
    }
    for (size_t s = 0; s < run->count; s++)
        for (size_t i = 0; i < run->sources[s].count; i++, image++) {
            image_name(&run->sources[s], i, name, sizeof name);
            if (csv) {
                print_csv_row(run, run->sources[s].path, i, image);
            } else {
                print_row(run, name, width, image);
            }
        }
}

/* --- the command --- */

static enum status predict(struct prediction_run *run, const struct option_words *words,
                           struct predict_options *options, const char *average, bool csv) {
    enum status status = open_network(run, words->list[0]);
    if (status) return status;
    find_size(run);
    options->features = run->config.layers.width[0];
    options->transpose = (enum transpose)run->config.transpose;
    run->count = words->count - 1;
    run->sources = calloc(run->count, sizeof *run->sources);
    if (!run->sources) return status_set(STATUS_FAILED, "out of memory");
    for (size_t i = 0; i < run->count && !status; i++) {
        run->sources[i].path = words->list[1 + i];
        status = predict_read(&run->images, &run->sources[i], options);
    }
    if (!status) status = backend_open(&run->config, &run->compute);
    if (!status) status = run_network(run, average);
    if (!status) print_answers(run, csv);
    return status;
}

static enum status run_predict(int argc, char **argv) {
    static struct prediction_run run;
    static const char *const keys[] = {"backend",    "threads",     "transpose", "activation",
                                       "input-size", "input-range", NULL};
    const char *like_mnist = NULL, *invert = NULL, *scale = NULL, *csv = NULL, *average = NULL;
    struct option_words words;
    const struct option_extra extras[] = {
        {"like-mnist", NULL,
         "make each image look as those of MNIST do: bright on black (inverted if the border is bright), "
         "scaled into a box of 20/28 of the side, centred by mass",
         &like_mnist},
        {"scale", NULL, "scale each image to the size that the network takes", &scale},
        {"invert", NULL,
         "invert each image: black ink on white paper for a network that knows white on black", &invert},
        {"csv", NULL, "print comma-separated values", &csv},
        {"ema", NULL, "use the moving average of the weights (see ./train --ema-decay)", &average},
    };
    const struct option_set set = {
        .usage = "predict CHECKPOINT FILE.. [--like-mnist] [--csv]...",
        .details =
            "Classifies images: PNG, JPEG and PGM pictures, IDX files (raw or gzip), CSV files with or "
            "without labels; - is standard input. Prints the three most probable classes of each.\n"
            "  ./train predict model.safetensors scan.png --like-mnist",
        .keys = keys,
        OPTION_EXTRAS(extras),
        .words = &words,
    };
    bool help;
    enum status status = options_parse(&set, argc, argv, &run.config, &help);
    if (status || help) return status;
    if (words.count < 2)
        return status_set(
            STATUS_USAGE,
            "predict needs a checkpoint and images: ./train predict model.safetensors scan.png");
    if (like_mnist && scale) return status_set(STATUS_USAGE, "--like-mnist scales already: remove --scale");
    struct predict_options options = {
        .invert = invert != NULL, .like_mnist = like_mnist != NULL, .scale = scale != NULL};
    status = predict(&run, &words, &options, average, csv != NULL);
    close_run(&run);
    return status;
}

const struct command command_predict = {"predict", "classify pictures with a trained network", run_predict};
