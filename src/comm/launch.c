#include "src/comm/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/hash.h"
#include "src/base/text.h"

/* The first launcher whose variables are all set is the one. A Slurm job has SLURM_PROCID in its batch
   script, too; the number of tasks of a step is only in a task that srun started. */
static const struct launcher {
    const char *rank, *size, *local_rank, *local_size;
    bool by_mpi;
} launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true},
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", false},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", false},
};

static bool read_number(const char *name, int64_t min, int64_t max, int64_t *value) {
    const char *text = getenv(name);
    return text && text_parse_int(text, value) && *value >= min && *value <= max;
}

static enum status read_launcher(const struct launcher *launcher, struct launch *launch) {
    int64_t rank, size, local = 0, here = 0;
    if (!read_number(launcher->size, 1, LAUNCH_MOST_RANKS, &size))
        return status_set(STATUS_USAGE, "%s must be a number from 1 to %d, not '%s'", launcher->size,
                          LAUNCH_MOST_RANKS, getenv(launcher->size));
    if (!read_number(launcher->rank, 0, size - 1, &rank))
        return status_set(STATUS_USAGE, "%s must be a number from 0 to %s - 1, not '%s'", launcher->rank,
                          launcher->size, getenv(launcher->rank));
    read_number(launcher->local_rank, 0, LAUNCH_MOST_RANKS, &local);
    read_number(launcher->local_size, 1, LAUNCH_MOST_RANKS, &here);
    launch->rank = (int)rank;
    launch->size = (int)size;
    launch->local_rank = (int)local;
    launch->local_size = (int)here;
    launch->by_mpi = launcher->by_mpi || getenv("PMIX_RANK"); /* of srun --mpi=pmix */
    launch->variable = launcher->rank;
    return STATUS_OK;
}

/* "node[3,7-9],gpu1" -> "node3", as in SLURM_STEP_NODELIST. */
static void first_node(const char *list, char *node, size_t size) {
    const size_t name = strcspn(list, "[,");
    const char *number = list[name] == '[' ? list + name + 1 : "";
    snprintf(node, size, "%.*s%.*s", (int)name, list, (int)strcspn(number, ",-]"), number);
}

static void find_master(struct launch *launch) {
    const char *address = getenv("MASTER_ADDR"), *nodes = getenv("SLURM_STEP_NODELIST");
    int64_t port, job = 0, step = 0;
    if (address) {
        snprintf(launch->address, sizeof launch->address, "%s", address);
    } else if (nodes) {
        first_node(nodes, launch->address, sizeof launch->address);
    }
    read_number("SLURM_JOB_ID", 0, INT64_MAX, &job);
    read_number("SLURM_STEP_ID", 0, INT64_MAX, &step);
    if (read_number("MASTER_PORT", 1, 65535, &port)) {
        launch->port = (int)port;
    } else if (nodes) {
        launch->port = (int)(20000 + (31 * job + step) % 20000);
    }
    static const char *const names[] = {"MASTER_ADDR",  "MASTER_PORT",   "TORCHELASTIC_RUN_ID",
                                        "SLURM_JOB_ID", "SLURM_STEP_ID", NULL};
    launch->job = (uint64_t)launch->size;
    for (size_t i = 0; names[i]; i++) {
        const char *value = getenv(names[i]);
        if (value) launch->job = hash_bytes(launch->job, value, strlen(value));
    }
}

enum status launch_find(struct launch *launch) {
    *launch = (struct launch){.size = 1, .variable = ""};
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        if (!getenv(launchers[i].rank) || !getenv(launchers[i].size)) continue;
        const enum status status = read_launcher(&launchers[i], launch);
        if (status) return status;
        if (launch->size > 1) find_master(launch);
        return STATUS_OK;
    }
    return STATUS_OK;
}
