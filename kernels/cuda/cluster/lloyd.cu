/* All iterations of Lloyd's algorithm on pixels in one launch: the part of the slot of cuda-tuned for up to
   64 clusters (lloyd_kernel.cuh).

   Bound by   the pixels, 47 MB for MNIST: 11 us an iteration at 4.2 TB/s; and two barriers of the grid with
              the centres between them, about 6 us
   Improves   eight launches for each iteration, and a wait of the host (pixels.cu)
   Run        ./train kmeans --backend cuda-tuned --clusters 10 */
#include <stdlib.h>

#include "kernels/cuda/cluster/lloyd.cuh"
#include "kernels/cuda/cluster/lloyd_kernel.cuh"
#include "kernels/cuda/launch.cuh"

using namespace lloyd;

static const size_t MOST_ROWS = (size_t)1 << 23; /* 255 times as much fits int32 */

struct cuda_lloyd {
    params p; /* what does not change between launches */
    void *memory;
    size_t zeroed; /* its first bytes are 0 at the start of a launch */
    unsigned processors;
    cudaStream_t stream;
};

/* Calls `function<NT>()` for so many clusters. */
template <typename F> static auto with_tiles(uint32_t clusters, F function) {
    if (clusters <= 16) return function.template operator()<2>();
    if (clusters <= 32) return function.template operator()<4>();
    return function.template operator()<8>();
}

/* The parts of the scratch memory; returns its size. */
static size_t lay_out(cuda_lloyd *state, char *memory) {
    params *p = &state->p;
    size_t at = 0;
    const auto take = [&](size_t bytes) {
        char *part = memory + at;
        at += (bytes + 255) / 256 * 256;
        return part;
    };
    const size_t clusters = p->clusters;
    const size_t padded = with_tiles(p->clusters, [&]<int NT>() { return layout<NT>::CENTRES; });
    const size_t copies = with_tiles(p->clusters, [&]<int NT>() { return layout<NT>::COPIES; });
    p->arrived = (unsigned *)take(sizeof *p->arrived);
    p->moved = (int *)take(2 * clusters * sizeof *p->moved);
    p->to = (outcome *)take(sizeof *p->to);
    p->table = (int *)take(copies * clusters * p->features * sizeof *p->table);
    state->zeroed = at;
    p->packed = (int8_t *)take(2 * padded * p->centre_pitch);
    p->bias = (int *)take(clusters * sizeof *p->bias);
    p->rounding = (double *)take(clusters * sizeof *p->rounding);
    p->cost = (double *)take(clusters * sizeof *p->cost);
    p->shift = (double *)take(clusters * sizeof *p->shift);
    return at;
}

/* As many warps as shared memory has room for. False: fewer than 4. */
static bool choose_warps(params *p, size_t limit) {
    for (p->warps = MOST_WARPS; p->warps >= 4; p->warps--)
        if (with_tiles(p->clusters, [&]<int NT>() { return layout<NT>(*p).bytes; }) <= limit) return true;
    return false;
}

static bool open_memory(cuda_lloyd *state, size_t shared, cuda_fault *fault) {
    const size_t bytes = lay_out(state, NULL);
    if (!CUDA_TRY(fault, cudaMalloc(&state->memory, bytes)) ||
        !CUDA_TRY(fault, cudaMemsetAsync(state->memory, 0, bytes, state->stream)))
        return false;
    lay_out(state, (char *)state->memory);
    return with_tiles(state->p.clusters, [&]<int NT>() {
        return CUDA_TRY(
            fault,
            cudaFuncSetAttribute(lloyd_kernel<NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    });
}

struct cuda_lloyd *cuda_lloyd_open(const struct fused_nearest *base) {
    const struct nearest_shape *shape = &base->shape;
    const size_t reserved = 512; /* static shared memory */
    cuda_fault fault = {};
    if (shape->clusters > 64 || shape->features % 16 || shape->features > 4096 ||
        !cuda_launches_cooperatively())
        return NULL;
    cuda_lloyd *state = (cuda_lloyd *)calloc(1, sizeof *state);
    if (!state) return NULL;
    params *p = &state->p;
    p->features = (unsigned)shape->features;
    p->clusters = (uint32_t)shape->clusters;
    p->row_pitch = pixels::pitch_for(shape->features);
    p->centre_pitch = pixels::pitch_for((shape->features + STEP - 1) / STEP * STEP);
    state->processors = (unsigned)base->processors;
    state->stream = base->stream;
    if (choose_warps(p, (size_t)base->shared_bytes - reserved) &&
        open_memory(state, (size_t)base->shared_bytes - reserved, &fault))
        return state;
    cuda_lloyd_close(state);
    cudaGetLastError(); /* clears the error */
    return NULL;
}

void cuda_lloyd_close(struct cuda_lloyd *state) {
    if (!state) return;
    cudaFree(state->memory);
    free(state);
}

size_t cuda_lloyd_run(struct cuda_lloyd *state, const struct nearest_lloyd *run,
                      struct nearest_iteration *record, struct cuda_fault *fault) {
    const struct nearest_call *points = run->points;
    params p = state->p;
    unsigned iterations = 0;
    if (points->rows > MOST_ROWS || run->centres->count != p.clusters || (uintptr_t)points->x % 16 ||
        !run->iterations)
        return 0;
    p.run = *run;
    p.x = (const uint8_t *)points->x;
    p.rows = points->rows;
    p.certify = points->certify;
    p.norm = points->norm;
    p.mean = run->mean;
    p.label = points->label;
    p.values = (float *)run->centres->values;
    p.values_before = (float *)run->values_before;
    p.sums = run->sums->sums;
    p.count = run->sums->count;
    const size_t tiles = (p.rows + ROWS - 1) / ROWS;
    const dim3 grid((unsigned)(tiles < state->processors ? tiles : state->processors)), block(32 * p.warps);
    void *arguments[] = {&p};
    CUDA_TRY(fault, cudaMemsetAsync(state->memory, 0, state->zeroed, state->stream));
    with_tiles(p.clusters, [&]<int NT>() {
        CUDA_TRY(fault, cudaLaunchCooperativeKernel((const void *)lloyd_kernel<NT>, grid, block, arguments,
                                                    layout<NT>(p).bytes, state->stream));
    });
    CUDA_TRY(fault, cudaMemcpyAsync(&iterations, &p.to->iterations, sizeof iterations, cudaMemcpyDeviceToHost,
                                    state->stream));
    CUDA_TRY(fault, cudaMemcpyAsync(record, p.to->record, run->iterations * sizeof *record,
                                    cudaMemcpyDeviceToHost, state->stream));
    CUDA_TRY(fault, cudaStreamSynchronize(state->stream));
    return fault->message[0] ? run->iterations : iterations; /* the caller asks for the error */
}
