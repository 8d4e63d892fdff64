#include "tests/exported.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

#include "src/base/text.h"
#include "src/nn/checkpoint.h"
#include "src/nn/samples.h"

struct network_case {
    const char *activation, *layers, *options, *sequential;
};

static const struct network_case cases[CASES] = {
    {"relu", "42-16-4", "", "nn.Sequential(nn.Linear(42, 16), nn.ReLU(), nn.Linear(16, 4))"},
    {"none", "42-7-4", "", "nn.Sequential(nn.Linear(42, 7), nn.Identity(), nn.Linear(7, 4))"},
    {"tanh", "42-16-4", "--input-range -1,1 --lr 0.02 --ema-decay 0.9",
     "nn.Sequential(nn.Linear(42, 16), nn.Tanh(), nn.Linear(16, 4))"},
    {"scaled-tanh", "42-12-9-4", "--dropout 0.2",
     "nn.Sequential(nn.Linear(42, 12), ScaledTanh(), nn.Linear(12, 9), ScaledTanh(), nn.Linear(9, 4))"},
    {"sigmoid", "42-31-4", "--dtype f64", "nn.Sequential(nn.Linear(42, 31), nn.Sigmoid(), nn.Linear(31, 4))"},
    {"gelu", "42-10-11-12-4", "--optimizer adam --lr 0.01",
     "nn.Sequential(nn.Linear(42, 10), nn.GELU(), nn.Linear(10, 11), nn.GELU(), nn.Linear(11, 12), "
     "nn.GELU(), "
     "nn.Linear(12, 4))"},
    {"relu", "42-4", "", "nn.Sequential(nn.Linear(42, 4))"},
};

struct dataset_pair exported_data;

static void set_path(char path[256], size_t n, const char *name) {
    char file[64];
    snprintf(file, sizeof file, "%zu", n);
    mkdir(support_path(file), 0777);
    text_append(file, sizeof file, "/%s", name);
    snprintf(path, 256, "%s", support_path(file));
}

const struct exported *exported_case(size_t n) {
    static struct exported all[CASES];
    static char output[1 << 14];
    struct exported *at = &all[n];
    if (at->console[0]) return at;
    at->sequential = cases[n].sequential;
    set_path(at->model, n, "model.safetensors");
    set_path(at->onnx, n, "m.onnx");
    set_path(at->source, n, "m.c");
    set_path(at->torch, n, "torch.safetensors");
    set_path(at->integer, n, "small.c");
    assert_int_equal(
        support_run(output, sizeof output,
                    "--data %s --activation %s --layers %s --batch-size 32 --epochs 3 --init uniform "
                    "--threads 1 %s --save %s",
                    support_data, cases[n].activation, cases[n].layers, cases[n].options, at->model),
        0);
    assert_int_equal(support_run(output, sizeof output, "export %s --c %s --int8", at->model, at->integer),
                     0);
    assert_int_equal(support_run(output, sizeof output, "export %s --onnx %s --c %s --torch %s", at->model,
                                 at->onnx, at->source, at->torch),
                     0);
    snprintf(at->console, sizeof at->console, "%.2000s", output);
    return at;
}

void exported_evaluate(const struct exported *at, double *log_probability, uint8_t *label) {
    struct checkpoint checkpoint;
    struct config config;
    struct compute compute;
    struct mlp mlp;
    struct samples samples;
    struct evaluation result;
    struct predictions predictions = {.label = label, .log_probability = log_probability};
    config_defaults(&config);
    memset(log_probability, 0, IMAGES * CLASSES * sizeof *log_probability);
    support_open(&compute, "serial", 1);
    assert_status(checkpoint_open(&checkpoint, at->model), STATUS_OK);
    assert_status(checkpoint_recipe(&checkpoint, &config), STATUS_OK);
    assert_status(samples_open(&samples, &compute.device, &config, &exported_data.test), STATUS_OK);
    assert_status(mlp_open(&mlp, &compute, &config, IMAGES), STATUS_OK);
    assert_status(checkpoint_restore(&checkpoint, &mlp, NULL), STATUS_OK);
    struct tally *tally = compute.device.driver->alloc(&compute.device, sizeof *tally);
    assert_status(samples_evaluate(&samples, &mlp, tally, &result, &predictions), STATUS_OK);
    compute.device.driver->free(&compute.device, tally);
    mlp_close(&mlp);
    samples_close(&samples, &compute.device);
    checkpoint_close(&checkpoint);
    compute_close(&compute);
}

const uint8_t *exported_image(size_t i) {
    return exported_data.test.images + i * FEATURES;
}

void exported_check(const double *log_probability, size_t label, size_t i, const double *got, size_t class) {
    for (size_t c = 0; c < CLASSES; c++) assert_near(got[c], exp(log_probability[i * CLASSES + c]), 2e-6);
    if (class != label)
        assert_near(log_probability[i * CLASSES + class], log_probability[i * CLASSES + label], 1e-5);
}

int exported_open(void **state) {
    support_make_data(state);
    return dataset_load(&exported_data, support_data, (struct dataset_options){0}) != STATUS_OK;
}

int exported_close(void **state) {
    (void)state;
    dataset_pair_free(&exported_data);
    return 0;
}
