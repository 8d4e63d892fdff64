/* Fuzz harnesses: one for each parser, for libFuzzer (make fuzz) or, with main.c, for files by name. A
   harness needs no file on disk, so that it runs some 10,000 inputs a second. */
#ifndef TESSERA_TESTS_FUZZ_H
#define TESSERA_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Prints what was violated and aborts. */
_Noreturn void fuzz_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A file in memory. Open it once. */
struct memory_file {
    int fd;
    char path[32];
};
void memory_file_open(struct memory_file *file);
void memory_file_fill(const struct memory_file *file, const void *data, size_t size);
/* The contents with a NUL behind them; the caller frees them. */
char *memory_file_read(const struct memory_file *file, size_t *size);

/* What a parser of data must not call. The linker sends our calls of the wrapped functions (WRAPPED in the
   Makefile) to forbid.c, which aborts unless a file is opened to be read. */
void forbid_writing(int on);
/* But this file may be opened to be written. */
void forbid_except(const char *path);
/* fopen(name) opens this path. */
void forbid_alias(const char *name, const char *path);

#endif
