/* Shared by all tests: temporary files, small data sets, runs of the program. */
#ifndef TESSERA_TESTS_SUPPORT_H
#define TESSERA_TESTS_SUPPORT_H

/* cmocka needs these before its header. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <cjson/cJSON.h>

#include "src/backend/compute.h"
#include "src/data/dataset.h"
#include "src/backend/registry.h"
#include "src/nn/config.h"
#include "src/nn/mlp.h"

/* A path in a temporary folder that is deleted when the program ends. Returns one of a few static buffers. */
const char *support_path(const char *name);

void support_write(const char *path, const void *bytes, size_t count);
/* Reads the whole file. The caller frees it. */
unsigned char *support_read(const char *path, size_t *count);

/* Writes an IDX file of unsigned bytes with these dimensions. */
void support_write_idx(const char *path, size_t rank, const uint32_t *dims, const uint8_t *values,
                       size_t count);

/* Writes a folder with a learnable data set in MNIST's files, `train` + `test` images; returns its path. */
const char *support_data_directory(const char *name, uint32_t train, uint32_t test, uint32_t height,
                                   uint32_t width, unsigned classes);

/* Set-up of a group whose tests run the program: makes a data set of 300 + 100 images 6x7 in 4 classes in the
   folder support_data, and clears our environment variables. */
extern char support_data[256];
int support_make_data(void **state);

/* The data set of tests/reference/mlp_numpy.py builtin: 50 images 6x7, 4 classes; the test part is equal. */
void support_builtin_data(struct dataset_pair *pair);

/* Sets the defaults, then these keys ("layers=4-3-2 epochs=2"); asserts that each is valid. */
void support_config(struct config *config, const char *settings);

/* True if the entry runs on the host or was not built. test_gpu_*.c covers the others. */
bool support_on_host(const struct registry_entry *entry);

/* The initial weights of tests/reference/mlp_numpy.py builtin, on any device. */
void support_set_builtin_weights(struct mlp *mlp);

/* TESSERA_TEST_STRIDE=N (default 1): tests with long case lists run every N-th case, for slow tools. */
size_t support_stride(void);

/* The step through a list of trainings: 1; `sampled` if the stride is above 1; 2 N sampled + 1 with
   TESSERA_TEST_SLOWED=N, for tools that make a GPU 100 times slower. */
size_t support_every(size_t sampled);

/* Opens the backend of "NAME" or "NAME:options"; skips the test, saying why, if it cannot be used here. */
void support_open(struct compute *compute, const char *backend, int threads);

/* Runs the program (environment variable TESSERA) with these arguments, split by the shell, its standard
   output and error together in `output`. Returns the exit code, or 128 + the signal. */
int support_run(char *output, size_t size, const char *arguments, ...) __attribute__((format(printf, 3, 4)));

/* A wrong use of the program, its exit code, and what it says. */
struct support_refusal {
    const char *arguments;
    int code;
    const char *says;
};

/* Runs "COMMAND ARGUMENTS" for each of the list, and asserts that. */
void support_refuses(const char *command, const struct support_refusal *list, size_t count);

/* The number of lines of a log with this type and, unless it is 0, this seed. *last receives the last of
   them; the caller deletes it. */
size_t support_log(const char *path, const char *type, int seed, cJSON **last);
/* The value of a key, which must be a number. */
double support_number(const cJSON *object, const char *key);

/* The path of a plug-in that the Makefile built: "plugins/race.so", "tutorial/my.so". Returns one of a few
   static buffers. */
const char *support_plugin(const char *name);

#define assert_status(status, wanted) support_assert_status(status, wanted, __FILE__, __LINE__)
void support_assert_status(enum status status, enum status wanted, const char *file, int line);

/* Asserts that `text`, for example status_message(), contains `part`. */
#define assert_says(text, part) support_assert_says(text, part, __FILE__, __LINE__)
void support_assert_says(const char *text, const char *part, const char *file, int line);

/* Asserts that |got - want| <= tolerance * max(1, |want|); a NaN never passes. */
#define assert_near(got, want, tolerance) support_assert_near(got, want, tolerance, __FILE__, __LINE__)
void support_assert_near(double got, double want, double tolerance, const char *file, int line);

#endif
