/* The output layer of a training step at once (output_layer in kernels/gemm.h): against sums in double,
   the same bits every time. */
#include "tests/gpu_output.h"

#include <math.h>

static const enum gemm_dtype types[] = {GEMM_BF16, GEMM_F32};
enum { TYPES = sizeof types / sizeof *types };

/* As run_layer, for the tally alone. */
static bool run_for_tally(struct compute *compute, const struct output_shape *shape, struct tally *tally) {
    struct output_operands operands = output_operands_of(shape);
    struct output_outcome outcome;
    const bool done = output_run(compute, shape, &operands, &outcome);
    *tally = outcome.tally;
    output_outcome_close(&outcome);
    output_operands_close(&operands);
    return done;
}

static void open_output(struct compute *compute, enum gemm_dtype dtype) {
    gpu_tensor_needed();
    const struct output_shape small = {.dtype = dtype, .rows = 16, .units = 16, .classes = 2, .alpha = 1};
    const struct compute_options options = {.threads = 2,
                                            .precision = dtype == GEMM_BF16  ? GEMM_MIXED_BF16
                                                         : dtype == GEMM_F16 ? GEMM_MIXED_F16
                                                                             : GEMM_TRUE};
    gpu_open(compute, "cuda-tuned", &options);
    assert_true(run_for_tally(compute, &small, &(struct tally){0}));
}

/* The layer is right; the same bits once more, with an early start. */
static void check_shape(struct compute *compute, struct output_shape shape) {
    struct output_operands operands = output_operands_of(&shape);
    struct output_outcome outcome, again;
    assert_true(output_run(compute, &shape, &operands, &outcome));
    output_check(&shape, &operands, &outcome);
    shape.early = true;
    assert_true(output_run(compute, &shape, &operands, &again));
    for (int r = 0; r < OUTPUT_RESULTS; r++)
        assert_memory_equal(outcome.result[r].data, again.result[r].data, output_bytes(&shape, r));
    assert_memory_equal(&outcome.tally, &again.tally, sizeof again.tally);
    output_outcome_close(&outcome);
    output_outcome_close(&again);
    output_operands_close(&operands);
}

static void every_shape_is_right(void **state) {
    (void)state;
    static const size_t rows[] = {128, 1, 15, 16, 17, 96, 127}, classes[] = {10, 16, 2, 3, 9},
                        units[TYPES][6] = {{504, 8, 72, 1000, 1024, 136}, {500, 4, 68, 1020, 1024, 260}};
    for (size_t t = 0; t < TYPES; t++) {
        struct compute compute;
        open_output(&compute, types[t]);
        for (size_t i = 0; i < 210; i += support_stride())
            check_shape(&compute,
                        (struct output_shape){.dtype = types[t],
                                              .rows = rows[i % 7],
                                              .units = units[t][i % 6],
                                              .classes = classes[i % 5],
                                              .activation = (enum activation)(i / 7 % ACTIVATION_COUNT),
                                              .smoothing = i % 3 ? 0 : 0.1,
                                              .alpha = i % 2 ? 1 : 1.25,
                                              .apart = i % 4 > 1});
        compute_close(&compute);
    }
}

/* Rows and units that only the kernel for many rows takes, and half precision: thread blocks without rows,
   with 16 and with several times 16, the last rows of a tile, units of two blocks. */
static void many_rows_are_right(void **state) {
    (void)state;
    static const struct {
        size_t rows, units, classes;
    } shapes[] = {{129, 504, 10},  {130, 8, 2},      {160, 520, 16},   {1024, 504, 10}, {257, 1032, 9},
                  {640, 2048, 10}, {2049, 1024, 10}, {4101, 136, 3},   {144, 2056, 10}, {333, 4096, 16},
                  {2300, 4096, 5}, {1000, 2504, 10}, {4999, 2048, 10}, {2048, 3000, 7}, {128, 1032, 9},
                  {15, 2056, 16},  {1, 1032, 10}};
    static const size_t few[][2] = {{1, 8}, {16, 72}, {100, 504}, {128, 1024}};
    static const enum gemm_dtype halves[] = {GEMM_BF16, GEMM_F16};
    static const enum activation activations[] = {ACTIVATION_RELU, ACTIVATION_TANH, ACTIVATION_SIGMOID,
                                                  ACTIVATION_NONE, ACTIVATION_SCALED_TANH};
    for (size_t t = 0; t < 2; t++) {
        struct compute compute;
        open_output(&compute, halves[t]);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += 1 + support_stride() / 10)
            check_shape(&compute, (struct output_shape){.dtype = halves[t],
                                                        .rows = shapes[i].rows,
                                                        .units = shapes[i].units,
                                                        .classes = shapes[i].classes,
                                                        .activation = activations[(i + t) % 5],
                                                        .smoothing = i % 3 ? 0 : 0.1,
                                                        .alpha = i % 2 ? 1 : 1.25});
        for (size_t i = 0; i < 4 && halves[t] == GEMM_F16; i++)
            check_shape(&compute, (struct output_shape){.dtype = GEMM_F16,
                                                        .rows = few[i][0],
                                                        .units = few[i][1],
                                                        .classes = 10,
                                                        .activation = activations[i],
                                                        .alpha = 1});
        compute_close(&compute);
    }
}

/* float32 from 1,024 rows on: edges of 64 and of 128 units, more and fewer rows than all warps of a GPU have
   at a time (8,448 with 132 multiprocessors). */
static void many_rows_of_float32_are_right(void **state) {
    (void)state;
    static const struct {
        size_t rows, units, classes;
    } shapes[] = {{1024, 504, 10}, {1025, 4, 2},     {2049, 1024, 10}, {4101, 136, 3},
                  {1030, 4096, 9}, {4999, 2048, 10}, {2048, 3000, 16}, {1100, 68, 16},
                  {1087, 500, 1},  {2300, 2052, 11}, {8500, 68, 10},   {17001, 132, 5}};
    static const enum activation activations[] = {ACTIVATION_TANH, ACTIVATION_RELU, ACTIVATION_SIGMOID,
                                                  ACTIVATION_NONE, ACTIVATION_SCALED_TANH};
    struct compute compute;
    open_output(&compute, GEMM_F32);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += 1 + support_stride() / 10)
        check_shape(&compute, (struct output_shape){.dtype = GEMM_F32,
                                                    .rows = shapes[i].rows,
                                                    .units = shapes[i].units,
                                                    .classes = shapes[i].classes,
                                                    .activation = activations[i % 5],
                                                    .smoothing = i % 3 ? 0 : 0.1,
                                                    .alpha = i % 2 ? 1 : 1.25});
    compute_close(&compute);
}

static void bad_labels_and_values_not_finite_are_a_bad_step(void **state) {
    (void)state;
    static const struct output_shape shapes[] = {{.dtype = GEMM_BF16, .rows = 100, .units = 504},
                                                 {.dtype = GEMM_F32, .rows = 100, .units = 504},
                                                 {.dtype = GEMM_BF16, .rows = 300, .units = 504},
                                                 {.dtype = GEMM_F16, .rows = 300, .units = 2504},
                                                 {.dtype = GEMM_F32, .rows = 1300, .units = 504}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        struct output_shape shape = shapes[s];
        struct compute compute;
        shape.classes = 10;
        shape.alpha = 1;
        open_output(&compute, shape.dtype);
        for (int i = 0; i < 9; i++) {
            struct tally tally;
            shape.bad_label = i == 8;
            shape.bad_weight = i % 2;
            shape.bad_value = i == 8 ? 0 : i / 2 % 2 ? INFINITY : NAN;
            shape.uncounted = i / 4 % 2;
            assert_true(run_for_tally(&compute, &shape, &tally));
            assert_int_equal(tally.bad_step, shape.uncounted ? 2 : 3);
            assert_int_equal(tally.batches, shape.uncounted ? 2 : 3);
            assert_int_equal(tally.images, 5 + (shape.uncounted ? 0 : shape.rows));
            assert_true(shape.uncounted || !isfinite(tally.loss_sum));
        }
        compute_close(&compute);
    }
}

/* Rows, units and classes beyond the kernels', X that is not aligned, logits with more than a bias, and,
   beyond 128 rows, derivatives that read another matrix than X. */
static void other_layers_are_refused(void **state) {
    (void)state;
    static const struct output_shape shapes[] = {
        {.rows = 128, .units = 4104, .classes = 10, .alpha = 1},
        {.rows = 1100, .units = 5004, .classes = 10, .alpha = 1},
        {.rows = 128, .units = 504, .classes = 17, .alpha = 1},
        {.rows = 16, .units = 10, .classes = 4, .alpha = 1},
        {.rows = 16, .units = 16, .classes = 4, .alpha = 1, .forward = ACTIVATION_RELU},
        {.rows = 16, .units = 16, .classes = 4, .alpha = 1, .pre = true},
        {.rows = 1100, .units = 504, .classes = 10, .alpha = 1, .apart = true},
        {.rows = 1100, .units = 504, .classes = 10, .alpha = 1, .activation = ACTIVATION_GELU},
        {.rows = 500, .units = 504, .classes = 10, .alpha = 1}}; /* of float32 alone */
    const size_t count = sizeof shapes / sizeof *shapes;
    for (size_t t = 0; t < TYPES; t++) {
        struct compute compute;
        open_output(&compute, types[t]);
        for (size_t i = 0; i < (types[t] == GEMM_F32 ? count : count - 1); i++) {
            struct output_shape shape = shapes[i];
            shape.dtype = types[t];
            assert_false(run_for_tally(&compute, &shape, &(struct tally){0}));
        }
        compute_close(&compute);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_is_right),
        cmocka_unit_test(many_rows_are_right),
        cmocka_unit_test(many_rows_of_float32_are_right),
        cmocka_unit_test(bad_labels_and_values_not_finite_are_a_bad_step),
        cmocka_unit_test(other_layers_are_refused),
    };
    return cmocka_run_group_tests_name("gpu output layer", tests, NULL, NULL);
}
