/* Options of a backend as text: --backend NAME:key=value,key=value. */
#include "tests/support.h"

#include <string.h>

#include "src/backend/backend_options.h"
#include "src/bench/sweep.h"

static const struct gemm_option options[] = {{"block", "1..64", "16", "rows of a block"},
                                             {"tile", "4|8|16", "8", "side of a tile"},
                                             {"shared", "static|dynamic", "static", "kind of memory"},
                                             {"file", "FILE", "none", "a file"},
                                             {0}};
enum { BLOCK, TILE, SHARED, FILE_NAME };
static const struct gemm_backend backend = {.name = "example", .options = options};
static const struct gemm_backend plain = {.name = "plain"};

static void the_name_ends_before_the_options(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"tuned", ""},
        {"tuned:", ""},
        {"tuned:isa=avx2", "isa=avx2"},
        {"tuned:avx2", "avx2"}, /* so that the message is about options */
        {"tuned:isa=avx2:x=1", "isa=avx2:x=1"},
        {"my.so:block=64", "block=64"},
        {"./my.so", ""},
        {"./my.so:block=64,x=y", "block=64,x=y"},
        {"./a:b.so", ""},
        {"./a:b.so:block=64", "block=64"},
        {"./a:b=c.so:", ""}, /* a ':' at the end ends a path that holds ":key=" */
        {"./my.so:file=/tmp/x:y", "file=/tmp/x:y"},
        {"cblas:/tmp/x:y.so", "/tmp/x:y.so"}, /* the name ends before the '/' */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(backend_options_in(cases[i][0]), cases[i][1]);
    assert_true(backend_options_begin("isa=avx2") && backend_options_begin("a-b_2="));
    assert_false(backend_options_begin("openmp") || backend_options_begin("=x") || backend_options_begin(""));
    assert_false(backend_options_begin("./a=b.so") || backend_options_begin("tuned:isa=avx2"));
}

static void values_and_fallbacks(void **state) {
    (void)state;
    struct backend_values values;
    assert_status(backend_options_parse(&backend, NULL, &values), STATUS_OK);
    assert_true(values.list[BLOCK].number == 16 && values.list[TILE].number == 8);
    assert_true(values.list[SHARED].number == 0 && strcmp(values.list[SHARED].text, "static") == 0);
    assert_string_equal(values.list[FILE_NAME].text, "none");
    assert_null(values.list[FILE_NAME + 1].text);
    assert_status(backend_options_parse(&backend, "file=/a b,tile=16,shared=dynamic,block=64", &values),
                  STATUS_OK);
    assert_true(values.list[BLOCK].number == 64 && values.list[TILE].number == 16);
    assert_string_equal(values.list[TILE].text, "16");
    assert_true(values.list[SHARED].number == 1); /* its position in the list */
    assert_string_equal(values.list[FILE_NAME].text, "/a b");
    assert_status(backend_options_parse(&plain, "", &values), STATUS_OK);
    assert_null(values.list[0].text);
}

/* One without a fallback. It needs no key if it is the first. */
static void options_that_must_be_given(void **state) {
    (void)state;
    static const struct gemm_option needed[] = {{"library", "FILE", NULL, "a library"},
                                                {"kind", "a|b", NULL, "a kind"},
                                                {"x", "1..9", "5", "x"},
                                                {0}};
    const struct gemm_backend needy = {.name = "needy", .options = needed};
    struct backend_values values;
    assert_status(backend_options_parse(&needy, "/tmp/x=1,kind=b", &values), STATUS_OK);
    assert_string_equal(values.list[0].text, "/tmp/x=1");
    assert_true(values.list[1].number == 1 && values.list[2].number == 5);
    assert_status(backend_options_parse(&needy, "kind=b,library=y", &values), STATUS_OK);
    assert_string_equal(values.list[0].text, "y");
    assert_status(backend_options_parse(&needy, "kind=b", &values), STATUS_USAGE);
    assert_string_equal(status_message(),
                        "backend 'needy' needs library=FILE, a library: --backend needy:FILE");
    assert_status(backend_options_parse(&needy, "y", &values), STATUS_USAGE);
    assert_string_equal(status_message(), "backend 'needy' needs kind=a|b, a kind: --backend needy:kind=..");
    assert_status(backend_options_parse(&needy, "y,z", &values), STATUS_USAGE);
    assert_says(status_message(), "'z' is no option");
    assert_status(backend_options_parse(&needy, "y,library=z", &values), STATUS_USAGE);
    assert_says(status_message(), "option library is given twice");
    values = (struct backend_values){0};
    assert_status(backend_options_fallbacks(&needy, &values), STATUS_OK);
    assert_ptr_equal(backend_options_missing(&needy, &values), &needed[0]);
}

/* More than 512 characters, and more choices than a message suggests. */
static void long_lists_are_whole(void **state) {
    (void)state;
    char choices[1024] = "first";
    for (int i = 1; i < 40; i++)
        snprintf(choices + strlen(choices), sizeof choices - strlen(choices), "|choice-number-%d", i);
    const struct gemm_option list[] = {{"kind", choices, "choice-number-39", "kind"}, {0}};
    const struct gemm_backend long_list = {.name = "long", .options = list};
    struct backend_values values;
    assert_status(backend_options_parse(&long_list, NULL, &values), STATUS_OK);
    assert_int_equal(values.list[0].number, 39);
    char cut[BACKEND_OPTIONS_TEXT];
    snprintf(cut, sizeof cut, "%s", choices);
    char text[64];
    snprintf(text, sizeof text, "kind=%s", strrchr(cut, '|') + 1);
    assert_status(backend_options_parse(&long_list, text, &values), STATUS_USAGE);
}

static void wrong_options_are_explained(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"blok=3",
         "backend 'example' has no option 'blok' (did you mean 'block'?); its options are block=1..64, "
         "tile=4|8|16, shared=static|dynamic, file=FILE"},
        {"block=0", "backend 'example': option block must be 1..64, not '0'"},
        {"block=65", "backend 'example': option block must be 1..64, not '65'"},
        {"block=", "backend 'example': option block must be 1..64, not ''"},
        {"block=6x", "backend 'example': option block must be 1..64, not '6x'"},
        {"tile=32", "backend 'example': option tile must be 4|8|16, not '32'"},
        {"shared=dynamc",
         "backend 'example': option shared must be static|dynamic, not 'dynamc' (did you mean 'dynamic'?)"},
        {"tile=4,tile=8", "backend 'example': option tile is given twice"},
        {"avx2", "backend 'example': 'avx2' is no option: write --backend NAME:key=value,key=value"},
        {"tile=4,", "backend 'example': '' is no option: write --backend NAME:key=value,key=value"},
    };
    char text[BACKEND_OPTIONS_TEXT + 1];
    struct backend_values values;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_status(backend_options_parse(&backend, cases[i][0], &values), STATUS_USAGE);
        assert_string_equal(status_message(), cases[i][1]);
    }
    assert_status(backend_options_parse(&plain, "tile=4", &values), STATUS_USAGE);
    assert_string_equal(status_message(), "backend 'plain' has no option 'tile', for it has none");
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_status(backend_options_parse(&backend, text, &values), STATUS_USAGE);
    assert_says(status_message(), "too long");
}

static void the_registry_checks_options(void **state) {
    (void)state;
    const struct gemm_backend *found;
    assert_status(registry_find("tuned:isa=portable", &found), STATUS_OK);
    assert_string_equal(found->name, "tuned");
    assert_status(registry_find("auto:isa=portable", &found), STATUS_OK);
    assert_string_equal(found->name, "tuned");
    assert_status(registry_find("tuned:", &found), STATUS_OK);
    assert_status(registry_find("tuned:isa=portabel", &found), STATUS_USAGE);
    assert_says(status_message(), "backend 'tuned': option isa must be auto|");
    assert_says(status_message(), "not 'portabel' (did you mean 'portable'?)");
    assert_status(registry_find("serial:tile=4", &found), STATUS_USAGE);
    assert_status(registry_find("tunde:isa=portable", &found), STATUS_UNAVAILABLE);
    assert_says(status_message(), "no backend is called 'tunde' (did you mean 'tuned'?)");
    assert_string_equal(registry_option_owner("isa"), "tuned");
    assert_null(registry_option_owner("no-such-option"));
}

/* In a list, "key=value" belongs to the backend before it. */
static void lists_of_backends_with_options(void **state) {
    (void)state;
    struct config config;
    struct sweep sweep;
    support_config(&config, "threads=1");
    assert_status(
        sweep_open(&sweep, &config, &(struct sweep_lists){.backends = "tuned:isa=portable,serial,tuned"}),
        STATUS_OK);
    assert_int_equal(sweep.count, 3);
    assert_string_equal(sweep.rows[0].label, "tuned:isa=portable");
    assert_string_equal(config_compute(&sweep.rows[0].config).options, "isa=portable");
    assert_string_equal(sweep.rows[1].name, "serial");
    assert_string_equal(sweep.rows[2].name, "tuned");
    assert_true(sweep_row_is(&sweep.rows[0], "tuned") && sweep_row_is(&sweep.rows[0], "tuned:isa=portable"));
    assert_false(sweep_row_is(&sweep.rows[2], "tuned:isa=portable") || sweep_row_is(&sweep.rows[1], "tuned"));
    sweep_close(&sweep);
    assert_status(
        sweep_open(&sweep, &config, &(struct sweep_lists){.backends = "serial,tuned:isa=auto,isa=auto"}),
        STATUS_USAGE);
    assert_says(status_message(), "option isa is given twice");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_name_ends_before_the_options), cmocka_unit_test(values_and_fallbacks),
        cmocka_unit_test(options_that_must_be_given),       cmocka_unit_test(long_lists_are_whole),
        cmocka_unit_test(wrong_options_are_explained),      cmocka_unit_test(the_registry_checks_options),
        cmocka_unit_test(lists_of_backends_with_options),
    };
    return cmocka_run_group_tests_name("backend options", tests, NULL, NULL);
}
