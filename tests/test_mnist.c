/* Real MNIST, if it is in data/mnist: the reader on the real files, and training that learns. */
#include "tests/support.h"

#include <stdio.h>
#include <unistd.h>

#include "src/nn/trainer.h"

static struct dataset_pair pair;
static bool there;

static int load(void **state) {
    (void)state;
    there = dataset_load(&pair, "data/mnist", (struct dataset_options){0}) == STATUS_OK;
    return 0;
}

static int unload(void **state) {
    (void)state;
    dataset_pair_free(&pair);
    return 0;
}

static void need_mnist(void) {
    if (there) return;
    print_message("skipped: no MNIST (data/fetch.sh downloads it): %s\n", status_message());
    skip();
}

static void files_are_the_known_ones(void **state) {
    (void)state;
    need_mnist();
    assert_true(pair.train.count == 60000 && pair.test.count == 10000 && pair.train.classes == 10);
    assert_true(pair.train.height == 28 && pair.train.width == 28);
    static const uint8_t first[] = {5, 0, 4, 1, 9, 2, 1, 3};
    assert_memory_equal(pair.train.labels, first, sizeof first);
    uint64_t sum = 0; /* the mean pixel of the training set is 33.3184 */
    for (size_t i = 0; i < pair.train.count * 784; i++) sum += pair.train.images[i];
    assert_near((double)sum / (double)(pair.train.count * 784), 33.3184, 1e-4);
}

/* One epoch of 784-32-10 gives about 91.5 %. */
static void one_epoch_on(const char *backend) {
    struct config config;
    struct compute compute;
    struct trainer trainer;
    struct run_summary summary;
    const struct trainer_observer nobody = {0};
    need_mnist();
    support_config(&config, "layers=784-32-10 epochs=1 lr=0.2");
    support_open(&compute, backend, 2);
    assert_status(trainer_open(&trainer, &compute, &config, &pair, NULL), STATUS_OK);
    assert_status(trainer_run(&trainer, &nobody, &summary), STATUS_OK);
    trainer_close(&trainer);
    compute_close(&compute);
    assert_int_equal(summary.test.total, 10000);
    assert_in_range(summary.test.correct, 9000, 9500);
}

static void one_epoch_serial(void **state) {
    (void)state;
    one_epoch_on("serial");
}

static void one_epoch_openmp(void **state) {
    (void)state;
    one_epoch_on("openmp");
}

static void one_epoch_openblas(void **state) {
    (void)state;
    one_epoch_on("openblas");
}

static void one_epoch_tuned(void **state) {
    (void)state;
    one_epoch_on("tuned");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_the_known_ones), cmocka_unit_test(one_epoch_serial),
        cmocka_unit_test(one_epoch_openmp),         cmocka_unit_test(one_epoch_openblas),
        cmocka_unit_test(one_epoch_tuned),
    };
    return cmocka_run_group_tests_name("mnist", tests, load, unload);
}
