#include "tests/support.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/backend/backend_options.h"
#include "src/backend/registry.h"
#include "src/base/text.h"

/* The programs that the tests start inherit these: a test program that was itself started with ignored
   signals (nohup, or a shell's background job) would wait for ever for one that it interrupts. */
__attribute__((constructor)) static void default_signals(void) {
    static const int signals[] = {SIGHUP, SIGINT, SIGTERM, SIGPIPE, SIGXCPU, SIGXFSZ};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) signal(signals[i], SIG_DFL);
}

/* TESSERA_TEST_ONLY: the tests of a program to run, with * and ?. */
__attribute__((constructor)) static void choose_tests(void) {
    if (getenv("TESSERA_TEST_ONLY")) cmocka_set_test_filter(getenv("TESSERA_TEST_ONLY"));
}

static char folder[192];

static void remove_folder(void) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0) fprintf(stderr, "could not remove %s\n", folder);
}

const char *support_path(const char *name) {
    static char paths[16][256];
    static size_t next;
    if (!folder[0]) {
        const char *tmp = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/tessera-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        if (!mkdtemp(folder)) fail_msg("no temporary folder");
        atexit(remove_folder);
    }
    char *path = paths[next++ % 16];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

void support_write(const char *path, const void *bytes, size_t count) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

unsigned char *support_read(const char *path, size_t *count) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *count = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = malloc(*count + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *count, file), *count);
    fclose(file);
    return bytes;
}

void support_write_idx(const char *path, size_t rank, const uint32_t *dims, const uint8_t *values,
                       size_t count) {
    const size_t header = 4 + 4 * rank;
    unsigned char *bytes = calloc(header + count, 1);
    assert_non_null(bytes);
    bytes[2] = 0x08;
    bytes[3] = (unsigned char)rank;
    for (size_t i = 0; i < 4 * rank; i++) bytes[4 + i] = (unsigned char)(dims[i / 4] >> (24 - 8 * (i % 4)));
    if (count) memcpy(bytes + header, values, count);
    support_write(path, bytes, header + count);
    free(bytes);
}

/* Each class is a bright block at its own position on a dark, noisy background. */
static void draw(uint8_t *image, uint32_t pixels, unsigned label, unsigned classes, uint32_t seed) {
    for (uint32_t p = 0; p < pixels; p++) {
        seed = seed * 1664525u + 1013904223u;
        const bool bright = p * classes / pixels == label;
        image[p] = (uint8_t)((bright ? 150 : 0) + (seed >> 24) % 100);
    }
}

static void write_part(const char *directory, const char *part, uint32_t count, uint32_t height,
                       uint32_t width, unsigned classes, uint32_t seed) {
    uint8_t *images = malloc((size_t)count * height * width), *labels = malloc(count);
    char path[300];
    assert_true(images && labels);
    for (uint32_t i = 0; i < count; i++) {
        labels[i] = (uint8_t)(i * 7 % classes);
        draw(images + (size_t)i * height * width, height * width, labels[i], classes, seed + i);
    }
    snprintf(path, sizeof path, "%s/%s-images-idx3-ubyte", directory, part);
    support_write_idx(path, 3, (uint32_t[]){count, height, width}, images, (size_t)count * height * width);
    snprintf(path, sizeof path, "%s/%s-labels-idx1-ubyte", directory, part);
    support_write_idx(path, 1, (uint32_t[]){count}, labels, count);
    free(images);
    free(labels);
}

const char *support_data_directory(const char *name, uint32_t train, uint32_t test, uint32_t height,
                                   uint32_t width, unsigned classes) {
    const char *directory = support_path(name);
    mkdir(directory, 0777);
    write_part(directory, "train", train, height, width, classes, 1);
    write_part(directory, "t10k", test, height, width, classes, 77777);
    return directory;
}

char support_data[256];

int support_make_data(void **state) {
    (void)state;
    snprintf(support_data, sizeof support_data, "%s", support_data_directory("data", 300, 100, 6, 7, 4));
    unsetenv("TESSERA_DATA");
    unsetenv("TESSERA_BACKEND");
    setenv("OMP_WAIT_POLICY", "passive", 0); /* other processes may need the cores */
    return 0;
}

static void builtin_set(struct dataset *set) {
    *set = (struct dataset){
        .count = 50, .height = 6, .width = 7, .classes = 4, .images = malloc(50 * 42), .labels = malloc(50)};
    assert_true(set->images && set->labels);
    for (unsigned i = 0; i < 50; i++) {
        for (unsigned j = 0; j < 42; j++)
            set->images[i * 42 + j] = (uint8_t)((i * 37 + j * 101 + i * j * 7) % 256);
        set->labels[i] = (uint8_t)((i * i + i / 3) % 4);
    }
}

void support_builtin_data(struct dataset_pair *pair) {
    *pair = (struct dataset_pair){.name = "builtin"};
    builtin_set(&pair->train);
    builtin_set(&pair->test);
}

void support_config(struct config *config, const char *settings) {
    char text[1024];
    snprintf(text, sizeof text, "%s", settings);
    for (char *at = text; *at; at++)
        if (*at == ' ') *at = '\n';
    config_defaults(config);
    assert_status(config_parse(config, text, FROM_FILE, "test"), STATUS_OK);
}

bool support_on_host(const struct registry_entry *entry) {
    return !entry->backend || entry->backend->device == GEMM_ON_HOST;
}

static void upload_reals(struct mlp *mlp, void *to, const double *values, size_t count) {
    struct device *device = &mlp->compute->device;
    float *single = malloc(count * sizeof *single);
    assert_non_null(single);
    for (size_t i = 0; i < count; i++) single[i] = (float)values[i];
    device->driver->upload(device, to, mlp->dtype == GEMM_F32 ? (const void *)single : values,
                           count * dtype_size(mlp->dtype));
    free(single);
}

void support_set_builtin_weights(struct mlp *mlp) {
    double values[512];
    for (size_t l = 0; l < mlp->depth; l++) {
        const struct mlp_layer *layer = &mlp->layer[l];
        const size_t count = layer->in * layer->out;
        assert_true(count <= 512);
        for (size_t k = 0; k < count; k++)
            values[k] = sin(1.7 * (double)k + (double)l) / sqrt((double)layer->in);
        for (size_t i = 0; i < layer->in; i++)
            upload_reals(mlp, (char *)layer->weight + i * layer->ld * dtype_size(mlp->dtype),
                         values + i * layer->out, layer->out);
        for (size_t j = 0; j < layer->out; j++) values[j] = 0.1 * cos((double)(j + l));
        upload_reals(mlp, layer->bias, values, layer->out);
    }
    mlp_parameters_changed(mlp);
}

void support_open(struct compute *compute, const char *name, int threads) {
    const struct gemm_backend *backend;
    if (registry_find(name, &backend) != STATUS_OK) {
        print_message("skipped: %s\n", status_message());
        skip();
    }
    const struct compute_options options = {.threads = threads, .options = backend_options_in(name)};
    const enum status status = compute_open(compute, backend, &options);
    if (status == STATUS_UNAVAILABLE && strstr(status_message(), "this CPU does not support isa=")) {
        print_message("skipped: %s\n", status_message());
        skip();
    }
    assert_status(status, STATUS_OK);
}

int support_run(char *output, size_t size, const char *format, ...) {
    char arguments[8192], command[9216];
    va_list args;
    va_start(args, format);
    assert_true(vsnprintf(arguments, sizeof arguments, format, args) < (int)sizeof arguments);
    va_end(args);
    const char *program = getenv("TESSERA");
    assert_non_null(program);
    setenv("TESSERA_WIDE", "1", 1); /* whole sentences in a line; test_terminal.c is about 80 columns */
    snprintf(command, sizeof command, "{ %s %s; } 2>&1 </dev/null", program, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t used = 0, got;
    while (used < size - 1 && (got = fread(output + used, 1, size - 1 - used, pipe)) > 0) used += got;
    output[used] = '\0';
    while (fgetc(pipe) != EOF) continue;
    const int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void support_refuses(const char *command, const struct support_refusal *list, size_t count) {
    static char output[1 << 17];
    for (size_t i = 0; i < count; i++) {
        const int code = support_run(output, sizeof output, "%s %s", command, list[i].arguments);
        if (code != list[i].code) fail_msg("%s %s: exit %d: %s", command, list[i].arguments, code, output);
        assert_says(output, "train: ");
        assert_says(output, list[i].says);
    }
}

size_t support_log(const char *path, const char *type, int seed, cJSON **last) {
    size_t length, count = 0;
    char *text = (char *)support_read(path, &length);
    text[length] = '\0';
    *last = NULL;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        cJSON *object = cJSON_Parse(line), *other = object;
        assert_non_null(object);
        const cJSON *of = cJSON_GetObjectItem(object, "seed");
        if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(object, "type")), type) == 0 &&
            (!seed || (of && of->valueint == seed))) {
            count++;
            other = *last;
            *last = object;
        }
        cJSON_Delete(other);
    }
    free(text);
    return count;
}

double support_number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItem(object, key);
    assert_true(cJSON_IsNumber(item));
    return item->valuedouble;
}

const char *support_plugin(const char *name) {
    static char paths[4][512];
    static size_t next;
    char *path = paths[next++ % 4];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof paths[0] - 1);
    assert_true(length > 0);
    path[length] = '\0';
    for (int up = 0; up < 2; up++) { /* build/gcc/tests/test_plugin */
        assert_non_null(strrchr(path, '/'));
        *strrchr(path, '/') = '\0';
    }
    text_append(path, sizeof paths[0], "/%s", name);
    return path;
}

void support_assert_status(enum status status, enum status wanted, const char *file, int line) {
    if (status == wanted) return;
    print_error("status %d, not %d: %s\n", (int)status, (int)wanted, status_message());
    _fail(file, line);
}

void support_assert_says(const char *text, const char *part, const char *file, int line) {
    if (strstr(text, part)) return;
    print_error("'%s' is not in: %s\n", part, text);
    _fail(file, line);
}

void support_assert_near(double got, double want, double tolerance, const char *file, int line) {
    if (fabs(got - want) <= tolerance * fmax(1, fabs(want))) return;
    print_error("%.17g should be %.17g within %g\n", got, want, tolerance);
    _fail(file, line);
}

size_t support_stride(void) {
    const char *stride = getenv("TESSERA_TEST_STRIDE");
    const long value = stride ? strtol(stride, NULL, 10) : 1;
    return value > 1 ? (size_t)value : 1;
}

size_t support_every(size_t sampled) {
    const char *slowed = getenv("TESSERA_TEST_SLOWED");
    const long times = slowed ? strtol(slowed, NULL, 10) : 0;
    if (times > 0) return 2 * (size_t)times * sampled + 1;
    return support_stride() > 1 ? sampled : 1;
}
