/* Any bytes as an IDX file, raw or gzip. A raw file is accepted exactly if its header is right and announces
   the bytes behind it. The same bytes as gzip get the same answer. What was read from a gzip file and written
   as a raw one reads back. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "src/data/idx.h"
#include "tests/fuzz/fuzz.h"

enum { MOST_STORED = 65535, GZIP_BYTES = 23 };

static struct memory_file file;

static size_t big_endian(const uint8_t *bytes) {
    return (size_t)bytes[0] << 24 | (size_t)bytes[1] << 16 | (size_t)bytes[2] << 8 | bytes[3];
}

/* Should a raw file be accepted? */
static int is_idx(const uint8_t *data, size_t size, size_t rank) {
    const size_t header = 4 + 4 * rank;
    if (size <= header || memcmp(data, (uint8_t[]){0, 0, 8, (uint8_t)rank}, 4) != 0) return 0;
    size_t values = 1;
    for (size_t i = 0; i < rank; i++)
        if (__builtin_mul_overflow(values, big_endian(data + 4 + 4 * i), &values)) return 0;
    return values == size - header;
}

/* Reads the file; 1 if it was accepted. The caller frees idx->values. */
static int read_file(struct idx *idx, size_t rank) {
    const enum status status = idx_read(idx, file.path, rank);
    if (!status && (idx->rank != rank || !idx->values)) fuzz_fail("accepted without values");
    if (status && (idx->values || status != STATUS_BAD_DATA || !status_message()[0]))
        fuzz_fail("refused with status %d: %s", status, status_message());
    return !status;
}

static void check_values(const struct idx *idx, const uint8_t *data, size_t size) {
    size_t values = 1;
    for (size_t i = 0; i < idx->rank; i++) {
        values *= idx->dim[i];
        if (idx->dim[i] != big_endian(data + 4 + 4 * i)) fuzz_fail("wrong dimension %zu", i);
    }
    if (values != size - 4 - 4 * idx->rank || memcmp(idx->values, data + 4 + 4 * idx->rank, values) != 0)
        fuzz_fail("wrong values");
}

static void check_raw(const uint8_t *data, size_t size, size_t rank, const char *how) {
    struct idx idx;
    const int accepted = read_file(&idx, rank);
    if (accepted != is_idx(data, size, rank))
        fuzz_fail("%s, rank %zu: %s: %s", how, rank, accepted ? "accepted" : "refused", status_message());
    if (accepted) check_values(&idx, data, size);
    free(idx.values);
}

static void little_endian(uint8_t *to, size_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)(value >> 8 * i);
}

/* The bytes as a gzip file with one stored block (RFC 1951, 1952). */
static void fill_gzip(const uint8_t *data, size_t size) {
    static uint8_t gzip[MOST_STORED + GZIP_BYTES] = {0x1f, 0x8b, 8, [9] = 3, [10] = 1};
    little_endian(gzip + 11, size, 2);
    little_endian(gzip + 13, ~size, 2);
    memcpy(gzip + 15, data, size);
    little_endian(gzip + 15 + size, crc32_z(0, data, size), 4);
    little_endian(gzip + 19 + size, size, 4);
    memory_file_fill(&file, gzip, size + GZIP_BYTES);
}

/* Writes what was read from a gzip file as a raw one. */
static void check_gzip(size_t rank) {
    struct idx idx;
    const size_t header = 4 + 4 * rank;
    if (!read_file(&idx, rank)) return;
    size_t values = 1;
    for (size_t i = 0; i < rank; i++) values *= idx.dim[i];
    uint8_t *raw = calloc(header + values, 1);
    if (!raw) abort();
    raw[2] = 8;
    raw[3] = (uint8_t)rank;
    for (size_t i = 0; i < 4 * rank; i++) raw[4 + i] = (uint8_t)(idx.dim[i / 4] >> 8 * (3 - i % 4));
    memcpy(raw + header, idx.values, values);
    memory_file_fill(&file, raw, header + values);
    check_raw(raw, header + values, rank, "written again");
    free(raw);
    free(idx.values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!file.fd) memory_file_open(&file);
    const size_t rank = size > 3 && data[3] == 1 ? 1 : 3;
    memory_file_fill(&file, data, size);
    forbid_writing(1);
    if (size > 1 && data[0] == 0x1f && data[1] == 0x8b) {
        check_gzip(1);
        memory_file_fill(&file, data, size);
        check_gzip(3);
    } else {
        check_raw(data, size, rank, "raw");
        check_raw(data, size, 4 - rank, "raw");
        if (size <= MOST_STORED) fill_gzip(data, size);
        if (size <= MOST_STORED) check_raw(data, size, rank, "compressed");
    }
    forbid_writing(0);
    return 0;
}
