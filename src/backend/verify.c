#include "src/backend/verify.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/rng.h"

enum { GUARD_ROWS = 2 };
static const unsigned char GUARD_BYTE = 0xFF; /* as a float or a double: NaN */

/* --- the comparator --- */

/* How far outside its bound, >= 0 is a mismatch (NaN counts as infinitely far), < 0 is fine. */
static double excess(double got, double want, double bound) {
    if (isnan(want)) return isnan(got) ? -1 : INFINITY;
    if (isinf(want)) return got == want ? -1 : INFINITY;
    const double error = fabs(got - want);
    if (!(error <= bound)) return isnan(error) ? INFINITY : error - bound;
    return -1;
}

bool verify_compare(enum gemm_dtype dtype, size_t m, size_t n, const void *got, size_t ldc,
                    const double *want, const double *bound, struct verify_mismatch *worst) {
    double furthest = -1;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            const double value = dtype_get(dtype, got, i * ldc + j);
            const double off = excess(value, want[i * n + j], bound[i * n + j]);
            if (off < 0 || off <= furthest) continue;
            furthest = off;
            *worst = (struct verify_mismatch){i, j, value, want[i * n + j], bound[i * n + j]};
        }
    return furthest < 0;
}

/* --- the oracle --- */

static bool transposed_a(enum gemm_op op) {
    return op == GEMM_TN || op == GEMM_TT;
}

static bool transposed_b(enum gemm_op op) {
    return op == GEMM_NT || op == GEMM_TT;
}

/* What is added up in, and what biases are. */
static enum gemm_dtype dtype_of_real(enum gemm_dtype dtype) {
    return dtype == GEMM_BF16 ? GEMM_F32 : dtype;
}

static enum gemm_dtype dtype_of_c(const struct gemm_call *call) {
    return call->c_f32 ? GEMM_F32 : call->dtype;
}

/* op(X) by rows (of A) or by columns (of B), k after k, in double; to be freed, NULL without memory. */
static double *unfold(enum gemm_dtype dtype, const void *memory, size_t ld, size_t count, size_t k,
                      bool along_k) {
    double *values = malloc((count * k + 1) * sizeof *values);
    for (size_t i = 0; values && i < count; i++)
        for (size_t p = 0; p < k; p++)
            values[i * k + p] = dtype_get(dtype, memory, along_k ? i * ld + p : p * ld + i);
    return values;
}

void verify_oracle(const struct gemm_call *call, double *want, double *bound) {
    const enum gemm_dtype c_dtype = dtype_of_c(call);
    const double eps = dtype_epsilon(dtype_of_real(call->dtype));
    const size_t k = call->k;
    double *a = unfold(call->dtype, call->a, call->lda, call->m, k, !transposed_a(call->op));
    double *b = unfold(call->dtype, call->b, call->ldb, call->n, k, transposed_b(call->op));
    const size_t terms = a && b ? k : 0;
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            double sum = a && b ? 0 : (double)NAN, magnitude = 0; /* without memory nothing is right */
#pragma omp simd reduction(+ : sum, magnitude)
            for (size_t p = 0; p < terms; p++) {
                const double product = a[i * k + p] * b[j * k + p];
                sum += product;
                magnitude += fabs(product);
            }
            const double c =
                call->beta == 0 ? 0 : call->beta * dtype_get(c_dtype, call->c, i * call->ldc + j);
            want[i * call->n + j] = call->alpha * sum + c;
            bound[i * call->n + j] = (double)(k + 4) * eps * (fabs(call->alpha) * magnitude + fabs(c));
        }
    free(a);
    free(b);
}

/* act(z) in double; the formulas of kernels/ops.h. */
static double activated(enum activation activation, double z) {
    switch (activation) {
    case ACTIVATION_NONE:
        return z;
    case ACTIVATION_RELU:
        return z < 0 ? 0 : z;
    case ACTIVATION_TANH:
        return tanh(z);
    case ACTIVATION_SCALED_TANH:
        return 1.7159 * tanh(2 * z / 3);
    case ACTIVATION_SIGMOID:
        return 1 / (1 + exp(-z));
    case ACTIVATION_GELU:
        return 0.5 * z * (1 + erf(z * 0.70710678118654752440));
    }
    return z;
}

/* act'(z), y = act(z). */
static double slope(enum activation activation, double z, double y) {
    switch (activation) {
    case ACTIVATION_NONE:
        return 1;
    case ACTIVATION_RELU:
        return y > 0;
    case ACTIVATION_TANH:
        return 1 - y * y;
    case ACTIVATION_SCALED_TANH:
        return 1.7159 * 2 / 3 - 2 / 3.0 / 1.7159 * y * y;
    case ACTIVATION_SIGMOID:
        return y * (1 - y);
    case ACTIVATION_GELU:
        return 0.5 * (1 + erf(z * 0.70710678118654752440)) + 0.39894228040143267794 * z * exp(-0.5 * z * z);
    }
    return 1;
}

/* No activation is steeper than this. */
static const double STEEPEST = 1.15;

/* From the oracle of the product to that of the epilogue: first the values before the activation, then after it. */
static void add_bias(const struct gemm_call *call, double *want, double *bound) {
    const enum gemm_dtype real = dtype_of_real(call->dtype);
    for (size_t i = 0; i < call->m * call->n; i++) {
        const double bias = dtype_get(real, call->epilogue->bias, i % call->n);
        want[i] += bias;
        bound[i] += 2 * dtype_epsilon(real) * (fabs(want[i]) + fabs(bias));
    }
}

/* From the oracle of the product to that of the way back through an activation. */
static void go_back(const struct gemm_call *call, double *want, double *bound) {
    const struct gemm_backward *backward = call->backward;
    const enum gemm_dtype c_dtype = dtype_of_c(call), real = dtype_of_real(call->dtype);
    for (size_t i = 0; i < call->m * call->n; i++) {
        const size_t at = i / call->n * call->ldc + i % call->n;
        const double unscaled = fabs(want[i]);
        want[i] *= slope(backward->activation, dtype_get(c_dtype, backward->pre, at),
                         dtype_get(c_dtype, backward->output, at));
        bound[i] = STEEPEST * bound[i] + 8 * dtype_epsilon(real) * unscaled;
    }
}

static void activate(const struct gemm_call *call, double *want, double *bound) {
    for (size_t i = 0; i < call->m * call->n; i++) {
        want[i] = activated(call->epilogue->activation, want[i]);
        bound[i] = STEEPEST * bound[i] + 8 * dtype_epsilon(dtype_of_real(call->dtype)) * (fabs(want[i]) + 1);
    }
}

/* --- one case --- */

/* rows x cols with leading dimension ld; everything else keeps the guard byte. */
static void fill(const struct verify_case *test, enum gemm_dtype dtype, struct rng *rng, void *matrix,
                 size_t rows, size_t cols, size_t ld) {
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            dtype_set(dtype, matrix, i * ld + j,
                      test->integers ? (double)rng_below(rng, 17) - 8 : 2 * rng_uniform(rng) - 1);
}

enum { A, B, C, BIAS, PRE, OUTPUT, BUFFERS }; /* BIAS: or its gradient */

/* The buffers of one case: on the host, and the same on the device. */
struct workspace {
    size_t bytes[BUFFERS];
    void *host[BUFFERS], *device[BUFFERS];
    unsigned char *result;
    double *want, *bound, *allowed; /* allowed: with the rounding of C */
};

static void workspace_free(struct compute *compute, struct workspace *work) {
    for (int i = 0; i < BUFFERS; i++) {
        free(work->host[i]);
        compute->device.driver->free(&compute->device, work->device[i]);
    }
    free(work->result);
    free(work->want);
    free(work->bound);
    free(work->allowed);
}

static enum status workspace_alloc(struct compute *compute, struct workspace *work, size_t elements) {
    struct device *device = &compute->device;
    for (int i = 0; i < BUFFERS; i++) {
        work->host[i] = malloc(work->bytes[i] + 1); /* k = 0: no bytes, but not NULL */
        work->device[i] = device->driver->alloc(device, work->bytes[i]);
        if (!work->device[i]) return STATUS_FAILED;
        if (!work->host[i]) return status_set(STATUS_FAILED, "out of memory");
        memset(work->host[i], GUARD_BYTE, work->bytes[i]);
    }
    work->result = malloc(work->bytes[C]);
    work->want = calloc(elements + 1, sizeof *work->want);
    work->bound = calloc(elements + 1, sizeof *work->bound);
    work->allowed = calloc(elements + 1, sizeof *work->allowed);
    if (!work->result || !work->want || !work->bound || !work->allowed)
        return status_set(STATUS_FAILED, "out of memory");
    return STATUS_OK;
}

static enum status failure(const struct compute *compute, const struct verify_case *test, const char *what) {
    static const char *const activations[] = {"none", "relu", "tanh", "scaled-tanh", "sigmoid", "gelu"};
    char epilogue[64] = "";
    if (test->epilogue || test->backward)
        snprintf(epilogue, sizeof epilogue, " %s activation %s%s", test->backward ? "back through" : "and",
                 activations[test->activation], test->keeps_pre ? " keeping its input" : "");
    return status_set(STATUS_VERIFY_FAILED,
                      "backend '%s' is wrong: %s%s %s m=%zu n=%zu k=%zu pad=%zu alpha=%g beta=%g %s%s: %s",
                      compute->backend->name, dtype_name(test->dtype), test->c_f32 ? " to f32" : "",
                      gemm_op_name(test->op), test->m, test->n, test->k, test->pad, test->alpha, test->beta,
                      test->integers ? "integers" : "reals", epilogue, what);
}

/* Everything outside the m x n elements must hold the guard byte still. */
static bool guards_intact(const struct verify_case *test, const unsigned char *c, size_t bytes, size_t ldc) {
    const size_t size = dtype_size(test->c_f32 ? GEMM_F32 : test->dtype), row_bytes = ldc * size;
    for (size_t at = 0; at < bytes; at++) {
        const size_t row = at / row_bytes, col = at % row_bytes / size;
        const bool inside = row >= GUARD_ROWS && row < GUARD_ROWS + test->m && col < test->n;
        if (!inside && c[at] != GUARD_BYTE) return false;
    }
    return true;
}

/* Small integers alone: every dtype and order gives the same. */
static bool is_exact(const struct verify_case *test) {
    return test->integers && !test->epilogue && !test->backward;
}

/* Is what came out in buffer C or PRE what it should be? */
static enum status check(struct compute *compute, const struct verify_case *test, struct workspace *work,
                         int buffer, const struct gemm_call *call, size_t guard) {
    struct device *device = &compute->device;
    struct verify_mismatch worst = {0};
    char what[160];
    device->driver->download(device, work->result, work->device[buffer], work->bytes[buffer]);
    if (!guards_intact(test, work->result, work->bytes[buffer], call->ldc))
        return failure(compute, test,
                       buffer == C ? "it wrote outside C" : "it wrote outside the input of the activation");
    for (size_t i = 0; i < test->m * test->n; i++) /* a bfloat16 C is rounded once, unless it is exact */
        work->allowed[i] =
            work->bound[i] + (dtype_of_c(call) == GEMM_BF16 && !is_exact(test)
                                  ? dtype_epsilon(GEMM_BF16) * (fabs(work->want[i]) + work->bound[i])
                                  : 0);
    if (verify_compare(dtype_of_c(call), test->m, test->n, work->result + guard, call->ldc, work->want,
                       work->allowed, &worst))
        return STATUS_OK;
    snprintf(what, sizeof what, "%s[%zu][%zu] is %.9g, should be %.9g within %.2g",
             buffer == C ? "C" : "the input of the activation", worst.row, worst.col, worst.got, worst.want,
             worst.bound);
    return failure(compute, test, what);
}

/* The gradient of the bias is the sum of the columns of C as it came out, which `check` left in `result`. */
static enum status check_sums(struct compute *compute, const struct verify_case *test, struct workspace *work,
                              const struct gemm_call *call, size_t guard) {
    struct device *device = &compute->device;
    const enum gemm_dtype real = dtype_of_real(test->dtype);
    device->driver->download(device, work->host[BIAS], work->device[BIAS], work->bytes[BIAS]);
    for (size_t j = 0; j < test->n; j++) {
        double sum = 0, magnitude = 0;
        for (size_t i = 0; i < test->m; i++) {
            const double value = dtype_get(dtype_of_c(call), work->result + guard, i * call->ldc + j);
            sum += value;
            magnitude += fabs(value);
        }
        const double got = dtype_get(real, work->host[BIAS], j);
        if (!(fabs(got - sum) <= (double)(test->m + 4) * dtype_epsilon(real) * magnitude))
            return failure(compute, test, "the gradient of the bias is not the sum of the columns");
    }
    return STATUS_OK;
}

/* Integers are exact, in bfloat16 after one rounding. */
static void expect_equality(const struct gemm_call *call, struct workspace *work) {
    for (size_t i = 0; i < call->m * call->n; i++) {
        double exact = 0;
        dtype_set(dtype_of_c(call), &exact, 0, work->want[i]);
        work->want[i] = dtype_get(dtype_of_c(call), &exact, 0);
        work->bound[i] = 0;
    }
}

/* `call` has everything but pointers. */
static enum status run_case(struct compute *compute, const struct verify_case *test, struct workspace *work,
                            struct gemm_call *call, bool *skipped) {
    struct device *device = &compute->device;
    const struct device_driver *driver = device->driver;
    const size_t guard = GUARD_ROWS * call->ldc * dtype_size(dtype_of_c(call));
    struct gemm_epilogue epilogue = {.bias = work->host[BIAS], .activation = test->activation};
    struct gemm_backward backward = {.activation = test->activation,
                                     .pre = (unsigned char *)work->host[PRE] + guard,
                                     .output = (unsigned char *)work->host[OUTPUT] + guard};

    call->a = work->host[A];
    call->b = work->host[B];
    call->c = (unsigned char *)work->host[C] + guard;
    call->epilogue = test->epilogue ? &epilogue : NULL;
    call->backward = test->backward ? &backward : NULL;
    verify_oracle(call, work->want, work->bound);
    if (test->epilogue) {
        add_bias(call, work->want, work->bound);
    } else if (test->backward) {
        go_back(call, work->want, work->bound);
    } else if (is_exact(test)) {
        expect_equality(call, work);
    }

    for (int i = 0; i < BUFFERS; i++) driver->upload(device, work->device[i], work->host[i], work->bytes[i]);
    struct gemm_call there = *call;
    struct gemm_epilogue epilogue_there = {.bias = work->device[BIAS], .activation = test->activation};
    there.a = work->device[A];
    there.b = work->device[B];
    there.c = (unsigned char *)work->device[C] + guard;
    if (test->keeps_pre) epilogue_there.pre = (unsigned char *)work->device[PRE] + guard;
    there.epilogue = test->epilogue ? &epilogue_there : NULL;
    struct gemm_backward backward_there = {.activation = test->activation,
                                           .pre = (unsigned char *)work->device[PRE] + guard,
                                           .output = (unsigned char *)work->device[OUTPUT] + guard,
                                           .bias_grad = work->device[BIAS]};
    there.backward = test->backward ? &backward_there : NULL;
    *skipped = (test->epilogue || test->backward) && !compute_fuses(compute, &there);
    if (*skipped) return STATUS_OK;
    enum status status = compute_gemm(compute, &there);
    if (!status) status = driver->synchronize(device);
    if (!status && test->keeps_pre) status = check(compute, test, work, PRE, call, guard);
    if (status) return status;
    if (test->epilogue) activate(call, work->want, work->bound);
    status = check(compute, test, work, C, call, guard);
    return status || !test->backward ? status : check_sums(compute, test, work, call, guard);
}

enum status verify_gemm(struct compute *compute, const struct verify_case *test, bool *skipped) {
    bool ignored;
    if (!skipped) skipped = &ignored;
    *skipped = !compute->backend->supports(test->dtype, test->op);
    if (*skipped) return STATUS_OK;

    const bool ta = transposed_a(test->op), tb = transposed_b(test->op);
    const size_t a_rows = ta ? test->k : test->m, a_cols = ta ? test->m : test->k;
    const size_t b_rows = tb ? test->n : test->k, b_cols = tb ? test->k : test->n;
    struct gemm_call call = {.dtype = test->dtype,
                             .c_f32 = test->c_f32,
                             .op = test->op,
                             .m = test->m,
                             .n = test->n,
                             .k = test->k,
                             .alpha = test->alpha,
                             .beta = test->beta,
                             .lda = a_cols + test->pad,
                             .ldb = b_cols + test->pad,
                             .ldc = test->n + test->pad};
    const enum gemm_dtype c_dtype = dtype_of_c(&call), real = dtype_of_real(test->dtype);
    const size_t size = dtype_size(test->dtype), c_size = dtype_size(c_dtype);
    const size_t c_bytes = (test->m + 2 * GUARD_ROWS) * call.ldc * c_size;
    struct workspace work = {
        .bytes = {[A] = a_rows * call.lda * size,
                  [B] = b_rows * call.ldb * size,
                  [C] = c_bytes,
                  [BIAS] = test->epilogue || test->backward ? test->n * dtype_size(real) : 0,
                  [PRE] = test->keeps_pre || test->backward ? c_bytes : 0,
                  [OUTPUT] = test->backward ? c_bytes : 0}};
    enum status status = workspace_alloc(compute, &work, test->m * test->n);
    if (!status) {
        struct rng rng = rng_open(test->seed, RNG_TEST, 0);
        fill(test, test->dtype, &rng, work.host[A], a_rows, a_cols, call.lda);
        fill(test, test->dtype, &rng, work.host[B], b_rows, b_cols, call.ldb);
        if (test->beta != 0)
            fill(test, c_dtype, &rng, (unsigned char *)work.host[C] + GUARD_ROWS * call.ldc * c_size, test->m,
                 test->n, call.ldc);
        if (test->epilogue) fill(test, real, &rng, work.host[BIAS], 1, test->n, test->n);
        if (test->backward) {
            const size_t start = GUARD_ROWS * call.ldc;
            fill(test, c_dtype, &rng, (unsigned char *)work.host[PRE] + start * c_size, test->m, test->n,
                 call.ldc);
            for (size_t i = 0; i < test->m * test->n; i++) {
                const size_t at = start + i / test->n * call.ldc + i % test->n;
                dtype_set(c_dtype, work.host[OUTPUT], at,
                          activated(test->activation, dtype_get(c_dtype, work.host[PRE], at)));
            }
        }
        status = run_case(compute, test, &work, &call, skipped);
    }
    workspace_free(compute, &work);
    return status;
}

/* --- the list --- */

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

/* What A and B, and C, are made of. */
static const struct {
    enum gemm_dtype dtype;
    bool c_f32;
} types[] = {{GEMM_F32, false}, {GEMM_F64, false}, {GEMM_BF16, false}, {GEMM_BF16, true}};

enum {
    OPS = 3,
    TYPES = sizeof types / sizeof *types,
    BETAS = 3,
    KINDS = 2,
    VARIANTS = OPS * 2 * BETAS * KINDS, /* of a pair of types */
    FULL = (CUBE + SHAPES) * VARIANTS,  /* f32 and f64 */
    SAMPLE = CUBE / EDGES,              /* of the cube, for the two kinds of bf16 */
    PLAIN = FULL + (SAMPLE + SHAPES) * VARIANTS,
    ACTIVATIONS = ACTIVATION_GELU + 1,
    EPILOGUES = 2 * SHAPES * TYPES * ACTIVATIONS
};

size_t verify_case_count(void) {
    return PLAIN + EPILOGUES;
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

/* Bias and activation on top of a forward product, and the way back through one on top of an input gradient. */
static struct verify_case epilogue_at(size_t index) {
    const bool backward = index % 2;
    const size_t variant = index / 2 % (TYPES * ACTIVATIONS), type = variant / ACTIVATIONS;
    struct verify_case test = {
        .op = backward ? GEMM_NT : GEMM_NN,
        .dtype = types[type].dtype,
        .c_f32 = types[type].c_f32,
        .pad = (variant + index / 2 / (TYPES * ACTIVATIONS)) % 2 ? 3 : 0,
        .alpha = 1,
        .epilogue = !backward,
        .backward = backward,
        .activation = (enum activation)(variant % ACTIVATIONS),
        .seed = index,
    };
    test.keeps_pre = !backward && test.activation == ACTIVATION_GELU;
    set_shape(&test, CUBE + index / 2 / (TYPES * ACTIVATIONS));
    return test;
}

struct verify_case verify_case_at(size_t index) {
    if (index >= PLAIN) return epilogue_at(index - PLAIN);
    const bool rounded = index >= FULL;
    const size_t at = rounded ? index - FULL : index, variant = at % VARIANTS;
    const size_t type = variant / OPS % 2 + (rounded ? 2 : 0);
    size_t shape = at / VARIANTS;
    if (rounded) shape = shape < SAMPLE ? shape * EDGES + shape % EDGES : shape - SAMPLE + CUBE;
    struct verify_case test = {
        .op = (enum gemm_op)(variant % OPS),
        .dtype = types[type].dtype,
        .c_f32 = types[type].c_f32,
        .beta = betas[variant / OPS / 2 % BETAS],
        .integers = variant / OPS / 2 / BETAS == 0,
        .pad = (shape + variant) % 2 ? 3 : 0, /* each variant meets both, shape by shape */
        .alpha = shape / 2 % 3 ? 1 : -0.5,
        .seed = index,
    };
    if (test.dtype == GEMM_BF16 && !test.c_f32) test.beta = 0; /* the contract has no other */
    set_shape(&test, shape);
    return test;
}

enum status verify_backend(struct compute *compute, size_t *checked, size_t *skipped) {
    *checked = *skipped = 0;
    for (size_t i = 0; i < verify_case_count(); i++) {
        const struct verify_case test = verify_case_at(i);
        bool skip;
        const enum status status = verify_gemm(compute, &test, &skip);
        if (status) return status;
        *(skip ? skipped : checked) += 1;
    }
    return STATUS_OK;
}
