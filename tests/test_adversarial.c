/* Adversarial training: the gradient of a whole step and the adversarial images against finite differences,
   every host backend against serial, counts of work and images. */
#include "tests/training_bench.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 16, PIXELS = 42 };
static const double AMOUNT = 0.125, SMOOTHING = 0.1;

static const char *const networks[] = {
    "activation=relu", "activation=tanh dropout=0.3", "activation=relu dropout=0.3 input-dropout=0.2",
    "activation=gelu input-dropout=0.2", "activation=tanh input-range=-1,1"};
enum { NETWORKS = sizeof networks / sizeof *networks };

/* Opens a training with the order and scalars of the first step on the device. */
static void open_step(struct bench *bench, const char *network, const char *how) {
    char settings[400];
    snprintf(settings, sizeof settings,
             "engine=eager layers=42-9-7-4 init=uniform batch-size=%d epochs=2 adversarial=%g "
             "label-smoothing=%g %s %s",
             ROWS, AMOUNT, SMOOTHING, network, how);
    bench_open(bench, settings, NULL);
    trainer_begin_epoch(&bench->trainer);
}

/* The loss J of these images in the first step, with dropout. */
static double loss_of(struct bench *bench, const double *images) {
    struct mlp *mlp = &bench->trainer.mlp;
    const struct mlp_layer *last = mlp_last(mlp);
    struct tally tally = {0};
    double loss;
    memcpy(mlp->input, images, ROWS * PIXELS * sizeof *images);
    assert_status(mlp_forward(mlp, ROWS, bench->trainer.feed.scalars), STATUS_OK);
    mlp->ops->softmax_cross_entropy(bench->compute.device.ops_context, ROWS, ROWS, last->out, SMOOTHING,
                                    last->output, mlp->labels, NULL, &loss, &tally, true);
    return loss;
}

/* (J(x) + J(x')) / 2; x' is a constant. */
static double objective(struct bench *bench, const double *images, const double *attacked) {
    return (loss_of(bench, images) + loss_of(bench, attacked)) / 2;
}

/* Central difference with *value +- 1e-6: the slope of J(images), or of the objective. */
static double slope(struct bench *bench, double *value, const double *images, const double *attacked) {
    const double kept = *value, h = 1e-6;
    *value = kept + h;
    const double above = attacked ? objective(bench, images, attacked) : loss_of(bench, images);
    *value = kept - h;
    const double below = attacked ? objective(bench, images, attacked) : loss_of(bench, images);
    *value = kept;
    return (above - below) / (2 * h);
}

/* Every pixel has moved by AMOUNT of its range towards the larger loss. If the slope of a pixel is 0
   (inactive units, dropout), it may have moved by up to that. */
static void check_images(struct bench *bench, double *images, const double *attacked) {
    const double amount = bench->config.input_range == INPUT_SIGNED ? 2 * AMOUNT : AMOUNT;
    size_t up = 0, down = 0;
    for (size_t i = 0; i < ROWS * PIXELS; i++) {
        const double rises = slope(bench, &images[i], images, NULL), moved = attacked[i] - images[i];
        if (fabs(rises) > 1e-7) {
            assert_near(moved, rises > 0 ? amount : -amount, 1e-12);
            up += rises > 0;
            down += rises < 0;
        } else {
            assert_true(fabs(moved) < amount + 1e-12);
        }
    }
    assert_true(up > ROWS * PIXELS / 8 && down > ROWS * PIXELS / 8);
}

static void a_step_matches_finite_differences(void **state) {
    (void)state;
    for (size_t n = 0; n < NETWORKS; n++) {
        struct bench bench;
        open_step(&bench, networks[n], "backend=serial threads=1 dtype=f64");
        struct trainer *trainer = &bench.trainer;
        struct mlp *mlp = &trainer->mlp;
        const size_t count = mlp->parameter_elements;
        double images[ROWS * PIXELS], attacked[ROWS * PIXELS], *weights = mlp->parameters;
        double *gradient = malloc(count * sizeof *gradient);
        assert_non_null(gradient);
        mlp->ops->gather(bench.compute.device.ops_context, ROWS, PIXELS, trainer->train.range,
                         trainer->train.images, trainer->train.labels, trainer->feed.order, mlp->input,
                         mlp->labels);
        memcpy(images, mlp->input, sizeof images);
        assert_status(engine_gradients(trainer, 0, ROWS), STATUS_OK);
        memcpy(attacked, mlp->input, sizeof attacked);
        memcpy(gradient, mlp->gradients, count * sizeof *gradient);

        assert_near(trainer->losses[0], loss_of(&bench, images), 1e-14); /* of the original images */
        assert_true(loss_of(&bench, attacked) > loss_of(&bench, images));
        assert_true(trainer->tally->images == ROWS && trainer->tally->batches == 1);
        check_images(&bench, images, attacked);
        size_t live = 0;
        for (size_t i = 0; i < count; i++) {
            assert_near(gradient[i], slope(&bench, &weights[i], images, attacked), 1e-8);
            live += fabs(gradient[i]) > 1e-5;
        }
        assert_true(live > mlp_parameter_count(mlp) / 2); /* zeros would pass, too */
        free(gradient);
        bench_close(&bench);
    }
}

/* On every host backend, with and without fusion, the gradients equal those of serial in float64, which the
   test above checks. */
static void every_backend_has_the_same_gradients(void **state) {
    (void)state;
    static const char *const dtypes[] = {"f32", "f64"};
    for (size_t entry = 0; entry < registry_count(); entry++) {
        char why[256], how[100];
        if (!support_on_host(registry_at(entry)) || !registry_usable(registry_at(entry), why, sizeof why))
            continue;
        for (size_t n = 0; n < NETWORKS; n++)
            for (size_t d = 0; d < 2; d++) {
                struct bench want, got;
                open_step(&want, networks[n], "backend=serial threads=1 dtype=f64");
                snprintf(how, sizeof how, "backend=%s threads=2 dtype=%s", registry_at(entry)->name,
                         dtypes[d]);
                open_step(&got, networks[n], how);
                assert_status(engine_gradients(&want.trainer, 0, ROWS), STATUS_OK);
                assert_status(engine_gradients(&got.trainer, 0, ROWS), STATUS_OK);
                const struct mlp *a = &want.trainer.mlp, *b = &got.trainer.mlp;
                for (size_t l = 0; l < a->depth; l++) {
                    const struct mlp_layer *x = &a->layer[l], *y = &b->layer[l];
                    for (size_t i = 0; i < x->in * x->out; i++)
                        assert_near(dtype_get(b->dtype, y->weight_grad, i),
                                    dtype_get(GEMM_F64, x->weight_grad, i), d ? 1e-13 : 1e-5);
                    for (size_t i = 0; i < x->out; i++)
                        assert_near(dtype_get(b->dtype, y->bias_grad, i),
                                    dtype_get(GEMM_F64, x->bias_grad, i), d ? 1e-13 : 1e-5);
                }
                bench_close(&want);
                bench_close(&got);
            }
    }
}

/* A step has two forward and two backward passes, one of them with the gradient of the images; each image
   counts once. */
static void work_and_images_are_counted(void **state) {
    (void)state;
    struct bench bench;
    struct run_summary summary;
    open_step(&bench, networks[2], "backend=serial threads=1");
    assert_status(bench_run(&bench, &summary), STATUS_OK);
    const struct trainer *trainer = &bench.trainer;
    const size_t images = 2 * trainer->train.count, steps = 2 * trainer->steps;
    assert_int_equal(bench.last.train_images, trainer->train.count);
    for (size_t op = 0; op < PROFILE_OPS; op++)
        for (size_t l = 0; l < trainer->mlp.depth; l++) {
            const struct mlp_layer *layer = &trainer->mlp.layer[l];
            const struct profile_gemm *gemm = &summary.time.gemm[op][l];
            const size_t passes = op == PART_GEMM_NT - PART_GEMM_NN && l == 0 ? 1 : 2;
            assert_int_equal(gemm->calls, passes * steps);
            assert_near(gemm->flops, 2.0 * (double)(passes * images * layer->in * layer->out), 1e-12);
        }
    bench_close(&bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_matches_finite_differences),
        cmocka_unit_test(every_backend_has_the_same_gradients),
        cmocka_unit_test(work_and_images_are_counted),
    };
    return cmocka_run_group_tests_name("adversarial", tests, NULL, NULL);
}
