/* Configuration: every key, every kind of mistake, precedence, conversion back to text. */
#include "tests/support.h"

#include <stdlib.h>

#include "src/base/text.h"

static void defaults_are_the_validation_config(void **state) {
    (void)state;
    struct config defaults, file;
    config_defaults(&defaults);
    config_defaults(&file);
    assert_status(config_read(&file, "configs/validation.cfg"), STATUS_OK);
    for (size_t i = 0; i < config_key_count(); i++) {
        char a[CONFIG_TEXT], b[CONFIG_TEXT];
        config_value(&defaults, config_key_at(i), a, sizeof a);
        config_value(&file, config_key_at(i), b, sizeof b);
        assert_string_equal(a, b);
    }
    assert_int_equal(defaults.layers.count, 3);
    assert_int_equal(defaults.layers.width[1], 128);
}

static void lines_and_comments(void **state) {
    (void)state;
    struct config config;
    config_defaults(&config);
    assert_status(config_parse(&config, "# a comment\n\n  epochs=3\t# three\r\nlr = 2.5e-2\nlayers = 4 - 3-2",
                               FROM_FILE, "t"),
                  STATUS_OK);
    assert_int_equal(config.epochs, 3);
    assert_true(config.learning_rate == 2.5e-2);
    assert_true(config.layers.count == 3 && config.layers.width[0] == 4 && config.layers.width[2] == 2);
}

static void mistakes_say_where_and_what(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"\nbatchsize = 3", "t:2: unknown key 'batchsize'; did you mean 'batch-size'?"},
        {"epochs", "t:1: expected 'key = value'"},
        {"epochs = many", "epochs must be a whole number"},
        {"epochs = 1.5", "epochs must be a whole number"},
        {"epochs = -1", "epochs must be a whole number"},
        {"batch-size = 0", "batch-size must be a whole number from 1"},
        {"lr = fast", "learning-rate must be a number"},
        {"lr = nan", "learning-rate must be a number"},
        {"lr = -0.1", "learning-rate must be a number"},
        {"momentum = 1.5", "momentum must be a number from 0 to 1"},
        {"ema-decay = 1", "ema-decay must be a number from 0 to 0.999999999, not '1'"},
        {"layers = 784", "layers must be"},
        {"layers = 784--10", "layers must be"},
        {"layers = 784-0-10", "layers must be"},
        {"layers = 784-99999999999-10", "layers must be"},
        {"layers = 784-ten", "layers must be"},
        {"activation = swish",
         "activation must be none | relu | tanh | scaled-tanh | sigmoid | gelu"}, /* the list may grow */
        {"init = orthogonal", "init must be he | xavier | uniform | kmeans:FILE, not 'orthogonal'"},
        {"shuffle = yes", "shuffle must be off | on"},
        {"seed = 1e3", "seed must be"},
        {"threads = 99999", "threads must be"},
        {"init-range = -0.1", "init-range must be a number from 0"},
        {"input-range = 0,255", "input-range must be 0,1 | -1,1, not '0,255'"},
        {"augment = yes", "augment must be off | on"},
        {"augment-scale = 60", "augment-scale must be a number from 0 to 50"},
        {"augment-gentle = 1;7", "augment-gentle must be labels from 0 to 255 with commas between them"},
        {"augment-gentle = 1,", "augment-gentle must be labels"},
        {"augment-gentle = 256", "augment-gentle must be labels"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config config, before;
        config_defaults(&config);
        before = config;
        assert_status(config_parse(&config, cases[i].text, FROM_FILE, "t"), STATUS_USAGE);
        assert_says(status_message(), cases[i].says);
        assert_memory_equal(&config, &before, sizeof config);
    }
}

static void layers_have_a_limit(void **state) {
    (void)state;
    struct config config;
    char text[1024] = "1";
    config_defaults(&config);
    for (int i = 0; i < PROFILE_MAX_LAYERS; i++) strcat(text, "-1");
    assert_status(config_set(&config, "layers", text, FROM_FLAG, "x"), STATUS_OK);
    assert_int_equal(config.layers.count, PROFILE_MAX_LAYERS + 1);
    strcat(text, "-1");
    assert_status(config_set(&config, "layers", text, FROM_FLAG, "x"), STATUS_USAGE);
}

static void stronger_origins_win(void **state) {
    (void)state;
    struct config config;
    config_defaults(&config);
    assert_status(config_set(&config, "epochs", "7", FROM_FLAG, "flag"), STATUS_OK);
    assert_status(config_set(&config, "epochs", "5", FROM_FILE, "file"), STATUS_OK);
    assert_int_equal(config.epochs, 7);
    assert_status(config_set(&config, "epochs", "bad", FROM_FILE, "file"), STATUS_USAGE); /* still checked */
    assert_status(config_set(&config, "epochs", "8", FROM_FLAG, "flag"), STATUS_OK);
    assert_int_equal(config.epochs, 8);
}

static void environment(void **state) {
    (void)state;
    struct config config;
    config_defaults(&config);
    setenv("TESSERA_BATCH_SIZE", "17", 1);
    setenv("TESSERA_DATA", "somewhere", 1);
    assert_status(config_environment(&config), STATUS_OK);
    assert_int_equal(config.batch_size, 17);
    assert_string_equal(config.data, "somewhere");
    setenv("TESSERA_BATCH_SIZE", "-1", 1);
    assert_status(config_environment(&config), STATUS_USAGE);
    assert_says(status_message(), "TESSERA_BATCH_SIZE");
    unsetenv("TESSERA_BATCH_SIZE");
    unsetenv("TESSERA_DATA");
}

static void dump_reads_back(void **state) {
    (void)state;
    struct config config, back;
    support_config(
        &config,
        "layers=5-4-3 lr=0.12345678901234567 momentum=1e-7 activation=gelu save=x.safetensors seed=99");
    for (int origins = 0; origins < 2; origins++) {
        char *text = NULL;
        size_t size;
        FILE *memory = open_memstream(&text, &size);
        config_dump(&config, memory, false, origins);
        fclose(memory);
        config_defaults(&back);
        assert_status(config_parse(&back, text, FROM_FILE, "dump"), STATUS_OK);
        assert_true(back.learning_rate == config.learning_rate && back.momentum == config.momentum);
        assert_memory_equal(&back.layers, &config.layers, sizeof back.layers);
        assert_true(back.activation == config.activation && back.seed == 99);
        assert_string_equal(back.save, "x.safetensors");
        free(text);
    }
}

static void other_files_are_refused(void **state) {
    (void)state;
    struct config config;
    const char *path = support_path("binary.cfg");
    config_defaults(&config);
    assert_status(config_read(&config, support_path("absent.cfg")), STATUS_USAGE);
    assert_says(status_message(), "absent.cfg");
    support_write(path, "epochs = 1\n\0\0\0", 14);
    assert_status(config_read(&config, path), STATUS_USAGE);
    char *line = calloc(5001, 1);
    memset(line, 'a', 5000);
    support_write(path, line, 5000);
    assert_status(config_read(&config, path), STATUS_USAGE);
    free(line);
}

static void fits_the_data(void **state) {
    (void)state;
    struct config config;
    struct dataset_pair data;
    support_builtin_data(&data); /* 50 images of 42 pixels, labels 0 to 3 */
    support_config(&config, "layers=42-5-4");
    assert_status(config_check_data(&config, &data), STATUS_OK);
    support_config(&config, "layers=43-5-4");
    assert_status(config_check_data(&config, &data), STATUS_USAGE);
    support_config(&config, "layers=42-5-3");
    assert_status(config_check_data(&config, &data), STATUS_BAD_DATA);
    assert_says(status_message(),
                "image 7 of the training set has the label 3, but layers ends with 3 outputs");
    support_config(&config, "layers=42-5-257");
    assert_status(config_check_data(&config, &data), STATUS_USAGE);
    support_config(&config, "layers=42-5-4 validation=50");
    assert_status(config_check_data(&config, &data), STATUS_USAGE);
    support_config(&config, "layers=42-5-4 dtype=f64 precision=tf32");
    assert_status(config_check_data(&config, &data), STATUS_USAGE);
    dataset_pair_free(&data);
}

/* --- keys without effect --- */

static char said[2048];

static void say(const char *line) {
    text_append(said, sizeof said, "%s\n", line);
}

static const char *idle_keys(const struct config *config) {
    said[0] = '\0';
    config_warn_unused(config, say);
    return said;
}

static void keys_that_nothing_reads_are_named(void **state) {
    (void)state;
    static const struct {
        const char *settings, *says;
    } cases[] = {
        {"", ""},
        {"optimizer=adamw beta1=0.8", ""},
        {"beta1=0.8", "beta1 has no effect: it is for optimizer adam or adamw, not sgd\n"},
        {"schedule=step lr-gamma=0.5 pct-start=0.1",
         "pct-start has no effect: it is for schedule one-cycle, not step\n"},
        {"schedule=exponential lr-gamma=0.5 lr-step-epochs=3",
         "lr-step-epochs has no effect: it is for schedule step, not exponential\n"},
        {"augment=on augment-shift=1", ""},
        {"augment-shift=1 augment-gentle=1", "augment-gentle has no effect: it is for augment on, not off\n"
                                             "augment-shift has no effect: it is for augment on, not off\n"},
        {"init=uniform init-range=0.1", ""},
        {"init-range=0.1", "init-range has no effect: it is for init uniform, not he\n"},
    };
    struct config config;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        support_config(&config, cases[i].settings);
        assert_string_equal(idle_keys(&config), cases[i].says);
    }
    /* no message for a key of a file that a flag made idle, nor for keys of a checkpoint, which has all */
    config_defaults(&config);
    assert_status(config_parse(&config, "schedule=cosine\nlr-min=0.1\nbeta1=0.8", FROM_FILE, "t"), STATUS_OK);
    assert_status(config_set(&config, "schedule", "constant", FROM_FLAG, "t"), STATUS_OK);
    assert_string_equal(idle_keys(&config),
                        "beta1 has no effect: it is for optimizer adam or adamw, not sgd\n");
    config_defaults(&config);
    assert_status(config_parse(&config, "beta1=0.8", FROM_CHECKPOINT, "t"), STATUS_OK);
    assert_string_equal(idle_keys(&config), "");
}

/* '#' starts a comment only if it cannot be part of a name. */
static void names_may_hold_a_hash(void **state) {
    (void)state;
    struct config config;
    support_config(&config, "data=a#b");
    assert_string_equal(config.data, "a#b");
    assert_status(config_parse(&config, "data = c#d # not this\n#nor this", FROM_FILE, "t"), STATUS_OK);
    assert_string_equal(config.data, "c#d");
    assert_status(config_set(&config, "data", "a\nseed = 5", FROM_FLAG, "--data"), STATUS_USAGE);
    assert_status(config_set(&config, "data", "a #b", FROM_FLAG, "--data"), STATUS_USAGE);
}

static void options_of_the_backend(void **state) {
    (void)state;
    struct config config;
    support_config(&config, "threads=3");
    assert_int_equal(config_compute(&config).threads, 3);
    assert_string_equal(config_compute(&config).options, "");
    support_config(&config, "backend=cuda-order:order=CR,tile=8");
    assert_string_equal(config_compute(&config).options, "order=CR,tile=8");
}

/* A config file of an earlier version. */
static void moved_keys_say_where_to(void **state) {
    (void)state;
    struct config config;
    config_defaults(&config);
    assert_status(config_parse(&config, "epochs = 2\nisa = avx2\n", FROM_FILE, "old.cfg"), STATUS_USAGE);
    assert_string_equal(status_message(),
                        "old.cfg:2: 'isa' is now an option of the backend: --backend tuned:isa=avx2");
    assert_status(config_set(&config, "shared", "dynamic", FROM_ENVIRONMENT, "TESSERA_SHARED"), STATUS_USAGE);
    assert_says(status_message(), "TESSERA_SHARED: 'shared' is now an option of the backend: --backend ");
    assert_says(status_message(), ":shared=dynamic");
    assert_status(config_key_moved("backend", "auto", "t"), STATUS_OK);
    assert_int_equal(setenv("TESSERA_ISA", "avx2", 1), 0);
    assert_status(config_environment(&config), STATUS_USAGE);
    assert_says(status_message(), "TESSERA_ISA: 'isa' is now");
    assert_int_equal(unsetenv("TESSERA_ISA"), 0);
    assert_status(config_environment(&config), STATUS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_the_validation_config),
        cmocka_unit_test(lines_and_comments),
        cmocka_unit_test(mistakes_say_where_and_what),
        cmocka_unit_test(layers_have_a_limit),
        cmocka_unit_test(stronger_origins_win),
        cmocka_unit_test(environment),
        cmocka_unit_test(dump_reads_back),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(fits_the_data),
        cmocka_unit_test(keys_that_nothing_reads_are_named),
        cmocka_unit_test(names_may_hold_a_hash),
        cmocka_unit_test(options_of_the_backend),
        cmocka_unit_test(moved_keys_say_where_to),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
