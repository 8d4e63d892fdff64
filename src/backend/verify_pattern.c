#include "src/backend/verify_pattern.h"

#include <stdio.h>

static bool is_nn(const struct verify_case *test) {
    return test->op == GEMM_NN;
}
static bool is_tn(const struct verify_case *test) {
    return test->op == GEMM_TN;
}
static bool is_nt(const struct verify_case *test) {
    return test->op == GEMM_NT;
}
static bool is_padded(const struct verify_case *test) {
    return test->pad > 0;
}
static bool is_scaled(const struct verify_case *test) {
    return test->alpha != 1;
}
static bool starts_at_zero(const struct verify_case *test) {
    return test->beta == 0;
}
static bool accumulates(const struct verify_case *test) {
    return test->beta != 0;
}
static bool has_reals(const struct verify_case *test) {
    return !test->integers;
}
static bool has_odd_m(const struct verify_case *test) {
    return test->m % 16 != 0;
}
static bool has_odd_n(const struct verify_case *test) {
    return test->n % 16 != 0;
}
static bool has_odd_k(const struct verify_case *test) {
    return test->k % 16 != 0;
}

static const struct {
    bool (*has)(const struct verify_case *test);
    const char *says;
} traits[] = {
    {is_nn, "op NN"},
    {is_tn, "op TN (A is stored transposed)"},
    {is_nt, "op NT (B is stored transposed)"},
    {is_padded, "padding between the rows: are lda, ldb and ldc used?"},
    {is_scaled, "an alpha that is not 1"},
    {starts_at_zero, "beta = 0, where C may hold NaN before the call"},
    {accumulates, "a beta that is not 0"},
    {has_reals, "real numbers, while integers are exact: is it true float32?"},
    {has_odd_m, "an m that is no multiple of 16: the last partial tile?"},
    {has_odd_n, "an n that is no multiple of 16: the last partial tile?"},
    {has_odd_k, "a k that is no multiple of 16: the last terms of the sum?"},
};
enum { TRAITS = sizeof traits / sizeof *traits };

static bool is_comparable(const struct verify_case *test, const struct verify_case *failed) {
    return test->dtype == failed->dtype && test->c_f32 == failed->c_f32 && !test->epilogue &&
           !test->backward && test->values == VERIFY_ORDINARY && test->m <= 33 && test->n <= 33 &&
           test->k <= 33;
}

/* The index of the rarest trait that all failures have and a good part of the other cases lacks; -1: none. */
static int common_trait(size_t failures, const size_t with[TRAITS], const size_t failures_with[TRAITS]) {
    int best = -1;
    for (int t = 0; t < TRAITS; t++)
        if (failures_with[t] == failures && 4 * failures >= with[t] && (best < 0 || with[t] < with[best]))
            best = t;
    return best;
}

void verify_pattern(struct compute *compute, const struct verify_case *failed) {
    enum { STRIDE = 23 }; /* coprime to the number of cases of each kind */
    size_t ran = 0, failures = 0, with[TRAITS] = {0}, failures_with[TRAITS] = {0};
    char message[1024];
    snprintf(message, sizeof message, "%s", status_message());
    for (size_t i = 0; i < verify_case_count(); i += STRIDE) {
        const struct verify_case test = verify_case_at(i);
        bool skipped;
        if (!is_comparable(&test, failed)) continue;
        const bool fails = verify_gemm(compute, &test, &skipped) != STATUS_OK;
        if (skipped) continue;
        ran++;
        failures += fails;
        for (int t = 0; t < TRAITS; t++) {
            with[t] += traits[t].has(&test);
            failures_with[t] += fails && traits[t].has(&test);
        }
    }
    const int best = common_trait(failures, with, failures_with);
    if (best < 0 || failures == 0 || failures == ran) {
        status_write("%s; %zu of %zu small cases are wrong", message, failures, ran);
    } else {
        status_write("%s; %zu of %zu small cases are wrong, all with %s", message, failures, ran,
                     traits[best].says);
    }
}
