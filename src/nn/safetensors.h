/* The safetensors file format (8-byte little-endian header length, JSON header, raw tensors), as the Python
   package reads and writes it. Supports F32 and F64 tensors. */
#ifndef TESSERA_NN_SAFETENSORS_H
#define TESSERA_NN_SAFETENSORS_H

#include <stddef.h>

#include "kernels/gemm.h"
#include "src/base/status.h"

enum { TENSOR_NAME = 96, TENSOR_RANK = 2 };

struct tensor {
    char name[TENSOR_NAME];
    enum gemm_dtype dtype;
    size_t rank; /* 1 or 2 */
    size_t shape[TENSOR_RANK];
    const void *data; /* row-major */
};

struct metadata {
    const char *key, *value;
};

/* A file read into memory. */
struct safetensors {
    const char *what; /* "checkpoint", for messages */
    char path[512];
    struct tensor *tensors; /* point into `bytes` */
    size_t count;
    void *header; /* cJSON; owns the metadata strings */
    unsigned char *bytes;
    struct tensor_range *ranges; /* [count] */
};

/* Replaces the file as a whole (src/base/replace.h), so that `path` is always old or new. Adds a CRC-32 to
   the metadata. STATUS_FAILED with the reason (disk full, no permission). */
enum status safetensors_write(const char *path, const struct tensor *tensors, size_t count,
                              const struct metadata *metadata, size_t metadata_count);

/* Checks before a long run that `path` can be written: directory, name and permission. An existing file must
   be a regular file. */
enum status safetensors_writable(const char *path);

/* Reads the whole file and checks lengths, JSON, names, the range of every tensor (they fill the file without
   overlap or hole) and the CRC-32, if present. STATUS_BAD_DATA says what is wrong. Call safetensors_free also
   after a failure. */
enum status safetensors_read(struct safetensors *file, const char *path);
/* The same for a file that is no checkpoint: messages say `what`, which must outlive `file`. */
enum status safetensors_read_as(struct safetensors *file, const char *what, const char *path);
/* The same for the header alone: the tensors have no data, and no CRC-32 is computed. */
enum status safetensors_read_header(struct safetensors *file, const char *path);
void safetensors_free(struct safetensors *file);

/* NULL if absent. */
const struct tensor *safetensors_find(const struct safetensors *file, const char *name);
const char *safetensors_metadata(const struct safetensors *file, const char *key);

size_t tensor_elements(const struct tensor *tensor);

#endif
