/* bench scaling --ranks: the same training by several processes of this host. */
#ifndef TESSERA_CMD_BENCH_RANKS_H
#define TESSERA_CMD_BENCH_RANKS_H

#include "src/base/logfile.h"
#include "src/nn/config.h"

/* Trains with `config` on each number of processes of the list ("1,2,4"), connected by sockets, `repeats`
   times in turn: the batch shared by all, and a batch for each. Prints a table, and writes rows of
   "ranks". */
enum status bench_ranks(const struct config *config, const char *list, size_t repeats, struct logfile *log);

#endif
