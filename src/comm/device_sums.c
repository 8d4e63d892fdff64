#include "src/comm/device_sums.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/comm/nccl.h"
#include "src/comm/sum_tree.h"

static const double CONNECT_TIMEOUTS = 6; /* NCCL may take so many timeouts to connect the GPUs */

struct device_sums {
    struct device *device; /* NULL: detached */
    struct nccl *nccl;     /* NULL: through the host */
    void *staging;         /* [staging_bytes], page-locked host memory */
    void *received;        /* [received_bytes], on the device: for trees of NCCL */
    size_t staging_bytes, received_bytes;
    bool begun;            /* sums of NCCL that comm_sum_join has not joined */
    enum gemm_dtype dtype; /* of the tensor that is being summed by a tree of NCCL .. */
    void *aside;           /* .. in this context of the ops */
};

/* --- which way: the same on all ranks --- */

/* What each rank tells the others. */
struct seat {
    char host[40], gpu[40]; /* the same text on two ranks: the same one */
    bool wants, able;       /* NCCL */
    char why[160];          /* not able */
    struct nccl_id id;      /* of rank 0 */
};

/* Host names may be alike; this number is not. */
static void name_host(char *text, size_t size) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    text[0] = '\0';
    if (file && !fgets(text, (int)size, file)) text[0] = '\0';
    if (file) fclose(file);
}

static void take_seat(struct comm *comm, struct device_sums *sums, struct seat *seat) {
    struct device *device = sums->device;
    *seat = (struct seat){.wants = comm->choice == COMM_AUTO || comm->choice == COMM_NCCL};
    name_host(seat->host, sizeof seat->host);
    if (device->driver->identify) device->driver->identify(device, seat->gpu, sizeof seat->gpu);
    if (!seat->wants) return;
    sums->nccl = nccl_new();
    seat->able = sums->nccl && (comm->rank || !nccl_make_id(sums->nccl, &seat->id));
    if (!seat->able) snprintf(seat->why, sizeof seat->why, "%.159s", status_message());
}

/* Why NCCL cannot sum, or "". */
static void find_obstacle(const struct seat *seats, int size, char *why, size_t bytes) {
    why[0] = '\0';
    for (int r = 0; r < size && !why[0]; r++) {
        const struct seat *seat = &seats[r];
        if (!seat->wants) snprintf(why, bytes, "--comm mpi or tcp");
        if (seat->wants && !seat->able) snprintf(why, bytes, "rank %d: %s", r, seat->why);
        for (int other = 0; other < r && seat->gpu[0] && !why[0]; other++)
            if (strcmp(seat->gpu, seats[other].gpu) == 0 && strcmp(seat->host, seats[other].host) == 0)
                snprintf(why, bytes, "ranks %d and %d share a GPU", other, r);
    }
}

static bool is_failed(void *self, char *why, size_t size) {
    return nccl_failed(self, why, size);
}

static void end_sums(void *self) {
    nccl_abort(self);
}

/* Fails on all ranks if it does on one. */
static enum status connect_gpus(struct comm *comm, struct device_sums *sums, struct seat *seats,
                                struct seat *mine, char *why, size_t size) {
    watch_guard(comm->watch,
                &(struct watch_guard){.self = sums->nccl, .is_failed = is_failed, .end = end_sums});
    if (sums->device->driver->make_current) sums->device->driver->make_current(sums->device);
    mine->able =
        !nccl_connect(sums->nccl, &seats[0].id, comm->rank, comm->size, CONNECT_TIMEOUTS * comm->timeout);
    if (!mine->able) snprintf(mine->why, sizeof mine->why, "%.159s", status_message());
    comm_gather(comm, mine, seats, sizeof *mine);
    find_obstacle(seats, comm->size, why, size);
    return why[0] ? STATUS_FAILED : STATUS_OK;
}

static void forget_nccl(struct comm *comm, struct device_sums *sums) {
    if (comm->watch) watch_guard(comm->watch, &(struct watch_guard){0});
    if (sums->nccl) nccl_abort(sums->nccl);
    nccl_free(sums->nccl);
    sums->nccl = NULL;
}

static enum status choose_way(struct comm *comm, struct device_sums *sums) {
    struct seat mine, *seats = calloc((size_t)comm->size, sizeof *seats);
    char why[sizeof mine.why + 32];
    if (!seats) return status_set(STATUS_FAILED, "out of memory");
    take_seat(comm, sums, &mine);
    comm_gather(comm, &mine, seats, sizeof mine);
    find_obstacle(seats, comm->size, why, sizeof why);
    if (!why[0]) connect_gpus(comm, sums, seats, &mine, why, sizeof why);
    free(seats);
    if (!why[0]) {
        nccl_describe(sums->nccl, comm->device_sums, sizeof comm->device_sums);
        return STATUS_OK;
    }
    forget_nccl(comm, sums);
    snprintf(comm->device_sums, sizeof comm->device_sums, "the host: %.180s", why);
    if (comm->choice != COMM_NCCL) return STATUS_OK;
    return status_set(STATUS_UNAVAILABLE, "--comm nccl: %s", why);
}

enum status comm_attach(struct comm *comm, struct device *device) {
    if (comm_size(comm) == 1) return STATUS_OK;
    if (!comm->on_device) comm->on_device = calloc(1, sizeof *comm->on_device);
    if (!comm->on_device) return status_set(STATUS_FAILED, "out of memory");
    comm->on_device->device = device;
    if (!device->driver->host_memory) return choose_way(comm, comm->on_device);
    if (comm->choice != COMM_NCCL) return STATUS_OK;
    return status_set(STATUS_UNAVAILABLE,
                      "--comm nccl sums tensors of a GPU, and those of this backend are in host memory: use "
                      "--comm auto");
}

static void free_staging(struct device_sums *sums) {
    const struct device_driver *driver = sums->device->driver;
    if (driver->alloc_pinned) {
        driver->free_pinned(sums->device, sums->staging);
    } else {
        free(sums->staging);
    }
    sums->staging = NULL;
    sums->staging_bytes = 0;
}

void comm_detach(struct comm *comm) {
    struct device_sums *sums = comm ? comm->on_device : NULL;
    if (!sums || !sums->device) return;
    free_staging(sums);
    sums->device->driver->free(sums->device, sums->received);
    sums->received = NULL;
    sums->received_bytes = 0;
    sums->device = NULL;
}

void device_sums_close(struct comm *comm, bool well) {
    struct device_sums *sums = comm->on_device;
    if (!sums || !sums->nccl || !well) return; /* a failed connection is left to the end of the process */
    nccl_close(sums->nccl);
    forget_nccl(comm, sums);
}

void device_sums_free(struct comm *comm) {
    if (comm->on_device) nccl_free(comm->on_device->nccl);
    free(comm->on_device);
}

bool comm_captures(const struct comm *comm, char *why, size_t size) {
    if (comm_size(comm) == 1 || (comm->on_device && comm->on_device->nccl)) return true;
    snprintf(why, size, "the sums over several processes go through %s",
             comm->device_sums[0] ? comm->device_sums : "the host");
    return false;
}

/* --- through the host --- */

static enum status grow_staging(struct device_sums *sums, size_t bytes) {
    const struct device_driver *driver = sums->device->driver;
    if (bytes <= sums->staging_bytes) return STATUS_OK;
    free_staging(sums);
    sums->staging = driver->alloc_pinned ? driver->alloc_pinned(sums->device, bytes) : malloc(bytes);
    if (!sums->staging) return status_context(STATUS_FAILED, "staging of sums");
    sums->staging_bytes = bytes;
    return STATUS_OK;
}

/* The laps of the device are those of its stream: it is idle while the host sums. */
static enum status sum_staged(struct comm *comm, const struct comm_tensor *tensor) {
    struct device_sums *sums = comm->on_device;
    struct device *device = sums->device;
    const size_t bytes = tensor->count * dtype_size(tensor->dtype);
    enum status status = grow_staging(sums, bytes);
    if (status) return status;
    device->driver->download(device, sums->staging, tensor->data, bytes);
    comm_sum(comm, sums->staging, tensor->count, tensor->dtype);
    if (device->profile) profile_lap(device->profile, (struct profile_slot){.part = PART_COMMUNICATION});
    status = device->driver->synchronize(device);
    device->driver->upload(device, tensor->data, sums->staging, bytes);
    return status;
}

/* --- by NCCL --- */

static void exchange(void *self, int peer, const void *send, size_t send_bytes, void *receive,
                     size_t receive_bytes) {
    struct device_sums *sums = self;
    nccl_exchange(sums->nccl, peer, send, send_bytes, receive, receive_bytes,
                  sums->device->driver->aside_stream(sums->device));
}

static void add(void *self, void *into, const void *from, size_t count) {
    struct device_sums *sums = self;
    sums->device->driver->ops(sums->device, sums->dtype)->add(sums->aside, count, from, into);
}

static enum status sum_as_tree(struct comm *comm, const struct comm_tensor *tensor) {
    struct device_sums *sums = comm->on_device;
    const struct device_driver *driver = sums->device->driver;
    const size_t element = dtype_size(tensor->dtype), bytes = (tensor->count + 1) * element;
    if (bytes > sums->received_bytes) {
        driver->free(sums->device, sums->received);
        sums->received = driver->alloc(sums->device, bytes);
        sums->received_bytes = sums->received ? bytes : 0;
        if (!sums->received) return status_context(STATUS_FAILED, "sums of --reduction fixed");
    }
    const struct sum_channel channel = {
        .self = sums, .element = element, .received = sums->received, .exchange = exchange, .add = add};
    sums->dtype = tensor->dtype;
    sums->aside = driver->aside_begin(sums->device);
    sum_tree(&channel, comm->rank, comm->size, tensor->data, tensor->count);
    return nccl_check(sums->nccl);
}

static enum status sum_at_once(struct device_sums *sums, const struct comm_tensor *tensors, size_t count) {
    void *stream = sums->device->driver->aside_stream(sums->device);
    sums->device->driver->aside_begin(sums->device);
    nccl_begin(sums->nccl);
    for (size_t i = 0; i < count; i++)
        nccl_sum(sums->nccl, tensors[i].data, tensors[i].count, tensors[i].dtype, stream);
    nccl_end(sums->nccl);
    return nccl_check(sums->nccl);
}

enum status comm_sum_begin(struct comm *comm, const struct comm_tensor *tensors, size_t count) {
    enum status status = STATUS_OK;
    if (comm_size(comm) == 1) return STATUS_OK;
    struct device_sums *sums = comm->on_device;
    sums->begun = sums->nccl != NULL;
    if (sums->nccl && !comm->fixed) return sum_at_once(sums, tensors, count);
    for (size_t i = 0; i < count && !status; i++) {
        if (sums->device->driver->host_memory) {
            comm_sum(comm, tensors[i].data, tensors[i].count, tensors[i].dtype);
        } else {
            status = sums->nccl ? sum_as_tree(comm, &tensors[i]) : sum_staged(comm, &tensors[i]);
        }
    }
    return status;
}

bool comm_sums_aside(const struct comm *comm) {
    return comm && comm->on_device && comm->on_device->begun;
}

void comm_sum_join(struct comm *comm) {
    struct device_sums *sums = comm ? comm->on_device : NULL;
    if (!sums || !sums->begun) return; /* a captured stream may not wait for one that is not */
    sums->device->driver->aside_join(sums->device);
    sums->begun = false;
}
