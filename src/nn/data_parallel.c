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

/* Gradients that are summed at once while those of the layers below are computed. Smaller sums are all
   latency: an all-reduce of 1 MB between GPUs takes 40 us, of which 36 are those of one of 4 KB. */
static const size_t BUCKET_BYTES = (size_t)1 << 20;

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

static bool sums_have_begun(const struct trainer *trainer) {
    return trainer->parallel.unsummed < trainer->mlp.parameter_elements;
}

/* Begins to sum the weight gradients of this layer and those above, unless they are few, and with the first
   of them the values, which are known since the forward pass. Those of the first layer and all biases are
   summed in the end. All processes begin the same sums in the same order. With --reduction fixed, whose bits
   are those of one process, products beside sums are those of the same kernels as without. */
static enum status sum_layers(void *self, size_t layer) {
    struct trainer *trainer = self;
    struct mlp *mlp = &trainer->mlp;
    struct device *device = &trainer->compute->device;
    struct data_parallel *parallel = &trainer->parallel;
    struct part_memory *memory = parallel->memory;
    const size_t size = dtype_size(mlp->dtype);
    char *first = mlp->layer[layer].weight_grad;
    const size_t below = (size_t)(first - (char *)mlp->gradients) / size, count = parallel->unsummed - below;
    const struct comm_tensor tensors[] = {{first, count, mlp->dtype}, {&memory->values, VALUES, GEMM_F64}};
    if (layer == 0 || count * size < BUCKET_BYTES) return STATUS_OK;
    const bool begun = sums_have_begun(trainer);
    if (!begun) mlp->ops->part_values(device->ops_context, &memory->tally, &memory->stop, &memory->values);
    parallel->unsummed = below;
    const enum status status = comm_sum_begin(trainer->compute->comm, tensors, begun ? 1 : 2);
    mlp->beside_sums = comm_sums_aside(trainer->compute->comm) && !comm_is_fixed(trainer->compute->comm);
    device_lap(device, PART_COMMUNICATION);
    return status;
}

/* Of a part without images: as those of a backward pass. */
static enum status zero_gradients(struct trainer *trainer) {
    struct mlp *mlp = &trainer->mlp;
    struct device *device = &trainer->compute->device;
    enum status status = STATUS_OK;
    device->driver->zero(device, mlp->gradients, mlp->parameter_elements * dtype_size(mlp->dtype));
    for (size_t l = mlp->depth; mlp->on_gradients && l-- > 0 && !status;)
        status = mlp->on_gradients(mlp->on_gradients_self, l);
    return status;
}

/* Gradients of one part of the batch, and its values. */
static enum status part_gradients(struct trainer *trainer, size_t step, int part) {
    struct mlp *mlp = &trainer->mlp;
    struct device *device = &trainer->compute->device;
    struct part_memory *memory = trainer->parallel.memory;
    struct batch_part rows = {.step = step, .batch = engine_rows(trainer, step), .tally = &memory->tally};
    size_t end;
    comm_share(rows.batch, part, trainer->parallel.parts, &rows.first, &end);
    rows.rows = end - rows.first;
    device->driver->zero(device, &memory->tally, sizeof memory->tally);
    const enum status status =
        rows.rows ? engine_part_gradients(trainer, &rows) : zero_gradients(trainer); /* a small batch */
    if (!sums_have_begun(trainer))
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

static void count_batch(struct trainer *trainer, size_t step) {
    trainer->mlp.ops->count_batch(trainer->compute->device.ops_context, &trainer->parallel.memory->values,
                                  trainer->losses + step, trainer->tally);
}

/* Sums what has not been, and updates meanwhile the layers whose sums have begun before. */
static enum status sum_and_update(struct trainer *trainer, size_t step) {
    struct mlp *mlp = &trainer->mlp;
    struct comm *comm = trainer->compute->comm;
    struct device *device = &trainer->compute->device;
    const struct step_scalars *scalars = trainer->feed.scalars + step;
    const bool begun = sums_have_begun(trainer), divides = begun && optimizer_divides(&trainer->optimizer);
    const size_t rest = trainer->parallel.unsummed, all = mlp->parameter_elements;
    const struct comm_tensor tensors[] = {{mlp->gradients, rest, mlp->dtype},
                                          {&trainer->parallel.memory->values, VALUES, GEMM_F64}};
    comm_sum_join(comm);
    if (begun) count_batch(trainer, step);
    const enum status status = comm_sum_begin(comm, tensors, begun ? 1 : 2);
    if (status) return status;
    device_lap(device, PART_COMMUNICATION);
    if (divides) optimizer_step_part(&trainer->optimizer, mlp, rest, all - rest, scalars, trainer->tally);
    comm_sum_join(comm);
    if (!begun) count_batch(trainer, step);
    device_lap(device, PART_COMMUNICATION);
    if (divides) {
        optimizer_step_part(&trainer->optimizer, mlp, 0, rest, scalars, trainer->tally);
    } else {
        optimizer_step(&trainer->optimizer, mlp, scalars, trainer->tally);
    }
    return STATUS_OK;
}

enum status data_parallel_step(struct trainer *trainer, size_t step) {
    struct mlp *mlp = &trainer->mlp;
    struct data_parallel *parallel = &trainer->parallel;
    const bool final = parallel->count == 1 && mlp->adversarial == 0; /* nothing is added to what is issued */
    parallel->unsummed = mlp->parameter_elements;
    mlp->on_gradients = final && comm_size(trainer->compute->comm) > 1 ? sum_layers : NULL;
    mlp->on_gradients_self = trainer;
    const enum status status = local_gradients(trainer, step);
    mlp->on_gradients = NULL;
    mlp->beside_sums = false;
    device_lap(&trainer->compute->device, PART_ELEMENTWISE);
    return status ? status : sum_and_update(trainer, step);
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
