/* The command line: output, exit codes, files, signals. */
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/process.h"
#include "src/report/records.h"

static char output[1 << 17];

#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)
#define SMALL "--layers 42-16-4 --batch-size 32 --epochs 3 --threads 2"

static void trains_and_reports(void **state) {
    (void)state;
    assert_int_equal(RUN("--data %s " SMALL " --lr 0.3", support_data), 0);
    assert_says(output, "network   42-16-4, relu, init he: 756 parameters");
    assert_says(output, support_data);
    assert_says(output, "test accuracy");
    assert_says(output, "+- ");
    assert_says(output, "GEMM NT input gradient");
    assert_says(output, "transfer/total");
    assert_null(strchr(output, '\r')); /* no progress line into a pipe */
    assert_int_equal(RUN("train --data %s " SMALL, support_data), 0);
}

static void openblas_threads_spin_briefly(void **state) {
    (void)state;
    setenv("OMP_WAIT_POLICY", "passive", 0); /* with which it does not execute itself */
    unsetenv("OPENBLAS_THREAD_TIMEOUT");
    process_limit_spinning(NULL);
    assert_string_equal(getenv("OPENBLAS_THREAD_TIMEOUT"), "20");
    setenv("OPENBLAS_THREAD_TIMEOUT", "28", 1); /* the user's choice stays */
    process_limit_spinning(NULL);
    assert_string_equal(getenv("OPENBLAS_THREAD_TIMEOUT"), "28");
    unsetenv("OPENBLAS_THREAD_TIMEOUT");
}

/* libgomp prints its settings at the start of each execution. */
static void openmp_threads_spin_briefly(void **state) {
    (void)state;
#if defined(_OPENMP) && !defined(__clang__)
    const char *policy = getenv("OMP_WAIT_POLICY");
    char *kept = policy ? strdup(policy) : NULL;
    unsetenv("OMP_WAIT_POLICY");
    setenv("OMP_DISPLAY_ENV", "verbose", 1);
    assert_int_equal(RUN("--version"), 0);
    assert_says(output, "GOMP_SPINCOUNT = '2000'");
    setenv("GOMP_SPINCOUNT", "77", 1); /* the user's choice stays */
    assert_int_equal(RUN("--version"), 0);
    assert_says(output, "GOMP_SPINCOUNT = '77'");
    assert_null(strstr(output, "GOMP_SPINCOUNT = '2000'"));
    unsetenv("GOMP_SPINCOUNT");
    unsetenv("OMP_DISPLAY_ENV");
    if (kept) setenv("OMP_WAIT_POLICY", kept, 1);
    free(kept);
#else
    print_message("skipped: only libgomp tells its settings\n");
    skip();
#endif
}

static void mistakes_have_their_exit_codes(void **state) {
    (void)state;
    static const struct support_refusal cases[] = {
        {"trian", 2, "unknown command 'trian'; did you mean 'train'?"},
        {"--batchsize 3", 2, "did you mean '--batch-size'?"},
        {"--epochs", 2, "--epochs needs a value"},
        {"--dry-run=1", 2, "--dry-run takes no value"},
        {"--log x --csv x --data synthetic", 2, "name the same file"},
        {"--evaluate-every 0 --patience 2 --validation 9 --data synthetic", 2,
         "evaluate-every = 0 computes only after the last"},
        {"--epochs many", 2, "--epochs: epochs must be a whole number"},
        {"--batch-size 0", 2, "batch-size must be"},
        {"--layers 784--10", 2, "layers must be"},
        {"--config no-such.cfg", 2, "no-such.cfg"},
        {"stray words", 2, "unknown command 'stray'"},
        {"--seed 1 stray", 2, "unexpected argument 'stray'"},
        {"--data no-such-directory", 3, "No such file"},
        {"--backend warp", 4, "usable here: serial"},
        {"--backend tuned:isa=avx", 2, "backend 'tuned': option isa must be auto|"},
        {"--backend tuned:ias=avx2 --data no-such-directory", 2,
         "backend 'tuned' has no option 'ias'; its options are isa=auto|"},
        {"--isa avx2", 2, "--isa: 'isa' is now an option of the backend: --backend tuned:isa=avx2"},
        {"compare --tile=16", 2, "'tile' is now an option of the backend: --backend "},
        {"compare --data synthetic --backends tuned,isa=avx2", 2,
         "--backends: write 'tuned:isa=avx2' with a ':'"},
        {"eval", 2, "eval needs a checkpoint"},
        {"eval no-such.safetensors", 3, "no-such.safetensors"},
        {"eval x --misclassified some", 2, "--misclassified must be"},
        {"--resume no-such.safetensors", 3, "no-such.safetensors"},
        {"devices --epochs 3", 2, "unknown or ambiguous flag '--epochs'"},
    };
    support_refuses("", cases, sizeof cases / sizeof *cases);
}

static void data_that_does_not_fit(void **state) {
    (void)state;
    assert_int_equal(RUN("--data %s", support_data), 2);
    assert_says(output, "the images have 42 pixels: set --layers 42-");
    assert_int_equal(RUN("--data %s --layers 42-9-3", support_data), 3);
    assert_says(output, "of the training set has the label 3, but layers ends with 3 outputs");
    assert_int_equal(RUN("--data %s --layers 42-9-4 --validation 300", support_data), 2);
    assert_int_equal(RUN("--data %s --layers 42-1048576-1048576-4", support_data), 1);
    assert_says(output, "TiB");
}

static void broken_data_directories(void **state) {
    (void)state;
    char path[400], labels[400];
    const char *directory = support_data_directory("broken", 30, 20, 6, 7, 4);
    snprintf(path, sizeof path, "%s/train-images-idx3-ubyte", directory);
    snprintf(labels, sizeof labels, "%s/train-labels-idx1-ubyte", directory);
    support_write(path, "<html>404</html>", 16);
    assert_int_equal(RUN("--data %s --layers 42-4", directory), 3);
    assert_says(output, "HTML page");
    rename(labels, path); /* swapped */
    assert_int_equal(RUN("--data %s --layers 42-4", directory), 3);
    assert_says(output, "has no train-labels");
}

static void config_file_and_precedence(void **state) {
    (void)state;
    const char *path = support_path("a.cfg");
    support_write(path, "epochs = 5\nlr = 0.5\nseed = 8\n", 28);
    setenv("TESSERA_SEED", "9", 1);
    assert_int_equal(RUN("--config %s --lr 0.25 --dump-config", path), 0);
    unsetenv("TESSERA_SEED");
    assert_says(output, "epochs          = 5                    # file");
    assert_says(output, "learning-rate   = 0.25                 # flag");
    assert_says(output, "seed            = 9                    # environment");
    assert_says(output, "momentum        = 0                    # default");
    support_write(path, "epochs = 5\nlearningrate = 0.5\n", 30);
    assert_int_equal(RUN("--config %s", path), 2);
    assert_says(output, "a.cfg:2: unknown key 'learningrate'; did you mean 'learning-rate'?");
}

static void help_and_version(void **state) {
    (void)state;
    static const char *const arguments[] = {"--help", "train --help", "eval --help", "devices --help", "-h"};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(RUN("%s", arguments[i]), 0);
        assert_says(output, "usage: train");
    }
    assert_int_equal(RUN("--help-all"), 0);
    for (size_t i = 0; i < config_key_count(); i++)
        if (!config_key_clusters(config_key_at(i)) && !config_key_reads_out(config_key_at(i)))
            assert_says(output, config_key_at(i)->name);
    assert_null(strstr(output, "--clusters")); /* it has no effect on a training */
    assert_null(strstr(output, "--ridge"));
    assert_int_equal(RUN("kmeans --help"), 0);
    for (size_t i = 0; i < config_key_count(); i++)
        if (config_key_clusters(config_key_at(i))) assert_says(output, config_key_at(i)->name);
    assert_int_equal(RUN("readout --help"), 0);
    for (size_t i = 0; i < config_key_count(); i++)
        if (config_key_reads_out(config_key_at(i))) assert_says(output, config_key_at(i)->name);
    assert_int_equal(RUN("--version"), 0);
    assert_says(output, "Tessera ");
    setenv("TESSERA_EPOCHS", "abc", 1);
    assert_int_equal(RUN("--help"), 0);
    unsetenv("TESSERA_EPOCHS");
}

/* What a user probably means is done, or named. */
static void does_what_is_meant(void **state) {
    (void)state;
    const char *path = support_path("meant.cfg"), *model = support_path("meant.safetensors");
    support_write(path, "seed = 77\n", 10);
    assert_int_equal(RUN("help"), 0);
    assert_says(output, "commands:");
    assert_int_equal(RUN("help bench gemm"), 0);
    assert_says(output, "usage: train bench gemm");
    const char *const spellings[] = {"%s", "train %s", "--epochs 4 %s", "--config - < %s"};
    for (size_t i = 0; i < 4; i++) {
        char arguments[600];
        snprintf(arguments, sizeof arguments, spellings[i], path);
        assert_int_equal(RUN("%s --dump-config", arguments), 0);
        assert_says(output, "seed            = 77                   # file");
    }
    assert_int_equal(RUN("compare %s --help", path), 0);
    setenv("TESSERA_EPOCH", "1", 1);
    assert_int_equal(RUN("--dump-config"), 0);
    unsetenv("TESSERA_EPOCH");
    assert_says(
        output,
        "warning: the environment variable TESSERA_EPOCH has no effect; did you mean TESSERA_EPOCHS?");
    assert_int_equal(RUN("--data %s " SMALL " --log - 2>/dev/null", support_data), 0);
    assert_true(strncmp(output, "{\"type\":\"header\"", 16) == 0);
    assert_null(strstr(output, "network "));
    assert_int_equal(RUN("--data %s " SMALL " --log - --csv -", support_data), 2);
    assert_int_equal(RUN("--data %s " SMALL " --save -", support_data), 2);
    assert_int_equal(RUN("--data %s " SMALL " --lr 0.3 --save %s", support_data, model), 0);
    assert_null(strstr(output, "warning"));
    assert_int_equal(RUN("--data %s --resume %s --epochs 2", support_data, model), 0);
    assert_says(output, "train: warning: the checkpoint is at epoch 3 of 2: nothing to train; ");
    assert_says(output, "--epochs 4 trains one more");
    assert_int_equal(RUN("--data %s " SMALL " --lr 100", support_data), 0);
    assert_says(output, "train: warning: the network has not learnt: its loss, ");
}

/* A config is found from any folder, beside the program or where it is installed. */
static void configs_are_found(void **state) {
    (void)state;
    char home[300], command[900];
    snprintf(home, sizeof home, "%s/tessera/configs", support_path("xdg"));
    snprintf(command, sizeof command, "mkdir -p %s && printf 'seed = 5\\n' > %s/mine.cfg", home, home);
    assert_int_equal(system(command), 0);
    setenv("XDG_DATA_HOME", support_path("xdg"), 1);
    const char *const names[] = {"mine", "mine.cfg", "configs/mine.cfg"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(RUN("--config %s --dump-config", names[i]), 0);
        assert_says(output, "seed            = 5                    # file");
    }
    assert_int_equal(RUN("--config ./mine --dump-config"), 2);
    assert_int_equal(RUN("--config yours --dump-config"), 2);
    assert_says(output, "cannot read the config file 'yours'");
    unsetenv("XDG_DATA_HOME");
    assert_int_equal(RUN("--config fast --dump-config"), 0); /* of this folder */
}

static void dry_run_trains_nothing(void **state) {
    (void)state;
    const char *init = support_path("dry.safetensors");
    assert_int_equal(RUN("--data %s " SMALL " --dry-run --save-init %s", support_data, init), 0);
    assert_null(strstr(output, "test accuracy"));
    assert_int_equal(RUN("eval %s --data %s", init, support_data), 0);
    const char *const runs[] = {"", "--dry-run", "--dry-run --ensemble 2"}; /* the same notice */
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(RUN("--data %s " SMALL " --backend serial --engine fused %s", support_data, runs[i]),
                         0);
        assert_says(output,
                    "engine fused cannot be used here: backend 'serial' has no fused steps; eager instead");
    }
}

/* Mistakes are drawn; an untrained network makes many. */
static void mistakes_are_pictured(void **state) {
    (void)state;
    const char *init = support_path("init.safetensors");
    assert_int_equal(RUN("--data %s " SMALL " --dry-run --save-init %s", support_data, init), 0);
    assert_int_equal(RUN("eval %s --data %s --misclassified 2", init, support_data), 0);
    assert_says(output, "the 2 most confident of");
    assert_says(output, ", not ");
    assert_says(output, "%%");
}

static void divergence_exits_1(void **state) {
    (void)state;
    const char *model = support_path("never.safetensors"), *log = support_path("never.jsonl");
    cJSON *line;
    assert_int_equal(
        RUN("--data %s " SMALL " --lr 1000 --weight-decay 100 --save %s --log %s", support_data, model, log),
        1);
    assert_says(output, "the loss is not finite at epoch 1, step ");
    assert_int_equal(support_log(log, "stopped", 0, &line), 1);
    assert_says(record_text(line, "reason"), "the loss is not finite at epoch 1, step ");
    cJSON_Delete(line);
    assert_int_not_equal(access(model, F_OK), 0);
}

static void devices_lists_everything(void **state) {
    (void)state;
    assert_int_equal(RUN("devices"), 0);
    assert_says(output, "serial");
    assert_says(output, "openmp");
    assert_says(output, "openblas");
}

static void full_standard_output_is_noticed(void **state) {
    (void)state;
    if (access("/dev/full", W_OK) != 0) {
        print_message("skipped: no /dev/full\n");
        skip();
    }
    assert_int_equal(RUN("--help > /dev/full"), 1);
    assert_says(output, "cannot write to standard output");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trains_and_reports),
        cmocka_unit_test(openblas_threads_spin_briefly),
        cmocka_unit_test(openmp_threads_spin_briefly),
        cmocka_unit_test(mistakes_have_their_exit_codes),
        cmocka_unit_test(data_that_does_not_fit),
        cmocka_unit_test(broken_data_directories),
        cmocka_unit_test(config_file_and_precedence),
        cmocka_unit_test(help_and_version),
        cmocka_unit_test(does_what_is_meant),
        cmocka_unit_test(configs_are_found),
        cmocka_unit_test(dry_run_trains_nothing),
        cmocka_unit_test(mistakes_are_pictured),
        cmocka_unit_test(divergence_exits_1),
        cmocka_unit_test(devices_lists_everything),
        cmocka_unit_test(full_standard_output_is_noticed),
    };
    return cmocka_run_group_tests_name("cli", tests, support_make_data, NULL);
}
