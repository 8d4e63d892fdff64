/* The safetensors file format (8-byte little-endian header length, JSON header, raw tensors), as the Python
   package reads and writes it. Only F32 and F64 tensors, as this program has no others. */
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
    char path[512];
    struct tensor *tensors; /* point into `bytes` */
    size_t count;
    void *header; /* cJSON: keeps the metadata strings */
    unsigned char *bytes;
};

/* Writes to a temporary name beside `path`, syncs, renames: `path` is the old file or the whole new one. Adds
   a CRC-32 of the tensors to the metadata. STATUS_FAILED with the reason (disk full, no permission). */
enum status safetensors_write(const char *path, const struct tensor *tensors, size_t count,
                              const struct metadata *metadata, size_t metadata_count);

/* Could it? Asked before a long run and not after it: a place, a name and a right to write; nothing but a
   regular file is ever replaced. */
enum status safetensors_writable(const char *path);

/* Reads and checks all of the file: lengths, JSON, every tensor's range, the CRC-32 if there is one.
   STATUS_BAD_DATA says what is wrong. Free with safetensors_free, also after a failure. */
enum status safetensors_read(struct safetensors *file, const char *path);
void safetensors_free(struct safetensors *file);

/* NULL if absent. */
const struct tensor *safetensors_find(const struct safetensors *file, const char *name);
const char *safetensors_metadata(const struct safetensors *file, const char *key);

size_t tensor_elements(const struct tensor *tensor);

#endif
