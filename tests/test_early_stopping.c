/* Early stopping: the epoch at which it stops, the weights that it keeps, and its resume. */
#include "tests/training_bench.h"

#include <stdio.h>

struct watch {
    struct evaluation epoch[100];
    size_t epochs;
};

static void on_epoch(void *self, const struct epoch_record *record) {
    struct watch *watch = self;
    watch->epoch[watch->epochs++] = record->average.total ? record->average : record->evaluation;
}

static void the_best_epoch_is_kept(void **state) {
    (void)state;
    enum { PATIENCE = 3, EPOCHS = 60 };
    static const char *const ways[] = {"", "ema-decay=0.5", "precision=bf16"};
    for (size_t w = 0; w < 3; w++) {
        static const char recipe[] =
            "backend=serial threads=1 layers=42-30-4 batch-size=16 lr=0.5 validation=20";
        struct bench stopped, until_best;
        struct run_summary summary, plain;
        struct watch watch = {.epochs = 0};
        const struct trainer_observer observer = {.self = &watch, .epoch = on_epoch};
        char settings[400];
        snprintf(settings, sizeof settings, "%s %s epochs=%d patience=%d", recipe, ways[w], EPOCHS, PATIENCE);
        bench_open(&stopped, settings, NULL);
        assert_status(trainer_run(&stopped.trainer, &observer, &summary), STATUS_OK);
        size_t best = 0, last = 0;
        for (; last < EPOCHS && (last == 0 || last - best <= PATIENCE); last++) {
            const struct evaluation *now = &watch.epoch[last], *then = &watch.epoch[best];
            if (now->correct > then->correct || (now->correct == then->correct && now->loss < then->loss))
                best = last;
        }
        assert_true(last < EPOCHS && best > 0); /* it stopped early, after an improvement */
        assert_int_equal(watch.epochs, last);
        assert_int_equal(summary.best_epoch, best + 1);
        assert_true(summary.stopped_early && summary.epochs == last);

        snprintf(settings, sizeof settings, "%s %s epochs=%zu", recipe, ways[w], best + 1);
        bench_open(&until_best, settings, NULL);
        assert_status(bench_run(&until_best, &plain), STATUS_OK);
        const size_t bytes = stopped.trainer.mlp.parameter_elements * sizeof(float);
        assert_memory_equal(stopped.trainer.mlp.parameters, until_best.trainer.mlp.parameters, bytes);
        if (w == 1)
            assert_memory_equal(stopped.trainer.optimizer.average, until_best.trainer.optimizer.average,
                                bytes);
        assert_memory_equal(&summary.test, &plain.test, sizeof plain.test);
        bench_close(&stopped);
        bench_close(&until_best);
    }
}

/* Interrupted anywhere and resumed, it ends at the same epoch with the same weights. */
static void early_stopping_is_resumed(void **state) {
    (void)state;
    static const char recipe[] =
        "backend=serial threads=1 engine=eager layers=42-30-4 batch-size=16 lr=0.5 validation=20 epochs=60 "
        "ema-decay=0.5 patience=3";
    struct bench whole;
    struct run_summary summary;
    char settings[400];
    const char *path = support_path("stopping.safetensors");
    bench_open(&whole, recipe, NULL);
    assert_status(bench_run(&whole, &summary), STATUS_OK);
    const size_t steps = summary.epochs * whole.trainer.steps;
    snprintf(settings, sizeof settings, "%s save=%s", recipe, path);
    for (size_t stop = 1; stop < steps; stop += steps / 7 + 1) {
        struct bench first, second;
        struct run_summary resumed;
        struct checkpoint checkpoint;
        bench_open(&first, settings, NULL);
        first.stop_after = stop;
        assert_status(bench_run(&first, &resumed), STATUS_INTERRUPTED);
        assert_int_equal(resumed.best_epoch, 0); /* the weights are the last ones */
        bench_close(&first);
        assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
        bench_open(&second, recipe, &checkpoint);
        checkpoint_close(&checkpoint);
        assert_status(bench_run(&second, &resumed), STATUS_OK);
        assert_true(resumed.best_epoch == summary.best_epoch && resumed.stopped_early);
        bench_assert_same_network(&whole.trainer.mlp, &second.trainer.mlp);
        bench_close(&second);
    }
    /* a finished run that is resumed trains nothing */
    struct bench again;
    struct run_summary nothing;
    struct checkpoint checkpoint;
    assert_status(trainer_save(&whole.trainer, path), STATUS_OK);
    assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
    bench_open(&again, recipe, &checkpoint);
    checkpoint_close(&checkpoint);
    assert_status(bench_run(&again, &nothing), STATUS_OK);
    assert_int_equal(nothing.epochs, 0);
    bench_assert_same_network(&whole.trainer.mlp, &again.trainer.mlp);
    bench_close(&again);
    bench_close(&whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_epoch_is_kept),
        cmocka_unit_test(early_stopping_is_resumed),
    };
    return cmocka_run_group_tests_name("early stopping", tests, NULL, NULL);
}
