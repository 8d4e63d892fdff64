/* Pages of rows that no Tessera wrote: values of the wrong type, out of range, with markup. */
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/pages.h"

/* Lines of every type: empty, with every value of the wrong type, with numbers out of range, with markup. */
static void hostile_rows_are_harmless(void **state) {
    (void)state;
    static const char *const types[] = {"header",      "step",       "epoch",     "summary", "compare",
                                        "peak",        "gemm",       "scaling",   "amdahl",  "shmem",
                                        "breakeven",   "evaluation", "confusion", "mistake", "stopped",
                                        "kmeans_step", "qr"};
    static const char *const keys[] = {"backend",
                                       "device",
                                       "gpu",
                                       "cpu",
                                       "config",
                                       "op",
                                       "dtype",
                                       "precision",
                                       "order",
                                       "tile",
                                       "m",
                                       "n",
                                       "k",
                                       "batch",
                                       "hidden",
                                       "threads",
                                       "epoch",
                                       "train_loss",
                                       "test_accuracy",
                                       "median_seconds",
                                       "min_seconds",
                                       "max_seconds",
                                       "median_epoch_seconds",
                                       "gflops",
                                       "bytes",
                                       "f32_gflops",
                                       "f64_gflops",
                                       "copy_gbytes_per_second",
                                       "speedup",
                                       "time",
                                       "kernels",
                                       "trace",
                                       "warnings",
                                       "counts",
                                       "pixels",
                                       "height",
                                       "width",
                                       "label",
                                       "serial_fraction",
                                       "step_seconds",
                                       "what",
                                       "reason",
                                       "warning",
                                       "residency",
                                       "engine",
                                       "layers",
                                       "seed",
                                       "share_of_peak",
                                       "relative_error",
                                       "checkpoint",
                                       "shared",
                                       "step",
                                       "mean_seconds",
                                       "block_size",
                                       "points",
                                       "features",
                                       "clusters",
                                       "startup_seconds",
                                       "method",
                                       "rows",
                                       "columns",
                                       "stride",
                                       "windows",
                                       "windows_timed",
                                       "nb",
                                       "condition",
                                       "backward_error",
                                       "orthogonality",
                                       "window_seconds"};
    static const char *const values[] = {"1e999",
                                         "-1e308",
                                         "1e18",
                                         "-5",
                                         "0",
                                         "\"<script>alert('&')</script>\"",
                                         "null",
                                         "[[[1]]]",
                                         "{\"name\":\"</table>\"}",
                                         "[\"<\",{},3]",
                                         "true",
                                         "\"-->\\u0001\\ud800|`\"",
                                         "9007199254740993",
                                         "1e-300"};
    for (size_t v = 0; v <= sizeof values / sizeof *values; v++) {
        char *text = calloc(1, 1 << 17);
        assert_non_null(text);
        for (size_t round = 0; round < 2; round++)
            for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
                char *at = text + strlen(text);
                at += sprintf(
                    at, "{\"type\":\"%s\",\"agrees\":true,\"verified\":true,\"wins\":true,\"best\":true",
                    types[t]);
                for (size_t k = 0; k < sizeof keys / sizeof *keys && v < sizeof values / sizeof *values; k++)
                    at += sprintf(at, ",\"%s\":%s", keys[k], values[v]);
                sprintf(at, "}\n");
            }
        struct records records = {0};
        const enum status status = records_read(&records, pages_write_text("hostile.jsonl", text));
        if (!status) { /* cJSON itself refuses half a surrogate */
            char *page = page_of(&records);
            assert_null(strstr(page, "<script"));
            free(page);
        }
        records_free(&records);
        free(text);
    }
}

static void odd_images_are_left_out(void **state) {
    (void)state;
    char *page = page_of_text("{\"type\":\"mistake\",\"height\":2,\"width\":2,\"pixels\":\"00ff00\"}\n"
                              "{\"type\":\"mistake\",\"height\":2,\"width\":1,\"pixels\":\"0zff\"}\n"
                              "{\"type\":\"mistake\",\"height\":1e9,\"width\":1e9,\"pixels\":\"\"}\n"
                              "{\"type\":\"confusion\",\"counts\":[[1,2],[\"x\"]]}\n");
    assert_true(!has_section(page, "mistakes") && has_section(page, "confusion"));
    free(page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_rows_are_harmless),
        cmocka_unit_test(odd_images_are_left_out),
    };
    return cmocka_run_group_tests_name("page of hostile rows", tests, NULL, NULL);
}
