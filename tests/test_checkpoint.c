/* Checkpoints: the file format against damaged and hostile files, full disks, and files made elsewhere. */
#include "tests/support.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "src/base/rng.h"
#include "src/nn/checkpoint.h"
#include "src/nn/optimizer.h"

static struct compute compute;

static int open_compute(void **state) {
    (void)state;
    support_open(&compute, "serial", 1);
    return 0;
}

static int close_compute(void **state) {
    (void)state;
    compute_close(&compute);
    return 0;
}

static void open_network(struct mlp *mlp, struct config *config, const char *settings) {
    support_config(config, settings);
    assert_status(mlp_open(mlp, &compute, config, 4), STATUS_OK);
    assert_status(mlp_initialize(mlp, INIT_UNIFORM, 0, 1), STATUS_OK);
}

static const char *saved(const char *name, const char *settings) {
    struct mlp mlp;
    struct config config;
    const char *path = support_path(name);
    open_network(&mlp, &config, settings);
    assert_status(checkpoint_save(path, &mlp, &config, NULL, NULL), STATUS_OK);
    mlp_close(&mlp);
    return path;
}

static void weights_and_state_come_back(void **state) {
    (void)state;
    static const char *const dtypes[] = {"f32", "f64"};
    for (size_t d = 0; d < 2; d++) {
        struct mlp mlp, back;
        struct config config, empty;
        struct optimizer optimizer, velocity;
        struct checkpoint checkpoint;
        char settings[128];
        const char *path = support_path("round.safetensors");
        struct train_state state_in =
                               {.epoch = 7,
                                .step = 3,
                                .updates = 17,
                                .tally = {.loss_sum = 0.1 + 1e-17, .images = 48, .correct = 31, .batches = 3},
                                .best = {5, 40, 0.1 + 1e-17}},
                           state_out;
        snprintf(settings, sizeof settings, "layers=5-4-3 momentum=0.5 seed=12 dtype=%s", dtypes[d]);
        open_network(&mlp, &config, settings);
        assert_status(optimizer_open(&optimizer, &mlp, &config), STATUS_OK);
        const size_t bytes = mlp.parameter_elements * dtype_size(mlp.dtype);
        memcpy(optimizer.update.moment1, mlp.parameters, bytes);
        assert_status(checkpoint_save(path, &mlp, &config, NULL, &state_in), STATUS_OK);

        assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
        config_defaults(&empty);
        assert_status(checkpoint_recipe(&checkpoint, &empty), STATUS_OK);
        assert_true(empty.seed == 12 && empty.momentum == 0.5 && empty.layers.count == 3 &&
                    empty.dtype == config.dtype);
        assert_status(mlp_open(&back, &compute, &empty, 4), STATUS_OK);
        assert_status(optimizer_open(&velocity, &back, &empty), STATUS_OK);
        assert_status(checkpoint_restore(&checkpoint, &back, &state_out), STATUS_OK);
        assert_memory_equal(mlp.parameters, back.parameters, bytes);
        assert_memory_equal(optimizer.update.moment1, velocity.update.moment1, bytes);
        assert_memory_equal(&state_in, &state_out, sizeof state_in);
        checkpoint_close(&checkpoint);
        optimizer_close(&optimizer, &mlp);
        optimizer_close(&velocity, &back);
        mlp_close(&mlp);
        mlp_close(&back);
    }
}

/* PyTorch's layout: [out, in]. */
static void layout_is_that_of_pytorch(void **state) {
    (void)state;
    struct mlp mlp;
    struct config config;
    struct safetensors file;
    open_network(&mlp, &config, "layers=5-4-3");
    const char *path = saved("layout.safetensors", "layers=5-4-3");
    assert_status(safetensors_read(&file, path), STATUS_OK);
    assert_int_equal(file.count, 4);
    const struct tensor *weight = safetensors_find(&file, "layers.0.weight"),
                        *bias = safetensors_find(&file, "layers.1.bias");
    assert_true(weight->rank == 2 && weight->shape[0] == 4 && weight->shape[1] == 5 && bias->rank == 1 &&
                bias->shape[0] == 3);
    for (size_t in = 0; in < 5; in++)
        for (size_t out = 0; out < 4; out++) {
            float value;
            memcpy(&value, (const char *)weight->data + (out * 5 + in) * sizeof value, sizeof value);
            assert_true(value == ((float *)mlp.layer[0].weight)[in * 4 + out]);
        }
    safetensors_free(&file);
    mlp_close(&mlp);
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    size_t count;
    struct checkpoint checkpoint;
    const char *path = saved("cut.safetensors", "layers=3-2"), *cut = support_path("cut2.safetensors");
    unsigned char *bytes = support_read(path, &count);
    for (size_t length = 0; length < count; length++) {
        support_write(cut, bytes, length);
        assert_status(checkpoint_open(&checkpoint, cut), STATUS_BAD_DATA);
        checkpoint_close(&checkpoint);
    }
    free(bytes);
}

/* A flipped byte that changes any value is detected. */
static void damage_is_noticed(void **state) {
    (void)state;
    size_t count, noticed = 0;
    const char *path = saved("flip.safetensors", "layers=3-2"), *flipped = support_path("flip2.safetensors");
    unsigned char *bytes = support_read(path, &count);
    const size_t header = 8 + (size_t)bytes[0] + 256 * (size_t)bytes[1];
    for (size_t at = 0; at < count; at++) {
        struct checkpoint checkpoint;
        struct config config;
        struct mlp mlp;
        bytes[at] ^= 0x15;
        support_write(flipped, bytes, count);
        config_defaults(&config);
        enum status status = checkpoint_open(&checkpoint, flipped);
        if (!status) status = checkpoint_recipe(&checkpoint, &config);
        if (!status) {
            support_config(&config, "layers=3-2");
            assert_status(mlp_open(&mlp, &compute, &config, 4), STATUS_OK);
            status = checkpoint_restore(&checkpoint, &mlp, NULL);
            mlp_close(&mlp);
        }
        checkpoint_close(&checkpoint);
        assert_true(status == STATUS_OK || status == STATUS_BAD_DATA);
        if (at >= header) assert_int_equal(status, STATUS_BAD_DATA);
        noticed += status != STATUS_OK;
        bytes[at] ^= 0x15;
    }
    assert_true(noticed >= count - (13 + 7)); /* except in the checksum's name and trailing spaces */
    free(bytes);
}

static void write_file(const char *path, const char *header, size_t data) {
    const size_t length = strlen(header);
    unsigned char *bytes = calloc(8 + length + data, 1);
    for (size_t i = 0; i < 8; i++) bytes[i] = (unsigned char)(length >> 8 * i);
    memcpy(bytes + 8, header, length);
    support_write(path, bytes, 8 + length + data);
    free(bytes);
}

#define HEADER(members) "{" members "}"
#define ONE(name, range) "\"" name "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" range "]}"
#define TWO ONE("a", "0,4") "," ONE("b", "4,8") /* fills 8 bytes */

static void hostile_headers(void **state) {
    (void)state;
    static const char *const headers[] = {
        "",
        "[]",
        "null",
        "{",
        "{\"a\":1}",
        "{\"a\":{}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,1e300]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807,2],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":\"x\",\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
        "{\"__metadata__\":7}",
        HEADER(ONE("a", "0,4") "," ONE("b", "0,4")),
        HEADER(ONE("a", "4,8") "," ONE("b", "4,8")),
        HEADER(ONE("a", "0,4") "," ONE("b", "4,8") "," ONE("c", "4,8")),
        HEADER(ONE("a", "0,4") "," ONE("a", "4,8")),
        HEADER("\"a\":{\"dtype\":\"F64\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}"),
        HEADER("\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8],\"shape\":[2]}"),
        HEADER("\"__metadata__\":{}," TWO ",\"__metadata__\":{}"),
        HEADER("\"__metadata__\":{\"x\":\"1\",\"x\":\"2\"}," TWO),
        HEADER("\"__metadata__\":{\"x\":7}," TWO),
        HEADER(TWO) "x",
        HEADER(TWO) HEADER(TWO),
    };
    static const char *const right[] = {HEADER(TWO), HEADER(TWO) "  ",
                                        HEADER(ONE("a", "4,8") "," ONE("b", "0,4")),
                                        HEADER("\"__metadata__\":{\"x\":\"1\"}," TWO)};
    const char *path = support_path("hostile.safetensors");
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        struct checkpoint checkpoint;
        write_file(path, headers[i], 8);
        assert_status(checkpoint_open(&checkpoint, path), STATUS_BAD_DATA);
        checkpoint_close(&checkpoint);
    }
    struct checkpoint checkpoint;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        write_file(path, right[i], 8);
        assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
        checkpoint_close(&checkpoint);
    }
    assert_status(checkpoint_open(&checkpoint, support_path("absent.safetensors")), STATUS_BAD_DATA);
    checkpoint_close(&checkpoint);
    assert_status(checkpoint_open(&checkpoint, "/dev/null"), STATUS_BAD_DATA);
    checkpoint_close(&checkpoint);
    static const unsigned char huge[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f};
    support_write(path, huge, sizeof huge);
    assert_status(checkpoint_open(&checkpoint, path), STATUS_BAD_DATA);
    checkpoint_close(&checkpoint);
}

static void another_architecture_or_dtype(void **state) {
    (void)state;
    static const struct {
        const char *settings, *says;
    } cases[] = {
        {"layers=5-4-3", NULL},
        {"layers=5-7-3",
         "of another architecture: its layers.0.weight maps 5 to 4, the network's maps 5 to 7"},
        {"layers=5-4", "it has more layers"},
        {"layers=5-4-3-3", "has no tensor layers.2.weight"},
        {"layers=5-4-3 dtype=f64", "holds f32, not f64: use --dtype f32"},
    };
    const char *path = saved("arch.safetensors", "layers=5-4-3");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct checkpoint checkpoint;
        struct config config;
        struct mlp mlp;
        open_network(&mlp, &config, cases[i].settings);
        assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
        assert_status(checkpoint_restore(&checkpoint, &mlp, NULL),
                      cases[i].says ? STATUS_BAD_DATA : STATUS_OK);
        if (cases[i].says) assert_says(status_message(), cases[i].says);
        checkpoint_close(&checkpoint);
        mlp_close(&mlp);
    }
}

static void missing_momentum_is_noticed(void **state) {
    (void)state;
    struct checkpoint checkpoint;
    struct config config;
    struct mlp mlp;
    struct optimizer optimizer;
    struct train_state at = {.epoch = 2}, back;
    const char *path = support_path("plain.safetensors");
    open_network(&mlp, &config, "layers=5-4-3");
    assert_status(checkpoint_save(path, &mlp, &config, NULL, &at), STATUS_OK);
    config.momentum = 0.9;
    assert_status(optimizer_open(&optimizer, &mlp, &config), STATUS_OK);
    assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
    assert_status(checkpoint_restore(&checkpoint, &mlp, &back), STATUS_BAD_DATA);
    assert_says(status_message(), "or without momentum");
    checkpoint_close(&checkpoint);
    optimizer_close(&optimizer, &mlp);
    mlp_close(&mlp);
}

/* A file without our metadata: layers and dtype come from the shapes. */
static void files_made_elsewhere(void **state) {
    (void)state;
    static const float weight[] = {1, 2, 3, 4, 5, 6}, bias[] = {7, 8};
    const struct tensor tensors[] = {{"layers.0.weight", GEMM_F32, 2, {2, 3}, weight},
                                     {"layers.0.bias", GEMM_F32, 1, {2}, bias}};
    struct checkpoint checkpoint;
    struct config config;
    struct mlp mlp;
    const char *path = support_path("elsewhere.safetensors");
    assert_status(safetensors_write(path, tensors, 2, NULL, 0), STATUS_OK);
    assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
    config_defaults(&config);
    assert_status(checkpoint_recipe(&checkpoint, &config), STATUS_OK);
    assert_true(config.layers.count == 2 && config.layers.width[0] == 3 && config.layers.width[1] == 2);
    assert_status(mlp_open(&mlp, &compute, &config, 1), STATUS_OK);
    assert_status(checkpoint_restore(&checkpoint, &mlp, NULL), STATUS_OK);
    assert_true(((float *)mlp.layer[0].weight)[0] == 1 && ((float *)mlp.layer[0].weight)[1] == 4);
    checkpoint_close(&checkpoint);
    mlp_close(&mlp);
}

/* A file of an earlier version has usable weights, but not all state that training needs to continue. */
static void files_of_earlier_versions(void **state) {
    (void)state;
    static const float weight[6] = {1}, bias[2];
    const struct tensor tensors[] = {{"layers.0.weight", GEMM_F32, 2, {2, 3}, weight},
                                     {"layers.0.bias", GEMM_F32, 1, {2}, bias}};
    const struct metadata metadata[] = {{"tessera.epoch", "3"},    {"tessera.step", "0"},
                                        {"tessera.loss_sum", "0"}, {"tessera.images", "0"},
                                        {"tessera.correct", "0"},  {"tessera.batches", "0"}};
    struct checkpoint checkpoint;
    struct config config;
    struct train_state training;
    struct mlp mlp;
    const char *path = support_path("earlier.safetensors");
    assert_status(safetensors_write(path, tensors, 2, metadata, 6), STATUS_OK);
    assert_status(checkpoint_open(&checkpoint, path), STATUS_OK);
    support_config(&config, "layers=3-2");
    assert_status(mlp_open(&mlp, &compute, &config, 1), STATUS_OK);
    assert_status(checkpoint_restore(&checkpoint, &mlp, NULL), STATUS_OK);
    assert_status(checkpoint_restore(&checkpoint, &mlp, &training), STATUS_BAD_DATA);
    assert_says(status_message(), "is of an earlier version");
    checkpoint_close(&checkpoint);
    mlp_close(&mlp);
}

static size_t files_in_folder(const char *path) {
    char folder[256];
    size_t count = 0;
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

/* With a limit on file sizes, writes fail as on a full disk. */
static void full_disk_leaves_the_old_file(void **state) {
    (void)state;
    struct mlp mlp;
    struct config config;
    size_t before, after;
    const char *path = saved("disk.safetensors", "layers=60-50-3");
    unsigned char *old = support_read(path, &before);
    const size_t files = files_in_folder(path);
    open_network(&mlp, &config, "layers=60-50-3 seed=9");
    struct rlimit limit, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t bytes = 0; bytes < before; bytes += 1000) {
        small.rlim_cur = bytes;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        const enum status status = checkpoint_save(path, &mlp, &config, NULL, NULL);
        setrlimit(RLIMIT_FSIZE, &limit);
        assert_status(status, STATUS_FAILED);
        assert_says(status_message(), "the old file, if any, is unchanged");
        unsigned char *now = support_read(path, &after);
        assert_int_equal(before, after);
        assert_memory_equal(old, now, before);
        free(now);
        assert_int_equal(files_in_folder(path), files); /* no temporary file is left */
    }
    signal(SIGXFSZ, SIG_DFL);
    free(old);
    mlp_close(&mlp);
}

static void unwritable_paths_are_errors(void **state) {
    (void)state;
    struct mlp mlp;
    struct config config;
    open_network(&mlp, &config, "layers=5-4-3");
    assert_status(safetensors_writable(support_path("no-such/x.safetensors")), STATUS_FAILED);
    assert_status(safetensors_writable("/dev/null"), STATUS_FAILED);
    assert_status(safetensors_writable(support_path("x.safetensors")), STATUS_OK);
    assert_status(checkpoint_save(support_path("no-such/x.safetensors"), &mlp, &config, NULL, NULL),
                  STATUS_FAILED);
    assert_says(status_message(), "No such file or directory");
    mlp_close(&mlp);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_and_state_come_back),
        cmocka_unit_test(layout_is_that_of_pytorch),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(damage_is_noticed),
        cmocka_unit_test(hostile_headers),
        cmocka_unit_test(another_architecture_or_dtype),
        cmocka_unit_test(missing_momentum_is_noticed),
        cmocka_unit_test(files_made_elsewhere),
        cmocka_unit_test(files_of_earlier_versions),
        cmocka_unit_test(full_disk_leaves_the_old_file),
        cmocka_unit_test(unwritable_paths_are_errors),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, open_compute, close_compute);
}
