/* On-line training (one image a step, pixels in [-1, 1]): every host engine, evaluation, resume, and the
   recipe in a checkpoint. tests/test_training.c has the loss curve. */
#include "tests/training_bench.h"

#include <math.h>

#define ONLINE                                                                                   \
    "layers=42-20-10-4 batch-size=1 lr=0.01 activation=scaled-tanh init=uniform init-range=0.3 " \
    "input-range=-1,1 "

/* The mean cross-entropy of a network without hidden layers, in float64. */
static double mean_loss(const struct mlp_layer *layer, const struct dataset *set) {
    const double *weight = layer->weight, *bias = layer->bias;
    double total = 0;
    for (size_t i = 0; i < set->count; i++) {
        double logit[4], sum = 0;
        for (size_t c = 0; c < 4; c++) {
            logit[c] = bias[c];
            for (size_t p = 0; p < 42; p++)
                logit[c] += (set->images[i * 42 + p] / 127.5 - 1) * weight[p * 4 + c];
            sum += exp(logit[c]);
        }
        total += log(sum) - logit[set->labels[i]];
    }
    return total / (double)set->count;
}

static void evaluation_reads_pixels_as_training_does(void **state) {
    (void)state;
    static const char *const engines[] = {"eager", "fused"};
    for (size_t e = 0; e < 2; e++) {
        struct bench bench;
        struct run_summary summary;
        char settings[256];
        snprintf(settings, sizeof settings,
                 "backend=tuned engine=%s threads=2 dtype=f64 layers=42-4 batch-size=1 lr=0.01 epochs=2 "
                 "input-range=-1,1 augment=on validation=10",
                 engines[e]);
        bench_open(&bench, settings, NULL);
        assert_status(bench_run(&bench, &summary), STATUS_OK);
        assert_near(summary.test.loss, mean_loss(&bench.trainer.mlp.layer[0], &bench.data.test), 1e-12);
        bench_close(&bench);
    }
}

/* Interrupted within an epoch, resumed with another number of threads. */
static void resume_equals_uninterrupted(void **state) {
    (void)state;
    static const char *const engines[] = {"eager", "fused"};
    const char *path = support_path("online.safetensors");
    for (size_t e = 0; e < 2; e++) {
        struct bench whole, first, second;
        struct run_summary summary;
        struct checkpoint checkpoint;
        char settings[400];
        snprintf(settings, sizeof settings, "backend=tuned threads=1 engine=%s epochs=3 " ONLINE, engines[e]);
        bench_open(&whole, settings, NULL);
        assert_string_equal(whole.trainer.engine->name, engines[e]);
        assert_status(bench_run(&whole, &summary), STATUS_OK);
        snprintf(settings, sizeof settings, "backend=tuned threads=1 engine=%s epochs=3 save=%s " ONLINE,
                 engines[e], path);
        bench_open(&first, settings, NULL);
        first.stop_after = 70;
        assert_status(bench_run(&first, &summary), STATUS_INTERRUPTED);
        assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
        config_defaults(&second.config); /* the recipe is in the file */
        assert_status(checkpoint_recipe(&checkpoint, &second.config), STATUS_OK);
        assert_true(second.config.input_range == INPUT_SIGNED && second.config.init_range == 0.3);
        snprintf(settings, sizeof settings, "backend=tuned threads=2 engine=%s epochs=3 " ONLINE, engines[e]);
        bench_open(&second, settings, &checkpoint);
        checkpoint_close(&checkpoint);
        assert_status(bench_run(&second, &summary), STATUS_OK);
        assert_memory_equal(whole.trainer.mlp.parameters, second.trainer.mlp.parameters,
                            whole.trainer.mlp.parameter_elements * sizeof(float));
        bench_close(&whole);
        bench_close(&first);
        bench_close(&second);
    }
}

/* --- the program --- */

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

static double logged(const char *path, const char *type, const char *key) {
    cJSON *line;
    assert_true(support_log(path, type, 0, &line) >= 1);
    const double value = support_number(line, key);
    cJSON_Delete(line);
    return value;
}

static void eval_takes_the_range_from_the_checkpoint(void **state) {
    (void)state;
    const char *model = support_path("signed.safetensors"), *train = support_path("train.jsonl"),
               *same = support_path("same.jsonl"), *other = support_path("other.jsonl");
    assert_int_equal(RUN("--data %s --layers 42-4 --batch-size 1 --epochs 1 --lr 0.01 --init uniform "
                         "--init-range 0.05 --input-range -1,1 --threads 1 --save %s --log %s",
                         support_data, model, train),
                     0);
    assert_int_equal(RUN("eval %s --log %s", model, same), 0);
    assert_int_equal(RUN("eval %s --input-range 0,1 --log %s", model, other), 0);
    assert_true(logged(same, "evaluation", "test_correct") == logged(train, "summary", "test_correct"));
    assert_true(logged(same, "evaluation", "loss") != logged(other, "evaluation", "loss"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation_reads_pixels_as_training_does),
        cmocka_unit_test(resume_equals_uninterrupted),
        cmocka_unit_test(eval_takes_the_range_from_the_checkpoint),
    };
    return cmocka_run_group_tests_name("online", tests, support_make_data, NULL);
}
