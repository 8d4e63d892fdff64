/* The skeleton of a persistent kernel: one cooperative launch runs many training steps. All forms share it:
   opening (plan, memory, launch attributes), tags of packets, and the loop over the steps.

   A form F (host) has
     plan                 the kernel's argument: the network and how it is split over thread blocks
     arrange              fills a plan, or says why the form does not support the network
     seconds              expected seconds of a step
     lay_out              assigns the global memory of a plan; returns its bytes
     launch               kernel, thread blocks, shared memory
     describe             one phrase
   A trainer T (device; one object per thread) has
     MAX_THREADS          of a thread block
     SHARED_ALIGNMENT     of its shared memory: 1024 for swizzled operands of wgmma
     load                 weights, and the inputs of the first step
     step                 forward, exchange, output layer, backward, update; returns false after a bad loss
     finish               stores the weights, and the tally unless `step` does that
*/
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_PERSISTENT_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_PERSISTENT_CUH

#include "kernels/activation.h"
#include "kernels/cuda/persistent/fused.cuh"
#include "kernels/cuda/persistent/stage_profile.cuh"

namespace persistent {

/* --- the kernel --- */

/* Runs steps first .. end - 1; `tag` is the tag of step `first`, and no packet in memory carries it or a
   later one. Stops after a step whose loss is not finite; that step changes no weight. */
template <typename T>
__global__ void __launch_bounds__(T::MAX_THREADS, 1)
    train_steps(const __grid_constant__ typename T::plan_type plan, int first, int end, uint32_t tag) {
    extern __shared__ __align__(T::SHARED_ALIGNMENT) float4 shared_memory[];
    T trainer(plan, shared_memory, end);
    if (plan.tally->bad_step) return; /* no update after a bad step */
    trainer.load(first, tag);
    int step = first;
    bool finite = true;
    stage_profile profile;
    profile.start();
    for (; step < end && finite; step++, tag++) finite = trainer.step(step, tag, profile);
    if (threadIdx.x % 256 == 0 && blockIdx.x == gridDim.x / 2) profile.print(step - first);
    trainer.finish(first, step);
}

/* A whole step must fit in the instruction cache: activations other than ReLU are called, not inlined. */
template <typename R> __device__ __noinline__ R activate_called(enum activation activation, R z) {
    return activate(activation, z);
}

template <typename R> __device__ __noinline__ R derivative_called(enum activation activation, R z, R y) {
    return derivative(activation, z, y);
}

template <typename R> __device__ inline R activate_compactly(enum activation activation, R z) {
    return activation == ACTIVATION_RELU ? activate(ACTIVATION_RELU, z) : activate_called(activation, z);
}

template <typename R> __device__ inline R derivative_compactly(enum activation activation, R z, R y) {
    return activation == ACTIVATION_RELU ? derivative(ACTIVATION_RELU, z, y)
                                         : derivative_called(activation, z, y);
}

/* Without calls, which gave wrong results in warps that had changed their number of registers
   (docs/journal.md); not of GELU, whose derivative needs the input. */
__device__ inline float activate_in_place(enum activation activation, float z) {
    switch (activation) {
    case ACTIVATION_RELU:
        return value_RELU_f32(z);
    case ACTIVATION_TANH:
        return value_TANH_f32(z);
    case ACTIVATION_SCALED_TANH:
        return value_SCALED_TANH_f32(z);
    case ACTIVATION_SIGMOID:
        return value_SIGMOID_f32(z);
    default:
        return z;
    }
}

/* The same, from the output y. */
__device__ inline float derivative_in_place(enum activation activation, float y) {
    switch (activation) {
    case ACTIVATION_RELU:
        return derivative_RELU_f32(y, y);
    case ACTIVATION_TANH:
        return derivative_TANH_f32(y, y);
    case ACTIVATION_SCALED_TANH:
        return derivative_SCALED_TANH_f32(y, y);
    case ACTIVATION_SIGMOID:
        return derivative_SIGMOID_f32(y, y);
    default:
        return 1;
    }
}

/* --- the plan --- */

/* What every plan copies from the network. */
struct training_plan {
    int features, batch, count; /* pixels of an image; rows of a step; images of an epoch */
    enum input_range range;
    const uint8_t *images, *labels;
    const uint32_t *order;
    const struct step_scalars *scalars;
    double *losses;
    struct tally *tally;

    void take_inputs(const fused_network *network) {
        features = (int)network->features;
        batch = (int)network->batch;
        count = (int)network->count;
        range = network->range;
        images = network->images;
        labels = network->labels;
        order = network->order;
        scalars = network->scalars;
        losses = network->losses;
        tally = network->tally;
    }

    /* Rows of a step; 0 from step `end` on. */
    __device__ int rows_of(int step, int end) const {
        return step < end ? min(count - step * batch, batch) : 0;
    }
};

/* --- memory --- */

/* Assigns consecutive pieces of `base`; with NULL it only counts bytes. */
struct memory_layout {
    char *base;
    size_t used;

    template <typename T> void take(T **piece, size_t count) {
        *piece = base ? (T *)(base + used) : NULL;
        used += (count * sizeof(T) + 255) / 256 * 256;
    }
};

/* --- the launch --- */

struct kernel_launch {
    const void *kernel;
    int blocks, threads, cluster; /* cluster: thread blocks per cluster */
    size_t shared_bytes;
    bool prefers_l1; /* use the rest of shared memory as L1 cache */
    void *clear;     /* global memory that is 0 when a launch starts, or NULL */
    size_t clear_bytes;
    /* A kernel of the same arguments that runs before it, with as many thread blocks as steps; or NULL. */
    const void *prologue;
    int prologue_threads;
    size_t longest; /* as in fused_instance */
};

struct launch_config {
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config;

    launch_config(const kernel_launch &launch, cudaStream_t stream) : attributes(), config() {
        attributes[0].id = cudaLaunchAttributeCooperative;
        attributes[0].val.cooperative = 1;
        attributes[1].id = cudaLaunchAttributeClusterDimension;
        attributes[1].val.clusterDim.x = launch.cluster;
        attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
        config.gridDim = dim3(launch.blocks);
        config.blockDim = dim3(launch.threads);
        config.dynamicSmemBytes = launch.shared_bytes;
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = launch.cluster > 1 ? 2 : 1;
    }
};

/* --- a network on form F --- */

template <typename F> struct instance : fused_instance {
    tuned_context *context;
    typename F::plan plan;
    void *memory;
    size_t bytes;
    uint32_t tag; /* of the next step */

    static bool arrange(const tuned_context *context, const fused_network *network, typename F::plan *plan,
                        char *why, size_t size) {
        if (network->count <= (size_t)1 << 30) return F::arrange(context, network, plan, why, size);
        snprintf(why, size, "it takes epochs of up to 2^30 images");
        return false;
    }

    static double estimate(const tuned_context *context, const fused_network *network, char *why,
                           size_t size) {
        typename F::plan plan = {};
        return arrange(context, network, &plan, why, size) ? F::seconds(context, network, plan) : 0;
    }

    static fused_instance *open(tuned_context *context, const fused_network *network, char *why,
                                size_t size) {
        instance *self = (instance *)calloc(1, sizeof *self);
        if (size) why[0] = '\0';
        if (self) {
            self->run = run_steps;
            self->describe = describe_plan;
            self->close = close_instance;
            self->context = context;
            self->tag = 1;
            if (arrange(context, network, &self->plan, why, size) && self->allocate(network) &&
                self->fits(why, size)) {
                self->longest = F::launch(self->plan).longest;
                return self;
            }
            close_instance(self);
        }
        if (size && !why[0])
            snprintf(why, size, "%s", context->fault.message[0] ? context->fault.message : "out of memory");
        return NULL;
    }

    static void close_instance(fused_instance *self) {
        cudaFree(((instance *)self)->memory);
        free(self);
    }

    /* Global memory, zeroed, and the attributes of the kernel. */
    bool allocate(const fused_network *network) {
        cuda_fault *fault = &context->fault;
        memory_layout layout = {};
        F::lay_out(network, &plan, layout);
        bytes = layout.used;
        if (!CUDA_TRY(fault, cudaMalloc(&memory, bytes)) ||
            !CUDA_TRY(fault, cudaMemsetAsync(memory, 0, bytes, context->stream)) ||
            !CUDA_TRY(fault, cudaStreamSynchronize(context->stream)))
            return false;
        layout = {(char *)memory, 0};
        F::lay_out(network, &plan, layout);
        const kernel_launch launch = F::launch(plan);
        return CUDA_TRY(fault, cuda_allow_shared_bytes(launch.kernel, launch.shared_bytes)) &&
               (launch.cluster <= 8 || /* the most that every GPU with clusters has */
                CUDA_TRY(fault, cudaFuncSetAttribute(launch.kernel,
                                                     cudaFuncAttributeNonPortableClusterSizeAllowed, 1))) &&
               CUDA_TRY(fault,
                        cudaFuncSetAttribute(launch.kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                             launch.prefers_l1 ? cudaSharedmemCarveoutMaxL1
                                                               : cudaSharedmemCarveoutDefault));
    }

    /* Whether all clusters can be resident at the same time: an SM without a free neighbour holds none. */
    bool fits(char *why, size_t size) {
        const kernel_launch launch = F::launch(plan);
        const launch_config config(launch, context->stream);
        const int needed = launch.blocks / launch.cluster;
        int clusters = 0;
        if (launch.cluster == 1) return true; /* the cooperative launch checks it */
        if (!CUDA_TRY(&context->fault,
                      cudaOccupancyMaxActiveClusters(&clusters, launch.kernel, &config.config)))
            return false;
        if (clusters >= needed) return true;
        snprintf(why, size, "it needs %d clusters of %d SMs at the same time, and this GPU has %d free",
                 needed, launch.cluster, clusters);
        return false;
    }

    /* Tags increase from step to step. Before they wrap around, all packets are cleared and tags start again
       from 1. */
    static size_t run_steps(fused_instance *opaque, size_t first_step, size_t count) {
        instance *self = (instance *)opaque;
        const cudaStream_t stream = self->context->stream;
        cuda_fault *fault = &self->context->fault;
        const kernel_launch launch = F::launch(self->plan);
        const launch_config config(launch, stream);
        const size_t left = launch.longest ? launch.longest - first_step % launch.longest : count;
        if (count > left) count = left;
        int first = (int)first_step, end = (int)(first_step + count);
        void *arguments[] = {&self->plan, &first, &end, &self->tag};
        if (count > UINT32_MAX - self->tag) {
            if (!CUDA_TRY(fault, cudaMemsetAsync(self->memory, 0, self->bytes, stream))) return 0;
            self->tag = 1;
        }
        const bool ran =
            (!launch.clear ||
             CUDA_TRY(fault, cudaMemsetAsync(launch.clear, 0, launch.clear_bytes, stream))) &&
            (!launch.prologue ||
             CUDA_TRY(fault, cudaLaunchKernel(launch.prologue, dim3((unsigned)count),
                                              dim3(launch.prologue_threads), arguments, 0, stream))) &&
            CUDA_TRY(fault, cudaLaunchKernelExC(&config.config, launch.kernel, arguments));
        self->tag += (uint32_t)count;
        return ran ? count : 0;
    }

    static void describe_plan(const fused_instance *self, char *text, size_t size) {
        F::describe(((const instance *)self)->plan, text, size);
    }
};

template <typename F> constexpr fused_form fused_form_of() {
    return {F::NAME, instance<F>::estimate, instance<F>::open};
}

} // namespace persistent

#endif
