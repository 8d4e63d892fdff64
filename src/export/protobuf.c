#include "src/export/protobuf.h"

#include <string.h>

#include "src/base/memory.h"

enum { VARINT = 0, LENGTH_DELIMITED = 2, LONGEST_VARINT = 10 };

/* Seven bits a byte, the lowest first; the top bit says that more follow. Returns the bytes written. */
static size_t varint(char *to, uint64_t value) {
    size_t count = 0;
    for (; value > 127; value >>= 7) to[count++] = (char)(value | 128);
    to[count++] = (char)value;
    return count;
}

static size_t key(char *to, unsigned field, unsigned wire_type) {
    return varint(to, field << 3 | wire_type);
}

/* Puts `count` bytes in front of those from `at` on. */
static void insert(struct protobuf *buffer, size_t at, const void *bytes, size_t count) {
    if (buffer->length + count > buffer->capacity) {
        const size_t capacity = 2 * buffer->length + count;
        char *grown = memory_resize(buffer->bytes, capacity);
        if (!grown) return;
        buffer->bytes = grown;
        buffer->capacity = capacity;
    }
    memmove(buffer->bytes + at + count, buffer->bytes + at, buffer->length - at);
    if (count) memcpy(buffer->bytes + at, bytes, count);
    buffer->length += count;
}

void protobuf_integer(struct protobuf *buffer, unsigned field, uint64_t value) {
    char head[2 * LONGEST_VARINT];
    size_t count = key(head, field, VARINT);
    count += varint(head + count, value);
    insert(buffer, buffer->length, head, count);
}

void protobuf_bytes(struct protobuf *buffer, unsigned field, const void *bytes, size_t count) {
    const size_t begin = protobuf_begin(buffer);
    insert(buffer, begin, bytes, count);
    protobuf_end(buffer, field, begin);
}

void protobuf_text(struct protobuf *buffer, unsigned field, const char *text) {
    protobuf_bytes(buffer, field, text, strlen(text));
}

size_t protobuf_begin(const struct protobuf *buffer) {
    return buffer->length;
}

void protobuf_end(struct protobuf *buffer, unsigned field, size_t begin) {
    char head[2 * LONGEST_VARINT];
    if (begin > buffer->length) return; /* memory ran out */
    size_t count = key(head, field, LENGTH_DELIMITED);
    count += varint(head + count, buffer->length - begin);
    insert(buffer, begin, head, count);
}
