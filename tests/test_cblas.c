/* CBLAS libraries by their file, and plug-ins that bring one of their own. */
#include "tests/support.h"

#include <limits.h>
#include <stdlib.h>

#include "src/backend/verify.h"

static void verify_cases(struct compute *compute) {
    size_t checked = 0;
    for (size_t i = 0; i < verify_case_count(); i += 13) { /* prime to the length of every kind */
        const struct verify_case test = verify_case_at(i);
        bool skipped;
        assert_status(verify_gemm(compute, &test, &skipped), STATUS_OK);
        checked += !skipped;
    }
    assert_true(checked > 300);
}

static const char *library(void) {
    return support_plugin("plugins/good/own-cblas.so");
}

static void a_library_is_a_backend(void **state) {
    (void)state;
    char name[600], *file = realpath(library(), NULL);
    struct compute compute;
    assert_non_null(file);
    snprintf(name, sizeof name, "cblas:%s", library());
    support_open(&compute, name, 2);
    assert_string_equal(compute.name, name);
    assert_int_equal(compute.threads, 2);
    assert_says(compute.description, "2 threads, from ");
    assert_says(compute.description, file);
    verify_cases(&compute);
    compute_close(&compute);
    snprintf(name, sizeof name, "cblas:library=%s", library());
    support_open(&compute, name, 1);
    compute_close(&compute);
    free(file);
}

/* The program's OpenBLAS has a cblas_sgemm too. */
static void a_plugin_calls_its_own_library(void **state) {
    (void)state;
    const struct gemm_backend *backend;
    struct compute openblas, own;
    const bool both = registry_find("openblas", &backend) == STATUS_OK;
    if (both) support_open(&openblas, "openblas", 1);
    support_open(&own, library(), 1);
    verify_cases(&own);
    if (both) verify_cases(&openblas);
    compute_close(&own);
    if (both) compute_close(&openblas);
}

static void wrong_libraries_are_explained(void **state) {
    (void)state;
    char name[600];
    struct compute compute = {0};
    const struct gemm_backend *backend;
    assert_status(registry_find("cblas", &backend), STATUS_USAGE);
    assert_says(status_message(), "backend 'cblas' needs library=FILE");
    assert_says(status_message(), "--backend cblas:FILE");
    assert_status(registry_find("cblas:libary=x", &backend), STATUS_USAGE);
    assert_says(status_message(), "has no option 'libary' (did you mean 'library'?)");
    snprintf(name, sizeof name, "cblas:%s", support_plugin("plugins/good/options.so"));
    assert_status(registry_find(name, &backend), STATUS_OK);
    struct compute_options options = {.threads = 1, .options = name + strlen("cblas:")};
    assert_status(compute_open(&compute, backend, &options), STATUS_UNAVAILABLE);
    assert_says(status_message(), "has no cblas_sgemm and cblas_dgemm");
    options.options = "./no-such.so";
    assert_status(compute_open(&compute, backend, &options), STATUS_UNAVAILABLE);
    assert_says(status_message(), "./no-such.so");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_library_is_a_backend),
        cmocka_unit_test(a_plugin_calls_its_own_library),
        cmocka_unit_test(wrong_libraries_are_explained),
    };
    return cmocka_run_group_tests(tests, support_make_data, NULL);
}
