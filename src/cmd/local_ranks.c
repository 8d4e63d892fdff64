#define _GNU_SOURCE
#include "src/cmd/local_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void set_number(const char *name, size_t value) {
    char text[24];
    snprintf(text, sizeof text, "%zu", value);
    setenv(name, text, 1);
}

void local_ranks_new(size_t size) {
    static unsigned jobs;
    set_number("WORLD_SIZE", size);
    set_number("LOCAL_WORLD_SIZE", size);
    set_number("MASTER_PORT", 20000 + ((unsigned)getpid() + 16 * jobs++) % 20000);
    set_number("TORCHELASTIC_RUN_ID", (size_t)getpid()); /* the port may be that of another process, too */
    setenv("MASTER_ADDR", "127.0.0.1", 1);
}

void local_ranks_set(size_t rank) {
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
}

pid_t local_ranks_start(size_t rank, char *const arguments[], const posix_spawn_file_actions_t *files) {
    pid_t pid;
    local_ranks_set(rank);
    return posix_spawn(&pid, "/proc/self/exe", files, NULL, arguments, environ) ? -1 : pid;
}
