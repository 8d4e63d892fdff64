#include <math.h>

#include "src/backend/plugin.h"
#include "src/backend/verify.h"
#include "src/backend/verify_pattern.h"
#include "src/base/secret.h"

static const size_t edge[] = {1, 15, 16, 17, 31, 32, 33};
enum { EDGES = sizeof edge / sizeof *edge, CUBE = EDGES * EDGES * EDGES };

/* m n k of odd shapes, empty sums, and the layers of the configs: forward, weight and input gradient. */
static const size_t shapes[][3] = {
    {127, 65, 130}, {5, 7, 0},      {1, 10, 128},   {128, 128, 784}, {784, 128, 128},
    {128, 10, 128}, {128, 128, 10}, {96, 128, 784}, {784, 128, 96},  {96, 10, 128},
    {128, 10, 96},  {96, 128, 10},  {257, 300, 3},  {2, 513, 70},    {300, 1, 259},
    {1040, 10, 24}, {24, 10, 1040}, {1040, 24, 10}, {136, 200, 72},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const double betas[] = {0, 1, 0.5};

/* The dtypes of A and B, and of C. */
static const struct {
    enum gemm_dtype dtype;
    bool c_f32;
} types[] = {{GEMM_F32, false}, {GEMM_F64, false}, {GEMM_BF16, false},
             {GEMM_BF16, true}, {GEMM_F16, false}, {GEMM_F16, true}};

enum {
    OPS = 3,
    TYPES = sizeof types / sizeof *types,
    BETAS = 3,
    KINDS = 2,
    VARIANTS = OPS * 2 * BETAS * KINDS,     /* of a pair of types */
    FULL = (CUBE + SHAPES) * VARIANTS,      /* f32 and f64 */
    SAMPLE = CUBE / EDGES,                  /* of the cube, for types of 16 bits */
    ROUNDED = (SAMPLE + SHAPES) * VARIANTS, /* of a type of 16 bits */
    PLAIN = FULL + 2 * ROUNDED,
    EPILOGUES = 2 * SHAPES * TYPES * ACTIVATION_COUNT,
    SPECIALS = SHAPES * TYPES * OPS * (VERIFY_VALUES - 1)
};

size_t verify_case_count(void) {
    return PLAIN + EPILOGUES + SPECIALS;
}

static void set_shape(struct verify_case *test, size_t shape) {
    if (shape < CUBE) {
        test->m = edge[shape / EDGES / EDGES];
        test->n = edge[shape / EDGES % EDGES];
        test->k = edge[shape % EDGES];
    } else {
        test->m = shapes[shape - CUBE][0];
        test->n = shapes[shape - CUBE][1];
        test->k = shapes[shape - CUBE][2];
    }
}

/* A forward product with its epilogue, or an input gradient with its backward epilogue. */
static struct verify_case epilogue_at(size_t index) {
    const bool backward = index % 2;
    const size_t variant = index / 2 % (TYPES * ACTIVATION_COUNT), type = variant / ACTIVATION_COUNT;
    const size_t shape = index / 2 / (TYPES * ACTIVATION_COUNT);
    struct verify_case test = {
        .op = backward ? GEMM_NT : GEMM_NN,
        .dtype = types[type].dtype,
        .c_f32 = types[type].c_f32,
        .pad = (variant + shape) % 2 ? 3 : 0,
        .alpha = 1,
        .epilogue = !backward,
        .backward = backward,
        .activation = (enum activation)(variant % ACTIVATION_COUNT),
        .twice = true,
        .values = backward && types[type].dtype == GEMM_F16 && shape / 2 % 2 ? VERIFY_LARGE : VERIFY_ORDINARY,
        .seed = index,
    };
    test.keeps_pre = !backward && activation_needs_input(test.activation);
    set_shape(&test, CUBE + shape);
    return test;
}

static struct verify_case special_at(size_t index) {
    const size_t type = index / OPS % TYPES, values = index / OPS / TYPES % (VERIFY_VALUES - 1);
    struct verify_case test = {
        .op = (enum gemm_op)(index % OPS),
        .dtype = types[type].dtype,
        .c_f32 = types[type].c_f32,
        .alpha = 1,
        .values = (enum verify_values)(1 + values),
        .seed = PLAIN + EPILOGUES + index,
    };
    set_shape(&test, CUBE + index / OPS / TYPES / (VERIFY_VALUES - 1));
    return test;
}

struct verify_case verify_case_at(size_t index) {
    if (index >= PLAIN + EPILOGUES) return special_at(index - PLAIN - EPILOGUES);
    if (index >= PLAIN) return epilogue_at(index - PLAIN);
    const bool rounded = index >= FULL;
    const size_t at = rounded ? (index - FULL) % ROUNDED : index, variant = at % VARIANTS;
    const size_t type = variant / OPS % 2 + (rounded ? 2 + (index - FULL) / ROUNDED * 2 : 0);
    size_t shape = at / VARIANTS;
    if (rounded) shape = shape < SAMPLE ? shape * EDGES + shape % EDGES : shape - SAMPLE + CUBE;
    struct verify_case test = {
        .op = (enum gemm_op)(variant % OPS),
        .dtype = types[type].dtype,
        .c_f32 = types[type].c_f32,
        .beta = betas[variant / OPS / 2 % BETAS],
        .integers = variant / OPS / 2 / BETAS == 0,
        .pad = (shape + variant) % 2 ? 3 : 0, /* alternates over shapes within each variant */
        .alpha = shape / 2 % 3 ? 1 : -0.5,
        .twice = shape >= CUBE,
        .seed = index,
    };
    if (gemm_is_16bit(test.dtype) && !test.c_f32) test.beta = 0; /* the contract allows no other */
    set_shape(&test, shape);
    return test;
}

enum status verify_backend(struct compute *compute, size_t *checked, size_t *skipped) {
    *checked = *skipped = 0;
    for (size_t i = 0; i < verify_case_count(); i++) {
        const struct verify_case test = verify_case_at(i);
        bool skip;
        const enum status status = verify_gemm(compute, &test, &skip);
        if (status == STATUS_VERIFY_FAILED) verify_pattern(compute, &test);
        if (status) return status;
        *(skip ? skipped : checked) += 1;
    }
    const enum status status = verify_batches(compute, checked, skipped);
    return status ? status : verify_steady(compute);
}

/* From 1 to 2,000, each power of two as likely as the next. */
static size_t draw_side(uint64_t *random) {
    const double share = (double)(secret_draw(random) >> 11) * 0x1p-53;
    return (size_t)exp(share * log(2001));
}

/* Mostly -1, -0.5, 0, 0.5 or 1, else a multiple of 1/4 from -2 to 2: all exact with small integers. */
static double draw_factor(uint64_t *random) {
    if (secret_draw(random) % 4) return ((double)(secret_draw(random) % 5) - 2) / 2;
    return ((double)(secret_draw(random) % 17) - 8) / 4;
}

static struct verify_case draw_case(const struct gemm_backend *backend, uint64_t *random) {
    enum { MOST = 1 << 20 };
    struct verify_case test = {.seed = secret_draw(random)};
    do {
        test.m = draw_side(random);
        test.n = draw_side(random);
        test.k = draw_side(random);
    } while (test.m * test.n * test.k > MOST);
    test.op = (enum gemm_op)(secret_draw(random) % OPS);
    test.dtype = (enum gemm_dtype)(secret_draw(random) % 2);                         /* f32, f64 */
    if (!backend->supports(test.dtype, test.op)) test.dtype = GEMM_F64 - test.dtype; /* the other one */
    test.pad = secret_draw(random) % 9;
    test.alpha = draw_factor(random);
    test.beta = draw_factor(random);
    test.integers = secret_draw(random) % 2;
    test.twice = secret_draw(random) % 2;
    return test;
}

enum status verify_secret(struct compute *compute, size_t count, size_t *checked, size_t *skipped) {
    uint64_t random = secret_seed();
    for (size_t i = 0; i < count; i++) {
        const struct verify_case test = draw_case(compute->backend, &random);
        bool skip;
        const enum status status = verify_gemm(compute, &test, &skip);
        if (status) return status;
        *(skip ? skipped : checked) += 1;
    }
    return STATUS_OK;
}

enum status verify_training_ops(const struct compute *compute, enum gemm_dtype dtype) {
    const struct gemm_backend *backend = compute->backend;
    for (int op = GEMM_NN; op <= GEMM_NT; op++)
        if (!backend->supports(dtype, (enum gemm_op)op))
            return status_set(STATUS_UNAVAILABLE,
                              "%s: backend '%s' does not support %s %s, which training needs: let its slot "
                              "`supports` name the --dtype that it has, and train with that one",
                              plugin_path(backend), backend->name, dtype_name(dtype),
                              gemm_op_name((enum gemm_op)op));
    return STATUS_OK;
}
