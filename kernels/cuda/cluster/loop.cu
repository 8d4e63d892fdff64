/* Iterations of Lloyd's algorithm without a wait of the host: the first is launched kernel by kernel, so that
   all memory is there; the same launches, captured, are the body of a WHILE node of a CUDA graph, which the
   last kernel of an iteration ends.

   Bound by   the kernels of an iteration; a launch in a graph takes about 1 us, and the host reads the
              records once for all iterations
   Improves   the host's loop, which waits twice in each iteration and launches some 15 kernels and copies
   Run        ./train kmeans --backend cuda-tuned --clusters 1000 */
#include "kernels/cuda/cluster/loop.cuh"

#include <stdlib.h>

static const int THREADS = 256;

/* The state of a loop on the device. */
struct progress {
    unsigned iterations;
    bool ends, stays;       /* after this iteration; the centres did not move */
    double begun, labelled; /* seconds */
    nearest_counts counts;  /* of this iteration */
    nearest_iteration record[NEAREST_ITERATIONS];
};

struct cuda_loop {
    fused_nearest *base;
    cuda_ops_context ops; /* of the passes other than labels */
    progress *on_device;
};

__global__ void begin_kernel(progress *p) {
    p->begun = seconds_now();
}

__global__ void labelled_kernel(progress *p) {
    p->labelled = seconds_now();
}

/* The end of an iteration: a block. */
__global__ void __launch_bounds__(THREADS)
    end_kernel(const __grid_constant__ nearest_lloyd run, cluster_sums sums, const double *cost,
               const double *shift, progress *p) {
    const size_t clusters = sums.clusters;
    size_t without = 0;
    for (size_t first = 0; first < clusters; first += THREADS) {
        const size_t j = first + threadIdx.x;
        without += __syncthreads_count(j < clusters && sums.count[j] == 0);
    }
    const auto own = [](size_t, double value) { return value; };
    const double costs = sum_of_terms<THREADS>(
        clusters, [=](size_t j) { return cost[j]; }, own);
    const double shifts = sum_of_terms<THREADS>(
        clusters, [=](size_t j) { return shift[j]; }, own);
    if (threadIdx.x) return;
    const double now = seconds_now();
    p->record[p->iterations] = {p->counts, without, costs, shifts, p->labelled - p->begun, now - p->labelled};
    p->stays = without && run.stop_at_empty;
    p->ends = p->stays || ++p->iterations == run.iterations || nearest_ends(&run, p->counts.changed, shifts);
    p->iterations += p->stays;
    p->counts = {};
    p->begun = now;
}

/* Takes the move of the centres back if it was not to be. */
__global__ void __launch_bounds__(THREADS)
    stay_kernel(size_t words, const uint32_t *before, uint32_t *values, const progress *p) {
    if (!p->stays) return;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < words; i += (size_t)gridDim.x * THREADS)
        values[i] = before[i];
}

__global__ void condition_kernel(cudaGraphConditionalHandle handle, const progress *p) {
    cudaGraphSetConditional(handle, !p->ends);
}

struct cuda_loop *cuda_loop_open(struct fused_nearest *base) {
    cuda_loop *loop = (cuda_loop *)calloc(1, sizeof *loop);
    if (!loop) return NULL;
    loop->base = base;
    loop->ops.stream = base->stream;
    if (cudaMalloc((void **)&loop->on_device, sizeof *loop->on_device) == cudaSuccess) return loop;
    cudaGetLastError(); /* clears the error */
    free(loop);
    return NULL;
}

void cuda_loop_close(struct cuda_loop *loop) {
    if (!loop) return;
    cudaFree(loop->on_device);
    cudaFree(loop->ops.scratch);
    free(loop);
}

template <typename T> static void move_centres(cuda_loop *loop, const nearest_lloyd *run) {
    fused_nearest *base = loop->base;
    const cudaStream_t stream = base->stream;
    const cluster_sums *sums = run->sums;
    const size_t bytes = sums->clusters * sums->features * sizeof(T);
    void *values = run->centres->values;
    cuda_cluster_costs<T>(&loop->ops, sums, run->mean, values, run->cost);
    CUDA_TRY(&base->fault,
             cudaMemcpyAsync(run->values_before, values, bytes, cudaMemcpyDeviceToDevice, stream));
    cuda_cluster_means<T>(&loop->ops, sums, values, run->shift);
    end_kernel<<<1, THREADS, 0, stream>>>(*run, *sums, run->cost, run->shift, loop->on_device);
    CUDA_LAUNCHED(&base->fault, "end_kernel");
    stay_kernel<<<cuda_grid_for(bytes / 4, THREADS), THREADS, 0, stream>>>(
        bytes / 4, (const uint32_t *)run->values_before, (uint32_t *)values, loop->on_device);
    CUDA_LAUNCHED(&base->fault, "stay_kernel");
    if (!run->points->bytes) cuda_cluster_centres<T>(&loop->ops, run->centres);
    base->table->centres(base, run->centres);
}

/* The launches of an iteration. */
template <typename T> static void launch_iteration(cuda_loop *loop, const nearest_lloyd *run) {
    fused_nearest *base = loop->base;
    const cudaStream_t stream = base->stream;
    const cluster_rows *rows = run->rows;
    const size_t elements = run->sums->clusters * run->sums->features;
    if (rows->bytes)
        CUDA_TRY(&base->fault,
                 cudaMemcpyAsync((void *)rows->before, rows->label, rows->count * sizeof(uint32_t),
                                 cudaMemcpyDeviceToDevice, stream));
    if (!rows->bytes) {
        CUDA_TRY(&base->fault, cudaMemsetAsync(run->sums->sums, 0, elements * sizeof(double), stream));
        CUDA_TRY(&base->fault,
                 cudaMemsetAsync(run->sums->count, 0, run->sums->clusters * sizeof(uint64_t), stream));
    }
    const bool summed =
        base->label_and_sum && base->label_and_sum(base, run, &loop->on_device->counts, &loop->ops);
    if (!summed) base->table->run(base, run->points, &loop->on_device->counts);
    labelled_kernel<<<1, 1, 0, stream>>>(loop->on_device);
    CUDA_LAUNCHED(&base->fault, "labelled_kernel");
    if (rows->bytes) {
        cuda_cluster_sum_bytes(&loop->ops, rows, run->sums);
    } else if (!summed) {
        cuda_cluster_sum_reals<T>(&loop->ops, rows, run->sums);
    }
    move_centres<T>(loop, run);
}

/* A node that repeats `*body` until the condition is false. */
static bool add_while(struct cuda_fault *fault, cudaGraph_t graph, cudaGraphConditionalHandle handle,
                      const cudaGraphNode_t *after, cudaGraph_t *body) {
    cudaGraphNodeParams params = {};
    cudaGraphNode_t node;
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = cudaGraphCondTypeWhile;
    params.conditional.size = 1;
#if CUDART_VERSION >= 13000
    if (!CUDA_TRY(fault, cudaGraphAddNode(&node, graph, after, NULL, 1, &params))) return false;
#else
    if (!CUDA_TRY(fault, cudaGraphAddNode(&node, graph, after, 1, &params))) return false;
#endif
    *body = params.conditional.phGraph_out[0];
    return true;
}

/* The graph of all iterations after the first. */
template <typename T> static bool build(cuda_loop *loop, const nearest_lloyd *run, cudaGraph_t graph) {
    fused_nearest *base = loop->base;
    const cudaStream_t stream = base->stream;
    cudaGraphConditionalHandle handle;
    cudaGraph_t body, ended;
    cudaGraphNode_t first;
    size_t nodes = 1;
    const auto capture = [&](cudaGraph_t to, auto launches) {
        if (!CUDA_TRY(&base->fault, cudaStreamBeginCaptureToGraph(stream, to, NULL, NULL, 0,
                                                                  cudaStreamCaptureModeThreadLocal)))
            return false;
        launches();
        condition_kernel<<<1, 1, 0, stream>>>(handle, loop->on_device);
        return CUDA_TRY(&base->fault, cudaStreamEndCapture(stream, &ended));
    };
    return CUDA_TRY(&base->fault, cudaGraphConditionalHandleCreate(&handle, graph, 0, 0)) &&
           capture(graph, [] {}) && CUDA_TRY(&base->fault, cudaGraphGetNodes(graph, &first, &nodes)) &&
           add_while(&base->fault, graph, handle, &first, &body) &&
           capture(body, [&] { launch_iteration<T>(loop, run); });
}

template <typename T> static void launch_all(cuda_loop *loop, const nearest_lloyd *run) {
    fused_nearest *base = loop->base;
    const cudaStream_t stream = base->stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t executable = NULL;
    CUDA_TRY(&base->fault, cudaMemsetAsync(loop->on_device, 0, sizeof *loop->on_device, stream));
    begin_kernel<<<1, 1, 0, stream>>>(loop->on_device);
    CUDA_LAUNCHED(&base->fault, "begin_kernel");
    launch_iteration<T>(loop, run);
    if (CUDA_TRY(&base->fault, cudaGraphCreate(&graph, 0)) && build<T>(loop, run, graph) &&
        CUDA_TRY(&base->fault, cudaGraphInstantiate(&executable, graph, 0)))
        CUDA_TRY(&base->fault, cudaGraphLaunch(executable, stream));
    CUDA_TRY(&base->fault, cudaStreamSynchronize(stream));
    if (executable) CUDA_TRY(&base->fault, cudaGraphExecDestroy(executable));
    if (graph) CUDA_TRY(&base->fault, cudaGraphDestroy(graph));
}

size_t cuda_loop_run(struct cuda_loop *loop, const struct nearest_lloyd *run,
                     struct nearest_iteration *record) {
    fused_nearest *base = loop->base;
    unsigned iterations = 0;
    if (base->shape.dtype == GEMM_F32) {
        launch_all<float>(loop, run);
    } else {
        launch_all<double>(loop, run);
    }
    if (!base->fault.message[0]) base->fault = loop->ops.fault;
    CUDA_TRY(&base->fault, cudaMemcpy(&iterations, &loop->on_device->iterations, sizeof iterations,
                                      cudaMemcpyDeviceToHost));
    CUDA_TRY(&base->fault, cudaMemcpy(record, loop->on_device->record, run->iterations * sizeof *record,
                                      cudaMemcpyDeviceToHost));
    return base->fault.message[0] ? run->iterations : iterations; /* the caller asks for the error */
}
