#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

void fuzz_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    dprintf(STDERR_FILENO, "FAILED: ");
    vdprintf(STDERR_FILENO, format, args);
    dprintf(STDERR_FILENO, "\n");
    va_end(args);
    abort();
}

void memory_file_open(struct memory_file *file) {
    file->fd = memfd_create("fuzz", 0);
    if (file->fd < 0) fuzz_fail("no file in memory");
    snprintf(file->path, sizeof file->path, "/proc/self/fd/%d", file->fd);
}

void memory_file_fill(const struct memory_file *file, const void *data, size_t size) {
    if (ftruncate(file->fd, 0) != 0 || pwrite(file->fd, data, size, 0) != (ssize_t)size)
        fuzz_fail("cannot fill the file in memory");
}

char *memory_file_read(const struct memory_file *file, size_t *size) {
    struct stat info;
    if (fstat(file->fd, &info) != 0) fuzz_fail("no file in memory");
    *size = (size_t)info.st_size;
    char *text = malloc(*size + 1);
    if (!text || pread(file->fd, text, *size, 0) != (ssize_t)*size)
        fuzz_fail("cannot read the file in memory");
    text[*size] = '\0';
    return text;
}
