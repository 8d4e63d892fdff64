/* What this process computes now, in words: for a crash handler, or for a process that watches this one. */
#ifndef TESSERA_BASE_PROGRESS_H
#define TESSERA_BASE_PROGRESS_H

#include <stdint.h>

struct progress {
    char doing[256];
    volatile uint64_t beats; /* counts steps: a process whose text and count stay the same hangs */
    volatile uint64_t stack_overflow;
    volatile uint64_t unconnected; /* it could not send its reply */
};

void progress_set(const char *format, ...) __attribute__((format(printf, 1, 2)));
void progress_beat(void);
uint64_t progress_beats(void);

/* The last text; "" if none. */
const char *progress_text(void);

/* From now on the text and the count live in `shared`, memory that another process reads. */
void progress_share(struct progress *shared);

#endif
