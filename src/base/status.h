/* Errors are values: a function that can fail returns a status and stores one message for the user. */
#ifndef TESSERA_BASE_STATUS_H
#define TESSERA_BASE_STATUS_H

/* The values are the exit codes of the program. */
enum status {
    STATUS_OK = 0,
    STATUS_FAILED = 1,        /* run-time failure: memory, disk, a loss that is not finite */
    STATUS_USAGE = 2,         /* wrong flag, key or value */
    STATUS_BAD_DATA = 3,      /* data set or checkpoint */
    STATUS_UNAVAILABLE = 4,   /* backend or device cannot be used here */
    STATUS_VERIFY_FAILED = 5, /* a GEMM result is wrong */
    STATUS_TARGET_MISSED = 6, /* --target-accuracy was not reached */
    STATUS_INTERRUPTED = 130  /* SIGINT or SIGTERM, after the step in progress was finished */
};

/* status_set(status, format, ...) stores the message (what is wrong, where, what to do next; no newline) and
   evaluates to `status`. There is one message per thread; a later call replaces it. It is a macro so that
   static analysers see the value. */
#define status_set(status, ...) (status_write(__VA_ARGS__), (status))

/* Prefixes the stored message with "context: " and evaluates to `status`. */
#define status_context(status, ...) (status_prefix(__VA_ARGS__), (status))

/* The message alone, for functions that report failure by NULL. */
void status_write(const char *format, ...) __attribute__((format(printf, 1, 2)));
void status_prefix(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The last message of this thread, "" if none. */
const char *status_message(void);

#endif
