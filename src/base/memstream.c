#define _GNU_SOURCE
#include "src/base/memstream.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static ssize_t append(void *self, const char *bytes, size_t count) {
    struct memstream *stream = self;
    if (stream->capacity - stream->length <= count) { /* room for the NUL */
        const size_t capacity = 2 * (stream->capacity + count) + 256;
        char *text = realloc(stream->text, capacity);
        if (!text) return 0; /* sets the stream's error */
        stream->text = text;
        stream->capacity = capacity;
    }
    memcpy(stream->text + stream->length, bytes, count);
    stream->length += count;
    return (ssize_t)count;
}

enum status memstream_open(struct memstream *stream) {
    *stream = (struct memstream){.text = calloc(1, 1), .capacity = 1};
    stream->out = stream->text ? fopencookie(stream, "w", (cookie_io_functions_t){.write = append}) : NULL;
    return stream->out ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
}

enum status memstream_close(struct memstream *stream, enum status status) {
    if (stream->out) {
        const bool incomplete = ferror(stream->out) != 0;
        if ((fclose(stream->out) != 0 || incomplete) && !status)
            status = status_set(STATUS_FAILED, "out of memory");
        stream->out = NULL;
    }
    if (status) {
        free(stream->text);
        stream->text = NULL;
    } else {
        stream->text[stream->length] = '\0';
    }
    return status;
}
