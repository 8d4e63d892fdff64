#include "src/nn/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "src/base/text.h"
#include "src/device/device.h"

static const char CRC_KEY[] = "tessera.crc32";
enum { LENGTH_BYTES = 8, LONGEST_HEADER = 100 * 1000 * 1000 }; /* the format's own limit */

size_t tensor_elements(const struct tensor *tensor) {
    size_t elements = 1;
    for (size_t i = 0; i < tensor->rank; i++) elements *= tensor->shape[i];
    return elements;
}

static size_t tensor_bytes(const struct tensor *tensor) {
    return tensor_elements(tensor) * dtype_size(tensor->dtype);
}

/* The CRC-32 of bytes, names, dtypes and shapes of the tensors; metadata_crc adds the metadata. */
static uLong tensors_crc(const struct tensor *tensors, size_t count) {
    uLong crc = crc32_z(0, NULL, 0);
    for (size_t i = 0; i < count; i++) {
        char entry[TENSOR_NAME + 64];
        const int length =
            snprintf(entry, sizeof entry, "%s %d %zu %zu %zu", tensors[i].name, (int)tensors[i].dtype,
                     tensors[i].rank, tensors[i].shape[0], tensors[i].rank > 1 ? tensors[i].shape[1] : 0);
        crc = crc32_z(crc, (const Bytef *)entry, (size_t)length);
        crc = crc32_z(crc, tensors[i].data, tensor_bytes(&tensors[i]));
    }
    return crc;
}

static uLong metadata_crc(uLong crc, const char *key, const char *value) {
    crc = crc32_z(crc, (const Bytef *)key, strlen(key));
    return crc32_z(crc, (const Bytef *)value, strlen(value));
}

/* --- writing --- */

static void add_tensor(cJSON *header, const struct tensor *tensor, size_t *offset) {
    cJSON *entry = cJSON_AddObjectToObject(header, tensor->name);
    cJSON_AddStringToObject(entry, "dtype", tensor->dtype == GEMM_F32 ? "F32" : "F64");
    cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
    for (size_t i = 0; i < tensor->rank; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensor->shape[i]));
    cJSON *range = cJSON_AddArrayToObject(entry, "data_offsets");
    cJSON_AddItemToArray(range, cJSON_CreateNumber((double)*offset));
    *offset += tensor_bytes(tensor);
    cJSON_AddItemToArray(range, cJSON_CreateNumber((double)*offset));
}

/* The JSON header, padded with spaces so that the tensors start at a multiple of 8. The caller frees it. */
static char *header_text(const struct tensor *tensors, size_t count, const struct metadata *metadata,
                         size_t metadata_count) {
    char crc_text[16];
    uLong crc = tensors_crc(tensors, count);
    for (size_t i = 0; i < metadata_count; i++) crc = metadata_crc(crc, metadata[i].key, metadata[i].value);
    snprintf(crc_text, sizeof crc_text, "%08lx", crc);
    cJSON *header = cJSON_CreateObject();
    cJSON *meta = cJSON_AddObjectToObject(header, "__metadata__");
    for (size_t i = 0; i < metadata_count; i++)
        cJSON_AddStringToObject(meta, metadata[i].key, metadata[i].value);
    cJSON_AddStringToObject(meta, CRC_KEY, crc_text);
    size_t offset = 0;
    for (size_t i = 0; i < count; i++) add_tensor(header, &tensors[i], &offset);
    char *json = cJSON_PrintUnformatted(header);
    cJSON_Delete(header);
    if (!json) return NULL;
    const size_t length = strlen(json), padded = (length + 7) / 8 * 8;
    char *text = malloc(padded + 1);
    if (text) {
        memset(text, ' ', padded);
        memcpy(text, json, length);
        text[padded] = '\0';
    }
    cJSON_free(json);
    return text;
}

static bool write_all(FILE *out, const char *header, const struct tensor *tensors, size_t count) {
    unsigned char length[LENGTH_BYTES];
    const uint64_t bytes = strlen(header);
    for (size_t i = 0; i < LENGTH_BYTES; i++) length[i] = (unsigned char)(bytes >> 8 * i);
    bool ok = fwrite(length, 1, LENGTH_BYTES, out) == LENGTH_BYTES && fwrite(header, 1, bytes, out) == bytes;
    for (size_t i = 0; i < count && ok; i++) {
        const size_t size = tensor_bytes(&tensors[i]);
        ok = fwrite(tensors[i].data, 1, size, out) == size;
    }
    return ok && fflush(out) == 0 && fsync(fileno(out)) == 0;
}

/* After this the new name survives a power failure. */
static void sync_directory(const char *path) {
    char directory[600];
    text_directory(path, directory, sizeof directory);
    const int fd = open(directory, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

static enum status cannot_write(const char *path, int error) {
    return status_set(STATUS_FAILED,
                      "cannot write the checkpoint '%s': %s; the old file, if any, is unchanged", path,
                      strerror(error));
}

static bool temporary_name(const char *path, char *name, size_t size) {
    return snprintf(name, size, "%s.%ld.tmp", path, (long)getpid()) < (int)size;
}

/* Only a regular file is replaced. */
static enum status check_regular(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode)) return STATUS_OK;
    return status_set(STATUS_FAILED, "cannot write a checkpoint to '%s': it exists and is not a regular file",
                      path);
}

enum status safetensors_writable(const char *path) {
    char temporary[600];
    const enum status status = check_regular(path);
    if (status) return status;
    const int fd = temporary_name(path, temporary, sizeof temporary)
                       ? open(temporary, O_WRONLY | O_CREAT | O_EXCL, 0666)
                       : (errno = ENAMETOOLONG, -1);
    if (fd < 0)
        return status_set(STATUS_FAILED, "cannot write a checkpoint to '%s': %s", path, strerror(errno));
    close(fd);
    unlink(temporary);
    return STATUS_OK;
}

static enum status replace_file(const char *path, const char *header, const struct tensor *tensors,
                                size_t count) {
    char temporary[600];
    if (!temporary_name(path, temporary, sizeof temporary))
        return status_set(STATUS_FAILED, "the checkpoint's name is too long: '%s'", path);
    FILE *out = fopen(temporary, "wb");
    if (!out) return cannot_write(path, errno);
    int error = write_all(out, header, tensors, count) ? 0 : errno ? errno : EIO;
    if (fclose(out) != 0 && !error) error = errno;
    if (!error && rename(temporary, path) != 0) error = errno;
    if (error) {
        unlink(temporary);
        return cannot_write(path, error);
    }
    sync_directory(path);
    return STATUS_OK;
}

enum status safetensors_write(const char *path, const struct tensor *tensors, size_t count,
                              const struct metadata *metadata, size_t metadata_count) {
    enum status status = check_regular(path);
    if (status) return status;
    char *header = header_text(tensors, count, metadata, metadata_count);
    if (!header) return status_set(STATUS_FAILED, "out of memory while writing the checkpoint '%s'", path);
    status = replace_file(path, header, tensors, count);
    free(header);
    return status;
}

/* --- reading --- */

static enum status broken(const struct safetensors *file, const char *what) {
    return status_set(STATUS_BAD_DATA, "'%s' is not a usable safetensors checkpoint: %s", file->path, what);
}

static enum status read_bytes(struct safetensors *file, size_t *size) {
    FILE *in = fopen(file->path, "rb");
    if (!in)
        return status_set(STATUS_BAD_DATA, "cannot open the checkpoint '%s': %s", file->path,
                          strerror(errno));
    struct stat info;
    enum status status = STATUS_OK;
    if (fstat(fileno(in), &info) != 0 || !S_ISREG(info.st_mode)) {
        status = broken(file, "it is not a regular file");
    } else {
        *size = (size_t)info.st_size;
        file->bytes = malloc(*size + 1);
        if (!file->bytes) {
            status = status_set(STATUS_FAILED, "out of memory: the checkpoint '%s' has %zu bytes", file->path,
                                *size);
        } else if (fread(file->bytes, 1, *size, in) != *size) {
            status = broken(file, "it could not be read to its end");
        }
    }
    fclose(in);
    return status;
}

/* A whole number in [0, limit] from JSON. */
static bool json_size(const cJSON *item, size_t limit, size_t *value) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || item->valuedouble > (double)limit ||
        item->valuedouble != (double)(size_t)item->valuedouble)
        return false;
    *value = (size_t)item->valuedouble;
    return true;
}

/* Dtype, shape and range of one tensor; false if any is invalid. */
static bool read_tensor(const cJSON *entry, struct tensor *tensor, const unsigned char *data, size_t size) {
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    const cJSON *range = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    const char *type = cJSON_GetStringValue(dtype);
    if (!type || !cJSON_IsArray(shape) || !cJSON_IsArray(range) || cJSON_GetArraySize(range) != 2)
        return false;
    if (strcmp(type, "F32") != 0 && strcmp(type, "F64") != 0) return false;
    if (strlen(entry->string) >= sizeof tensor->name) return false;
    strcpy(tensor->name, entry->string);
    tensor->dtype = strcmp(type, "F32") == 0 ? GEMM_F32 : GEMM_F64;

    const int rank = cJSON_GetArraySize(shape);
    if (rank < 1 || rank > TENSOR_RANK) return false;
    tensor->rank = (size_t)rank;
    size_t bytes = dtype_size(tensor->dtype), begin, end;
    for (int i = 0; i < rank; i++) {
        if (!json_size(cJSON_GetArrayItem(shape, i), size, &tensor->shape[i])) return false;
        if (__builtin_mul_overflow(bytes, tensor->shape[i], &bytes)) return false;
    }
    if (!json_size(cJSON_GetArrayItem(range, 0), size, &begin) ||
        !json_size(cJSON_GetArrayItem(range, 1), size, &end))
        return false;
    if (begin > end || end - begin != bytes || begin % dtype_size(tensor->dtype)) return false;
    tensor->data = data + begin;
    return true;
}

static enum status read_header(struct safetensors *file, size_t size) {
    uint64_t length = 0;
    if (size < LENGTH_BYTES) return broken(file, "it is shorter than its own header (truncated?)");
    for (size_t i = 0; i < LENGTH_BYTES; i++) length |= (uint64_t)file->bytes[i] << 8 * i;
    if (length > LONGEST_HEADER || length > size - LENGTH_BYTES)
        return broken(file, "its header is longer than the file (truncated, or another format)");
    const unsigned char *data = file->bytes + LENGTH_BYTES + length;
    size -= LENGTH_BYTES + length;
    cJSON *header = cJSON_ParseWithLength((const char *)file->bytes + LENGTH_BYTES, length);
    file->header = header;
    if (!cJSON_IsObject(header)) return broken(file, "its header is not a JSON object");

    file->tensors = calloc((size_t)cJSON_GetArraySize(header) + 1, sizeof *file->tensors);
    if (!file->tensors) return status_set(STATUS_FAILED, "out of memory");
    const cJSON *entry;
    size_t bytes = 0;
    cJSON_ArrayForEach(entry, header) {
        if (strcmp(entry->string, "__metadata__") == 0) continue;
        struct tensor *tensor = &file->tensors[file->count];
        if (!read_tensor(entry, tensor, data, size)) {
            char what[200];
            snprintf(what, sizeof what,
                     "tensor '%.96s' is not F32 or F64, of rank 1 or 2, or points outside the file",
                     entry->string);
            return broken(file, what);
        }
        bytes += tensor_bytes(tensor);
        file->count++;
    }
    return bytes == size ? STATUS_OK
                         : broken(file, "its tensors do not fill the file (truncated or corrupted)");
}

static enum status check_crc(const struct safetensors *file) {
    const char *stored = safetensors_metadata(file, CRC_KEY);
    const cJSON *entry, *metadata = cJSON_GetObjectItemCaseSensitive(file->header, "__metadata__");
    char text[16];
    if (!stored) return STATUS_OK; /* another program's file */
    uLong crc = tensors_crc(file->tensors, file->count);
    cJSON_ArrayForEach(entry, metadata) {
        const char *value = cJSON_GetStringValue(entry);
        if (value && strcmp(entry->string, CRC_KEY) != 0) crc = metadata_crc(crc, entry->string, value);
    }
    snprintf(text, sizeof text, "%08lx", crc);
    return strcmp(stored, text) == 0 ? STATUS_OK
                                     : broken(file, "its checksum does not match its content (corrupted)");
}

enum status safetensors_read(struct safetensors *file, const char *path) {
    size_t size = 0;
    *file = (struct safetensors){0};
    snprintf(file->path, sizeof file->path, "%s", path);
    enum status status = read_bytes(file, &size);
    if (!status) status = read_header(file, size);
    return status ? status : check_crc(file);
}

void safetensors_free(struct safetensors *file) {
    free(file->tensors);
    cJSON_Delete(file->header);
    free(file->bytes);
    *file = (struct safetensors){0};
}

const struct tensor *safetensors_find(const struct safetensors *file, const char *name) {
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
    return NULL;
}

const char *safetensors_metadata(const struct safetensors *file, const char *key) {
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(file->header, "__metadata__");
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, key));
}
