/* Trainings of cuda-tuned whose weight gradients update the weights themselves (gemm_update in
   kernels/gemm.h): which layers they update, and the same bits by every engine. Single calls:
   test_gpu_weight_update.c. */
#include "tests/gpu.h"
#include "tests/lockstep.h"

#include <math.h>
#include <stdlib.h>

/* float32: by six bf16 products, however small the product, and tf32 by three. */
static const char *const precisions[] = {"backend=cuda-tuned precision=bf16",
                                         "backend=cuda-tuned:tensor=bf16x6 precision=f32",
                                         "backend=cuda-tuned:tensor=bf16x6 precision=tf32"};
enum { PRECISIONS = 3 };

static bool updates(struct bench *bench) {
    const bool rounded = bench->trainer.mlp.activation_dtype != GEMM_F32;
    const struct gemm_call call = {.dtype = bench->trainer.mlp.activation_dtype,
                                   .c_f32 = rounded,
                                   .op = GEMM_TN,
                                   .m = 128,
                                   .n = 128,
                                   .k = 128,
                                   .alpha = 1,
                                   .lda = 128,
                                   .ldb = 128,
                                   .ldc = 128};
    const struct weight_update update = {
        .rule = {.weights = (void *)256, .rounded = rounded ? (void *)256 : NULL}};
    return compute_fuses_update(&bench->compute, &call, &update);
}

static void open_training(struct bench *bench, const char *precision, const char *settings, const char *more,
                          const struct checkpoint *resume) {
    char all[512];
    snprintf(all, sizeof all, "%s layers=784-200-136-10 batch-size=128 %s %s", precision, settings, more);
    bench_open(bench, all, resume);
    assert_true(updates(bench));
}

/* The parameters and the state of the optimiser. The caller frees them. */
static double *trained(struct bench *bench, size_t *bytes) {
    double *state = lockstep_state(&bench->trainer);
    assert_non_null(state);
    *bytes = lockstep_state_count(&bench->trainer) * sizeof *state;
    return state;
}

/* One in half precision, one of more layers than a launch has, one of a medium and one of a large batch, of
   all images: the last setting counts. */
static const char *const recipes[] = {
    "",
    "momentum=0.9 nesterov=on weight-decay=0.001",
    "optimizer=adamw lr=0.001 weight-decay=0.1 dropout=0.2 input-dropout=0.1",
    "optimizer=adam lr=0.001 precision=fp16",
    "layers=784-72-80-88-96-104-112-120-128-136-144-152-10 momentum=0.9 lr=0.01",
    "layers=784-520-512-10 batch-size=160 optimizer=adamw lr=0.001 weight-decay=0.1",
    "layers=784-4096-1024-10 batch-size=2500 momentum=0.9 lr=0.01"};
/* All of them in bf16; the first two, by sgd, in float32 and tf32. The large batch has a first layer whose
   gradient is stored, with an update beside the weight gradient of the second one. */
enum { RECIPES = 7, LARGE = 6, SGD = 2, TRAININGS = RECIPES + 2 * SGD };

static const char *recipe_of(size_t i) {
    return recipes[i < RECIPES ? i : (i - RECIPES) % SGD];
}

static const char *precision_of(size_t i) {
    return precisions[i < RECIPES ? 0 : 1 + (i - RECIPES) / SGD];
}

/* Engines eager and graph, and audits, for which gradients are stored. */
static void every_engine_has_the_same_bits(void **state) {
    (void)state;
    static const char *const ways[] = {"engine=graph audit=off", "engine=eager audit=off",
                                       "engine=eager audit=all"};
    gpu_tensor_needed();
    for (size_t i = 0; i < TRAININGS; i += support_every(3)) {
        const char *const recipe = recipe_of(i), *const precision = precision_of(i);
        double *ends[3];
        size_t bytes = 0;
        for (int way = 0; way < 3; way++) {
            struct bench bench;
            struct run_summary summary;
            char more[128];
            snprintf(more, sizeof more, "epochs=1 %s", ways[way]);
            open_training(&bench, precision, recipe, more, NULL);
            assert_status(bench_run(&bench, &summary), STATUS_OK);
            if (way == 0) assert_true(bench.trainer.mlp.layer[1].updated);
            if (way == 0) assert_true(bench.trainer.mlp.layer[0].updated != (i == LARGE));
            assert_int_equal(bench.trainer.mlp.layer[0].updated_beside, way == 0 && i == LARGE);
            assert_int_equal(bench.trainer.mlp.rest_updated, way == 0);
            ends[way] = trained(&bench, &bytes);
            bench_close(&bench);
        }
        for (int way = 1; way < 3; way++) assert_memory_equal(ends[0], ends[way], bytes);
        for (int way = 0; way < 3; way++) free(ends[way]);
    }
}

/* Of so many images that engine graph updates each layer but the first beside the products of those below. */
static void updates_beside_products_have_the_same_bits(void **state) {
    (void)state;
    static const char *const large[] = {
        "backend=cuda-tuned precision=bf16 layers=784-1024-520-10 optimizer=adamw lr=0.001",
        "backend=cuda-tuned precision=fp16 layers=784-264-200-136-10 momentum=0.9",
        "backend=cublas layers=784-264-200-136-10 ema-decay=0.9"};
    static const char *const engines[] = {"graph", "eager"};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        double *ends[2];
        size_t bytes = 0;
        for (int way = 0; way < 2; way++) {
            struct bench bench;
            struct run_summary summary;
            char all[256];
            snprintf(all, sizeof all, "%s batch-size=2500 epochs=4 engine=%s", large[i], engines[way]);
            bench_open(&bench, all, NULL);
            assert_status(bench_run(&bench, &summary), STATUS_OK);
            for (size_t l = 0; l + 1 < bench.trainer.mlp.depth; l++)
                assert_int_equal(bench.trainer.mlp.layer[l].updated_beside, way == 0 && l > 0);
            ends[way] = trained(&bench, &bytes);
            bench_close(&bench);
        }
        assert_memory_equal(ends[0], ends[1], bytes);
        for (int way = 0; way < 2; way++) free(ends[way]);
    }
}

static void resumed_training_has_the_same_bits(void **state) {
    (void)state;
    char path[256], more[300];
    gpu_tensor_needed();
    snprintf(path, sizeof path, "%s", support_path("updated.safetensors"));
    for (size_t i = 0; i < TRAININGS; i += support_every(3)) {
        const char *const recipe = recipe_of(i), *const precision = precision_of(i);
        struct bench whole, first, second;
        struct run_summary summary;
        struct checkpoint checkpoint;
        size_t bytes;
        open_training(&whole, precision, recipe, "epochs=3 engine=graph", NULL);
        assert_status(bench_run(&whole, &summary), STATUS_OK);
        snprintf(more, sizeof more, "epochs=3 engine=eager save=%s", path);
        open_training(&first, precision, recipe, more, NULL);
        first.stop_after = first.trainer.steps + (first.trainer.steps + 2) / 3;
        assert_status(bench_run(&first, &summary), STATUS_INTERRUPTED);
        assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
        open_training(&second, precision, recipe, "epochs=3 engine=graph", &checkpoint);
        checkpoint_close(&checkpoint);
        assert_status(bench_run(&second, &summary), STATUS_OK);
        double *a = trained(&whole, &bytes), *b = trained(&second, &bytes);
        assert_memory_equal(a, b, bytes);
        free(a);
        free(b);
        bench_close(&whole);
        bench_close(&first);
        bench_close(&second);
    }
}

/* Each step from the same state as in float32. */
static void steps_are_near_float32(void **state) {
    (void)state;
    gpu_tensor_needed();
    for (size_t i = 0; i < 6; i++) {
        const size_t r = i / 2;
        const bool half = i % 2;
        const struct lockstep_bound bound = lockstep_rounded(half ? 0x1p-11 : 0x1p-8);
        struct bench rounded, exact;
        char recipe[256], settings[512];
        snprintf(recipe, sizeof recipe, "layers=784-200-136-10 batch-size=128 epochs=1 %s", recipes[r]);
        open_training(&rounded, precisions[0], recipes[r],
                      half ? "epochs=1 engine=eager audit=off precision=fp16"
                           : "epochs=1 engine=eager audit=off",
                      NULL);
        snprintf(settings, sizeof settings, "backend=cublas engine=eager %s", recipe);
        bench_open(&exact, settings, NULL);
        const struct lockstep_seen seen = lockstep_check(&exact, &rounded, recipe, &bound);
        lockstep_print(&seen);
        bench_close(&rounded);
        bench_close(&exact);
    }
}

/* Whether the products of the hidden layers updated the weights in the last step. The output layer is one
   kernel. */
static void only_where_no_gradient_is_needed(void **state) {
    (void)state;
    static const struct {
        const char *recipe;
        bool hidden[PRECISIONS];
    } cases[] = {{"", {true, true, true}},    {"optimizer=adamw lr=0.001", {true, false, false}},
                 {.recipe = "clip-norm=1"},   {.recipe = "max-norm=2"},
                 {.recipe = "ema-decay=0.9"}, {.recipe = "adversarial=0.1"},
                 {.recipe = "audit=all"}};
    gpu_tensor_needed();
    for (size_t i = 0; i < PRECISIONS * sizeof cases / sizeof *cases; i++) {
        struct bench bench;
        struct run_summary summary;
        const size_t p = i % PRECISIONS, c = i / PRECISIONS;
        open_training(&bench, precisions[p], cases[c].recipe, "epochs=1 engine=eager", NULL);
        assert_status(bench_run(&bench, &summary), STATUS_OK);
        if (cases[c].hidden[0]) { /* an audit may have been due in the last step */
            size_t one = 1;
            bench.trainer.audit.mode = AUDIT_OFF;
            trainer_begin_epoch(&bench.trainer);
            assert_status(engine_eager.run(&bench.trainer, 0, &one), STATUS_OK);
        }
        for (size_t l = 0; l < 3; l++)
            assert_int_equal(bench.trainer.mlp.layer[l].updated, l < 2 && cases[c].hidden[p]);
        bench_close(&bench);
    }
}

/* A step whose loss is not finite, here the first one, changes neither weights nor moments. */
static void a_bad_step_changes_no_weight(void **state) {
    (void)state;
    gpu_tensor_needed();
    for (size_t i = 0; i < PRECISIONS; i++) {
        struct bench bench;
        struct run_summary summary;
        size_t bytes;
        open_training(&bench, precisions[i], recipes[1], "epochs=1 engine=graph", NULL);
        double *before = trained(&bench, &bytes);
        before[mlp_parameter_count(&bench.trainer.mlp) - 1] = INFINITY; /* of the output layer */
        assert_true(lockstep_set_state(&bench.trainer, before));
        assert_status(bench_run(&bench, &summary), STATUS_FAILED);
        assert_says(status_message(), "the loss is not finite at epoch 1, step 1");
        double *after = trained(&bench, &bytes);
        assert_memory_equal(before, after, bytes);
        free(before);
        free(after);
        bench_close(&bench);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_engine_has_the_same_bits),
        cmocka_unit_test(updates_beside_products_have_the_same_bits),
        cmocka_unit_test(resumed_training_has_the_same_bits),
        cmocka_unit_test(steps_are_near_float32),
        cmocka_unit_test(only_where_no_gradient_is_needed),
        cmocka_unit_test(a_bad_step_changes_no_weight),
    };
    return cmocka_run_group_tests_name("gpu weight update, training", tests, NULL, NULL);
}
