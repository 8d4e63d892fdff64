/* ./train eval: evaluates trained networks on the test set or a validation set. */
#include <stdio.h>
#include <stdlib.h>

#include "src/backend/registry.h"
#include "src/base/jsonl.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cmd/backend.h"
#include "src/cmd/command.h"
#include "src/cmd/console.h"
#include "src/cmd/eval.h"
#include "src/cmd/options.h"
#include "src/nn/augmenter.h"
#include "src/nn/checkpoint.h"
#include "src/report/confusion.h"
#include "src/report/image_grid.h"

enum { EVALUATION_ROWS = 1000 };

static void close_evaluator(struct evaluator *eval) {
    files_free(&eval->files);
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

/* Without a test set: the validation images of the recipe, if the data are its own; else all images. */
static void choose_part(struct evaluator *eval, int64_t held_out) {
    const bool own = config_origin_of(&eval->config, "data") <= FROM_CHECKPOINT;
    if (eval->validation || eval->data.test.count) return;
    eval->foreign = !own;
    eval->validation = own && held_out ? held_out : (int64_t)eval->data.train.count;
}

/* The images to classify. */
static enum status open_set(struct evaluator *eval, const struct checkpoint *checkpoint, int64_t held_out) {
    struct dataset train;
    enum status status =
        dataset_load(&eval->data, eval->config.data,
                     config_dataset(&eval->config, eval->validation > 0 ? DATASET_ALL : DATASET_TEST_ONLY));
    if (!status) status = checkpoint_adopt_classes(checkpoint, &eval->data);
    if (!status) status = config_check_data(&eval->config, &eval->data);
    if (status) return status;
    choose_part(eval, held_out);
    const size_t wanted = (size_t)eval->validation;
    train = eval->data.train; /* a view */
    if (wanted > train.count)
        return status_set(STATUS_USAGE, "--validation %zu: %s has %zu training images", wanted,
                          eval->data.name, train.count);
    eval->part = wanted ? "validation" : "test";
    eval->set = wanted ? dataset_split(&train, wanted) : eval->data.test;
    eval->first = wanted ? train.count : 0;
    return STATUS_OK;
}

/* Opens backend, committee and buffers; the recipe of the first network applies to all. */
static enum status open_evaluator(struct evaluator *eval, const struct checkpoint *checkpoint,
                                  int64_t held_out, size_t networks) {
    const struct config *config = &eval->config;
    const struct gemm_backend *backend;
    struct device *device = &eval->compute.device;
    enum status status = registry_find(config->backend, &backend);
    if (!status) status = open_set(eval, checkpoint, held_out);
    if (!status) status = backend_open(config, &eval->compute);
    if (!status)
        status = committee_open(&eval->committee, networks, eval->set.count,
                                config->layers.width[config->layers.count - 1]);
    if (status) return status;
    eval->tally = device->driver->alloc(device, sizeof *eval->tally);
    eval->predictions.label = malloc(eval->set.count);
    eval->predictions.confidence = malloc(eval->set.count * sizeof *eval->predictions.confidence);
    if (!eval->tally) return STATUS_FAILED;
    return eval->predictions.label && eval->predictions.confidence
               ? STATUS_OK
               : status_set(STATUS_FAILED, "out of memory");
}

/* The recipe with its amounts times the strength. augment-gentle does not apply: it depends on the label. */
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

/* Classifies each image and its deformed versions by their mean log probability. */
static enum status classify_views(struct evaluator *eval, struct samples *samples, struct mlp *mlp) {
    struct device *device = &eval->compute.device;
    const struct config recipe = view_recipe(eval);
    const struct dataset *set = &eval->set;
    struct augmenter augmenter = {0};
    struct committee views;
    enum status status = committee_open(&views, 1 + (size_t)eval->tta, set->count, mlp_last(mlp)->out);
    if (status) return status;
    status = augmenter_open(&augmenter, device, &recipe, set, samples);
    for (int64_t view = 0; view <= eval->tta && !status; view++) {
        if (view) augmenter_begin(&augmenter, device, samples, view - 1);
        status = committee_add(&views, samples, mlp, eval->tally);
    }
    if (!status) status = committee_add_group(&eval->committee, &views, set->labels);
    augmenter_close(&augmenter, device);
    committee_close(&views);
    return status;
}

static enum status classify_set(struct evaluator *eval, const struct checkpoint *checkpoint) {
    struct mlp mlp = {0};
    struct samples samples = {0};
    struct device *device = &eval->compute.device;
    enum status status = config_check_data(&eval->config, &eval->data);
    if (!status) status = samples_open(&samples, device, &eval->config, &eval->set);
    if (!status) status = mlp_open(&mlp, &eval->compute, &eval->config, EVALUATION_ROWS);
    if (!status)
        status = eval->average ? checkpoint_restore_average(checkpoint, &mlp)
                               : checkpoint_restore(checkpoint, &mlp, NULL);
    if (!status)
        status = eval->tta ? classify_views(eval, &samples, &mlp)
                           : committee_add(&eval->committee, &samples, &mlp, eval->tally);
    mlp_close(&mlp);
    samples_close(&samples, device);
    return status;
}

/* --- the report --- */

static enum status report_confusion(const struct evaluator *eval) {
    const struct dataset *set = &eval->set;
    const size_t classes = eval->committee.classes;
    double *counts = calloc(classes * classes, sizeof *counts);
    if (!counts) return status_set(STATUS_FAILED, "out of memory");
    confusion_count(counts, classes, set->labels, eval->predictions.label, set->count);
    confusion_print(stdout, counts, classes, &eval->data.classes);
    eval_log_confusion(eval, counts);
    free(counts);
    return STATUS_OK;
}

/* Warns if the network was trained on the validation images. */
static void warn_of_seen_images(const struct evaluator *eval, const struct checkpoint *checkpoint) {
    struct config own; /* of the checkpoint alone */
    config_defaults(&own);
    if (!eval->validation || eval->foreign || checkpoint_recipe(checkpoint, &own)) return;
    if (config_origin_of(&own, "validation") == FROM_DEFAULT) {
        terminal_note("warning: %s does not name its training images", checkpoint->file.path);
    } else if (own.validation < eval->validation) {
        terminal_note("warning: %s was trained on images that it is asked about: its recipe leaves the last "
                      "%lld training images out, not %lld",
                      checkpoint->file.path, (long long)own.validation, (long long)eval->validation);
    }
}

/* Evaluates the network of a checkpoint as a member of the committee. */
static enum status take_network(struct evaluator *eval, const char *path, size_t networks) {
    struct checkpoint checkpoint = {0};
    char layers[CONFIG_TEXT];
    const bool first = eval->committee.members == 0;
    eval->config = eval->flags;
    enum status status = checkpoint_open(&checkpoint, path);
    if (!status) status = checkpoint_recipe(&checkpoint, &eval->config);
    const int64_t held_out = eval->config.validation;
    config_for_inference(&eval->config);
    if (!status && first) status = options_check_files(&eval->files, &eval->config);
    if (!status && first) status = open_evaluator(eval, &checkpoint, held_out, networks);
    if (!status && first) status = logfile_open(&eval->log, eval->flags.log, false);
    if (!status && first) eval_log_header(eval);
    if (!status) status = classify_set(eval, &checkpoint);
    if (!status) warn_of_seen_images(eval, &checkpoint);
    checkpoint_close(&checkpoint);
    if (status) return networks == 1 ? status : status_context(status, "%s", path);
    const struct evaluation *result = &eval->committee.member[eval->committee.members - 1];
    config_value(&eval->config, config_key_find("layers"), layers, sizeof layers);
    terminal_print(stdout, 20, "%-19s %s: %s, %s, %s%s\n", "checkpoint", path, layers,
                   config_choice("activation", eval->config.activation),
                   dtype_name((enum gemm_dtype)eval->config.dtype),
                   eval->average ? ", moving average of the weights" : "");
    if (networks > 1)
        printf("%-19s %s, loss %.4f\n", "", console_accuracy(result->correct, result->total).text,
               result->loss);
    eval_log_result(eval, path, layers, result, NULL);
    return STATUS_OK;
}

/* Evaluates the committee, fills eval->predictions and prints both. */
static enum status print_result(struct evaluator *eval, struct evaluation *result) {
    const struct committee *committee = &eval->committee;
    char title[32], name[64];
    *result = committee_evaluate(committee, eval->set.labels, &eval->predictions);
    snprintf(title, sizeof title, "%s accuracy", eval->part);
    terminal_print(stdout, 20, "%-19s %s, %s%s %s images; backend %s (%s)\n", "data", eval->data.name,
                   eval->validation ? "the last " : "", text_grouped(eval->set.count).text,
                   eval->validation ? "training" : "test", eval->compute.name, eval->compute.description);
    if (eval->tta)
        terminal_print(
            stdout, 20,
            "%-19s each image as it is and in %lld deformations, of %g times the amounts of the recipe\n",
            "views", (long long)eval->tta, eval->tta_strength);
    if (committee->members == 1) {
        *result = committee->member[0]; /* the same but for the rounding of the loss */
        console_evaluation(title, result);
    } else {
        struct statistics members;
        const enum status status = committee_accuracy(committee, &members);
        if (status) return status;
        console_committee(title, &members, result);
        snprintf(name, sizeof name, "committee of %zu networks", members.count);
        eval_log_result(eval, name, "", result, &members);
    }
    printf("\n");
    return report_confusion(eval);
}

static enum status evaluate(struct evaluator *eval, const struct option_words *paths,
                            const struct mistakes_wanted *wanted) {
    struct evaluation result;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < paths->count && !status; i++)
        status = take_network(eval, paths->list[i], paths->count);
    if (!status) status = print_result(eval, &result);
    if (status) return status;
    status = eval_mistakes(eval, wanted);
    return status ? status : console_check_target(&eval->flags, eval->part, &result);
}

/* --- flags --- */

/* Without the flag, `value` is unchanged. */
static enum status parse_count(const char *flag, const char *text, int64_t least, int64_t most,
                               int64_t *value) {
    if (!text || (text_parse_int(text, value) && *value >= least && *value <= most)) return STATUS_OK;
    return status_set(STATUS_USAGE, "--%s must be a whole number from %lld to %lld, not '%s'", flag,
                      (long long)least, (long long)most, text);
}

static enum status parse_strength(const char *text, const struct evaluator *eval, double *strength) {
    if (!text) return STATUS_OK;
    if (!text_parse_real(text, strength) || *strength < 0 || *strength > 1)
        return status_set(STATUS_USAGE, "--tta-strength must be a number from 0 to 1, not '%s'", text);
    return eval->tta ? STATUS_OK : status_set(STATUS_USAGE, "--tta-strength goes with --tta K");
}

static enum status run_eval(int argc, char **argv) {
    static struct evaluator eval = {.tta_strength = 0.5};
    static const char *const keys[] = {"data",
                                       "label-offset",
                                       "transpose",
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
    const char *misclassified = NULL, *tta = NULL, *strength = NULL, *validation = NULL;
    struct mistakes_wanted wanted = {0};
    struct option_words paths;
    const struct option_extra extras[] = {
        {"validation", "N",
         "evaluate the last N training images instead of the test set, for model selection: networks that "
         "were trained with --validation N or more have not seen them [0: the test set; if there is none, "
         "those that the recipe held out, or all of another --data]",
         &validation},
        {"misclassified", "K", "also print the K most confident mistakes as small pictures", &misclassified},
        {"picture", "FILE",
         "draw these K mistakes, or without --misclassified all (600 at most), into a .png or a .pgm",
         &wanted.picture},
        {"tta", "K",
         "test-time augmentation: a network predicts by the mean log-probability over each image and K "
         "deformations of it",
         &tta},
        {"tta-strength", "X", "factor of the augment- keys for these deformations [0.5]", &strength},
        {"ema", NULL, "evaluate the moving average of the weights (see ./train --ema-decay)", &eval.average},
    };
    const struct option_set set = {
        .usage = "eval CHECKPOINT.. [--data DIR] [--validation N] [--misclassified K]...",
        .details =
            "Evaluates a safetensors checkpoint on the test set: accuracy, loss, confusion matrix, "
            "precision and recall.\n"
            "Flags override the network and data of the checkpoint.\n"
            "Several checkpoints: each, their mean, and the committee of all, by mean log-probability, "
            "on the data of the first; --target-accuracy applies to the committee.\n"
            "  ./train eval a.safetensors b.safetensors",
        .keys = keys,
        OPTION_EXTRAS(extras),
        .words = &paths,
    };
    bool help;
    int64_t printed = 0;
    enum status status = options_parse(&set, argc, argv, &eval.flags, &help);
    if (status || help) return status;
    if (!paths.count)
        return status_set(STATUS_USAGE, "eval needs a checkpoint: ./train eval model.safetensors");
    status = parse_count("validation", validation, 0, 1000000000, &eval.validation);
    if (!status) status = parse_count("misclassified", misclassified, 0, 1000000000, &printed);
    if (!status) status = parse_count("tta", tta, 1, 10000, &eval.tta);
    if (!status) status = parse_strength(strength, &eval, &eval.tta_strength);
    if (!status && wanted.picture) status = image_grid_check_name(wanted.picture);
    if (status) return status;
    wanted.printed = (size_t)printed;
    for (size_t i = 0; i < paths.count; i++)
        files_add(&eval.files, "the checkpoint", paths.list[i], FILE_READ);
    files_add(&eval.files, "--picture", wanted.picture, FILE_WRITTEN);
    status = evaluate(&eval, &paths, &wanted);
    close_evaluator(&eval);
    return logfile_close(eval.log, status);
}

const struct command command_eval = {"eval", "evaluate checkpoints on the test set, or a validation set",
                                     run_eval};
