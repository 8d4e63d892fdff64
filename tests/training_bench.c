#include "tests/training_bench.h"

#include <stdlib.h>

/* Networks train on the middle of synthetic digits, or on more than that. */
static const struct part {
    size_t height, width;
} parts[] = {{24, 40}, {20, 40}, {28, 28}, {24, 26}, {20, 24}, {20, 20}, {16, 19}, {8, 8}, {4, 4}};

enum { TRAIN = 2500, TEST = 100 };

/* The middle of digits first .. first + count - 1, of 28 x 28; a wider part has its columns once more at the
   right. */
static struct dataset crop(size_t first, size_t count, struct part part) {
    static struct dataset digits; /* drawn once for all networks of a program */
    if (!digits.count) assert_status(dataset_synthesize(&digits, TRAIN + TEST, 1, 0), STATUS_OK);
    const size_t width = part.width < SYNTHETIC_SIDE ? part.width : SYNTHETIC_SIDE;
    const size_t top = (SYNTHETIC_SIDE - part.height) / 2, left = (SYNTHETIC_SIDE - width) / 2;
    struct dataset set = {
        count,        part.height, part.width, digits.classes, malloc(count * part.height * part.width),
        malloc(count)};
    assert_true(set.images && set.labels);
    memcpy(set.labels, digits.labels + first, count);
    for (size_t i = 0; i < count; i++)
        for (size_t y = 0; y < part.height; y++) {
            const uint8_t *from =
                digits.images + ((first + i) * SYNTHETIC_SIDE + y + top) * SYNTHETIC_SIDE + left;
            uint8_t *row = set.images + (i * part.height + y) * part.width;
            memcpy(row, from, width);
            memcpy(row + width, from, part.width - width);
        }
    return set;
}

void bench_prepare(struct bench *bench, const char *settings) {
    const struct gemm_backend *backend;
    *bench = (struct bench){0};
    profile_start(&bench->profile); /* before anything that counts as start-up */
    support_config(&bench->config, settings);
    if (registry_find(bench->config.backend, &backend) != STATUS_OK) {
        print_message("skipped: %s\n", status_message());
        skip();
    }
    const struct compute_options options = config_compute(&bench->config);
    assert_status(compute_open(&bench->compute, backend, &options), STATUS_OK);
    const size_t inputs = bench->config.layers.width[0], known = sizeof parts / sizeof *parts;
    size_t p = 0;
    while (p < known && parts[p].height * parts[p].width != inputs) p++;
    if (p < known) {
        const size_t batch = (size_t)bench->config.batch_size;
        const bool few = getenv("TESSERA_TEST_SLOWED") && batch <= 900;
        const size_t images = !few ? TRAIN : batch < 100 ? 100 + 8 * batch : 900;
        bench->data.train = crop(0, images, parts[p]);
        bench->data.test = crop(images, TEST, parts[p]);
    } else {
        support_builtin_data(&bench->data);
    }
}

void bench_open(struct bench *bench, const char *settings, const struct checkpoint *resume) {
    bench_prepare(bench, settings);
    bench->compute.device.profile = &bench->profile;
    assert_status(trainer_open(&bench->trainer, &bench->compute, &bench->config, &bench->data, resume),
                  STATUS_OK);
    bench->trainer.stop = &bench->stop;
}

void bench_close(struct bench *bench) {
    trainer_close(&bench->trainer);
    dataset_pair_free(&bench->data);
    compute_close(&bench->compute);
}

static void on_step(void *self, size_t step, double loss) {
    struct bench *bench = self;
    bench->losses[step - 1] = loss;
    bench->steps = step;
}

static void on_epoch(void *self, const struct epoch_record *record) {
    struct bench *bench = self;
    bench->last = *record;
    bench->epochs++;
    bench->seconds += record->seconds;
}

static void on_progress(void *self, size_t epoch, size_t step, size_t steps, double loss) {
    struct bench *bench = self;
    (void)loss;
    if (bench->stop_after && (epoch - 1) * steps + step >= bench->stop_after) bench->stop = 1;
}

enum status bench_run(struct bench *bench, struct run_summary *summary) {
    const struct trainer_observer observer = {
        .self = bench, .step = on_step, .epoch = on_epoch, .progress = on_progress};
    return trainer_run(&bench->trainer, &observer, summary);
}

void bench_assert_same_network(const struct mlp *a, const struct mlp *b) {
    const size_t bytes = a->parameter_elements * dtype_size(a->dtype);
    assert_memory_equal(a->parameters, b->parameters, bytes);
    assert_int_equal(a->state_count, b->state_count);
    for (size_t i = 0; i < a->state_count; i++) {
        assert_string_equal(a->state[i].prefix, b->state[i].prefix);
        assert_memory_equal(a->state[i].memory, b->state[i].memory, bytes);
    }
}

static void check_same(const struct evaluation *a, const struct evaluation *b) {
    assert_true(a->total > 0 && a->total == b->total && a->correct == b->correct && a->loss == b->loss);
}

void bench_check_averages(const struct ensemble *ensemble) {
    for (size_t m = 0; m < ensemble->count; m++) {
        const struct member *member = &ensemble->member[m];
        check_same(&ensemble->test.committee.member[m], &member->summary.test);
        check_same(&ensemble->test_average.committee.member[m], &member->summary.average);
        check_same(&ensemble->validation.committee.member[m], &member->last.evaluation);
        check_same(&ensemble->validation_average.committee.member[m], &member->last.average);
        assert_true(member->summary.test.loss != member->summary.average.loss);
    }
    assert_int_equal(ensemble->test_average.committee.members, ensemble->count);
    assert_int_equal(ensemble->validation_average.accuracy.count, ensemble->count);
    assert_true(ensemble->test_average.evaluation.loss > 0 &&
                ensemble->test_average.evaluation.loss != ensemble->test.evaluation.loss);
}
