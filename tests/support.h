/* Shared by all tests: temporary files, small data sets, runs of the program. */
#ifndef TESSERA_TESTS_SUPPORT_H
#define TESSERA_TESTS_SUPPORT_H

/* cmocka wants these before its header. */
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

/* A path in a temporary folder that is deleted at the end of the program. One of a few static buffers. */
const char *support_path(const char *name);

void support_write(const char *path, const void *bytes, size_t count);
/* The whole file, to be freed. */
unsigned char *support_read(const char *path, size_t *count);

/* An IDX file of unsigned bytes with these dimensions. */
void support_write_idx(const char *path, size_t rank, const uint32_t *dims, const uint8_t *values,
                       size_t count);

/* A folder with a learnable data set of `train` + `test` images height x width in `classes` classes, in
 * MNIST's files. */
const char *support_data_directory(const char *name, uint32_t train, uint32_t test, uint32_t height,
                                   uint32_t width, unsigned classes);

/* A group's set-up for tests that run the program: support_data is the folder of such a set, of 300 + 100
   images 6x7 in 4 classes, and no other variable of ours is set. */
extern char support_data[256];
int support_make_data(void **state);

/* The data set of tests/reference/mlp_numpy.py builtin: 50 images 6x7, 4 classes; the test part is the same
 * images. */
void support_builtin_data(struct dataset_pair *pair);

/* A config with these keys set ("layers=4-3-2 epochs=2"), checked. */
void support_config(struct config *config, const char *settings);

/* True if the entry runs on the host or was not built. test_gpu_*.c covers the others. */
bool support_on_host(const struct registry_entry *entry);

/* The initial weights of tests/reference/mlp_numpy.py builtin, on any device. */
void support_set_builtin_weights(struct mlp *mlp);

/* TESSERA_TEST_STRIDE=N: tests of long lists take every N-th case, for slow tools; 1 without. */
size_t support_stride(void);

/* Opens a backend by name; skips the test, saying why, if it cannot be used here. */
void support_open(struct compute *compute, const char *backend, int threads);

/* Runs the program (environment variable TESSERA) with these arguments, split by the shell, its standard
   output and error together in `output`. Returns the exit code, or 128 + the signal. */
int support_run(char *output, size_t size, const char *arguments, ...) __attribute__((format(printf, 3, 4)));

/* How many lines of a log have this type, and this seed unless it is 0; the last of them parsed, to be
   deleted. */
size_t support_log(const char *path, const char *type, int seed, cJSON **last);
/* The value of a key, which must be a number. */
double support_number(const cJSON *object, const char *key);

/* The path of a plug-in that the Makefile built: "plugins/race.so", "tutorial/my.so". One of a few static
   buffers. */
const char *support_plugin(const char *name);

#define assert_status(status, wanted) support_assert_status(status, wanted, __FILE__, __LINE__)
void support_assert_status(enum status status, enum status wanted, const char *file, int line);

/* `text`, for example status_message(), contains `part`. */
#define assert_says(text, part) support_assert_says(text, part, __FILE__, __LINE__)
void support_assert_says(const char *text, const char *part, const char *file, int line);

/* |got - want| <= tolerance * max(1, |want|); a NaN never passes. */
#define assert_near(got, want, tolerance) support_assert_near(got, want, tolerance, __FILE__, __LINE__)
void support_assert_near(double got, double want, double tolerance, const char *file, int line);

#endif
