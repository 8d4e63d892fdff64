#include "src/cmd/train_processes.h"

#include <stdlib.h>

#include "src/base/platform.h"
#include "src/base/terminal.h"
#include "src/cmd/train_devices.h"

/* If the process is not bound to some of the cores, as by mpirun, each on this host takes its part of
   them. */
static void divide_threads(const struct launch *launch, const struct comm *comm, struct config *config) {
    const int here = launch->local_size ? launch->local_size : comm->local ? comm->size : 1;
    const int cores = platform_usable_cores();
    if (config->threads || here == 1 || getenv("OMP_NUM_THREADS") || cores < platform_cores()) return;
    config->threads = cores > here ? cores / here : 1;
}

/* What all processes do alike is printed by rank 0 alone, and so is what a watch tells it. */
static enum status refuse(const struct launch *launch, bool watched, enum status status) {
    if (!launch->rank) return status;
    if (watched || status == STATUS_USAGE || status == STATUS_UNAVAILABLE) terminal_mute();
    if (!watched && status_message()[0]) status_prefix("rank %d of %d", launch->rank, launch->size);
    return status;
}

enum status processes_join(struct comm *comm, struct config *config, int argc, char **argv) {
    const struct comm_options options = {.choice = (enum comm_choice)config->comm,
                                         .fixed = config->reduction,
                                         .timeout = config->comm_timeout};
    struct launch launch = {.size = 1};
    enum status status = devices_start(config, argc, argv);
    if (!status) status = launch_find(&launch);
    if (!status && options.fixed && config->ensemble > 1)
        status = status_set(STATUS_UNAVAILABLE,
                            "--reduction fixed sums gradients of several processes, and each network of "
                            "--ensemble trains in one");
    if (!status) status = comm_open(comm, &launch, &options);
    if (status) return refuse(&launch, comm->watch, status);
    if (launch.size > 1) devices_choose(config, &launch);
    if (comm->size == 1) return STATUS_OK;
    divide_threads(&launch, comm, config);
    if (comm->rank == 0) return STATUS_OK;
    terminal_mute();
    config->log[0] = config->csv[0] = '\0';
    if (config->ensemble == 1) config->save[0] = config->save_init[0] = '\0'; /* a network has one process */
    config->target_accuracy = 0;
    return STATUS_OK;
}

enum status processes_leave(struct comm *comm, enum status status) {
    const enum status ended = comm_close(comm, status);
    devices_end();
    return ended;
}
