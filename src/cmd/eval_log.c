/* ./train eval --log. */
#include "src/base/jsonl.h"
#include "src/cmd/eval.h"

void eval_log_header(const struct evaluator *eval) {
    cJSON *header = jsonl_header();
    cJSON_AddStringToObject(header, "command", "eval");
    cJSON_AddStringToObject(header, "data", eval->data.name);
    cJSON_AddNumberToObject(header, "threads", eval->compute.threads);
    if (eval->compute.gpu[0]) cJSON_AddStringToObject(header, "gpu", eval->compute.gpu);
    jsonl_write(eval->log, header);
}

/* Keys begin with the name of the part, as in a training log: test_accuracy, validation_accuracy. */
static void add_number(const struct evaluator *eval, cJSON *line, const char *what, double value) {
    char key[64];
    snprintf(key, sizeof key, "%s_%s", eval->part, what);
    cJSON_AddNumberToObject(line, key, value);
}

void eval_log_result(const struct evaluator *eval, const char *name, const char *layers,
                     const struct evaluation *result, const struct statistics *members) {
    cJSON *line = jsonl_new("evaluation");
    cJSON_AddStringToObject(line, "checkpoint", name);
    cJSON_AddStringToObject(line, "data", eval->data.name);
    cJSON_AddStringToObject(line, "layers", layers);
    if (eval->average) cJSON_AddTrueToObject(line, "ema");
    cJSON_AddStringToObject(line, "backend", eval->compute.name);
    if (eval->tta) {
        jsonl_count(line, "tta", (size_t)eval->tta);
        cJSON_AddNumberToObject(line, "tta_strength", eval->tta_strength);
    }
    add_number(eval, line, "accuracy", (double)result->correct / (double)result->total);
    add_number(eval, line, "correct", (double)result->correct);
    add_number(eval, line, "total", (double)result->total);
    cJSON_AddNumberToObject(line, "loss", result->loss);
    if (members) {
        jsonl_count(line, "members", members->count);
        add_number(eval, line, "accuracy_mean", members->mean);
        add_number(eval, line, "accuracy_deviation", members->deviation);
    }
    jsonl_write(eval->log, line);
}

void eval_log_confusion(const struct evaluator *eval, const double *counts) {
    const size_t classes = eval->committee.classes;
    cJSON *line = jsonl_new("confusion"), *rows = cJSON_AddArrayToObject(line, "counts");
    jsonl_count(line, "classes", classes);
    cJSON *names = eval->data.classes.count ? cJSON_AddArrayToObject(line, "names") : NULL;
    for (size_t c = 0; names && c < classes; c++)
        jsonl_append(names, cJSON_CreateString(classes_label(&eval->data.classes, c).text));
    for (size_t r = 0; r < classes; r++)
        jsonl_append(rows, cJSON_CreateDoubleArray(counts + r * classes, (int)classes));
    jsonl_write(eval->log, line);
}

void eval_log_mistake(const struct evaluator *eval, size_t image, double confidence) {
    const struct dataset *set = &eval->set;
    cJSON *line = jsonl_new("mistake");
    jsonl_count(line, "image", eval->first + image);
    cJSON_AddNumberToObject(line, "label", set->labels[image]);
    cJSON_AddNumberToObject(line, "predicted", eval->predictions.label[image]);
    cJSON_AddNumberToObject(line, "confidence", confidence);
    jsonl_image(line, set->images + image * set->height * set->width, set->height, set->width);
    jsonl_write(eval->log, line);
}
