/* The table of slots and options of a plug-in, which is checked when the plug-in is loaded. */
#include "tests/support.h"

#include <stddef.h>

#include "src/backend/plugin.h"

static bool supports_all(enum gemm_dtype dtype, enum gemm_op op) {
    return dtype <= GEMM_F16 && op <= GEMM_TT;
}

static enum gemm_status do_nothing(void *context, const struct gemm_call *call) {
    (void)context, (void)call;
    return GEMM_OK;
}

static bool fuses_nothing(void *context, const struct gemm_call *call, const struct weight_update *update) {
    (void)context, (void)call, (void)update;
    return false;
}

static enum gemm_status update_nothing(void *context, const struct gemm_call *calls,
                                       const struct weight_update *updates, size_t count) {
    (void)context, (void)calls, (void)updates, (void)count;
    return GEMM_UNSUPPORTED;
}

static void *create_nothing(const struct gemm_setup *setup, char *why, size_t size) {
    (void)setup, (void)why, (void)size;
    return NULL;
}

/* Checked when the plug-in is loaded: a user who gives no options must not be blamed for them. */
static void wrong_tables_are_refused(void **state) {
    (void)state;
    static const struct gemm_option right = {"block", "1..64", "16", "rows"};
    const struct {
        struct gemm_option options[3];
        const char *said;
    } cases[] = {
        {{{"a=b", "1..64", "16", "rows"}}, "its option 'a=b' has an invalid key, or that of another option"},
        {{{"", "1..64", "16", "rows"}}, "its option '' has an invalid key"},
        {{right, right}, "its option 'block' has an invalid key, or that of another option"},
        {{{"block", "1..64", "65", "rows"}},
         "the fallback of an option: backend 'example': option block must be 1..64"},
        {{right, {"kind", "a|b", "c", "kind"}}, "option kind must be a|b, not 'c'"},
        {{right, {"kind", "a|b", "a", NULL}}, "its option 'kind' has no values or no help"},
    };
    struct gemm_backend backend = {.name = "example",
                                   .summary = "",
                                   .supports = supports_all,
                                   .gemm = do_nothing,
                                   .create = create_nothing,
                                   .fuses_update = fuses_nothing,
                                   .gemm_update = update_nothing},
                        copy;
    struct gemm_plugin plugin = {GEMM_ABI, sizeof backend, &backend};
    assert_status(plugin_check("x.so", &plugin, &copy), STATUS_OK);
    assert_true(!copy.fuses_update && !copy.gemm_update); /* verification does not cover them */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        backend.options = cases[i].options;
        assert_status(plugin_check("x.so", &plugin, &copy), STATUS_UNAVAILABLE);
        assert_says(status_message(), "'x.so' is no backend: ");
        assert_says(status_message(), cases[i].said);
    }
    plugin.backend_size = offsetof(struct gemm_backend, options) + 2; /* a part of the pointer */
    assert_status(plugin_check("x.so", &plugin, &copy), STATUS_UNAVAILABLE);
    assert_says(status_message(), "its table of slots ends within a slot");
    plugin.backend_size = offsetof(struct gemm_backend, options);
    assert_status(plugin_check("x.so", &plugin, &copy), STATUS_OK);
    assert_null(copy.options);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(wrong_tables_are_refused)};
    return cmocka_run_group_tests_name("plug-in tables", tests, NULL, NULL);
}
