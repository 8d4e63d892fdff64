#include "src/nn/data_parallel.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/hash.h"
#include "src/comm/comm.h"
#include "src/nn/alike.h"
#include "src/nn/engine.h"
#include "src/nn/lockstep.h"

/* In device memory. */
struct part_memory {
    struct tally tally; /* of a part */
    double stop;        /* > 0: this process was interrupted */
    struct batch_values values, saved[2];
};

enum { VALUES = sizeof(struct batch_values) / sizeof(double) };

enum status data_parallel_open(struct trainer *trainer) {
    struct data_parallel *parallel = &trainer->parallel;
    struct device *device = &trainer->compute->device;
    const struct comm *comm = trainer->compute->comm;
    const int size = comm_size(comm), rank = comm ? comm->rank : 0;
    const size_t bytes = trainer->mlp.parameter_elements * dtype_size(trainer->mlp.dtype);
    parallel->parts = comm_is_fixed(comm) ? COMM_SHARDS : size;
    parallel->count = parallel->parts / size;
    parallel->first = rank * parallel->count;
    if (parallel->parts == 1) return STATUS_OK;
    parallel->memory = device->driver->alloc(device, sizeof *parallel->memory);
    if (!parallel->memory) return STATUS_FAILED;
    for (int i = 0; 1 << i < parallel->count; i++) {
        parallel->sum[i] = device->driver->alloc(device, bytes);
        if (!parallel->sum[i]) return status_context(STATUS_FAILED, "sums of gradients of --reduction fixed");
    }
    return STATUS_OK;
}

void data_parallel_close(struct trainer *trainer) {
    struct data_parallel *parallel = &trainer->parallel;
    struct device *device = &trainer->compute->device;
    comm_detach(trainer->compute->comm);
    device->driver->free(device, parallel->memory);
    for (size_t i = 0; i < sizeof parallel->sum / sizeof *parallel->sum; i++)
        device->driver->free(device, parallel->sum[i]);
}

/* --- a step --- */

/* Gradients of one part of the batch, and its values. */
static enum status part_gradients(struct trainer *trainer, size_t step, int part) {
    struct mlp *mlp = &trainer->mlp;
    struct device *device = &trainer->compute->device;
    struct part_memory *memory = trainer->parallel.memory;
    struct batch_part rows = {.step = step, .batch = engine_rows(trainer, step), .tally = &memory->tally};
    size_t end;
    enum status status = STATUS_OK;
    comm_share(rows.batch, part, trainer->parallel.parts, &rows.first, &end);
    rows.rows = end - rows.first;
    device->driver->zero(device, &memory->tally, sizeof memory->tally);
    if (rows.rows) {
        status = engine_part_gradients(trainer, &rows);
    } else { /* a small batch */
        device->driver->zero(device, mlp->gradients, mlp->parameter_elements * dtype_size(mlp->dtype));
    }
    mlp->ops->part_values(device->ops_context, &memory->tally, &memory->stop, &memory->values);
    return status;
}

/* Adds the gradients and values of parts in the order of a tree: after part i, those of the pairs that it
   completes. */
static enum status local_gradients(struct trainer *trainer, size_t step) {
    struct data_parallel *parallel = &trainer->parallel;
    struct part_memory *memory = parallel->memory;
    struct mlp *mlp = &trainer->mlp;
    struct device *device = &trainer->compute->device;
    const struct ops *doubles = device->driver->ops(device, GEMM_F64);
    const size_t count = mlp->parameter_elements;
    for (int i = 0; i < parallel->count; i++) {
        int level = 0;
        const enum status status = part_gradients(trainer, step, parallel->first + i);
        if (status) return status;
        for (int bits = i; bits & 1; bits >>= 1, level++) {
            mlp->ops->add(device->ops_context, count, parallel->sum[level], mlp->gradients);
            doubles->add(device->ops_context, VALUES, &memory->saved[level], &memory->values);
        }
        if (i + 1 == parallel->count) break;
        device->driver->copy(device, parallel->sum[level], mlp->gradients, count * dtype_size(mlp->dtype));
        device->driver->copy(device, &memory->saved[level], &memory->values, sizeof memory->values);
    }
    return STATUS_OK;
}

enum status data_parallel_gradients(struct trainer *trainer, size_t step) {
    struct mlp *mlp = &trainer->mlp;
    struct device *device = &trainer->compute->device;
    struct part_memory *memory = trainer->parallel.memory;
    const struct comm_tensor tensors[] = {{mlp->gradients, mlp->parameter_elements, mlp->dtype},
                                          {&memory->values, VALUES, GEMM_F64}};
    enum status status = local_gradients(trainer, step);
    device_lap(device, PART_ELEMENTWISE);
    if (!status) status = comm_sum_all(trainer->compute->comm, tensors, sizeof tensors / sizeof *tensors);
    if (status) return status;
    mlp->ops->count_batch(device->ops_context, &memory->values, trainer->losses + step, trainer->tally);
    device_lap(device, PART_COMMUNICATION);
    return STATUS_OK;
}

bool data_parallel_stops(struct trainer *trainer) {
    struct device *device = &trainer->compute->device;
    struct part_memory *memory = trainer->parallel.memory;
    const double mine = trainer->stop && __atomic_load_n(trainer->stop, __ATOMIC_RELAXED);
    double all;
    device->driver->download(device, &all, &memory->values.stops, sizeof all);
    device->driver->upload(device, &memory->stop, &mine, sizeof mine);
    return all > 0;
}

/* --- before the first step, and after the last --- */

static enum status hash_weights(struct trainer *trainer, uint64_t *hash) {
    double *weights = lockstep_state(trainer);
    if (!weights) return status_set(STATUS_FAILED, "out of memory");
    *hash = hash_bytes(HASH_START, weights, lockstep_state_count(trainer) * sizeof *weights);
    free(weights);
    return STATUS_OK;
}

enum status data_parallel_join(struct trainer *trainer) {
    struct comm *comm = trainer->compute->comm;
    uint64_t weights;
    if (comm_size(comm) == 1) return STATUS_OK;
    enum status status = hash_weights(trainer, &weights);
    if (status) return status;
    weights = hash_bytes(weights, &trainer->state, sizeof trainer->state);
    status = alike_check(comm, trainer->config, trainer->data, weights);
    return status ? status : comm_attach(comm, &trainer->compute->device);
}

enum status data_parallel_compare(struct trainer *trainer) {
    struct comm *comm = trainer->compute->comm;
    uint64_t mine, all[LAUNCH_MOST_RANKS];
    if (comm_size(comm) == 1) return STATUS_OK;
    const enum status status = hash_weights(trainer, &mine);
    if (status) return status;
    comm_gather(comm, &mine, all, sizeof mine);
    for (int r = 1; r < comm->size; r++)
        if (all[r] != all[0])
            return status_set(
                STATUS_FAILED,
                "rank %d has other weights than rank 0: the sums of %s differ between processes; use "
                "--reduction fixed",
                r, comm->description);
    return STATUS_OK;
}
