#include "src/data/idx.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "src/base/input.h"
#include "src/base/pages.h"
#include "src/base/text.h"

enum { TYPE_UNSIGNED_BYTE = 0x08, DEFLATE_LIMIT = 1032 }; /* deflate compresses by 1032 : 1 at most */

static enum status bad(const char *path, const char *what) {
    return status_set(STATUS_BAD_DATA, "%s: %s", path, what);
}

static enum status out_of_memory(const char *path) {
    return status_set(STATUS_FAILED, "%s: out of memory", path);
}

/* The error of gzread. */
static enum status gzip_error(gzFile file, const char *path) {
    int code;
    char what[200];
    const char *error = gzerror(file, &code), *colon = strstr(error, ": "); /* "<fd:3>: incorrect .." */
    if (code == Z_MEM_ERROR) return out_of_memory(path);
    snprintf(what, sizeof what, "the gzip data are corrupted (%.100s); copy or download it again",
             colon ? colon + 2 : error);
    return bad(path, what);
}

/* The error for a file that does not start as IDX. */
static enum status not_idx(const char *path, const unsigned char *start, size_t length) {
    if (length == 0) return bad(path, "the file is empty; copy or download it again");
    if (start[0] == '<')
        return bad(path,
                   "this is an HTML page, not an IDX file or a gzip of one: the server sent an error page "
                   "instead; delete it and download it again");
    if (length < 4)
        return bad(path, "the file ends within its header (truncated); copy or download it again");
    return bad(
        path,
        "this is not an IDX file: it should start with the bytes 00 00 08, raw or compressed with gzip");
}

static const char *kind(size_t rank) {
    return rank == 3 ? "images" : "labels";
}

/* Checks magic number, type and rank. */
static enum status check_magic(const char *path, const unsigned char *magic, size_t length, size_t rank) {
    if (length < 4 || magic[0] || magic[1]) return not_idx(path, magic, length);
    char what[160];
    if (magic[2] != TYPE_UNSIGNED_BYTE) {
        snprintf(what, sizeof what,
                 "the values have IDX type 0x%02x; only unsigned bytes (0x08) are supported", magic[2]);
        return bad(path, what);
    }
    if (magic[3] != rank) {
        const bool swapped = magic[3] == (rank == 3 ? 1 : 3);
        snprintf(what, sizeof what, "%u dimensions, but %s have %zu%s", magic[3], kind(rank), rank,
                 swapped ? ": are the image and the label file swapped?" : "");
        return bad(path, what);
    }
    return STATUS_OK;
}

static size_t big_endian(const unsigned char *bytes) {
    return (size_t)bytes[0] << 24 | (size_t)bytes[1] << 16 | (size_t)bytes[2] << 8 | (size_t)bytes[3];
}

/* Reads the dimensions and checks them against the size of the file. */
static enum status read_dimensions(struct idx *idx, gzFile file, const char *path, size_t *values) {
    unsigned char bytes[4 * IDX_MAX_RANK];
    const unsigned wanted = (unsigned)(4 * idx->rank);
    char what[200];
    const int got = gzread(file, bytes, wanted);
    if (got < 0) return gzip_error(file, path);
    if (got != (int)wanted)
        return bad(path, "the file ends within its header (truncated); copy or download it again");
    *values = 1;
    for (size_t i = 0; i < idx->rank; i++) {
        idx->dim[i] = big_endian(bytes + 4 * i);
        if (idx->dim[i] == 0) {
            snprintf(what, sizeof what, "dimension %zu is 0: there are no %s", i + 1, kind(idx->rank));
            return bad(path, what);
        }
        if (__builtin_mul_overflow(*values, idx->dim[i], values)) return bad(path, "the dimensions overflow");
    }
    struct stat info;
    if (stat(path, &info) != 0) return bad(path, strerror(errno));
    const size_t size = (size_t)info.st_size, header = 4 + 4 * idx->rank;
    const size_t most =
        gzdirect(file) ? size - header : size * DEFLATE_LIMIT; /* the header has been read: size >= header */
    if (*values > most) {
        snprintf(what, sizeof what,
                 "the header announces %s, more than a file of %s can hold: truncated, or not an IDX file; "
                 "copy or "
                 "download it again",
                 text_bytes((double)*values).text, text_bytes((double)size).text);
        return bad(path, what);
    }
    return STATUS_OK;
}

/* gzread reads at most INT_MAX bytes per call. */
static size_t read_values(gzFile file, uint8_t *to, size_t count) {
    size_t done = 0;
    while (done < count) {
        const size_t left = count - done;
        const int got = gzread(file, to + done, left < (1u << 30) ? (unsigned)left : 1u << 30);
        if (got <= 0) break;
        done += (size_t)got;
    }
    return done;
}

static enum status read_payload(struct idx *idx, gzFile file, const char *path, size_t values) {
    char what[200];
    unsigned char extra;
    int code;
    const enum status fits = pages_check(values);
    if (fits) return status_context(fits, "%s", path);
    idx->values = malloc(values);
    if (!idx->values) return out_of_memory(path);
    const size_t got = read_values(file, idx->values, values);
    const bool ends = got == values && gzread(file, &extra, 1) == 0;
    gzerror(file, &code);
    if (ends && code == Z_OK) return STATUS_OK;
    free(idx->values);
    idx->values = NULL;
    if (code != Z_OK && code != Z_BUF_ERROR) return gzip_error(file, path);
    if (got == values && code == Z_OK) {
        snprintf(what, sizeof what, "the file continues after the %zu values that its header announces",
                 values);
    } else {
        snprintf(what, sizeof what, "truncated: the file has %zu of %zu values; copy or download it again",
                 got, values);
    }
    return bad(path, what);
}

static enum status read_open(struct idx *idx, gzFile file, const char *path) {
    unsigned char magic[4] = {0};
    size_t values = 0;
    const int length = gzread(file, magic, sizeof magic);
    if (length < 0) return gzip_error(file, path);
    enum status status = check_magic(path, magic, (size_t)length, idx->rank);
    if (!status) status = read_dimensions(idx, file, path, &values);
    return status ? status : read_payload(idx, file, path, values);
}

enum status idx_read(struct idx *idx, const char *path, size_t rank) {
    *idx = (struct idx){.rank = rank};
    int fd;
    enum status status = input_open(&fd, "", path);
    if (status) return status;
    gzFile file = gzdopen(fd, "rb");
    if (!file) {
        close(fd);
        return out_of_memory(path);
    }
    gzbuffer(file, 1u << 17);
    status = read_open(idx, file, path);
    gzclose(file);
    return status;
}
