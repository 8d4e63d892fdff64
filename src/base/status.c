#include "src/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[2048];

enum status status_set(enum status status, const char *format, ...) {
    char text[sizeof message]; /* the arguments may point into the old message */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(message, text, sizeof message);
    return status;
}

enum status status_context(enum status status, const char *format, ...) {
    char text[sizeof message];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (used >= 0 && (size_t)used < sizeof text)
        snprintf(text + used, sizeof text - (size_t)used, ": %.1024s", message);
    memcpy(message, text, sizeof message);
    return status;
}

const char *status_message(void) {
    return message;
}
