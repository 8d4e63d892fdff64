#include "src/backend/verify_hint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/text.h"

/* --- where --- */

static double got_at(const struct wrong_result *wrong, size_t i, size_t j) {
    return dtype_get(dtype_of_c(wrong->call), wrong->got, i * wrong->call->ldc + j);
}

static double before_at(const struct wrong_result *wrong, size_t i, size_t j) {
    return dtype_get(dtype_of_c(wrong->call), wrong->call->c, i * wrong->call->ldc + j);
}

static bool is_right(const struct wrong_result *wrong, size_t i, size_t j) {
    const size_t at = i * wrong->call->n + j;
    const double got = got_at(wrong, i, j), want = wrong->want[at];
    return isfinite(want) ? fabs(got - want) <= wrong->bound[at] : got == want || (isnan(got) && isnan(want));
}

/* The wrong elements: their count, the first row and the first column that hold one. */
struct place {
    size_t count, row, col;
};

static struct place find_place(const struct wrong_result *wrong) {
    const struct gemm_call *call = wrong->call;
    struct place place = {0, call->m, call->n};
    for (size_t i = 0; i < call->m; i++)
        for (size_t j = 0; j < call->n; j++) {
            if (is_right(wrong, i, j)) continue;
            place.count++;
            if (i < place.row) place.row = i;
            if (j < place.col) place.col = j;
        }
    return place;
}

static void say_range(char *hint, size_t size, const char *what, size_t first, size_t count) {
    if (first + 1 == count) {
        text_append(hint, size, "; only the last %s is wrong", what);
    } else {
        text_append(hint, size, "; only the %ss from %zu on are wrong, of %zu", what, first, count);
    }
}

static void say_place(const struct wrong_result *wrong, char *hint, size_t size) {
    const size_t m = wrong->call->m, n = wrong->call->n;
    const struct place place = find_place(wrong);
    if (place.count == m * n) return;
    if (2 * place.row >= m && place.row) {
        say_range(hint, size, "row", place.row, m);
    } else if (2 * place.col >= n && place.col) {
        say_range(hint, size, "column", place.col, n);
    } else {
        text_append(hint, size, "; %zu of %zu elements are wrong", place.count, m * n);
    }
}

/* --- the usual mistakes, each a change of the call that gives the wrong C --- */

static bool forgets_alpha(struct gemm_call *call) {
    const bool changes = call->alpha != 1;
    call->alpha = 1;
    return changes;
}

static bool forgets_beta(struct gemm_call *call) {
    const bool changes = call->beta != 0;
    call->beta = 0;
    return changes;
}

static bool only_adds(struct gemm_call *call) {
    const bool changes = call->beta != 0 && call->beta != 1;
    call->beta = 1;
    return changes;
}

static size_t columns_of_a(const struct gemm_call *call) {
    return gemm_transposes_a(call->op) ? call->m : call->k;
}

static size_t columns_of_b(const struct gemm_call *call) {
    return gemm_transposes_b(call->op) ? call->k : call->n;
}

static bool ignores_lda(struct gemm_call *call) {
    const bool changes = call->lda != columns_of_a(call);
    call->lda = columns_of_a(call);
    return changes;
}

static bool ignores_ldb(struct gemm_call *call) {
    const bool changes = call->ldb != columns_of_b(call);
    call->ldb = columns_of_b(call);
    return changes;
}

static bool ignores_both(struct gemm_call *call) {
    const bool a = ignores_lda(call), b = ignores_ldb(call);
    return a && b;
}

/* A square matrix can be read the other way round. */
static bool ignores_op_of_a(struct gemm_call *call) {
    const bool changes = call->op == GEMM_TN && call->m == call->k && call->k > 1;
    if (changes) call->op = GEMM_NN;
    return changes;
}

static bool ignores_op_of_b(struct gemm_call *call) {
    const bool changes = call->op == GEMM_NT && call->n == call->k && call->k > 1;
    if (changes) call->op = GEMM_NN;
    return changes;
}

static bool shortens(struct gemm_call *call, size_t block) {
    const size_t whole = call->k / block * block;
    const bool changes = whole && whole < call->k;
    if (changes) call->k = whole;
    return changes;
}

static bool in_fours(struct gemm_call *call) {
    return shortens(call, 4);
}

static bool in_sixteens(struct gemm_call *call) {
    return shortens(call, 16);
}

static const struct {
    bool (*apply)(struct gemm_call *call); /* false: it changes nothing in this call */
    const char *says;
} mistakes[] = {
    {forgets_alpha, "as if alpha were 1"},
    {forgets_beta, "as if beta were 0"},
    {only_adds, "as if beta were 1"},
    {ignores_lda, "as if lda were the columns of A: is lda used?"},
    {ignores_ldb, "as if ldb were the columns of B: is ldb used?"},
    {ignores_both, "as if lda and ldb were the columns: are they used?"},
    {ignores_op_of_a, "as if A were not transposed"},
    {ignores_op_of_b, "as if B were not transposed"},
    {in_fours, "as if k were rounded down to a multiple of 4: where are the last terms of the sum?"},
    {in_sixteens, "as if k were rounded down to a multiple of 16: where are the last terms of the sum?"},
};

static bool all_of_c(const struct wrong_result *wrong,
                     bool (*is)(const struct wrong_result *, size_t, size_t)) {
    for (size_t i = 0; i < wrong->call->m; i++)
        for (size_t j = 0; j < wrong->call->n; j++)
            if (!is(wrong, i, j)) return false;
    return true;
}

static bool is_untouched(const struct wrong_result *wrong, size_t i, size_t j) {
    const double got = got_at(wrong, i, j), before = before_at(wrong, i, j);
    return got == before || (isnan(got) && isnan(before));
}

static bool is_zero(const struct wrong_result *wrong, size_t i, size_t j) {
    return got_at(wrong, i, j) == 0;
}

/* Would this call give the wrong C? */
static bool explains(const struct wrong_result *wrong, const struct gemm_call *call,
                     struct oracle_inputs inputs) {
    const size_t elements = call->m * call->n;
    double *want = calloc(elements + 1, sizeof *want), *bound = calloc(elements + 1, sizeof *bound);
    struct oracle_mismatch worst;
    const bool found =
        want && bound && !oracle_product(call, inputs, want, bound) &&
        oracle_compare(dtype_of_c(call), call->m, call->n, wrong->got, call->ldc, want, bound, &worst);
    free(want);
    free(bound);
    return found;
}

static const char *find_mistake(const struct wrong_result *wrong) {
    const struct oracle_inputs float32 = {.zero_mean = true, .rounding = 0x1p-23},
                               tf32 = {.zero_mean = true, .rounding = ORACLE_TF32},
                               bf16 = {.zero_mean = true, .rounding = 0x1p-7};
    if (all_of_c(wrong, is_zero)) return "all of C is 0";
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        struct gemm_call call = *wrong->call;
        if (mistakes[i].apply(&call) && explains(wrong, &call, wrong->inputs)) return mistakes[i].says;
    }
    if (all_of_c(wrong, is_untouched))
        return wrong->call->beta == 0 ? "it was not written, or read although beta is 0"
                                      : "C was not written";
    if (gemm_is_16bit(wrong->call->dtype) || !wrong->inputs.zero_mean) return NULL;
    if (wrong->call->dtype == GEMM_F64 && explains(wrong, wrong->call, float32))
        return "the error is that of float32";
    if (explains(wrong, wrong->call, tf32)) return "the error is that of operands rounded to TF32";
    return explains(wrong, wrong->call, bf16) ? "the error is that of operands rounded to bfloat16" : NULL;
}

void verify_hint(const struct wrong_result *wrong, char *text, size_t size) {
    const char *mistake = find_mistake(wrong);
    say_place(wrong, text, size);
    if (mistake) text_append(text, size, "; %s", mistake);
}
