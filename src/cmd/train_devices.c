#define _GNU_SOURCE
#include "src/cmd/train_devices.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/backend/registry.h"
#include "src/base/profile.h"
#include "src/base/terminal.h"
#include "src/cmd/local_ranks.h"

enum { MOST_DEVICES = 64 };
static const double PATIENCE = 5; /* seconds for the others to end after this process is done */

static pid_t others[MOST_DEVICES];
static size_t started;

/* --- which GPUs --- */

/* The driver of the backend's GPU. NULL with a message if it has none. */
static const struct device_driver *driver_of(const struct config *config, enum status *status) {
    const struct gemm_backend *backend;
    *status = registry_find(config->backend, &backend);
    if (*status) return NULL;
    const struct device_driver *driver = registry_device(backend->device);
    if (driver && driver->count) return driver;
    *status =
        status_set(STATUS_USAGE,
                   "--devices is for backends on a GPU, and '%s' computes on the host: name another, as "
                   "in --backend cuda-tuned, or start several processes by mpirun",
                   backend->name);
    return NULL;
}

static size_t all_devices(int count, int *list) {
    size_t devices = 0;
    while (devices < MOST_DEVICES && (int)devices < count) {
        list[devices] = (int)devices;
        devices++;
    }
    return devices;
}

/* "0,1,3". Returns 0 if it is no such list, or names a GPU that is not there. */
static size_t parse_list(const char *text, int count, int *list) {
    size_t devices = 0;
    char *end = (char *)text;
    do {
        if (*text < '0' || *text > '9' || devices == MOST_DEVICES) return 0;
        const long number = strtol(text, &end, 10);
        if (number >= count) return 0;
        list[devices++] = (int)number;
        text = end + 1;
    } while (*end == ',');
    return *end ? 0 : devices;
}

static enum status find_devices(const struct config *config, int *list, size_t *devices) {
    enum status status;
    const struct device_driver *driver = driver_of(config, &status);
    if (!driver) return status;
    const int count = driver->count();
    *devices = strcmp(config->devices, "all") == 0 ? all_devices(count, list)
                                                   : parse_list(config->devices, count, list);
    if (*devices) return STATUS_OK;
    return status_set(
        STATUS_USAGE,
        "--devices takes 'all' or up to %d numbers of GPUs, as in 0,1, and not '%s': there %s %d, "
        "numbered from 0",
        MOST_DEVICES, config->devices, count == 1 ? "is" : "are", count);
}

/* --- the processes --- */

/* `train` with the flags of this process, on one GPU. Ctrl-C is for rank 0, which tells the others. */
static enum status start_others(int argc, char **argv, const int *list, size_t count) {
    char device[16], **arguments = calloc((size_t)argc + 6, sizeof *arguments);
    posix_spawn_file_actions_t files;
    size_t last = 0;
    if (!arguments) return status_set(STATUS_FAILED, "out of memory");
    arguments[last++] = (char *)terminal_program();
    arguments[last++] = "train";
    for (int i = 1; i < argc; i++) arguments[last++] = argv[i];
    arguments[last++] = "--devices=";
    arguments[last++] = device;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    void (*const before)(int) = signal(SIGINT, SIG_IGN);
    local_ranks_new(count);
    for (size_t rank = 1; rank < count; rank++) {
        snprintf(device, sizeof device, "--device=%d", list[rank]);
        others[rank] = local_ranks_start(rank, arguments, &files);
    }
    started = count;
    local_ranks_set(0);
    signal(SIGINT, before);
    posix_spawn_file_actions_destroy(&files);
    free(arguments);
    for (size_t rank = 1; rank < count; rank++)
        if (others[rank] < 0) return status_set(STATUS_FAILED, "cannot start a process for each GPU");
    return STATUS_OK;
}

enum status devices_start(struct config *config, int argc, char **argv) {
    struct launch launch;
    int list[MOST_DEVICES];
    size_t count = 0;
    if (!config->devices[0]) return STATUS_OK;
    enum status status = launch_find(&launch);
    if (!status && launch.size > 1)
        status = status_set(STATUS_USAGE,
                            "--devices starts a process for each GPU, and something that set %s has already "
                            "started %d: each takes the GPU of its local rank, or --device",
                            launch.variable, launch.size);
    if (!status) status = find_devices(config, list, &count);
    if (status) return status;
    config->device = list[0];
    return count > 1 ? start_others(argc, argv, list, count) : STATUS_OK;
}

void devices_choose(struct config *config, const struct launch *launch) {
    enum status status;
    if (config_origin_of(config, "device") != FROM_DEFAULT || config->devices[0]) return;
    const struct device_driver *driver = driver_of(config, &status);
    const int count = driver ? driver->count() : 0;
    if (count) config->device = launch->local_rank % count;
}

void devices_end(void) {
    const double start = clock_seconds();
    for (size_t rank = 1; rank < started; rank++) {
        if (others[rank] < 0) continue;
        while (waitpid(others[rank], NULL, WNOHANG) == 0) {
            if (clock_seconds() - start > PATIENCE) kill(others[rank], SIGKILL);
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        }
    }
    started = 0;
}
