/* Sliding windows at their limits: data without an answer, extreme scales, the choice of groups, memory. */
#include "tests/support.h"
#include "tests/windows_oracle.h"

#include <math.h>
#include <stdlib.h>

#include "src/window/windows_parts.h"

static const enum windows_method methods[] = {WINDOWS_NAIVE, WINDOWS_COMMON, WINDOWS_TREE, WINDOWS_GRAM};
enum { METHODS = sizeof methods / sizeof *methods };

static struct values random_rows(const struct windows_shape *shape) {
    return values_random(shape->dtype, windows_rows(shape) * shape->cols, 1, 3);
}

/* The status of a run, and the worst error if it succeeds. */
static enum status try(struct compute *compute, enum windows_method method, const struct windows_shape *shape,
                       struct values a, double *error) {
    struct windows_received received = windows_oracle_make(shape, 1);
    const enum status status = windows_oracle_run(compute, method, shape, a, &received);
    if (!status) *error = windows_oracle_worst(shape, method, a, &received);
    free(received.r);
    return status;
}

/* --- values --- */

static void values_that_are_not_finite_are_named(void **state) {
    (void)state;
    static const struct {
        size_t stride, row, col;
        double value;
        const char *window;
    } list[] = {{1, 0, 3, NAN, "window 0 "},        {1, 29, 0, INFINITY, "window 0 "},
                {1, 30, 5, -INFINITY, "window 1 "}, {3, 32, 6, NAN, "window 1 "},
                {3, 33, 2, NAN, "window 2 "},       {40, 69, 4, NAN, "window 1 "}};
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (size_t m = 0; m < METHODS; m++) {
            const struct windows_shape shape = {GEMM_F32, 6, 7, 30, list[i].stride, 20, 0, 0, 0, NULL};
            struct values a = random_rows(&shape);
            char place[64];
            double error;
            values_set(a, (list[i].row + 5) * shape.cols, list[i].value); /* the first one is named */
            values_set(a, list[i].row * shape.cols + list[i].col, list[i].value);
            assert_status(try(&compute, methods[m], &shape, a, &error), STATUS_FAILED);
            snprintf(place, sizeof place, "row %zu and column %zu", list[i].row, list[i].col);
            assert_says(status_message(), list[i].window);
            assert_says(status_message(), place);
            free(a.data);
        }
    compute_close(&compute);
}

/* Rows between windows that do not touch are not read. */
static void rows_of_no_window_may_be_anything(void **state) {
    (void)state;
    const struct windows_shape shape = {GEMM_F32, 6, 7, 30, 40, 4, 0, 0, 0, NULL};
    struct values a = random_rows(&shape);
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (size_t j = 0; j < shape.cols; j++) values_set(a, 35 * shape.cols + j, j % 2 ? NAN : INFINITY);
    for (size_t m = 0; m < METHODS; m++) {
        double error;
        assert_status(try(&compute, methods[m], &shape, a, &error), STATUS_OK);
        assert_true(error <= 1);
    }
    compute_close(&compute);
    free(a.data);
}

/* Columns of magnitudes whose squares are no numbers of the dtype. R has the bits of that of the columns
   before, scaled. */
static void scales_of_columns_change_no_bit(void **state) {
    (void)state;
    static const int exponents[2][7] = {{100, -100, 0, 126 - 8, -110, 20, -100},
                                        {900, -900, 0, 1000, -950, 9, 900}};
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (int dtype = GEMM_F32; dtype <= GEMM_F64; dtype++)
        for (size_t m = 0; m < METHODS; m++) {
            const struct windows_shape shape = {(enum gemm_dtype)dtype, 6, 7, 30, 1, 20, 0, 0, 0, NULL};
            struct values a = random_rows(&shape), scaled = random_rows(&shape);
            struct windows_received plain = windows_oracle_make(&shape, 1),
                                    got = windows_oracle_make(&shape, 1);
            for (size_t i = 0; i < windows_rows(&shape) * shape.cols; i++)
                values_set(scaled, i, ldexp(values_get(a, i), exponents[dtype][i % shape.cols]));
            assert_status(windows_oracle_run(&compute, methods[m], &shape, a, &plain), STATUS_OK);
            assert_status(windows_oracle_run(&compute, methods[m], &shape, scaled, &got), STATUS_OK);
            for (size_t i = 0; i < shape.count * shape.n * shape.cols; i++) {
                const double wanted = ldexp(plain.r[i], exponents[dtype][i % shape.cols]);
                if (!(fabs(got.r[i] - wanted) <= 1e-6 * fabs(wanted) + 1e-37 * (dtype == GEMM_F32)))
                    fail_msg("%s %s: element %zu is %g, not %g", dtype_name(shape.dtype),
                             windows_method_name(methods[m]), i, got.r[i], wanted);
            }
            free(plain.r);
            free(got.r);
            free(a.data);
            free(scaled.data);
        }
    compute_close(&compute);
}

static void ridge_and_scale_together(void **state) {
    (void)state;
    const struct windows_shape shape = {GEMM_F32, 6, 7, 30, 1, 20, 0, 0, 0x1p120, NULL};
    struct values a = values_random(shape.dtype, windows_rows(&shape) * shape.cols, 0x1p60, 3);
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (size_t m = 0; m < METHODS; m++) {
        double error;
        assert_status(try(&compute, methods[m], &shape, a, &error), STATUS_OK);
        assert_true(error <= 1);
    }
    values_set(a, 0, 3e38);
    double error;
    assert_status(try(&compute, WINDOWS_TREE, &shape, a, &error), STATUS_FAILED);
    assert_says(status_message(), "divide the column");
    compute_close(&compute);
    free(a.data);
}

/* --- rank --- */

enum defect { ZERO_COLUMN, REPEATED_COLUMN, ZERO_IN_ONE_WINDOW };

static struct values defective(const struct windows_shape *shape, enum defect defect) {
    struct values a = random_rows(shape);
    for (size_t i = 0; i < windows_rows(shape); i++) {
        const size_t at = i * shape->cols + shape->n - 2;
        if (defect == ZERO_COLUMN || (defect == ZERO_IN_ONE_WINDOW && i >= 4 && i < 4 + shape->window))
            values_set(a, at, 0);
        if (defect == REPEATED_COLUMN) values_set(a, at, values_get(a, at - 1));
    }
    return a;
}

static void missing_rank_is_named_and_mended_by_a_ridge(void **state) {
    (void)state;
    static const size_t sizes[] = {4, 40, 130};
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int defect = ZERO_COLUMN; defect <= ZERO_IN_ONE_WINDOW; defect++)
            for (size_t m = 0; m < METHODS; m++) {
                const size_t n = sizes[s];
                struct windows_shape shape = {GEMM_F32, n, n + 1, 2 * n + 5, 1, 12, 0, 0, 0, NULL};
                struct values a = defective(&shape, (enum defect)defect);
                char column[64], window[64];
                double error;
                assert_status(try(&compute, methods[m], &shape, a, &error), STATUS_FAILED);
                snprintf(column, sizeof column, "at column %zu", n - 2);
                snprintf(window, sizeof window, "window %d (rows", defect == ZERO_IN_ONE_WINDOW ? 4 : 0);
                assert_says(status_message(), "--ridge");
                if (methods[m] != WINDOWS_GRAM || defect == ZERO_COLUMN) {
                    assert_says(status_message(), column);
                    assert_says(status_message(), window);
                }
                shape.ridge = 1e-2;
                assert_status(try(&compute, methods[m], &shape, a, &error), STATUS_OK);
                assert_true(error <= 1);
                free(a.data);
            }
    compute_close(&compute);
}

/* The ridge that the message proposes is enough. */
static void the_proposed_ridge_works(void **state) {
    (void)state;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (double scale = 1e-3; scale < 1e4; scale *= 1e3) {
        struct windows_shape shape = {GEMM_F32, 20, 21, 70, 1, 12, 0, 0, 0, NULL};
        struct values a = defective(&shape, REPEATED_COLUMN);
        double error;
        for (size_t i = 0; i < windows_rows(&shape) * shape.cols; i++)
            values_set(a, i, scale * values_get(a, i));
        assert_status(try(&compute, WINDOWS_TREE, &shape, a, &error), STATUS_FAILED);
        const char *proposal = strstr(status_message(), "--ridge ");
        assert_non_null(proposal);
        shape.ridge = strtod(proposal + strlen("--ridge "), NULL);
        assert_true(shape.ridge > 0);
        assert_status(try(&compute, WINDOWS_TREE, &shape, a, &error), STATUS_OK);
        assert_true(error <= 1);
        free(a.data);
    }
    compute_close(&compute);
}

static void wrong_sizes_are_usage(void **state) {
    (void)state;
    static const struct {
        struct windows_shape shape;
        const char *says;
    } list[] = {
        {{GEMM_F32, 0, 0, 5, 1, 1, 0, 0, 0, NULL}, "no size may be 0"},
        {{GEMM_F32, 2, 2, 0, 1, 1, 0, 0, 0, NULL}, "no size may be 0"},
        {{GEMM_F32, 2, 2, 5, 0, 1, 0, 0, 0, NULL}, "no size may be 0"},
        {{GEMM_F32, 2, 2, 5, 1, 0, 0, 0, 0, NULL}, "no size may be 0"},
        {{GEMM_F32, 3, 2, 5, 1, 1, 0, 0, 0, NULL}, "3 columns to factor"},
        {{GEMM_BF16, 2, 2, 5, 1, 1, 0, 0, 0, NULL}, "f32 or f64"},
        {{GEMM_F32, 2, 2, 5, 1, SIZE_MAX, 0, 0, 0, NULL}, "fit in memory"},
        {{GEMM_F32, 2, 2, 5, SIZE_MAX / 2, 9, 0, 0, 0, NULL}, "fit in memory"},
        {{GEMM_F32, 2, 2, 5, 1, 1, 0, 17, 0, NULL}, "multiple of 16"},
        {{GEMM_F32, 2, 2, 5, 1, 1, 0, 1024, 0, NULL}, "up to 512"},
        {{GEMM_F32, 2, 2, 5, 1, 1, 0, 0, -1, NULL}, "0 or more"},
        {{GEMM_F32, 2, 2, 5, 1, 1, 0, 0, NAN, NULL}, "0 or more"},
        {{GEMM_F32, 8, 8, 5, 1, 1, 0, 0, 0, NULL}, "--ridge"},
    };
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct windows *windows;
        assert_status(windows_open(&windows, &compute, WINDOWS_TREE, &list[i].shape), STATUS_USAGE);
        assert_null(windows);
        assert_says(status_message(), list[i].says);
    }
    compute_close(&compute);
}

/* --- the visitor --- */

static enum status stop_at_second(void *self, size_t first, size_t count, const struct qr_triangles *r) {
    (void)r;
    *(size_t *)self = first + count;
    return first + count > 1 ? status_set(STATUS_INTERRUPTED, "stopped") : STATUS_OK;
}

static void a_visitor_can_stop_a_run(void **state) {
    (void)state;
    const struct windows_shape shape = {GEMM_F32, 6, 7, 30, 1, 5000, 0, 0, 0, NULL};
    struct values a = random_rows(&shape);
    struct compute compute;
    support_open(&compute, "tuned", 2);
    for (size_t m = 0; m < METHODS; m++) {
        size_t seen = 0;
        struct windows *windows;
        const struct windows_visitor visitor = {&seen, stop_at_second};
        assert_status(windows_open(&windows, &compute, methods[m], &shape), STATUS_OK);
        assert_status(windows_run(windows, a.data, shape.cols, &visitor), STATUS_INTERRUPTED);
        assert_true(seen > 1 && seen < shape.count);
        windows_close(windows);
    }
    compute_close(&compute);
    free(a.data);
}

/* --- the plan --- */

/* Rows that enter triangles of a tree over `count` windows, counted. */
static double counted_rows(size_t count) {
    return count < 2 ? 0 : (double)count + counted_rows(count / 2) + counted_rows(count - count / 2);
}

/* Flops with groups of at most `group` windows, group by group. */
static double counted_flops(enum windows_method method, const struct windows_shape *shape, size_t group) {
    const size_t groups = (shape->count + group - 1) / group;
    double flops = 0;
    for (size_t g = 0; g < groups; g++) {
        const size_t size = shape->count * (g + 1) / groups - shape->count * g / groups,
                     common = shape->window - (size - 1) * shape->stride;
        const double rows = method == WINDOWS_TREE     ? counted_rows(size)
                            : method == WINDOWS_COMMON ? (double)(size * (size - 1))
                                                       : 0;
        flops += qr_factor_flops(common, shape->n, shape->cols) +
                 rows * (double)shape->stride * qr_append_flops(1, shape->n, shape->cols);
    }
    return flops;
}

static void the_group_is_near_the_best(void **state) {
    (void)state;
    static const struct windows_shape list[] = {
        {GEMM_F32, 2048, 2048, 8192, 1, 58, 0, 0, 0, NULL}, {GEMM_F32, 128, 128, 640, 1, 64, 0, 0, 0, NULL},
        {GEMM_F32, 512, 512, 8192, 1, 1024, 0, 0, 0, NULL}, {GEMM_F32, 8, 9, 64, 1, 5000, 0, 0, 0, NULL},
        {GEMM_F64, 10, 11, 100, 3, 200, 0, 0, 0, NULL},     {GEMM_F64, 10, 11, 100, 90, 200, 0, 0, 0, NULL},
        {GEMM_F32, 100, 101, 100, 1, 300, 0, 0, 0, NULL},   {GEMM_F32, 30, 30, 64, 16, 300, 0, 0, 0, NULL},
        {GEMM_F32, 4, 4, 4, 1, 1000, 0, 0, 0, NULL},        {GEMM_F32, 10, 10, 2000, 1, 3000, 0, 0, 0, NULL},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int method = WINDOWS_NAIVE; method <= WINDOWS_TREE; method++) {
            const struct windows_shape *shape = &list[i];
            const size_t most = method == WINDOWS_NAIVE ? 1 : windows_sharing(shape),
                         group = windows_plan_group((enum windows_method)method, shape);
            double best = INFINITY;
            for (size_t trial = 1; trial <= most; trial++) {
                const double flops = counted_flops((enum windows_method)method, shape, trial);
                const double planned = windows_plan_flops((enum windows_method)method, shape, trial);
                assert_true(fabs(flops - planned) <= 1e-9 * flops);
                best = fmin(best, flops);
            }
            const double chosen = windows_plan_flops((enum windows_method)method, shape, group);
            if (!(group >= 1 && group <= most && chosen <= 1.2 * best))
                fail_msg("%s, shape %zu: group %zu needs %.3g of the best flops",
                         windows_method_name((enum windows_method)method), i, group, chosen / best);
        }
}

/* --- memory --- */

static size_t allocated;

static void *counting_alloc(struct device *device, size_t bytes) {
    allocated += bytes;
    return device_host.alloc(device, bytes);
}

/* A hundred times the windows take no more memory. */
static void memory_does_not_grow_with_the_number_of_windows(void **state) {
    (void)state;
    struct device_driver driver = device_host;
    driver.alloc = counting_alloc;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    compute.device.driver = &driver;
    for (size_t m = 0; m < METHODS; m++) {
        size_t bytes[2];
        for (size_t i = 0; i < 2; i++) {
            const struct windows_shape shape = {GEMM_F32, 8, 9, 64, 1, i ? 10000000 : 100000, 0, 0, 0, NULL};
            struct windows *windows;
            allocated = 0;
            assert_status(windows_open(&windows, &compute, methods[m], &shape), STATUS_OK);
            bytes[i] = allocated;
            windows_close(windows);
        }
        assert_true(bytes[0] > 0 && bytes[1] <= bytes[0]);
    }
    compute.device.driver = &device_host;
    compute_close(&compute);
}

static void *failing_alloc(struct device *device, size_t bytes) {
    return allocated-- ? device_host.alloc(device, bytes) : NULL;
}

static void no_memory_is_an_error(void **state) {
    (void)state;
    struct device_driver driver = device_host;
    driver.alloc = failing_alloc;
    struct compute compute;
    support_open(&compute, "tuned", 2);
    compute.device.driver = &driver;
    const struct windows_shape shape = {GEMM_F32, 8, 9, 64, 1, 100, 0, 0, 0.1, NULL};
    for (size_t m = 0; m < METHODS; m++) {
        enum status status = STATUS_FAILED;
        for (size_t i = 0; status && i < 100; i++) {
            struct windows *windows;
            allocated = i;
            status = windows_open(&windows, &compute, methods[m], &shape);
            if (status) assert_null(windows);
            windows_close(windows);
        }
        assert_status(status, STATUS_OK);
    }
    compute.device.driver = &device_host;
    compute_close(&compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_that_are_not_finite_are_named),
        cmocka_unit_test(rows_of_no_window_may_be_anything),
        cmocka_unit_test(scales_of_columns_change_no_bit),
        cmocka_unit_test(ridge_and_scale_together),
        cmocka_unit_test(missing_rank_is_named_and_mended_by_a_ridge),
        cmocka_unit_test(the_proposed_ridge_works),
        cmocka_unit_test(wrong_sizes_are_usage),
        cmocka_unit_test(a_visitor_can_stop_a_run),
        cmocka_unit_test(the_group_is_near_the_best),
        cmocka_unit_test(memory_does_not_grow_with_the_number_of_windows),
        cmocka_unit_test(no_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
