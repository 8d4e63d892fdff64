/* The files that students hand in: found, told apart, compiled. */
#ifndef TESSERA_BENCH_GRADE_FILES_H
#define TESSERA_BENCH_GRADE_FILES_H

#include "src/bench/assignment.h"

struct submission {
    char *name;          /* relative to the folder that was given, or as the file was given; printable */
    char *path;          /* of the file */
    const char *options; /* the end of `name`: "tile=16" of "my.so:tile=16"; "" without options */
};

struct submissions {
    struct submission *list;
    size_t count, capacity;
};

/* Adds a file ("NAME:options" as for --backend), or all .so, .c, .cc, .cpp and .cu files below a folder,
   sorted by name; hidden ones and those below `except` are left out. STATUS_BAD_DATA if there is no such file
   or folder. */
enum status submissions_add(struct submissions *submissions, const char *path, const char *except);
void submissions_free(struct submissions *submissions);

/* It changes if the file or its options change. STATUS_BAD_DATA if it cannot be read. */
enum status submission_hash(const struct submission *submission, uint64_t *hash);

/* Is it source text? */
bool submission_is_source(const struct submission *submission);

/* Compiles the source to `output` by the line of its kind; what the compiler prints goes to `log`.
   STATUS_FAILED with the first error, or if it took too long. */
enum status submission_compile(const struct submission *submission, const struct assignment *assignment,
                               const char *output, const char *log);

#endif
