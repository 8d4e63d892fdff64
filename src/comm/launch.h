/* Which of several processes is this? Launchers say so in environment variables: those of Open MPI, MPICH
   (PMI), Slurm's srun, and torchrun. */
#ifndef TESSERA_COMM_LAUNCH_H
#define TESSERA_COMM_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "src/base/status.h"

enum { LAUNCH_MOST_RANKS = 1024 };

struct launch {
    int rank, size;       /* size 1: this process is alone */
    int local_rank;       /* among those of this host .. */
    int local_size;       /* .. of which there are so many; 0: not known */
    const char *variable; /* that has the rank: "OMPI_COMM_WORLD_RANK"; "" if alone */
    bool by_mpi;          /* its launcher can start MPI */
    char address[256];    /* of rank 0: MASTER_ADDR, or the first node of srun's; "" if not known */
    int port;             /* MASTER_PORT, or one made from the number of Slurm's job; 0 if not known */
    uint64_t job;         /* the same in all processes of a job, and hardly in those of another */
};

/* STATUS_USAGE if the variables contradict themselves. */
enum status launch_find(struct launch *launch);

#endif
