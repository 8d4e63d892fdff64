#include "src/cmd/train_processes.h"

#include <stdlib.h>

#include "src/base/platform.h"
#include "src/base/terminal.h"

/* If the process is not bound to some of the cores, as by mpirun, each on this host takes its part of
   them. */
static void divide_threads(const struct launch *launch, const struct comm *comm, struct config *config) {
    const int here = launch->local_size ? launch->local_size : comm->local ? comm->size : 1;
    const int cores = platform_usable_cores();
    if (config->threads || here == 1 || getenv("OMP_NUM_THREADS") || cores < platform_cores()) return;
    config->threads = cores > here ? cores / here : 1;
}

/* What all processes do alike is printed by rank 0 alone. */
static enum status refuse(const struct launch *launch, enum status status) {
    if (launch->rank && (status == STATUS_USAGE || status == STATUS_UNAVAILABLE)) terminal_mute();
    if (launch->rank && status_message()[0]) status_prefix("rank %d of %d", launch->rank, launch->size);
    return status;
}

enum status processes_join(struct comm *comm, struct config *config) {
    const struct comm_options options = {.choice = (enum comm_choice)config->comm,
                                         .fixed = config->reduction,
                                         .timeout = config->comm_timeout};
    struct launch launch;
    enum status status = launch_find(&launch);
    const bool divided = options.fixed || (launch.size > 1 && options.choice != COMM_NONE);
    if (!status && divided && config->ensemble > 1)
        status = status_set(
            STATUS_UNAVAILABLE,
            "--ensemble is not for several processes, nor for --reduction fixed: give each process its "
            "own --seed, with --comm none");
    if (!status) status = comm_open(comm, &launch, &options);
    if (status) return refuse(&launch, status);
    if (comm->size == 1) return STATUS_OK;
    divide_threads(&launch, comm, config);
    if (comm->rank == 0) return STATUS_OK;
    terminal_mute();
    config->save[0] = config->save_init[0] = config->log[0] = config->csv[0] = '\0';
    config->target_accuracy = 0;
    return STATUS_OK;
}
