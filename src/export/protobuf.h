/* Writes protocol buffers (protobuf.dev/programming-guides/encoding) into memory. A message within a message
   is opened by protobuf_begin and closed by protobuf_end; fields follow in any order. */
#ifndef TESSERA_EXPORT_PROTOBUF_H
#define TESSERA_EXPORT_PROTOBUF_H

#include <stddef.h>
#include <stdint.h>

/* Start with zero; the caller frees `bytes`. Memory that runs out is reported by memory_ran_out. */
struct protobuf {
    char *bytes;
    size_t length, capacity;
};

void protobuf_integer(struct protobuf *buffer, unsigned field, uint64_t value);
void protobuf_text(struct protobuf *buffer, unsigned field, const char *text);
void protobuf_bytes(struct protobuf *buffer, unsigned field, const void *bytes, size_t count);

/* The content of field `field` follows, up to protobuf_end with the value that this returns. */
size_t protobuf_begin(const struct protobuf *buffer);
void protobuf_end(struct protobuf *buffer, unsigned field, size_t begin);

#endif
