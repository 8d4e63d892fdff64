/* Fuzz harnesses: one for each parser, for libFuzzer (make fuzz) or, with main.c, for files by name. */
#ifndef TESSERA_TESTS_FUZZ_H
#define TESSERA_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a parser of data must not call. The linker sends our calls of the wrapped functions (WRAPPED in the
   Makefile) to forbid.c, which aborts unless a file is opened to be read. */
void forbid_writing(int on);

#endif
