/* ./train export: a trained network in the formats of other programs. */
#include <stdio.h>
#include <stdlib.h>

#include "src/base/text.h"
#include "src/cmd/backend.h"
#include "src/cmd/command.h"
#include "src/cmd/console.h"
#include "src/cmd/options.h"
#include "src/export/c_text.h"
#include "src/export/formats.h"
#include "src/nn/samples.h"

enum { CALIBRATION = 1000 }; /* images, the first of the training set */

struct export {
    struct config config;
    const char *model, *onnx, *c, *torch, *int8, *average;
    struct checkpoint checkpoint;
    struct network network;
    struct quantized quantized;
    int64_t held_out;    /* the validation images of the recipe */
    char accuracy[1024]; /* of int8, a sentence */
};

/* --- int8: the images that set the ranges, and those that measure --- */

/* The images as the network sees them: resized to config->input_size. The caller frees them. NULL: failed. */
static uint8_t *network_images(struct export *export, struct compute *compute, const struct dataset *set) {
    struct samples samples;
    struct device *device = &compute->device;
    if (samples_open(&samples, device, &export->config, set)) return NULL;
    const size_t bytes = samples.count * samples.features;
    uint8_t *images = malloc(bytes);
    if (images) {
        device->driver->download(device, images, samples.images, bytes);
    } else {
        status_write("out of memory");
    }
    samples_close(&samples, device);
    return images;
}

/* The images that measure, a view: those of the test set. Without one, the validation images of the recipe,
   if the data are its own, or all, as `eval` does. */
static struct dataset measured_images(const struct export *export, const struct dataset_pair *data) {
    struct dataset train = data->train;
    const bool own = config_origin_of(&export->config, "data") <= FROM_CHECKPOINT;
    const size_t held_out = own ? (size_t) export->held_out : 0;
    if (data->test.count) return data->test;
    return held_out && held_out < train.count ? dataset_split(&train, held_out) : train;
}

static enum status quantize(struct export *export, const struct dataset_pair *data, struct compute *compute) {
    struct network *network = &export->network;
    struct quantized_accuracy accuracy;
    const struct dataset measured = measured_images(export, data);
    struct dataset first = data->train; /* a view */
    if (first.count > CALIBRATION) first.count = CALIBRATION;
    uint8_t *images = network_images(export, compute, &first);
    if (!images) return STATUS_FAILED;
    enum status status = quantized_make(&export->quantized, network, images, first.count);
    free(images);
    if (status) return status;
    images = network_images(export, compute, &measured);
    if (!images) return STATUS_FAILED;
    status =
        quantized_measure(&export->quantized, network, images, measured.labels, measured.count, &accuracy);
    free(images);
    snprintf(export->accuracy, sizeof export->accuracy, "int8: %s, float32: %s, %s answers differ; %s%s",
             console_accuracy(accuracy.correct, measured.count).text,
             console_accuracy(accuracy.correct_float, measured.count).text,
             text_grouped(accuracy.different).text, data->name,
             data->test.count                     ? ""
             : measured.count < data->train.count ? ", validation images"
                                                  : ", all images");
    return status;
}

static enum status make_int8(struct export *export) {
    struct dataset_pair data = {0};
    struct compute compute = {0};
    enum status status =
        dataset_load(&data, export->config.data, config_dataset(&export->config, DATASET_ALL));
    if (!status) status = checkpoint_adopt_classes(&export->checkpoint, &data);
    if (!status) status = config_check_data(&export->config, &data);
    if (status) status = status_context(status, "--int8 measures the network on images (--data)");
    if (!status) status = backend_open(&export->config, &compute);
    if (!status) status = quantize(export, &data, &compute);
    dataset_pair_free(&data);
    compute_close(&compute);
    return status;
}

/* --- outputs, each with what its user must know --- */

static enum status write_onnx(const struct export *export) {
    const size_t *width = export->network.layers.width;
    const enum status status = onnx_write(&export->network, export->onnx);
    if (!status)
        printf("onnx    %s (opset %d)\n        input pixels, uint8 [batch, %zu]\n"
               "        outputs probabilities and logits, float [batch, %zu]\n",
               export->onnx, ONNX_OPSET, width[0], width[export->network.depth]);
    return status;
}

static enum status write_c(const struct export *export) {
    char name[C_NAME];
    const struct quantized *quantized = export->int8 ? &export->quantized : NULL;
    const struct c_memory memory = c_memory(&export->network, quantized);
    const enum status status =
        c_write(&export->network, quantized, export->int8 ? export->accuracy : NULL, export->c);
    if (status) return status;
    c_name(export->c, name);
    printf("c       %s\n        int %s_predict(const unsigned char *pixels, %s);\n", export->c, name,
           quantized ? "int32_t *scores" : "float *probabilities");
    if (export->network.classes.count)
        printf("        extern const char *const %s_class[%zu];\n", name,
               export->network.layers.width[export->network.depth]);
    printf("        %s bytes of constants (flash), %s of stack (RAM)\n", text_grouped(memory.constants).text,
           text_grouped(memory.stack).text);
    if (quantized) printf("        %s\n", export->accuracy);
    return STATUS_OK;
}

static enum status write_torch(const struct export *export) {
    char *module = torch_sequential(&export->network);
    enum status status = module ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    if (!status) status = torch_write(&export->network, export->torch);
    if (!status) printf("torch   %s, the state dict of\n        %s\n", export->torch, module);
    free(module);
    return status;
}

static enum status write_all(struct export *export) {
    char description[512];
    network_describe(&export->network, description, sizeof description);
    printf("model   %s: %s%s\n", export->model, description,
           export->average ? ", moving average of the weights" : "");
    if (export->network.rounded) printf("        ONNX and C have its float64 weights rounded to float32\n");
    enum status status = export->int8 ? make_int8(export) : STATUS_OK;
    if (!status && export->onnx) status = write_onnx(export);
    if (!status && export->c) status = write_c(export);
    if (!status && export->torch) status = write_torch(export);
    return status;
}

/* --- the command --- */

static enum status read_network(struct export *export) {
    struct config *config = &export->config;
    enum status status = checkpoint_open(&export->checkpoint, export->model);
    if (!status) status = checkpoint_recipe(&export->checkpoint, config);
    export->held_out = config->validation;
    config_for_inference(config);
    return status ? status : network_read(&export->network, &export->checkpoint, config, export->average);
}

static enum status check_files(struct export *export) {
    struct files files = {0};
    files_add(&files, "the checkpoint", export->model, FILE_READ);
    files_add(&files, "--onnx", export->onnx, FILE_WRITTEN);
    files_add(&files, "--c", export->c, FILE_WRITTEN);
    files_add(&files, "--torch", export->torch, FILE_WRITTEN);
    return options_check_files(&files, &export->config);
}

static enum status run_export(int argc, char **argv) {
    static struct export export;
    static const char *const keys[] = {"data", "activation", "input-size", "input-range", NULL};
    const struct option_extra extras[] = {
        {"onnx", "FILE", "an ONNX model: input pixels, uint8 [batch, N]; outputs probabilities and logits",
         &export.onnx},
        {"c", "FILE",
         "or --c: one C99 file without malloc and libraries but libm: int NAME_predict(const unsigned char "
         "*pixels, float *probabilities); NAME is that of the file",
         &export.c},
        {"int8", NULL,
         "with --c: int8 weights and integer arithmetic, for microcontrollers. The ranges are those of the "
         "first "
         "1,000 training images, and the accuracy on the test set is measured (--data), or on the validation "
         "images if there is none",
         &export.int8},
        {"torch", "FILE",
         "the state dict of an nn.Sequential, in safetensors: 0.weight, 0.bias, 2.weight, ..", &export.torch},
        {"ema", NULL, "export the moving average of the weights (see ./train --ema-decay)", &export.average},
    };
    const struct option_set set = {
        .usage = "export CHECKPOINT [--onnx FILE] [--c FILE [--int8]] [--torch FILE] [--ema]",
        .details = "Writes the network of a checkpoint in the formats of other programs. ONNX and C take the "
                   "pixels of an "
                   "image as bytes from 0 to 255, row by row, and scale them themselves.\n"
                   "  ./train export model.safetensors --onnx digits.onnx --c digits.c",
        .keys = keys,
        OPTION_EXTRAS(extras),
        .positional = &export.model,
    };
    bool help;
    enum status status = options_parse(&set, argc, argv, &export.config, &help);
    if (status || help) return status;
    if (!export.model || (!export.onnx && !export.c && !export.torch))
        return status_set(STATUS_USAGE,
                          "export needs a checkpoint and an output: ./train export model.safetensors --onnx "
                          "model.onnx (or --c model.c, --torch model-torch.safetensors)");
    if (export.int8 && !export.c) return status_set(STATUS_USAGE, "--int8 goes with --c FILE");
    status = read_network(&export);
    if (!status) status = check_files(&export);
    if (!status) status = write_all(&export);
    quantized_free(&export.quantized);
    network_free(&export.network);
    checkpoint_close(&export.checkpoint);
    return status;
}

const struct command command_export = {"export", "write a network as ONNX, as C, or for PyTorch", run_export};
