/* Opens a file to read it. Its name may come from another file, so it may be anything; a FIFO, for example,
   would be waited for without end. */
#ifndef TESSERA_BASE_INPUT_H
#define TESSERA_BASE_INPUT_H

#include <stddef.h>
#include <stdint.h>

#include "src/base/status.h"

/* *fd receives the descriptor of a regular file. `what` stands in front of the path in messages: "the
   checkpoint ", or "". STATUS_BAD_DATA with the reason; STATUS_FAILED if memory or descriptors ran out. */
enum status input_open(int *fd, const char *what, const char *path);

/* Reads a whole regular file of at most `most` bytes. The caller frees *bytes, which has room for one byte
   more. STATUS_BAD_DATA, or STATUS_FAILED if memory ran out. */
enum status input_bytes(uint8_t **bytes, size_t *size, size_t most, const char *path);

/* The same for a text: it ends with a null byte, and STATUS_BAD_DATA also if it has another one. */
enum status input_text(char **text, size_t most, const char *path);

/* input_open's error for this errno. */
enum status input_error(int error, const char *what, const char *path);

#endif
