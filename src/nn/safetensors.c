#include "src/nn/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "src/base/input.h"
#include "src/base/jsonl.h"
#include "src/base/memory.h"
#include "src/base/replace.h"
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
        jsonl_append(shape, cJSON_CreateNumber((double)tensor->shape[i]));
    cJSON *range = cJSON_AddArrayToObject(entry, "data_offsets");
    jsonl_append(range, cJSON_CreateNumber((double)*offset));
    *offset += tensor_bytes(tensor);
    jsonl_append(range, cJSON_CreateNumber((double)*offset));
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
    if (memory_ran_out()) {
        cJSON_free(json);
        return NULL;
    }
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

static void write_all(FILE *out, const char *header, const struct tensor *tensors, size_t count) {
    unsigned char length[LENGTH_BYTES];
    const uint64_t bytes = strlen(header);
    for (size_t i = 0; i < LENGTH_BYTES; i++) length[i] = (unsigned char)(bytes >> 8 * i);
    bool ok = fwrite(length, 1, LENGTH_BYTES, out) == LENGTH_BYTES && fwrite(header, 1, bytes, out) == bytes;
    for (size_t i = 0; i < count && ok; i++) {
        const size_t size = tensor_bytes(&tensors[i]);
        ok = fwrite(tensors[i].data, 1, size, out) == size; /* replace_close sees a failure */
    }
}

/* Only a regular file is replaced. */
static enum status check_regular(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode)) return STATUS_OK;
    return status_set(STATUS_FAILED, "cannot write the checkpoint '%s': it exists and is not a regular file",
                      path);
}

enum status safetensors_writable(const char *path) {
    const enum status status = check_regular(path);
    return status ? status : replace_check("the checkpoint ", path);
}

enum status safetensors_write(const char *path, const struct tensor *tensors, size_t count,
                              const struct metadata *metadata, size_t metadata_count) {
    struct replacement file;
    enum status status = check_regular(path);
    if (status) return status;
    char *header = header_text(tensors, count, metadata, metadata_count);
    if (!header) return status_set(STATUS_FAILED, "out of memory while writing the checkpoint '%s'", path);
    status = replace_open(&file, "the checkpoint ", path);
    if (!status) {
        write_all(file.out, header, tensors, count);
        status = replace_close(&file, STATUS_OK);
    }
    free(header);
    return status;
}

/* --- reading --- */

/* The bytes of a tensor, from the end of the header. */
struct tensor_range {
    size_t begin, end, tensor;
};

static enum status broken(const struct safetensors *file, const char *what) {
    return status_set(STATUS_BAD_DATA, "'%s' is not a usable safetensors %s: %s", file->path, file->what,
                      what);
}

/* A whole number in [0, limit] from JSON. */
static bool json_size(const cJSON *item, size_t limit, size_t *value) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || item->valuedouble > (double)limit ||
        item->valuedouble != (double)(size_t)item->valuedouble)
        return false;
    *value = (size_t)item->valuedouble;
    return true;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum status no_memory(const struct safetensors *file) {
    return status_set(STATUS_FAILED, "out of memory while reading the %s '%s'", file->what, file->path);
}

/* Refuses what is no object, and an object with two members of one name: readers differ in the one that they
   take. Sorted: a header may have a million names. */
static enum status check_names(const struct safetensors *file, const cJSON *object) {
    if (!cJSON_IsObject(object)) return broken(file, "a tensor's entry is not a JSON object");
    const size_t count = (size_t)cJSON_GetArraySize(object);
    const char **names = malloc((count + 1) * sizeof *names);
    bool found = false;
    size_t used = 0;
    const cJSON *item;
    if (!names) return no_memory(file);
    cJSON_ArrayForEach(item, object) names[used++] = item->string;
    if (used) qsort(names, used, sizeof *names, by_name);
    for (size_t i = 1; i < used && !found; i++) found = strcmp(names[i - 1], names[i]) == 0;
    free(names);
    return found ? broken(file, "two tensors, or two entries of one, have the same name") : STATUS_OK;
}

/* Dtype, shape and range of one tensor; false if any is invalid. `size`: that of all tensors. */
static bool read_tensor(const cJSON *entry, struct tensor *tensor, struct tensor_range *bytes, size_t size) {
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
    size_t wanted = dtype_size(tensor->dtype);
    for (int i = 0; i < rank; i++) {
        if (!json_size(cJSON_GetArrayItem(shape, i), size, &tensor->shape[i])) return false;
        if (__builtin_mul_overflow(wanted, tensor->shape[i], &wanted)) return false;
    }
    return json_size(cJSON_GetArrayItem(range, 0), size, &bytes->begin) &&
           json_size(cJSON_GetArrayItem(range, 1), size, &bytes->end) && bytes->begin <= bytes->end &&
           bytes->end - bytes->begin == wanted && bytes->begin % dtype_size(tensor->dtype) == 0;
}

static int by_range(const void *a, const void *b) {
    const struct tensor_range *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* The tensors must follow each other without overlap or hole, to the end of the file. */
static enum status check_ranges(const struct safetensors *file, size_t size) {
    size_t end = 0;
    qsort(file->ranges, file->count, sizeof *file->ranges, by_range);
    for (size_t i = 0; i < file->count; end = file->ranges[i++].end) {
        if (file->ranges[i].begin == end) continue;
        char what[200];
        snprintf(what, sizeof what, "tensor '%.96s' %s", file->tensors[file->ranges[i].tensor].name,
                 file->ranges[i].begin < end ? "overlaps another" : "comes after a hole");
        return broken(file, what);
    }
    return end == size ? STATUS_OK
                       : broken(file, "its tensors do not fill the file (truncated or corrupted)");
}

static enum status check_metadata(const struct safetensors *file, const cJSON *metadata) {
    const cJSON *entry;
    bool valid = cJSON_IsObject(metadata);
    cJSON_ArrayForEach(entry, metadata) valid = valid && cJSON_IsString(entry);
    return valid ? STATUS_OK : broken(file, "its metadata are not texts");
}

/* The entries of the header; `size`: bytes of all tensors. */
static enum status read_entries(struct safetensors *file, size_t size) {
    const cJSON *entry, *header = file->header;
    const size_t count = (size_t)cJSON_GetArraySize(header);
    if (!cJSON_IsObject(header)) return broken(file, "its header is not a JSON object");
    enum status status = check_names(file, header);
    if (status) return status;
    file->tensors = calloc(count + 1, sizeof *file->tensors);
    file->ranges = calloc(count + 1, sizeof *file->ranges);
    if (!file->tensors || !file->ranges) return no_memory(file);
    cJSON_ArrayForEach(entry, header) {
        const bool metadata = strcmp(entry->string, "__metadata__") == 0;
        status = check_names(file, entry);
        if (!status && metadata) status = check_metadata(file, entry);
        if (status) return status;
        if (metadata) continue;
        if (!read_tensor(entry, &file->tensors[file->count], &file->ranges[file->count], size)) {
            char what[200];
            snprintf(what, sizeof what,
                     "tensor '%.96s' is not F32 or F64, of rank 1 or 2, or points outside the file",
                     entry->string);
            return broken(file, what);
        }
        file->ranges[file->count].tensor = file->count;
        file->count++;
    }
    return check_ranges(file, size);
}

/* The JSON object, and after it nothing but the spaces that pad it. */
static cJSON *parse_header(const char *text, size_t length) {
    const char *end = NULL;
    cJSON *header = cJSON_ParseWithLengthOpts(text, length, &end, false);
    for (; header && end < text + length; end++)
        if (!strchr(" \t\r\n", *end) || !*end) break;
    if (!header || end == text + length) return header;
    cJSON_Delete(header);
    return NULL;
}

/* Reads the header; *size receives the bytes of the tensors behind it. */
static enum status read_header(struct safetensors *file, FILE *in, size_t *size) {
    unsigned char bytes[LENGTH_BYTES];
    struct stat info;
    uint64_t length = 0;
    if (fstat(fileno(in), &info) != 0) return broken(file, strerror(errno));
    if (fread(bytes, 1, sizeof bytes, in) != sizeof bytes)
        return broken(file, "it is shorter than its own header (truncated?)");
    for (size_t i = 0; i < LENGTH_BYTES; i++) length |= (uint64_t)bytes[i] << 8 * i;
    *size = (size_t)info.st_size - LENGTH_BYTES;
    if (length > LONGEST_HEADER || length > *size)
        return broken(file, "its header is longer than the file (truncated, or another format)");
    *size -= length;
    char *text = malloc(length + 1);
    if (!text) return no_memory(file);
    const bool whole = fread(text, 1, length, in) == length;
    file->header = whole ? parse_header(text, length) : NULL;
    free(text);
    if (memory_ran_out()) return no_memory(file);
    return read_entries(file, *size);
}

static enum status read_tensors(struct safetensors *file, FILE *in, size_t size) {
    file->bytes = malloc(size + 1);
    if (!file->bytes)
        return status_set(STATUS_FAILED, "out of memory: the %s '%s' has %zu bytes", file->what, file->path,
                          size);
    if (fread(file->bytes, 1, size, in) != size) return broken(file, "it could not be read to its end");
    for (size_t i = 0; i < file->count; i++)
        file->tensors[file->ranges[i].tensor].data = file->bytes + file->ranges[i].begin;
    return STATUS_OK;
}

static enum status check_crc(const struct safetensors *file) {
    const char *stored = safetensors_metadata(file, CRC_KEY);
    const cJSON *entry, *metadata = cJSON_GetObjectItemCaseSensitive(file->header, "__metadata__");
    char text[16];
    if (!stored) return STATUS_OK; /* another program's file */
    uLong crc = tensors_crc(file->tensors, file->count);
    cJSON_ArrayForEach(entry, metadata) {
        if (strcmp(entry->string, CRC_KEY) == 0) continue;
        crc = metadata_crc(crc, entry->string, cJSON_GetStringValue(entry));
    }
    snprintf(text, sizeof text, "%08lx", crc);
    return strcmp(stored, text) == 0 ? STATUS_OK
                                     : broken(file, "its checksum does not match its content (corrupted)");
}

static enum status read_file(struct safetensors *file, const char *what, const char *path, bool header_only) {
    size_t size = 0;
    char kind[64];
    *file = (struct safetensors){.what = what};
    snprintf(kind, sizeof kind, "the %s ", what);
    snprintf(file->path, sizeof file->path, "%s", path);
    int fd;
    enum status status = input_open(&fd, kind, path);
    if (status) return status;
    FILE *in = fdopen(fd, "rb");
    if (!in) {
        close(fd);
        return no_memory(file);
    }
    status = read_header(file, in, &size);
    if (!status && !header_only) status = read_tensors(file, in, size);
    fclose(in);
    return status || header_only ? status : check_crc(file);
}

enum status safetensors_read(struct safetensors *file, const char *path) {
    return safetensors_read_as(file, "checkpoint", path);
}

enum status safetensors_read_as(struct safetensors *file, const char *what, const char *path) {
    return read_file(file, what, path, false);
}

enum status safetensors_read_header(struct safetensors *file, const char *path) {
    return read_file(file, "checkpoint", path, true);
}

void safetensors_free(struct safetensors *file) {
    free(file->tensors);
    free(file->ranges);
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
