/* Files are data: what hostile checkpoints, torn logs and wrong names of outputs can do through the program.
   */
#include "tests/support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/text.h"
#include "src/nn/checkpoint.h"

static char output[1 << 17];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)
#define SMALL "--layers 42-8-4 --batch-size 32 --epochs 2 --threads 1 --backend serial"

static const char *write_text(const char *name, const char *text) {
    const char *path = support_path(name);
    support_write(path, text, strlen(text));
    return path;
}

static char *read_text(const char *path) {
    size_t length;
    char *text = (char *)support_read(path, &length);
    text[length] = '\0';
    return text;
}

static void assert_text(const char *path, const char *wanted) {
    char *text = read_text(path);
    assert_string_equal(text, wanted);
    free(text);
}

/* --- checkpoints --- */

static const float weight[4][42], bias[4];

/* A network of 42-4, whose file is right but for the recipe. */
static const char *with_recipe(const char *name, const char *recipe) {
    const struct tensor tensors[] = {{"layers.0.weight", GEMM_F32, 2, {4, 42}, weight},
                                     {"layers.0.bias", GEMM_F32, 1, {4}, bias}};
    const struct metadata metadata = {"tessera.config", recipe};
    const char *path = support_path(name);
    assert_status(safetensors_write(path, tensors, 2, &metadata, 1), STATUS_OK);
    return path;
}

/* All keys that are not of the recipe, with a value that would have an effect. */
static const char *evil_recipe(const char *library, const char *victim) {
    static char recipe[8192];
    snprintf(recipe, sizeof recipe, "layers = 42-4\ndata = %s\n", support_data);
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        if (key->recipe) continue;
        text_append(recipe, sizeof recipe, "%s = %s\n", key->name,
                    strcmp(key->name, "backend") == 0 ? library
                    : key->kind == KEY_TEXT           ? victim
                    : key->kind == KEY_CHOICE         ? key->choices[1]
                                                      : "3");
    }
    return recipe;
}

static void checkpoints_give_no_orders(void **state) {
    (void)state;
    const char *library = support_plugin("plugins/loaded/constructor.so"), *mark = support_path("loaded"),
               *victim = write_text("victim", "precious");
    const char *evil = with_recipe("evil.safetensors", evil_recipe(library, victim));
    setenv("TESSERA_TEST_MARK", mark, 1);
    assert_int_equal(RUN("eval %s", evil), 0);
    assert_int_equal(RUN("--resume %s --epochs 1 --batch-size 100", evil), 0);
    assert_int_equal(RUN("--resume %s --dump-config", evil), 0);
    assert_null(strstr(output, victim));
    assert_null(strstr(output, library));
    assert_text(victim, "precious");
    assert_int_not_equal(access(mark, F_OK), 0);
    assert_int_not_equal(RUN("--data %s --backend %s", support_data, library), 0); /* the flag does load it */
    assert_int_equal(access(mark, F_OK), 0);
    unlink(mark);
    unsetenv("TESSERA_TEST_MARK");
}

/* No key of the recipe names a library or a file; `data` names a folder to read. */
static void recipes_name_no_files(void **state) {
    (void)state;
    struct config config, defaults;
    config_defaults(&config);
    config_defaults(&defaults);
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        if (key->kind == KEY_TEXT) assert_int_equal(key->recipe, strcmp(key->name, "data") == 0);
        if (key->recipe) continue;
        assert_status(config_set(&config, key->name, "evil", FROM_CHECKPOINT, "x"), STATUS_OK);
        assert_int_equal(config.origin[i], FROM_DEFAULT);
    }
    assert_memory_equal(&config, &defaults, sizeof config);
    const char *file = write_text("all.cfg", "backend = serial\nsave = a\nlog = b\nepochs = 3\n");
    assert_status(config_read(&config, file),
                  STATUS_OK); /* a config file is the user's: it may set all keys */
    assert_true(strcmp(config.backend, "serial") == 0 && strcmp(config.save, "a") == 0 && config.epochs == 3);
}

/* A checkpoint may name any folder: a FIFO in it, which is never written, and a device are refused at once.
   */
static void only_regular_files_are_read(void **state) {
    (void)state;
    char folder[300], recipe[400], fifo[400];
    snprintf(folder, sizeof folder, "%s", support_path("pipes"));
    snprintf(recipe, sizeof recipe, "layers = 42-4\ndata = %s\n", folder);
    snprintf(fifo, sizeof fifo, "%s/t10k-labels-idx1-ubyte", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    char images[400], real[400];
    snprintf(images, sizeof images, "%s/t10k-images-idx3-ubyte", folder);
    snprintf(real, sizeof real, "%s/t10k-images-idx3-ubyte", support_data);
    assert_int_equal(symlink(real, images), 0); /* a link is followed */
    const char *path = with_recipe("pipes.safetensors", recipe);
    char *program = getenv("TESSERA"), limited[600];
    snprintf(limited, sizeof limited, "timeout 60 %s", program);
    char *before = strdup(program);
    setenv("TESSERA", limited, 1);
    for (int device = 0; device < 2; device++) {
        assert_int_equal(device ? symlink("/dev/zero", fifo) : mkfifo(fifo, 0600), 0);
        assert_int_equal(RUN("eval %s", path), 3);
        assert_says(output, "t10k-labels-idx1-ubyte': it is not a regular file");
        assert_int_equal(RUN("eval %s", fifo), 3);
        assert_int_equal(RUN("--data %s --resume %s", support_data, fifo), 3);
        assert_int_equal(unlink(fifo), 0);
    }
    setenv("TESSERA", before, 1);
    free(before);
}

/* The network is allocated before its weights are read: a recipe cannot make it larger than the file. */
static void recipes_fit_their_tensors(void **state) {
    (void)state;
    static const char *const recipes[] = {"layers = 1048576-1048576-1048576-4", "layers = 42-5",
                                          "layers = 42-4-4"};
    for (size_t i = 0; i < 3; i++) {
        const char *path = with_recipe("large.safetensors", recipes[i]);
        assert_int_equal(RUN("eval %s --data %s", path, support_data), 3);
        assert_says(output, "of its recipe (corrupted)");
    }
    assert_int_equal(RUN("eval %s --data %s",
                         with_recipe("unknown.safetensors", "layers = 42-4\nmagic = 1\n"), support_data),
                     3);
    assert_says(output, "unknown key 'magic'");
}

/* --- outputs --- */

static void only_checkpoints_are_replaced(void **state) {
    (void)state;
    static const float values[2];
    const struct tensor tensor = {"other", GEMM_F32, 1, {2}, values};
    const char *model = support_path("m.safetensors"), *empty = write_text("empty.safetensors", ""),
               *text = write_text("thesis.tex", "precious"),
               *elsewhere = support_path("elsewhere.safetensors");
    for (int init = 0; init < 2; init++) {
        const char *flag = init ? "save-init" : "save";
        assert_int_equal(RUN("--data %s " SMALL " --%s %s", support_data, flag, text), 2);
        assert_says(output,
                    "thesis.tex' exists and is not a checkpoint: it is not replaced. Save under another");
        assert_null(strstr(output, "train accuracy"));
        assert_text(text, "precious");
        assert_int_equal(RUN("--data %s " SMALL " --%s %s", support_data, flag, model), 0);
    }
    assert_status(safetensors_write(elsewhere, &tensor, 1, NULL, 0), STATUS_OK);
    assert_int_equal(RUN("--data %s " SMALL " --save %s", support_data, elsewhere), 2);
    assert_says(output, "has no tensor layers.0.weight");
    assert_int_equal(RUN("--data %s " SMALL " --save %s", support_data, empty), 0);
    assert_int_equal(RUN("eval %s", empty), 0);
    /* of an ensemble, every member is checked before the first trains */
    write_text("e-seed3.safetensors", "precious");
    assert_int_equal(
        RUN("--data %s " SMALL " --ensemble 3 --save %s", support_data, support_path("e.safetensors")), 2);
    assert_int_not_equal(access(support_path("e-seed1.safetensors"), F_OK), 0);
}

static unsigned mode_of(const char *path) {
    struct stat info;
    assert_int_equal(lstat(path, &info), 0);
    return info.st_mode;
}

/* A link is kept, and so is the mode of the file that it names, by every command that writes a file. */
static void modes_and_links_are_kept(void **state) {
    (void)state;
    const char *model = support_path("kept.safetensors"), *page = support_path("kept.html"),
               *sheet = support_path("kept.png"),
               *tables = write_text("kept.md", "<!-- peak -->\n<!-- end -->\n");
    const char *const files[] = {model, page, sheet, tables};
    char links[4][300];
    write_text("kept.safetensors", "");
    write_text("kept.html", "");
    write_text("kept.png", "");
    for (int i = 0; i < 4; i++) {
        chmod(files[i], 0600);
        snprintf(links[i], sizeof links[i], "%s-link%s", files[i], i == 2 ? ".png" : "");
        assert_int_equal(symlink(files[i], links[i]), 0);
    }
    assert_int_equal(RUN("--data %s " SMALL " --save %s", support_data, links[0]), 0);
    assert_int_equal(RUN("report tests/fixtures/full.jsonl -o %s --tables %s", links[1], links[3]), 0);
    assert_int_equal(RUN("augment --data %s --show 2 -o %s", support_data, links[2]), 0);
    for (int i = 0; i < 4; i++) {
        struct stat info;
        assert_int_equal(mode_of(files[i]) & 07777, 0600);
        assert_true(S_ISLNK(mode_of(links[i])));
        assert_true(stat(files[i], &info) == 0 && info.st_size > 100);
    }
}

static void outputs_have_files_of_their_own(void **state) {
    (void)state;
    char images[300], config_log[300];
    const char *model = support_path("own.safetensors"), *log = support_path("own.jsonl"),
               *hard = support_path("own-hard"), *config = write_text("own.cfg", "epochs = 1\n");
    snprintf(images, sizeof images, "%s/train-images-idx3-ubyte", support_data);
    snprintf(config_log, sizeof config_log, "%.*s/./own.cfg", (int)(strrchr(config, '/') - config), config);
    assert_int_equal(RUN("--data %s " SMALL " --save %s --log %s", support_data, model, log), 0);
    assert_int_equal(link(log, hard), 0);
    char *before = read_text(log);
#define REFUSED(pair, ...)                           \
    assert_int_equal(RUN(__VA_ARGS__), 2);           \
    assert_says(output, pair " name the same file"); \
    assert_null(strstr(output, "train accuracy"))
    REFUSED("--csv and --log", "--data %s " SMALL " --log %s --csv %s", support_data, log, hard);
    REFUSED("--csv and --save", "--data %s " SMALL " --csv %s --save %s", support_data, model, model);
    REFUSED("--save and --save-init", "--data %s " SMALL " --save %s --save-init %s", support_data, model,
            model);
    REFUSED("--resume and --log", "--data %s " SMALL " --resume %s --log %s", support_data, model, model);
    REFUSED("--resume and --save-init", "--resume %s --save-init %s", model, model);
    REFUSED("--config and --log", "--config %s --data %s --log %s", config, support_data, config_log);
    REFUSED("--config and --csv", "--config %s --config configs/fast.cfg --data %s --csv %s", config,
            support_data, config);
    REFUSED("--data and --log", "--data %s " SMALL " --log %s", support_data, images);
    REFUSED("--data and --log", "eval %s --log %s", model, images); /* the data set of the checkpoint */
    REFUSED("the checkpoint and --log", "eval %s --log %s", model, model);
    REFUSED("--picture and --log", "eval %s --log %s --picture %s", model, support_path("x.png"),
            support_path("x.png"));
    REFUSED("--config and --log", "compare --config %s --data %s --backends serial --log %s", config,
            support_data, config);
    REFUSED("--baseline and --log", "bench gemm --baseline %s --log %s", log, hard);
    REFUSED("--config and --log", "bench scaling --config %s --data %s --log %s", config, support_data,
            config);
    REFUSED("the log and --output", "report %s -o %s", log, hard);
    REFUSED("--output and --tables", "report %s -o %s --tables %s", log, config, config);
    assert_text(log, before);
    assert_text(config, "epochs = 1\n");
    free(before);
    assert_int_equal(RUN("--resume %s --save %s --epochs 3", model, model), 0); /* the normal case */
    assert_int_equal(RUN("eval %s", model), 0);
}

/* --- logs --- */

static void torn_logs_give_a_report(void **state) {
    (void)state;
    const char *log = support_path("torn.jsonl"), *page = support_path("torn.html");
    assert_int_equal(RUN("--data %s " SMALL " --log %s", support_data, log), 0);
    char *text = read_text(log);
    text[strlen(text) - 30] = '\0'; /* the summary is torn */
    support_write(log, text, strlen(text));
    free(text);
    assert_int_equal(RUN("report %s -o %s", log, page), 0);
    assert_says(output, "torn.jsonl, line 4: not a JSON object with a \"type\"");
    text = read_text(page);
    assert_says(text, "torn.jsonl, line 4: not a JSON object");
    free(text);
    /* the next run starts on a line of its own */
    assert_int_equal(RUN("--data %s " SMALL " --save %s", support_data, support_path("torn.safetensors")), 0);
    assert_int_equal(RUN("--resume %s --epochs 3 --log %s", support_path("torn.safetensors"), log), 0);
    assert_int_equal(RUN("report %s -o %s", log, page), 0);
    text = read_text(log);
    assert_non_null(strstr(text, "\n{\"type\":\"header\""));
    free(text);
}

/* Two processes write one log at the same time: every line is whole, and each row has its own header. */
static void two_runs_share_a_log(void **state) {
    (void)state;
    const char *log = support_path("two.jsonl"), *page = support_path("two.html"),
               *model = support_path("two.safetensors");
    char command[2048];
    cJSON *line;
    assert_int_equal(RUN("--data %s " SMALL " --save %s", support_data, model), 0);
    const char *format =
        "for seed in 1 2; do %s --resume %s --epochs 40 --log-steps 300 --log %s >/dev/null 2>&1 "
        "& done; wait";
    snprintf(command, sizeof command, format, getenv("TESSERA"), model, log);
    assert_int_equal(system(command), 0);
    assert_int_equal(support_log(log, "header", 0, &line), 2); /* asserts that each line is JSON */
    cJSON_Delete(line);
    assert_int_equal(support_log(log, "epoch", 0, &line), 2 * 38);
    cJSON_Delete(line);
    assert_int_equal(RUN("report %s -o %s", log, page), 0);
    /* the same with a certain order of the lines */
    log = write_text("mixed.jsonl", "{\"type\":\"header\",\"run\":\"a\",\"cpu\":\"A\"}\n"
                                    "{\"type\":\"header\",\"run\":\"b\",\"cpu\":\"B\"}\n"
                                    "{\"type\":\"epoch\",\"run\":\"a\",\"epoch\":1,\"train_loss\":1}\n"
                                    "{\"type\":\"epoch\",\"run\":\"b\",\"epoch\":1,\"train_loss\":2}\n");
    assert_int_equal(RUN("report %s -o %s", log, page), 0);
    assert_says(output,
                "mixed.jsonl, line 3: of another run than the line before: two processes wrote this log");
}

/* --- names that are not UTF-8 --- */

static void any_file_name_gives_valid_json(void **state) {
    (void)state;
    char data[300];
    size_t length;
    cJSON *line;
    const char *log = support_path("utf8.jsonl"), *model = support_path("utf8.safetensors");
    snprintf(data, sizeof data, "%s-\xff\xc3", support_data);
    assert_int_equal(symlink(support_data, data), 0);
    assert_int_equal(RUN("--data %s " SMALL " --log %s --save %s", data, log, model), 0);
    char *text = read_text(log), *clean = text_utf8(text);
    assert_string_equal(text, clean);
    assert_int_equal(support_log(log, "header", 0, &line), 1);
    assert_says(cJSON_GetStringValue(cJSON_GetObjectItem(line, "data")), "-\xef\xbf\xbd\xef\xbf\xbd");
    cJSON_Delete(line);
    free(text);
    free(clean);
    unsigned char *bytes = support_read(model, &length);
    bytes[8 + bytes[0] + 256 * bytes[1]] = '\0'; /* behind the header */
    clean = text_utf8((char *)bytes + 8);
    assert_string_equal((char *)bytes + 8, clean);
    free(bytes);
    free(clean);
    assert_int_equal(RUN("eval %s --data %s", model, data), 0);
    assert_int_equal(RUN("eval %s", model),
                     3); /* the name in the checkpoint is no longer that of the folder */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints_give_no_orders),
        cmocka_unit_test(recipes_name_no_files),
        cmocka_unit_test(recipes_fit_their_tensors),
        cmocka_unit_test(only_regular_files_are_read),
        cmocka_unit_test(only_checkpoints_are_replaced),
        cmocka_unit_test(modes_and_links_are_kept),
        cmocka_unit_test(outputs_have_files_of_their_own),
        cmocka_unit_test(torn_logs_give_a_report),
        cmocka_unit_test(two_runs_share_a_log),
        cmocka_unit_test(any_file_name_gives_valid_json),
    };
    return cmocka_run_group_tests_name("hostile files", tests, support_make_data, NULL);
}
