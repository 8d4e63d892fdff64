/* ./train eval: what a trained network makes of the test set. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/base/jsonl.h"
#include "src/base/text.h"
#include "src/cmd/backend.h"
#include "src/cmd/command.h"
#include "src/cmd/console.h"
#include "src/cmd/options.h"
#include "src/nn/augmenter.h"
#include "src/nn/checkpoint.h"
#include "src/nn/committee.h"
#include "src/report/confusion.h"
#include "src/report/picture.h"

enum { EVALUATION_ROWS = 1000, TERMINAL_COLUMNS = 100, LOGGED_MISTAKES = 12 };

struct evaluator {
    struct config flags;  /* what the user said */
    struct config config; /* with the recipe of the newest checkpoint */
    struct compute compute;
    struct dataset_pair data;
    struct tally *tally;        /* device */
    struct committee committee; /* of one network, or more */
    struct predictions predictions;
    FILE *log;           /* NULL: none */
    int64_t tta;         /* deformations that each image is seen in, beside as it is */
    double tta_strength; /* of them, times what the recipe asks for */
    const char *average; /* not NULL: the moving average of the weights, and not they themselves */
};

static void close_evaluator(struct evaluator *eval) {
    if (eval->compute.backend) {
        struct device *device = &eval->compute.device;
        device->driver->free(device, eval->tally);
    }
    free(eval->predictions.label);
    free(eval->predictions.confidence);
    committee_close(&eval->committee);
    dataset_pair_free(&eval->data);
    compute_close(&eval->compute);
}

/* What all networks are asked with: by the recipe of the first. */
static enum status open_evaluator(struct evaluator *eval, size_t networks) {
    const struct config *config = &eval->config;
    const struct gemm_backend *backend;
    struct device *device = &eval->compute.device;
    enum status status = registry_find(config->backend, &backend);
    if (!status) status = dataset_load(&eval->data, config->data, DATASET_TEST_ONLY);
    if (!status) status = config_check_data(config, &eval->data);
    if (!status) status = backend_open(config, &eval->compute);
    if (!status)
        status = committee_open(&eval->committee, networks, eval->data.test.count,
                                config->layers.width[config->layers.count - 1]);
    if (status) return status;
    eval->tally = device->driver->alloc(device, sizeof *eval->tally);
    eval->predictions.label = malloc(eval->data.test.count);
    eval->predictions.confidence = malloc(eval->data.test.count * sizeof *eval->predictions.confidence);
    if (!eval->tally) return STATUS_FAILED;
    return eval->predictions.label && eval->predictions.confidence
               ? STATUS_OK
               : status_set(STATUS_FAILED, "out of memory");
}

/* The amounts of the recipe times the strength; labels have no say in what the network is asked about. */
static struct config view_recipe(const struct evaluator *eval) {
    struct config recipe = eval->config;
    recipe.augment = 1;
    recipe.augment_elastic *= eval->tta_strength;
    recipe.augment_rotate *= eval->tta_strength;
    recipe.augment_shear *= eval->tta_strength;
    recipe.augment_scale *= eval->tta_strength;
    recipe.augment_shift *= eval->tta_strength;
    recipe.augment_gentle = (struct label_set){0};
    return recipe;
}

/* Asks about the images as they are and deformed: the mean log probability is the network's answer. */
static enum status ask_views(struct evaluator *eval, struct samples *test, struct mlp *mlp) {
    struct device *device = &eval->compute.device;
    const struct config recipe = view_recipe(eval);
    const struct dataset *data = &eval->data.test;
    struct augmenter augmenter = {0};
    struct committee views;
    enum status status = committee_open(&views, 1 + (size_t)eval->tta, data->count, mlp_last(mlp)->out);
    if (status) return status;
    status = augmenter_open(&augmenter, device, &recipe, data, test);
    for (int64_t view = 0; view <= eval->tta && !status; view++) {
        if (view) augmenter_begin(&augmenter, device, test, view - 1);
        status = committee_add(&views, test, mlp, eval->tally);
    }
    if (!status) status = committee_join(&eval->committee, &views, data->labels);
    augmenter_close(&augmenter, device);
    committee_close(&views);
    return status;
}

static enum status ask_network(struct evaluator *eval, const struct checkpoint *checkpoint) {
    struct mlp mlp = {0};
    struct samples test = {0};
    struct device *device = &eval->compute.device;
    enum status status = config_check_data(&eval->config, &eval->data);
    if (!status) status = samples_open(&test, device, &eval->config, &eval->data.test);
    if (!status) status = mlp_open(&mlp, &eval->compute, &eval->config, EVALUATION_ROWS);
    if (!status)
        status = eval->average ? checkpoint_restore_average(checkpoint, &mlp)
                               : checkpoint_restore(checkpoint, &mlp, NULL);
    if (!status)
        status = eval->tta ? ask_views(eval, &test, &mlp)
                           : committee_add(&eval->committee, &test, &mlp, eval->tally);
    mlp_close(&mlp);
    samples_close(&test, device);
    return status;
}

/* --- the most confident mistakes --- */

struct mistake {
    size_t image;
    double confidence;
};

static int by_confidence(const void *a, const void *b) {
    const struct mistake *x = a, *y = b;
    if (x->confidence != y->confidence) return x->confidence < y->confidence ? 1 : -1;
    return (x->image > y->image) - (x->image < y->image);
}

/* All mistakes, the most confident first; to be freed, NULL without memory. */
static struct mistake *find_mistakes(const struct evaluator *eval, size_t *found) {
    const struct dataset *test = &eval->data.test;
    struct mistake *mistakes = malloc((test->count + 1) * sizeof *mistakes);
    *found = 0;
    for (size_t i = 0; mistakes && i < test->count; i++)
        if (eval->predictions.label[i] != test->labels[i])
            mistakes[(*found)++] = (struct mistake){i, eval->predictions.confidence[i]};
    if (mistakes) qsort(mistakes, *found, sizeof *mistakes, by_confidence);
    return mistakes;
}

static enum status print_mistakes(const struct evaluator *eval, const struct mistake *mistakes, size_t found,
                                  size_t wanted) {
    const struct dataset *test = &eval->data.test;
    const size_t shown = wanted < found ? wanted : found;
    struct picture *pictures = malloc((shown + 1) * sizeof *pictures);
    if (!pictures) return status_set(STATUS_FAILED, "out of memory");
    for (size_t i = 0; i < shown; i++) {
        const size_t image = mistakes[i].image;
        pictures[i].pixels = test->images + image * test->height * test->width;
        snprintf(pictures[i].caption, sizeof pictures[i].caption, "#%zu: %u, not %u (%.1f %%)", image,
                 eval->predictions.label[image], test->labels[image], 100 * mistakes[i].confidence);
    }
    printf("\nthe %zu most confident of %s mistakes (#image: prediction, not label)\n\n", shown,
           text_grouped(found).text);
    picture_print(stdout, pictures, shown, test->height, test->width, TERMINAL_COLUMNS);
    free(pictures);
    return STATUS_OK;
}

/* --- the log --- */

static void log_confusion(const struct evaluator *eval) {
    const size_t classes = eval->committee.classes;
    uint32_t *counts = calloc(classes * classes, sizeof *counts);
    if (!counts) return;
    confusion_count(counts, classes, eval->data.test.labels, eval->predictions.label, eval->data.test.count);
    cJSON *line = jsonl_new("confusion"), *rows = cJSON_AddArrayToObject(line, "counts");
    jsonl_count(line, "classes", classes);
    for (size_t r = 0; r < classes; r++)
        cJSON_AddItemToArray(rows, cJSON_CreateIntArray((const int *)counts + r * classes, (int)classes));
    jsonl_write(eval->log, line);
    free(counts);
}

static void log_mistake(const struct evaluator *eval, const struct mistake *mistake) {
    const struct dataset *test = &eval->data.test;
    const size_t pixels = test->height * test->width;
    char *hex = malloc(2 * pixels + 1);
    if (!hex) return;
    for (size_t p = 0; p < pixels; p++)
        snprintf(hex + 2 * p, 3, "%02x", test->images[mistake->image * pixels + p]);
    cJSON *line = jsonl_new("mistake");
    jsonl_count(line, "image", mistake->image);
    cJSON_AddNumberToObject(line, "label", test->labels[mistake->image]);
    cJSON_AddNumberToObject(line, "predicted", eval->predictions.label[mistake->image]);
    cJSON_AddNumberToObject(line, "confidence", mistake->confidence);
    jsonl_count(line, "height", test->height);
    jsonl_count(line, "width", test->width);
    cJSON_AddStringToObject(line, "pixels", hex);
    jsonl_write(eval->log, line);
    free(hex);
}

static void log_header(const struct evaluator *eval) {
    cJSON *header = jsonl_header();
    cJSON_AddStringToObject(header, "command", "eval");
    cJSON_AddStringToObject(header, "data", eval->data.name);
    cJSON_AddNumberToObject(header, "threads", eval->compute.threads);
    if (eval->compute.gpu[0]) cJSON_AddStringToObject(header, "gpu", eval->compute.gpu);
    jsonl_write(eval->log, header);
}

/* Of a network, or (layers "", with the spread of the members) of the committee. */
static void log_result(const struct evaluator *eval, const char *name, const char *layers,
                       const struct evaluation *result, const struct statistics *members) {
    cJSON *line = jsonl_new("evaluation");
    cJSON_AddStringToObject(line, "checkpoint", name);
    cJSON_AddStringToObject(line, "data", eval->data.name);
    cJSON_AddStringToObject(line, "layers", layers);
    if (eval->average) cJSON_AddTrueToObject(line, "ema");
    cJSON_AddStringToObject(line, "backend", eval->compute.backend->name);
    cJSON_AddNumberToObject(line, "test_accuracy", (double)result->correct / (double)result->total);
    jsonl_count(line, "test_correct", result->correct);
    if (eval->tta) jsonl_count(line, "tta", (size_t)eval->tta);
    jsonl_count(line, "test_total", result->total);
    cJSON_AddNumberToObject(line, "loss", result->loss);
    if (members) {
        jsonl_count(line, "members", members->count);
        cJSON_AddNumberToObject(line, "test_accuracy_mean", members->mean);
        cJSON_AddNumberToObject(line, "test_accuracy_deviation", members->deviation);
    }
    jsonl_write(eval->log, line);
}

/* --- the report --- */

static enum status print_confusion(const struct evaluator *eval) {
    const struct dataset *test = &eval->data.test;
    const size_t classes = eval->committee.classes;
    uint32_t *counts = calloc(classes * classes, sizeof *counts);
    if (!counts) return status_set(STATUS_FAILED, "out of memory");
    confusion_count(counts, classes, test->labels, eval->predictions.label, test->count);
    confusion_print(stdout, counts, classes);
    free(counts);
    return STATUS_OK;
}

static void print_accuracy(const char *title, const struct evaluation *result) {
    printf("%-11s %s +- %.2f (binomial standard error)\n", title,
           console_accuracy(result->correct, result->total).text, console_binomial_error(result));
}

/* Asks the network of a checkpoint: a member of the committee, which may be the only one. */
static enum status take_network(struct evaluator *eval, const char *path, size_t networks) {
    struct checkpoint checkpoint = {0};
    char layers[CONFIG_TEXT];
    const bool first = eval->committee.members == 0;
    eval->config = eval->flags;
    enum status status = checkpoint_open(&checkpoint, path);
    if (!status) status = checkpoint_recipe(&checkpoint, &eval->config);
    if (!status && first) status = open_evaluator(eval, networks);
    if (!status && first) log_header(eval);
    if (!status) status = ask_network(eval, &checkpoint);
    checkpoint_close(&checkpoint);
    if (status) return networks == 1 ? status : status_context(status, "%s", path);
    const struct evaluation *result = &eval->committee.member[eval->committee.members - 1];
    config_value(&eval->config, config_key_find("layers"), layers, sizeof layers);
    printf("checkpoint  %s: %s, %s, %s%s\n", path, layers,
           config_choice("activation", eval->config.activation),
           dtype_name((enum gemm_dtype)eval->config.dtype),
           eval->average ? ", moving average of the weights" : "");
    if (networks > 1)
        printf("            %s, loss %.6f\n", console_accuracy(result->correct, result->total).text,
               result->loss);
    log_result(eval, path, layers, result, NULL);
    return STATUS_OK;
}

/* What all of them together say, to eval->predictions. */
static enum status print_result(struct evaluator *eval, struct evaluation *result) {
    const struct committee *committee = &eval->committee;
    *result = committee_evaluate(committee, eval->data.test.labels, &eval->predictions);
    printf("data        %s, %s test images; backend %s (%s)\n", eval->data.name,
           text_grouped(eval->data.test.count).text, eval->compute.backend->name, eval->compute.description);
    if (eval->tta)
        printf("views       each image as it is and in %lld deformations, of %g times the amounts of the "
               "recipe\n",
               (long long)eval->tta, eval->tta_strength);
    if (committee->members == 1) {
        *result = committee->member[0]; /* the same but for the rounding of the loss */
        print_accuracy("accuracy", result);
    } else {
        struct statistics members;
        char name[64];
        const enum status status = committee_spread(committee, &members);
        if (status) return status;
        printf("members     mean of %zu %.2f %%, standard deviation %.2f, from %.2f to %.2f %%\n",
               members.count, 100 * members.mean, 100 * members.deviation, 100 * members.min,
               100 * members.max);
        print_accuracy("committee", result);
        snprintf(name, sizeof name, "committee of %zu networks", members.count);
        log_result(eval, name, "", result, &members);
    }
    printf("loss        %.6f\n\n", result->loss);
    return print_confusion(eval);
}

static enum status evaluate(struct evaluator *eval, const struct option_words *paths, size_t wanted) {
    struct evaluation result;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < paths->count && !status; i++)
        status = take_network(eval, paths->list[i], paths->count);
    if (!status) status = print_result(eval, &result);
    if (status) return status;

    size_t found;
    struct mistake *mistakes = find_mistakes(eval, &found);
    if (!mistakes) return status_set(STATUS_FAILED, "out of memory");
    if (wanted) status = print_mistakes(eval, mistakes, found, wanted);
    const size_t most = wanted ? wanted : LOGGED_MISTAKES, logged = found < most ? found : most;
    log_confusion(eval);
    for (size_t i = 0; i < logged; i++) log_mistake(eval, &mistakes[i]);
    free(mistakes);
    return status ? status : console_check_target(&eval->flags, &result);
}

static enum status run_eval(int argc, char **argv) {
    static struct evaluator eval; /* zero */
    static const char *const keys[] = {"data",
                                       "backend",
                                       "threads",
                                       "layers",
                                       "activation",
                                       "input-size",
                                       "input-range",
                                       "seed",
                                       "augment-elastic",
                                       "augment-sigma",
                                       "augment-rotate",
                                       "augment-shear",
                                       "augment-scale",
                                       "augment-shift",
                                       "target-accuracy",
                                       "log",
                                       NULL};
    const char *misclassified = NULL, *tta = NULL, *strength = NULL;
    struct option_words paths;
    const struct option_extra extras[] = {
        {"misclassified", "K", "also print the K most confident mistakes as small pictures", &misclassified},
        {"tta", "K",
         "test-time augmentation: a network's answer is the mean log-probability of each image as it is and "
         "in K "
         "deformations",
         &tta},
        {"tta-strength", "X", "the amounts of these deformations, times the augment- keys [0.5]", &strength},
        {"ema", NULL, "evaluate the moving average of the weights (see train --ema-decay)", &eval.average},
    };
    const struct option_set set = {
        .usage = "eval CHECKPOINT.. [--data DIR] [--misclassified K]...",
        .details =
            "Evaluates a safetensors checkpoint on the test set: accuracy, loss, confusion matrix, "
            "precision and recall.\n"
            "Network and data are those that it was trained with, unless a flag says otherwise.\n"
            "Several checkpoints: each, their mean, and the committee of all, by mean log-probability, "
            "on the data of the\nfirst; --target-accuracy is the committee's.\n"
            "  ./train eval a.safetensors b.safetensors",
        .keys = keys,
        .extras = extras,
        .extra_count = sizeof extras / sizeof *extras,
        .words = &paths,
    };
    bool help;
    int64_t mistakes = 0;
    enum status status = options_parse(&set, argc, argv, &eval.flags, &help);
    if (status || help) return status;
    if (!paths.count)
        return status_set(STATUS_USAGE, "eval needs a checkpoint: train eval model.safetensors");
    if (misclassified && (!text_parse_int(misclassified, &mistakes) || mistakes < 0))
        return status_set(STATUS_USAGE, "--misclassified must be a whole number from 0, not '%s'",
                          misclassified);
    eval.tta_strength = 0.5;
    if (tta && (!text_parse_int(tta, &eval.tta) || eval.tta < 1 || eval.tta > 10000))
        return status_set(STATUS_USAGE, "--tta must be a whole number from 1 to 10000, not '%s'", tta);
    if (strength &&
        (!text_parse_real(strength, &eval.tta_strength) || eval.tta_strength < 0 || eval.tta_strength > 1))
        return status_set(STATUS_USAGE, "--tta-strength must be a number from 0 to 1, not '%s'", strength);
    if (strength && !tta) return status_set(STATUS_USAGE, "--tta-strength goes with --tta K");
    status = jsonl_open(&eval.log, eval.flags.log);
    if (!status) status = evaluate(&eval, &paths, (size_t)mistakes);
    close_evaluator(&eval);
    return jsonl_close(eval.log, eval.flags.log, status);
}

const struct command command_eval = {"eval", "evaluate a checkpoint on the test set", run_eval};
