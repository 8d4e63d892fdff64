#include "src/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[2048];

void status_write(const char *format, ...) {
    char text[sizeof message]; /* the arguments may point into the old message */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(message, text, sizeof message);
}

void status_prefix(const char *format, ...) {
    char text[sizeof message];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (used >= 0 && (size_t)used < sizeof text)
        snprintf(text + used, sizeof text - (size_t)used, ": %.1024s", message);
    memcpy(message, text, sizeof message);
}

const char *status_message(void) {
    return message;
}
