#include "tests/curves.h"

#include <stdio.h>

#include "tests/reference/curves.h"

enum { STEPS = 50 };

size_t curves_count(void) {
    return sizeof expected_curves / sizeof *expected_curves;
}

bool curves_have(const char *activation) {
    for (size_t curve = 0; curve < curves_count(); curve++)
        if (strcmp(expected_curves[curve].activation, activation) == 0) return true;
    return false;
}

static void recipe_of(size_t curve, char *settings, size_t size) {
    const int batch = expected_curves[curve].batch, steps = (50 + batch - 1) / batch; /* of an epoch */
    snprintf(
        settings, size,
        "layers=42-9-8-4 batch-size=%d epochs=%d lr=0.1 shuffle=off log-steps=50 activation=%s momentum=%g "
        "weight-decay=%g input-range=%s",
        batch, (STEPS + steps - 1) / steps, expected_curves[curve].activation,
        expected_curves[curve].momentum, expected_curves[curve].weight_decay,
        expected_curves[curve].input_range);
}

static void open_curve(struct bench *bench, const char *recipe, const char *how) {
    char settings[600];
    snprintf(settings, sizeof settings, "%s %s", recipe, how);
    bench_open(bench, settings, NULL);
    support_set_builtin_weights(&bench->trainer.mlp);
}

void curves_check(size_t curve, const char *how) {
    struct bench bench;
    struct run_summary summary;
    char recipe[300], all[256];
    recipe_of(curve, recipe, sizeof recipe);
    snprintf(all, sizeof all, "%s dtype=f64", how);
    open_curve(&bench, recipe, all);
    assert_status(bench_run(&bench, &summary), STATUS_OK);
    assert_int_equal(bench.steps, STEPS);
    for (size_t s = 0; s < STEPS; s++) assert_near(bench.losses[s], expected_curves[curve].loss[s], 1e-10);
    bench_close(&bench);
}

struct lockstep_seen curves_check_steps(size_t curve, const char *how, const struct lockstep_bound *bound) {
    struct bench exact, bench;
    char recipe[300];
    recipe_of(curve, recipe, sizeof recipe);
    open_curve(&exact, recipe, "backend=serial threads=1 dtype=f64");
    open_curve(&bench, recipe, how);
    const struct lockstep_seen seen = lockstep_check(&bench, &exact, recipe, bound);
    assert_true(seen.steps >= STEPS);
    bench_close(&exact);
    bench_close(&bench);
    return seen;
}

void curves_check_equal(size_t curve, const char *how, const char *other) {
    struct bench benches[2];
    struct run_summary summary;
    char recipe[300];
    recipe_of(curve, recipe, sizeof recipe);
    for (int b = 0; b < 2; b++) {
        open_curve(&benches[b], recipe, b ? other : how);
        assert_status(bench_run(&benches[b], &summary), STATUS_OK);
    }
    assert_memory_equal(benches[0].losses, benches[1].losses, STEPS * sizeof *benches[0].losses);
    for (int b = 0; b < 2; b++) bench_close(&benches[b]);
}
