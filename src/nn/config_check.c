/* Checks of keys in combination. */
#include <stdio.h>
#include <string.h>

#include "src/base/text.h"
#include "src/nn/config.h"

enum status config_check_recipe(const struct config *config) {
    const bool adam = uses_second_moment((enum update_method)config->optimizer);
    const char *optimizer = config_choice("optimizer", config->optimizer);
    if (config->nesterov && (adam || config->momentum == 0))
        return status_set(STATUS_USAGE, "nesterov needs --optimizer sgd and --momentum, such as 0.9");
    if (adam && config->momentum != 0)
        return status_set(STATUS_USAGE, "optimizer %s has beta1 instead of momentum: remove --momentum",
                          optimizer);
    if (adam && config_origin_of(config, "learning-rate") == FROM_DEFAULT)
        return status_set(STATUS_USAGE,
                          "the default learning-rate is for sgd: set --learning-rate for optimizer %s, such "
                          "as 0.001",
                          optimizer);
    if (config->warmup_steps && config->warmup_epochs > 0)
        return status_set(STATUS_USAGE, "set only one of warmup-steps and warmup-epochs");
    if (config->schedule == SCHEDULE_ONE_CYCLE && (config->warmup_steps || config->warmup_epochs > 0))
        return status_set(
            STATUS_USAGE,
            "schedule one-cycle has its own warm-up, over pct-start of the steps: remove the warm-up");
    if (config->dropout > 0 && config->layers.count < 3)
        return status_set(STATUS_USAGE, "dropout needs a hidden layer: remove it, or use --input-dropout");
    if (config->patience && !config->validation)
        return status_set(STATUS_USAGE,
                          "patience needs the validation accuracy: hold out a part of the training set with "
                          "--validation, such as 10000");
    if (config->patience && !config->evaluate_every)
        return status_set(
            STATUS_USAGE,
            "patience needs the validation accuracy, which evaluate-every = 0 computes only after "
            "the last epoch: set it to 1 or more");
    return STATUS_OK;
}

/* Every label needs an output of the network. */
static enum status check_labels(const struct dataset *set, const char *part, size_t outputs) {
    const char *hint = set->classes == outputs + 1 ? ": if the labels start at 1, use --label-offset 1" : "";
    for (size_t i = 0; i < set->count; i++)
        if (set->labels[i] >= outputs)
            return status_set(
                STATUS_BAD_DATA,
                "image %zu of the %s set has the label %u, but layers ends with %zu outputs (0 to %zu)%s", i,
                part, set->labels[i], outputs, outputs - 1, hint);
    return STATUS_OK;
}

enum status config_check_images(const struct config *config, const struct dataset *set) {
    const size_t most = AUGMENT_MOST_SIDE;
    if ((!config->augment && !config->input_size) || (set->height <= most && set->width <= most))
        return STATUS_OK;
    return status_set(STATUS_USAGE,
                      "augment and input-size support images of up to %zu x %zu pixels; these have %zu x %zu",
                      most, most, set->height, set->width);
}

enum status config_check_data(const struct config *config, const struct dataset_pair *data) {
    const struct layer_list *layers = &config->layers;
    const size_t outputs = layers->width[layers->count - 1];
    const size_t features =
        config_input_side(config, data->test.height) * config_input_side(config, data->test.width);
    const enum status recipe = config_check_recipe(config);
    if (recipe) return recipe;
    if (layers->width[0] != features)
        return status_set(
            STATUS_USAGE, "layers starts with %zu, but the images have %zu pixels%s: set --layers %zu-...",
            layers->width[0], features, config->input_size ? " after input-size" : "", features);
    if (outputs > DATASET_MAX_CLASSES)
        return status_set(STATUS_USAGE, "layers ends with %zu outputs, but a label is a byte: at most %d",
                          outputs, DATASET_MAX_CLASSES);
    if (config->precision != GEMM_TRUE && config->dtype == GEMM_F64)
        return status_set(STATUS_USAGE, "precision %s rounds float32 operands: use it with --dtype f32",
                          config_choice("precision", config->precision));
    if (data->train.count && (size_t)config->validation >= data->train.count)
        return status_set(STATUS_USAGE,
                          "validation holds out %lld of %zu training images: leave some to train on",
                          (long long)config->validation, data->train.count);
    enum status status = config_check_images(config, &data->test);
    if (!status) status = check_labels(&data->train, "training", outputs);
    return status ? status : check_labels(&data->test, "test", outputs);
}

enum status config_check_training(const struct config *config, const struct dataset_pair *data) {
    const enum status status = config_check_data(config, data);
    if (status || data->test.count || config->validation) return status;
    return status_set(STATUS_USAGE,
                      "'%s' has no test set: hold out some of its %zu images with --validation, such as "
                      "--validation %zu",
                      data->name, data->train.count, (data->train.count + 9) / 10);
}

/* --- keys without effect --- */

enum { MOST_VALUES = 3 };

#define NAME_IF_0(name)
#define NAME_IF_1(name) name,
#define NAME_IF_SECOND_MOMENT(with, ID, name, second_moment) NAME_IF_##second_moment(name)

/* Keys that have an effect only with some values of a choice. (Momentum and nesterov are not here: with
   another optimizer they are errors.) */
static const struct dependency {
    const char *choice, *values[MOST_VALUES], *keys[8];
} dependencies[] = {
    {"init", {"uniform"}, {"init-range"}},
    {"optimizer", {OPTIMIZERS(NAME_IF_SECOND_MOMENT, )}, {"beta1", "beta2", "epsilon"}},
    {"schedule", {"step"}, {"lr-step-epochs"}},
    {"schedule", {"step", "exponential"}, {"lr-gamma"}},
    {"schedule", {"cosine"}, {"lr-min"}},
    {"schedule", {"one-cycle"}, {"pct-start", "div-factor", "final-div-factor"}},
    {"augment",
     {"on"},
     {"augment-elastic", "augment-sigma", "augment-rotate", "augment-shear", "augment-gentle",
      "augment-scale", "augment-shift"}},
    {"residency", {"host"}, {"pin"}},
};

/* The condition of a dependency, as in "optimizer adam or adamw". */
static void name_values(const struct dependency *dependency, char *text, size_t size) {
    snprintf(text, size, "%s", dependency->choice);
    for (size_t v = 0; v < MOST_VALUES && dependency->values[v]; v++)
        text_append(text, size, "%s %s", v ? " or" : "", dependency->values[v]);
}

static bool has_effect(const struct config *config, const struct dependency *dependency, char *value,
                       size_t size) {
    config_value(config, config_key_find(dependency->choice), value, size);
    for (size_t v = 0; v < MOST_VALUES && dependency->values[v]; v++)
        if (strcmp(dependency->values[v], value) == 0) return true;
    return false;
}

void config_warn_unused(const struct config *config, void (*warn)(const char *line)) {
    char value[CONFIG_TEXT], wanted[128], line[CONFIG_TEXT + 256];
    for (const struct dependency *dependency = dependencies;
         dependency < dependencies + sizeof dependencies / sizeof *dependencies; dependency++) {
        if (has_effect(config, dependency, value, sizeof value)) continue;
        const enum config_origin choice = config_origin_of(config, dependency->choice);
        for (size_t k = 0; dependency->keys[k]; k++) {
            const enum config_origin key = config_origin_of(config, dependency->keys[k]);
            if (key < FROM_FILE || key < choice) continue;
            name_values(dependency, wanted, sizeof wanted);
            snprintf(line, sizeof line, "%s has no effect: it is for %s, not %s", dependency->keys[k], wanted,
                     value);
            warn(line);
        }
    }
}
