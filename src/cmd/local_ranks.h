/* Processes of this program on this host that train together, as a launcher would start them: sockets connect
   them (src/comm/launch.h). */
#ifndef TESSERA_CMD_LOCAL_RANKS_H
#define TESSERA_CMD_LOCAL_RANKS_H

#include <spawn.h>
#include <stddef.h>
#include <sys/types.h>

/* Sets the environment variables of a new job of `size` ranks, which meet at a port that is likely free. */
void local_ranks_new(size_t size);

/* Sets those of one rank. */
void local_ranks_set(size_t rank);

/* Starts a rank with these arguments (the first is the name of the program) and, unless it is NULL, these
   files. -1 if it cannot be started. */
pid_t local_ranks_start(size_t rank, char *const arguments[], const posix_spawn_file_actions_t *files);

#endif
