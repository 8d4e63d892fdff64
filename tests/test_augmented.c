/* Training on augmented images, test-time augmentation, and the sheet of train augment. */
#include "tests/training_bench.h"

#include <stdio.h>
#include <stdlib.h>

#define AUGMENTED \
    "layers=42-30-4 batch-size=16 lr=0.05 augment=on augment-gentle=1 augment-shift=1 log-steps=24 "

/* Each epoch has its own deformed training images; validation and test images do not change. */
static void every_epoch_has_its_images(void **state) {
    (void)state;
    struct bench bench;
    struct augment_plan plan;
    uint8_t want[50 * 42];
    bench_open(&bench, "backend=serial threads=1 validation=10 seed=3 " AUGMENTED, NULL);
    struct trainer *trainer = &bench.trainer;
    const struct augmentation recipe = augmenter_recipe(&bench.config);
    augment_plan_make(&plan, &recipe, 3, 6, 7, 6, 7);
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        trainer->state.epoch = epoch;
        trainer_begin_epoch(trainer);
        trainer->mlp.ops->augment(bench.compute.device.ops_context, &plan, (uint32_t)epoch, 40,
                                  bench.data.train.images, bench.data.train.labels, want);
        assert_memory_equal(trainer->train.images, want, 40 * 42);
    }
    assert_memory_equal(trainer->validation.images, bench.data.train.images + 40 * 42, 10 * 42);
    assert_memory_equal(trainer->test.images, bench.data.test.images, 50 * 42);
    assert_true(bench.profile.seconds[PART_AUGMENT] > 0);
    bench_close(&bench);
}

static void resume_equals_uninterrupted(void **state) {
    (void)state;
    char path[256], settings[512];
    snprintf(path, sizeof path, "%s", support_path("augmented.safetensors"));
    snprintf(settings, sizeof settings, "backend=tuned threads=2 engine=eager epochs=6 " AUGMENTED "save=%s",
             path);
    for (size_t stop = 6; stop < 24; stop += 5) { /* within epochs of 4 steps, and at the end of one */
        struct bench whole, first, second;
        struct run_summary summary;
        struct checkpoint checkpoint;
        bench_open(&whole, "backend=tuned threads=2 engine=eager epochs=6 " AUGMENTED, NULL);
        assert_status(bench_run(&whole, &summary), STATUS_OK);
        assert_true(summary.time.seconds[PART_AUGMENT] > 0);
        bench_open(&first, settings, NULL);
        first.stop_after = stop;
        assert_status(bench_run(&first, &summary), STATUS_INTERRUPTED);
        assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
        config_defaults(&second.config); /* the recipe is in the file */
        assert_status(checkpoint_recipe(&checkpoint, &second.config), STATUS_OK);
        assert_true(second.config.augment && second.config.augment_gentle.has[1] &&
                    second.config.augment_shift == 1);
        bench_open(&second, "backend=tuned threads=1 engine=eager epochs=6 " AUGMENTED, &checkpoint);
        checkpoint_close(&checkpoint);
        assert_status(bench_run(&second, &summary), STATUS_OK);
        assert_memory_equal(whole.trainer.mlp.parameters, second.trainer.mlp.parameters,
                            whole.trainer.mlp.parameter_elements * sizeof(float));
        assert_memory_equal(whole.losses + stop, second.losses + stop, (24 - stop) * sizeof(double));
        bench_close(&whole);
        bench_close(&first);
        bench_close(&second);
    }
}

/* Training, validation and test set are resized alike, with and without deformation. */
static void inputs_can_be_resized(void **state) {
    (void)state;
    struct bench bench;
    struct run_summary summary;
    for (int on = 0; on < 2; on++) {
        char settings[256];
        snprintf(settings, sizeof settings,
                 "backend=tuned threads=1 layers=81-30-4 input-size=9 validation=10 batch-size=16 epochs=2 "
                 "augment=%s",
                 on ? "on" : "off");
        bench_open(&bench, settings, NULL);
        struct augment_plan plan;
        const struct augmentation nothing = {0};
        uint8_t want[50 * 81];
        augment_plan_make(&plan, &nothing, 0, 6, 7, 9, 9);
        bench.trainer.mlp.ops->augment(bench.compute.device.ops_context, &plan, 0, 50,
                                       bench.data.train.images, bench.data.train.labels, want);
        assert_int_equal(memcmp(bench.trainer.train.images, want, 40 * 81) == 0, !on);
        assert_memory_equal(bench.trainer.validation.images, want + 40 * 81, 10 * 81);
        assert_memory_equal(bench.trainer.test.images, want, 50 * 81);
        assert_status(bench_run(&bench, &summary), STATUS_OK);
        bench_close(&bench);
    }
}

/* --- the program --- */

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

static void sheets_are_drawn(void **state) {
    (void)state;
    const char *png = support_path("sheet.png"), *pgm = support_path("sheet.pgm");
    size_t size;
    assert_int_equal(RUN("augment --data %s --show 5 --draws 3 -o %s", support_data, png), 0);
    assert_says(output, "5 images of ");
    unsigned char *bytes = support_read(png, &size);
    assert_memory_equal(bytes, "\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
    free(bytes);
    assert_int_equal(RUN("augment --data %s --show 5 --draws 3 -o %s --augment-elastic 0 --augment-rotate 0 "
                         "--augment-shear 0 --augment-scale 0",
                         support_data, pgm),
                     0);
    /* 5 rows and 4 columns of 6 x 7 pixels, enlarged 8 times, 4 apart, with 16 more behind the first column;
       each draw equals the original */
    const size_t width = 4 + 4 * (56 + 4) + 16, height = 4 + 5 * (48 + 4);
    char head[64];
    const size_t start = (size_t)snprintf(head, sizeof head, "P5\n%zu %zu\n255\n", width, height);
    bytes = support_read(pgm, &size);
    assert_int_equal(size, start + width * height);
    assert_memory_equal(bytes, head, start);
    for (size_t y = 4; y < height; y += 52)
        for (size_t column = 1; column < 4; column++)
            assert_memory_equal(bytes + start + y * width + 4, bytes + start + y * width + 20 + 60 * column,
                                56);
    free(bytes);
    assert_int_equal(RUN("augment --data %s", support_data), 2);
    assert_says(output, "augment needs a file to draw into");
    assert_int_equal(RUN("augment --data %s -o sheet.jpg", support_data), 2);
    assert_says(output, ".png or a .pgm");
    assert_int_equal(RUN("augment --data %s -o /nowhere/sheet.png", support_data), 1);
    assert_says(output, "/nowhere/sheet.png");
    assert_int_equal(RUN("augment --data %s --show 0 -o %s", support_data, png), 2);
}

static void training_describes_the_augmentation(void **state) {
    (void)state;
    assert_int_equal(
        RUN("--data %s --layers 42-16-4 --epochs 2 --threads 1 --augment on --augment-gentle 1,3",
            support_data),
        0);
    assert_says(output,
                "augment   elastic 1.5 px (sigma 5), rotate or shear 15 degrees (half for 1,3), scale 15 %");
    assert_says(output, "\n  augmentation  ");
    assert_int_equal(RUN("--data %s --layers 42-16-4 --epochs 1 --input-size 8", support_data), 2);
    assert_says(output, "have 64 pixels after input-size: set --layers 64-...");
}

/* Test-time augmentation: a committee of one network's outputs for several deformations. */
static void views_form_a_committee(void **state) {
    (void)state;
    const char *model = support_path("views.safetensors"), *log = support_path("views.jsonl");
    static char plain[1 << 16];
    size_t size;
    assert_int_equal(
        RUN("--data %s --layers 64-16-4 --epochs 3 --threads 1 --augment on --input-size 8 --save %s",
            support_data, model),
        0);
    assert_int_equal(support_run(plain, sizeof plain, "eval %s", model), 0);
    /* strength 0 changes no answer */
    assert_int_equal(RUN("eval %s --tta 3 --tta-strength 0", model), 0);
    assert_says(output, "in 3 deformations, of 0 times");
    assert_string_equal(strstr(output, "accuracy  "), strstr(plain, "accuracy  "));
    /* strength 1 changes some answers */
    assert_int_equal(RUN("eval %s --tta 5 --tta-strength 1 --augment-rotate 90 --log %s", model, log), 0);
    assert_true(strcmp(strstr(output, "accuracy  "), strstr(plain, "accuracy  ")) != 0);
    char *line = (char *)support_read(log, &size);
    line[size - 1] = '\0';
    assert_says(line, "\"tta\":5");
    free(line);
    assert_int_equal(RUN("eval %s %s --tta 2", model, model), 0); /* two views of each member */
    assert_says(output, "committee ");
    assert_int_equal(RUN("eval %s --tta 0", model), 2);
    assert_int_equal(RUN("eval %s --tta-strength 1", model), 2);
    assert_says(output, "goes with --tta");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_epoch_has_its_images),
        cmocka_unit_test(resume_equals_uninterrupted),
        cmocka_unit_test(inputs_can_be_resized),
        cmocka_unit_test(sheets_are_drawn),
        cmocka_unit_test(training_describes_the_augmentation),
        cmocka_unit_test(views_form_a_committee),
    };
    return cmocka_run_group_tests_name("augmented", tests, support_make_data, NULL);
}
