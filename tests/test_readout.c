/* Readouts: triangles and back substitution against normal equations in float64, sliding windows against a
   fit of their rows, forgetting against weighted least squares, images that turn, and wrong solutions. */
#include "tests/support.h"
#include "tests/values.h"

#include <math.h>
#include <stdlib.h>

#include "src/window/drift.h"
#include "src/window/stream.h"

enum { N = 23, CLASSES = 3, COLUMNS = N + CLASSES, ROWS = 400 };

/* Rows [1 | features | one-hot target] of a small problem. */
struct problem {
    struct values values; /* [ROWS][COLUMNS] */
};

static double value_at(const struct problem *problem, size_t row, size_t column) {
    return values_get(problem->values, row * COLUMNS + column);
}

static struct problem make_problem(enum gemm_dtype dtype) {
    struct problem problem = {values_random(dtype, ROWS * COLUMNS, 1, 7)};
    for (size_t i = 0; i < ROWS; i++) {
        const double a = value_at(&problem, i, 1), b = value_at(&problem, i, 2);
        const size_t label = a > 0.3 ? 0 : b > 0 ? 1 : 2;
        values_set(problem.values, i * COLUMNS, 1);
        for (size_t j = 0; j < CLASSES; j++)
            values_set(problem.values, i * COLUMNS + N + j, j == label ? 1 : 0);
    }
    return problem;
}

/* --- the reference --- */

/* Solves g x = b for CLASSES right-hand sides, [N][N] and [N][CLASSES], with pivots; x is left in b. */
static void solve_normal(double *g, double *b) {
    for (size_t k = 0; k < N; k++) {
        size_t pivot = k;
        for (size_t i = k + 1; i < N; i++)
            if (fabs(g[i * N + k]) > fabs(g[pivot * N + k])) pivot = i;
        for (size_t j = 0; j < N; j++) {
            const double value = g[k * N + j];
            g[k * N + j] = g[pivot * N + j];
            g[pivot * N + j] = value;
        }
        for (size_t c = 0; c < CLASSES; c++) {
            const double value = b[k * CLASSES + c];
            b[k * CLASSES + c] = b[pivot * CLASSES + c];
            b[pivot * CLASSES + c] = value;
        }
        for (size_t i = 0; i < N; i++) {
            const double factor = g[i * N + k] / g[k * N + k];
            if (i == k) continue;
            for (size_t j = k; j < N; j++) g[i * N + j] -= factor * g[k * N + j];
            for (size_t c = 0; c < CLASSES; c++) b[i * CLASSES + c] -= factor * b[k * CLASSES + c];
        }
    }
    for (size_t k = 0; k < N; k++)
        for (size_t c = 0; c < CLASSES; c++) b[k * CLASSES + c] /= g[k * N + k];
}

/* The least squares of rows first .. end - 1, in which row i has the weight forgetting^(end - 1 - i). */
static void reference(const struct problem *problem, size_t first, size_t end, double forgetting,
                      double ridge, double w[N * CLASSES]) {
    double g[N * N] = {0};
    memset(w, 0, N * CLASSES * sizeof *w);
    for (size_t i = first; i < end; i++) {
        const double weight = pow(forgetting, (double)(end - 1 - i));
        for (size_t j = 0; j < N; j++) {
            for (size_t k = 0; k < N; k++)
                g[j * N + k] += weight * value_at(problem, i, j) * value_at(problem, i, k);
            for (size_t c = 0; c < CLASSES; c++)
                w[j * CLASSES + c] += weight * value_at(problem, i, j) * value_at(problem, i, N + c);
        }
    }
    for (size_t j = 1; j < N; j++) g[j * N + j] += ridge;
    solve_normal(g, w);
}

static bool is_solution(struct values w, const double want[N * CLASSES]) {
    double most = 0;
    for (size_t i = 0; i < N * CLASSES; i++) most = fmax(most, fabs(want[i]));
    for (size_t i = 0; i < N * CLASSES; i++)
        if (!(fabs(values_get(w, i) - want[i]) <= 100 * dtype_epsilon(w.dtype) * most)) return false;
    return true;
}

/* --- fits --- */

static void open_readout(struct readout *readout, struct compute *compute, enum gemm_dtype dtype,
                         size_t rows) {
    const struct readout_shape shape = {.dtype = dtype, .n = N, .classes = CLASSES, .rows = rows};
    assert_status(readout_open(readout, compute, &shape), STATUS_OK);
}

/* Rows first .. first + count - 1 in the memory of the readout. */
static void put_rows(const struct problem *problem, size_t first, size_t count, const struct qr_matrix *to) {
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < COLUMNS; j++)
            dtype_set(problem->values.dtype, to->values, i * to->ld + j, value_at(problem, first + i, j));
}

static void enter(struct readout *readout, const struct problem *problem, size_t first, size_t count,
                  const struct qr_matrix *triangle) {
    put_rows(problem, first, count, &readout->rows);
    assert_status(readout_append(readout, triangle, &readout->rows, count), STATUS_OK);
}

static void fit_is_the_least_squares(void **state) {
    (void)state;
    static const char *const backends[] = {"serial", "openmp", "tuned"};
    static const double ridges[] = {0, 1e-3, 5};
    for (size_t b = 0; b < 3; b++)
        for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++) {
            struct problem problem = make_problem((enum gemm_dtype)dtype);
            struct values w = values_make((enum gemm_dtype)dtype, N * CLASSES);
            double want[N * CLASSES], other[N * CLASSES];
            struct compute compute;
            struct readout readout;
            support_open(&compute, backends[b], 2);
            open_readout(&readout, &compute, (enum gemm_dtype)dtype, 150);
            struct qr_matrix triangle = readout_triangles(&readout, 4),
                             with_ridges = readout_triangle_at(&readout, &triangle, 1);
            for (size_t first = 0; first < ROWS; first += 150) /* the last portion is partial */
                enter(&readout, &problem, first, first + 150 < ROWS ? 150 : ROWS - first, &triangle);
            for (size_t r = 0; r < 3; r++) {
                const struct qr_matrix work = readout_triangle_at(&readout, &with_ridges, r);
                readout_copy(&readout, &triangle, &work);
            }
            assert_status(readout_add_ridges(&readout, &with_ridges, 3, ridges), STATUS_OK);
            for (size_t r = 0; r < 3; r++) {
                const struct qr_matrix work = readout_triangle_at(&readout, &with_ridges, r);
                bool finite;
                assert_status(readout_solve(&readout, &work, w.data, &finite), STATUS_OK);
                reference(&problem, 0, ROWS, 1, ridges[r], want);
                assert_true(is_solution(w, want));
                reference(&problem, 0, ROWS, 1, ridges[r] + 1, other); /* wrong: another ridge, */
                assert_false(is_solution(w, other));
                reference(&problem, 1, ROWS, 1, ridges[r], other); /* a lost row, */
                assert_false(is_solution(w, other));
                values_set(w, 0, NAN); /* no number */
                assert_false(is_solution(w, want));
            }
            readout_free(&readout, &triangle);
            readout_close(&readout);
            compute_close(&compute);
            free(problem.values.data);
            free(w.data);
        }
}

/* Fewer rows than columns: only a ridge gives a solution. */
static void rank_is_checked(void **state) {
    (void)state;
    struct problem problem = make_problem(GEMM_F64);
    struct values w = values_make(GEMM_F64, N * CLASSES);
    double want[N * CLASSES];
    struct compute compute;
    struct readout readout;
    bool finite;
    support_open(&compute, "tuned", 1);
    open_readout(&readout, &compute, GEMM_F64, 100);
    struct qr_matrix triangle = readout_triangles(&readout, 1);
    assert_status(readout_solve(&readout, &triangle, w.data, &finite), STATUS_FAILED);
    enter(&readout, &problem, 0, 9, &triangle);
    assert_status(readout_solve(&readout, &triangle, w.data, &finite), STATUS_FAILED);
    assert_true(finite);
    assert_says(status_message(), "feature 8 is a sum of multiples");
    assert_says(status_message(), "--ridge");
    assert_status(readout_add_ridges(&readout, &triangle, 1, &(double){0.5}), STATUS_OK);
    assert_status(readout_solve(&readout, &triangle, w.data, &finite), STATUS_OK);
    reference(&problem, 0, 9, 1, 0.5, want);
    assert_true(is_solution(w, want));

    readout_zero(&readout, &triangle);
    for (size_t i = 0; i < ROWS; i++) /* feature 4 twice */
        values_set(problem.values, i * COLUMNS + 12, value_at(&problem, i, 5));
    enter(&readout, &problem, 0, 100, &triangle);
    assert_status(readout_solve(&readout, &triangle, w.data, &finite), STATUS_FAILED);
    assert_says(status_message(), "feature 11 is a sum of multiples");
    values_set(problem.values, 3 * COLUMNS + 5, INFINITY);
    enter(&readout, &problem, 0, 100, &triangle);
    assert_status(readout_solve(&readout, &triangle, w.data, &finite), STATUS_FAILED);
    assert_false(finite);
    readout_free(&readout, &triangle);
    readout_close(&readout);
    compute_close(&compute);
    free(problem.values.data);
    free(w.data);
}

/* The constant has no ridge: targets and features with another mean have the same weights but for the bias.
   */
static void mean_square_is_centred(void **state) {
    (void)state;
    struct problem problem = make_problem(GEMM_F64);
    struct compute compute;
    struct readout readout;
    double mean, want = 0;
    support_open(&compute, "tuned", 1);
    open_readout(&readout, &compute, GEMM_F64, ROWS);
    struct qr_matrix triangle = readout_triangles(&readout, 1);
    for (size_t i = 0; i < ROWS; i++)
        values_set(problem.values, i * COLUMNS + 3, value_at(&problem, i, 3) + 1000);
    enter(&readout, &problem, 0, ROWS, &triangle);
    assert_status(readout_mean_square(&readout, &triangle, &mean), STATUS_OK);
    for (size_t j = 1; j < N; j++) {
        double sum = 0, squares = 0;
        for (size_t i = 0; i < ROWS; i++) sum += value_at(&problem, i, j);
        for (size_t i = 0; i < ROWS; i++)
            squares += (value_at(&problem, i, j) - sum / ROWS) * (value_at(&problem, i, j) - sum / ROWS);
        want += squares / (N - 1);
    }
    assert_near(mean, want, 1e-9);
    readout_free(&readout, &triangle);
    readout_close(&readout);
    compute_close(&compute);
    free(problem.values.data);
}

/* --- streams --- */

enum { BLOCK = 20, BLOCKS = ROWS / BLOCK };

/* Every window against a fit of its rows in float64. */
static void check_window(enum gemm_dtype dtype, size_t window, double forgetting, double ridge) {
    struct problem problem = make_problem(dtype);
    struct values w = values_make(dtype, N * CLASSES);
    double want[N * CLASSES];
    struct compute compute;
    struct readout readout;
    struct sliding sliding;
    support_open(&compute, "tuned", 2);
    open_readout(&readout, &compute, dtype, BLOCK);
    struct sliding_history history = {.blocks = window ? window : 1, .rows = BLOCK};
    history.values = readout_rows(&readout, history.blocks * BLOCK);
    assert_status(sliding_open(&sliding, &readout, &history, window, forgetting, ridge), STATUS_OK);
    for (size_t block = 0; block < BLOCKS; block++) {
        struct qr_matrix at = history.values;
        const size_t first = window && block + 1 > window ? (block + 1 - window) * BLOCK : 0;
        bool finite;
        at.values = (char *)at.values + block % history.blocks * BLOCK * at.ld * dtype_size(dtype);
        put_rows(&problem, block * BLOCK, BLOCK, &at);
        assert_status(sliding_enter(&sliding), STATUS_OK);
        assert_status(sliding_solve(&sliding, w.data, &finite), STATUS_OK);
        reference(&problem, first, (block + 1) * BLOCK, forgetting, ridge, want);
        if (!is_solution(w, want))
            fail_msg("window %zu forgetting %g %s: block %zu is wrong", window, forgetting, dtype_name(dtype),
                     block);
        if (first) { /* wrong: the oldest block stays */
            reference(&problem, first - BLOCK, (block + 1) * BLOCK, forgetting, ridge, want);
            assert_false(is_solution(w, want));
        }
    }
    sliding_close(&sliding);
    readout_free(&readout, &history.values);
    readout_close(&readout);
    compute_close(&compute);
    free(problem.values.data);
    free(w.data);
}

static void windows_are_fits_of_their_rows(void **state) {
    (void)state;
    static const size_t windows[] = {0, 1, 2, 3, 7, BLOCKS};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        check_window(GEMM_F64, windows[i], 1, 0.5);
        check_window(GEMM_F32, windows[i], 1, 0.5);
    }
}

static void forgetting_is_weighted_least_squares(void **state) {
    (void)state;
    check_window(GEMM_F64, 0, 0.97, 0.5);
    check_window(GEMM_F32, 0, 0.99, 0.5);
}

static void differences_need_evidence(void **state) {
    (void)state;
    const struct readout_score a = {.total = 1000, .correct = 900}, b = {.total = 1000, .correct = 910},
                               c = {.total = 1000, .correct = 950}, none = {0};
    assert_false(stream_differs(&a, &b));
    assert_true(stream_differs(&a, &c));
    assert_true(stream_differs(&c, &a));
    assert_false(stream_differs(&a, &none));
}

/* --- drift --- */

static void drift_is_read(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "",           "rotate",        "rotate:",        "rotate:0..",    "rotate:..9",    "rotate:0..x",
        "shift:0..1", "rotate:0..181", "rotate:-181..0", "rotate:0...9x", "rotate:nan..0", "rotate:0-45"};
    struct image_drift drift;
    assert_status(drift_parse("rotate:-10.5..45", &drift), STATUS_OK);
    assert_true(drift.from == -10.5 && drift.to == 45);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_status(drift_parse(wrong[i], &drift), STATUS_USAGE);
}

static void images_turn(void **state) {
    (void)state;
    enum { SIDE = 9, COUNT = 3, PIXELS = SIDE * SIDE };
    uint8_t images[COUNT * PIXELS], original[PIXELS];
    struct dataset set = {.count = COUNT, .height = SIDE, .width = SIDE, .images = images};
    for (size_t i = 0; i < PIXELS; i++) original[i] = (uint8_t)(i * 37 % 251);
    for (size_t i = 0; i < COUNT; i++) memcpy(images + i * PIXELS, original, PIXELS);
    assert_status(drift_apply(&(struct image_drift){0, 0}, &set), STATUS_OK);
    for (size_t i = 0; i < COUNT; i++) assert_memory_equal(images + i * PIXELS, original, PIXELS);
    assert_status(drift_apply(&(struct image_drift){0, 180}, &set), STATUS_OK);
    assert_memory_equal(images, original, PIXELS);
    for (size_t y = 0; y < SIDE; y++)
        for (size_t x = 0; x < SIDE; x++) {
            const uint8_t quarter = images[PIXELS + y * SIDE + x], half = images[2 * PIXELS + y * SIDE + x];
            assert_int_equal(quarter, original[(SIDE - 1 - x) * SIDE + y]); /* clockwise */
            assert_int_equal(half, original[(SIDE - 1 - y) * SIDE + SIDE - 1 - x]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fit_is_the_least_squares),
        cmocka_unit_test(rank_is_checked),
        cmocka_unit_test(mean_square_is_centred),
        cmocka_unit_test(windows_are_fits_of_their_rows),
        cmocka_unit_test(forgetting_is_weighted_least_squares),
        cmocka_unit_test(differences_need_evidence),
        cmocka_unit_test(drift_is_read),
        cmocka_unit_test(images_turn),
    };
    return cmocka_run_group_tests_name("readout", tests, NULL, NULL);
}
