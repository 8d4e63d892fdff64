#include "src/base/progress.h"

#include <stdarg.h>
#include <stdio.h>

static struct progress own;
static struct progress *current = &own;

void progress_set(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(current->doing, sizeof current->doing, format, args);
    va_end(args);
    progress_beat();
}

void progress_beat(void) {
    current->beats++;
}

uint64_t progress_beats(void) {
    return current->beats;
}

const char *progress_text(void) {
    return current->doing;
}

void progress_share(struct progress *shared) {
    current = shared;
}
