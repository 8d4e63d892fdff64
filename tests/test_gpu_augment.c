/* Augmentation on the GPU: the pixels equal the host's, bit for bit; training deforms the next epoch's images
   while it runs. */
#include "tests/augment_bench.h"
#include "tests/gpu.h"
#include "tests/lockstep.h"

#include <stdio.h>
#include <stdlib.h>

static void pixels_of_the_host(void **state) {
    (void)state;
    struct compute host, gpu;
    gpu_open(&gpu, "cublas", &(struct compute_options){.threads = 1});
    support_open(&host, "serial", 1);
    for (size_t c = 0; c < AUGMENT_CASES; c++) {
        struct augment_images images;
        augment_images_open(&images, &augment_cases[c]);
        for (uint32_t epoch = 0; epoch < 3; epoch++) {
            uint8_t *want = augment_images_deform(&images, &host, epoch, AUGMENT_IMAGES);
            uint8_t *got = augment_images_deform(&images, &gpu, epoch, AUGMENT_IMAGES);
            assert_memory_equal(got, want, AUGMENT_IMAGES * images.to_pixels);
            free(want);
            free(got);
        }
        augment_images_close(&images);
    }
    compute_close(&host);
    compute_close(&gpu);
}

#define RECIPE \
    "layers=784-40-10 batch-size=100 lr=0.1 log-steps=100 augment=on augment-gentle=1,7 augment-shift=1 "

/* Compares the training images on the device with the host's for this epoch. */
static void check_images(struct bench *bench, uint32_t epoch) {
    struct trainer *trainer = &bench->trainer;
    struct device *device = &bench->compute.device;
    const size_t bytes = trainer->train.count * trainer->train.features;
    const struct augmentation recipe = augmenter_recipe(&bench->config);
    struct augment_plan plan;
    struct compute host;
    uint8_t *got = malloc(bytes), *want = malloc(bytes);
    assert_true(got && want);
    augment_plan_make(&plan, &recipe, (uint64_t)bench->config.seed, 28, 28, 28, 28);
    support_open(&host, "serial", 2);
    host.device.driver->ops(&host.device, GEMM_F32)
        ->augment(host.device.ops_context, &plan, epoch, trainer->train.count, bench->data.train.images,
                  bench->data.train.labels, want);
    device->driver->download(device, got, trainer->train.images, bytes);
    assert_status(device->driver->synchronize(device), STATUS_OK);
    assert_memory_equal(got, want, bytes);
    compute_close(&host);
    free(got);
    free(want);
}

/* Every engine gathers from images that were deformed during the previous epoch. In float64 the losses equal
   the host's; in float32 each step does. */
static void engines_train_on_the_images_of_the_host(void **state) {
    (void)state;
    static const char *const hows[] = {"backend=cublas engine=eager", "backend=cublas engine=graph",
                                       "backend=cuda-tuned engine=fused",
                                       "backend=cublas residency=host threads=2"};
    struct bench host;
    struct run_summary summary;
    gpu_needed();
    bench_open(&host, "backend=serial threads=2 engine=eager dtype=f64 epochs=4 " RECIPE, NULL);
    assert_status(bench_run(&host, &summary), STATUS_OK);
    for (int how = 0; how < 4; how++)
        for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++) {
            struct bench gpu;
            char settings[400];
            snprintf(settings, sizeof settings, "%s dtype=%s epochs=4 " RECIPE, hows[how],
                     dtype_name((enum gemm_dtype)dtype));
            bench_open(&gpu, settings, NULL);
            assert_status(bench_run(&gpu, &summary), STATUS_OK);
            assert_int_equal(gpu.steps, 4 * gpu.trainer.steps);
            for (size_t s = 0; s < gpu.steps && dtype == GEMM_F64; s++)
                assert_near(gpu.losses[s], host.losses[s], 1e-11);
            assert_true(summary.time.seconds[PART_AUGMENT] > 0);
            check_images(&gpu, 3);
            bench_close(&gpu);
            if (dtype == GEMM_F64) continue;

            struct bench exact;
            bench_open(&exact, "backend=serial threads=2 engine=eager epochs=4 " RECIPE, NULL);
            bench_open(&gpu, settings, NULL);
            const struct lockstep_seen seen =
                lockstep_check(&exact, &gpu, "epochs=4 " RECIPE, &lockstep_float32);
            lockstep_print(&seen);
            bench_close(&gpu);
            bench_close(&exact);
        }
    bench_close(&host);
}

static void resume_equals_uninterrupted(void **state) {
    (void)state;
    static const char *const hows[] = {"backend=cublas engine=eager", "backend=cuda-tuned engine=graph"};
    char path[256];
    gpu_needed();
    snprintf(path, sizeof path, "%s", support_path("gpu-augmented.safetensors"));
    for (size_t how = 0; how < 2; how++) {
        struct bench whole, first, second;
        struct run_summary summary;
        struct checkpoint checkpoint;
        char recipe[400], saving[700];
        snprintf(recipe, sizeof recipe, "%s epochs=4 " RECIPE, hows[how]);
        snprintf(saving, sizeof saving, "%s save=%s", recipe, path);
        bench_open(&whole, recipe, NULL);
        assert_status(bench_run(&whole, &summary), STATUS_OK);
        bench_open(&first, saving, NULL);
        first.stop_after = 3 * first.trainer.steps / 2;
        assert_status(bench_run(&first, &summary), STATUS_INTERRUPTED);
        assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
        bench_open(&second, recipe, &checkpoint);
        checkpoint_close(&checkpoint);
        assert_status(bench_run(&second, &summary), STATUS_OK);
        assert_true(whole.last.train_loss == second.last.train_loss);
        assert_int_equal(whole.last.train_correct, second.last.train_correct);
        bench_close(&whole);
        bench_close(&first);
        bench_close(&second);
    }
}

/* A resized test set equals the host's. */
static void inputs_can_be_resized(void **state) {
    (void)state;
    struct bench host, gpu;
    gpu_needed();
    bench_open(&host, "backend=serial threads=1 layers=100-10 input-size=10 epochs=0", NULL);
    bench_open(&gpu, "backend=cublas layers=100-10 input-size=10 epochs=0", NULL);
    uint8_t got[50 * 100];
    struct device *device = &gpu.compute.device;
    device->driver->download(device, got, gpu.trainer.test.images, sizeof got);
    assert_status(device->driver->synchronize(device), STATUS_OK);
    assert_memory_equal(got, host.trainer.test.images, sizeof got);
    bench_close(&host);
    bench_close(&gpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pixels_of_the_host),
        cmocka_unit_test(engines_train_on_the_images_of_the_host),
        cmocka_unit_test(resume_equals_uninterrupted),
        cmocka_unit_test(inputs_can_be_resized),
    };
    return cmocka_run_group_tests_name("gpu augment", tests, NULL, NULL);
}
