/* Aborts when code under test loads a library, or writes, renames or removes a file. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "tests/fuzz/fuzz.h"

static const char FINDINGS[] = "findings/"; /* where libFuzzer writes, -artifact_prefix */

static int forbidden;
static const char *writable; /* (optional) */
static struct { const char *name, *path; } aliases[4];

void forbid_writing(int on) {
    forbidden = on;
}

void forbid_except(const char *path) {
    writable = path;
}

void forbid_alias(const char *name, const char *path) {
    size_t i = 0;
    while (aliases[i].name) i++;
    aliases[i].name = name;
    aliases[i].path = path;
}

static void check(int allowed, const char *call, const char *path) {
    if (!forbidden || allowed || (path && strncmp(path, FINDINGS, sizeof FINDINGS - 1) == 0) ||
        (writable && path && strcmp(path, writable) == 0))
        return;
    fuzz_fail("%s of '%s' is forbidden", call, path);
}

/* Defines __wrap_NAME, which checks and then calls __real_NAME. */
#define WRAP(type, name, parameters, arguments, path, allowed) \
    type __real_##name parameters;                             \
    type __wrap_##name parameters;                             \
    type __wrap_##name parameters {                            \
        check(allowed, #name, path);                           \
        return __real_##name arguments;                        \
    }

WRAP(void *, dlopen, (const char *path, int flags), (path, flags), path, 0)
WRAP(FILE *, freopen, (const char *path, const char *mode, FILE *file), (path, mode, file), path, 0)
WRAP(int, rename, (const char *from, const char *to), (from, to), to, 0)
WRAP(int, unlink, (const char *path), (path), path, 0)
WRAP(int, remove, (const char *path), (path), path, 0)
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), path, 0)
WRAP(int, truncate, (const char *path, off_t size), (path, size), path, 0)
WRAP(FILE *, popen, (const char *command, const char *mode), (command, mode), command, 0)
WRAP(int, system, (const char *command), (command), command, 0)

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    check((flags & O_ACCMODE) == O_RDONLY && !(flags & (O_CREAT | O_TRUNC)), "open", path);
    return __real_open(path, flags, mode);
}

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode) {
    check(mode[0] == 'r' && !strchr(mode, '+'), "fopen", path);
    for (size_t i = 0; aliases[i].name; i++)
        if (strcmp(path, aliases[i].name) == 0) path = aliases[i].path;
    return __real_fopen(path, mode);
}
