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
#include "src/nn/checkpoint.h"
#include "src/nn/samples.h"
#include "src/report/confusion.h"
#include "src/report/picture.h"

enum { EVALUATION_ROWS = 1000, TERMINAL_COLUMNS = 100, LOGGED_MISTAKES = 12 };

struct evaluator {
    struct config config;
    struct compute compute;
    struct dataset_pair data;
    struct checkpoint checkpoint;
    struct mlp mlp;
    struct samples test;
    struct tally *tally; /* device */
    struct predictions predictions;
};

static void close_evaluator(struct evaluator *eval) {
    if (eval->compute.backend) {
        struct device *device = &eval->compute.device;
        device->driver->free(device, eval->tally);
        samples_close(&eval->test, device);
        mlp_close(&eval->mlp);
    }
    free(eval->predictions.label);
    free(eval->predictions.confidence);
    checkpoint_close(&eval->checkpoint);
    dataset_pair_free(&eval->data);
    compute_close(&eval->compute);
}

static enum status open_network(struct evaluator *eval) {
    struct device *device = &eval->compute.device;
    enum status status = mlp_open(&eval->mlp, &eval->compute, &eval->config, EVALUATION_ROWS);
    if (!status) status = checkpoint_restore(&eval->checkpoint, &eval->mlp, NULL, NULL);
    if (!status) status = samples_open(&eval->test, device, &eval->config, &eval->data.test);
    if (status) return status;
    eval->tally = device->driver->alloc(device, sizeof *eval->tally);
    eval->predictions.label = malloc(eval->test.count);
    eval->predictions.confidence = malloc(eval->test.count * sizeof *eval->predictions.confidence);
    if (!eval->tally) return STATUS_FAILED;
    return eval->predictions.label && eval->predictions.confidence
               ? STATUS_OK
               : status_set(STATUS_FAILED, "out of memory");
}

static enum status open_evaluator(struct evaluator *eval, const char *path) {
    struct config *config = &eval->config;
    const struct gemm_backend *backend;
    enum status status = checkpoint_open(&eval->checkpoint, path);
    if (!status) status = checkpoint_recipe(&eval->checkpoint, config);
    if (!status) status = registry_find(config->backend, &backend);
    if (!status) status = dataset_load(&eval->data, config->data, DATASET_TEST_ONLY);
    if (status) return status;
    status = config_check_data(config, &eval->data);
    if (!status) status = backend_open(config, &eval->compute);
    return status ? status : open_network(eval);
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

static void log_confusion(const struct evaluator *eval, FILE *log) {
    const size_t classes = mlp_last(&eval->mlp)->out;
    uint32_t *counts = calloc(classes * classes, sizeof *counts);
    if (!counts) return;
    confusion_count(counts, classes, eval->data.test.labels, eval->predictions.label, eval->data.test.count);
    cJSON *line = jsonl_new("confusion"), *rows = cJSON_AddArrayToObject(line, "counts");
    jsonl_count(line, "classes", classes);
    for (size_t r = 0; r < classes; r++)
        cJSON_AddItemToArray(rows, cJSON_CreateIntArray((const int *)counts + r * classes, (int)classes));
    jsonl_write(log, line);
    free(counts);
}

static void log_mistake(const struct evaluator *eval, FILE *log, const struct mistake *mistake) {
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
    jsonl_write(log, line);
    free(hex);
}

static void log_result(const struct evaluator *eval, FILE *log, const struct evaluation *result,
                       const char *path) {
    char layers[CONFIG_TEXT];
    config_value(&eval->config, config_key_find("layers"), layers, sizeof layers);
    cJSON *line = jsonl_new("evaluation");
    cJSON_AddStringToObject(line, "checkpoint", path);
    cJSON_AddStringToObject(line, "data", eval->data.name);
    cJSON_AddStringToObject(line, "layers", layers);
    cJSON_AddStringToObject(line, "backend", eval->compute.backend->name);
    cJSON_AddNumberToObject(line, "test_accuracy", (double)result->correct / (double)result->total);
    jsonl_count(line, "test_correct", result->correct);
    jsonl_count(line, "test_total", result->total);
    cJSON_AddNumberToObject(line, "loss", result->loss);
    jsonl_write(log, line);
}

static enum status write_log(const struct evaluator *eval, const struct evaluation *result, const char *path,
                             const struct mistake *mistakes, size_t count) {
    const char *to = eval->config.log;
    FILE *log;
    const enum status opened = jsonl_open(&log, to);
    if (opened || !log) return opened;
    cJSON *header = jsonl_header();
    cJSON_AddStringToObject(header, "command", "eval");
    cJSON_AddStringToObject(header, "data", eval->data.name);
    cJSON_AddNumberToObject(header, "threads", eval->compute.threads);
    if (eval->compute.gpu[0]) cJSON_AddStringToObject(header, "gpu", eval->compute.gpu);
    jsonl_write(log, header);
    log_result(eval, log, result, path);
    log_confusion(eval, log);
    for (size_t i = 0; i < count; i++) log_mistake(eval, log, &mistakes[i]);
    return jsonl_close(log, to, STATUS_OK);
}

/* --- the report --- */

static enum status print_report(struct evaluator *eval, const struct evaluation *result, const char *path) {
    const struct dataset *test = &eval->data.test;
    const size_t classes = mlp_last(&eval->mlp)->out;
    uint32_t *counts = calloc(classes * classes, sizeof *counts);
    char layers[CONFIG_TEXT];
    if (!counts) return status_set(STATUS_FAILED, "out of memory");
    config_value(&eval->config, config_key_find("layers"), layers, sizeof layers);
    printf("checkpoint  %s: %s, %s, %s\n", path, layers, config_choice("activation", eval->config.activation),
           dtype_name(eval->mlp.dtype));
    printf("data        %s, %s test images; backend %s (%s)\n", eval->data.name,
           text_grouped(test->count).text, eval->compute.backend->name, eval->compute.description);
    printf("accuracy    %s +- %.2f (binomial standard error)\n",
           console_accuracy(result->correct, result->total).text, console_binomial_error(result));
    printf("loss        %.6f\n\n", result->loss);
    confusion_count(counts, classes, test->labels, eval->predictions.label, test->count);
    confusion_print(stdout, counts, classes);
    free(counts);
    return STATUS_OK;
}

static enum status evaluate(struct evaluator *eval, const char *path, size_t wanted) {
    struct evaluation result;
    enum status status = open_evaluator(eval, path);
    if (!status) status = samples_evaluate(&eval->test, &eval->mlp, eval->tally, &result, &eval->predictions);
    if (!status) status = print_report(eval, &result, path);
    if (status) return status;

    size_t found;
    struct mistake *mistakes = find_mistakes(eval, &found);
    if (!mistakes) return status_set(STATUS_FAILED, "out of memory");
    if (wanted) status = print_mistakes(eval, mistakes, found, wanted);
    const size_t logged = wanted && wanted < found  ? wanted
                          : found < LOGGED_MISTAKES ? found
                                                    : LOGGED_MISTAKES;
    if (!status) status = write_log(eval, &result, path, mistakes, logged);
    free(mistakes);
    return status ? status : console_check_target(&eval->config, &result);
}

static enum status run_eval(int argc, char **argv) {
    static struct evaluator eval; /* zero */
    static const char *const keys[] = {"data",       "backend",         "threads", "layers",
                                       "activation", "target-accuracy", "log",     NULL};
    const char *path = NULL, *misclassified = NULL;
    const struct option_extra extras[] = {
        {"misclassified", "K", "also print the K most confident mistakes as small pictures", &misclassified},
    };
    const struct option_set set = {
        .usage = "eval CHECKPOINT [--data DIR] [--misclassified K]...",
        .details = "Evaluates a safetensors checkpoint on the test set: accuracy, loss, confusion matrix, "
                   "precision and recall.\n"
                   "Network and data are those that it was trained with, unless a flag says otherwise.",
        .keys = keys,
        .extras = extras,
        .extra_count = sizeof extras / sizeof *extras,
        .positional = &path,
    };
    bool help;
    int64_t mistakes = 0;
    enum status status = options_parse(&set, argc, argv, &eval.config, &help);
    if (status || help) return status;
    if (!path) return status_set(STATUS_USAGE, "eval needs a checkpoint: train eval model.safetensors");
    if (misclassified && (!text_parse_int(misclassified, &mistakes) || mistakes < 0))
        return status_set(STATUS_USAGE, "--misclassified must be a whole number from 0, not '%s'",
                          misclassified);
    status = evaluate(&eval, path, (size_t)mistakes);
    close_evaluator(&eval);
    return status;
}

const struct command command_eval = {"eval", "evaluate a checkpoint on the test set", run_eval};
