/* Launches a kernel, or describes the launch: the same code does both, so that the two always agree. */
#ifndef TESSERA_KERNELS_CUDA_LAUNCH_CUH
#define TESSERA_KERNELS_CUDA_LAUNCH_CUH

extern "C" {
#include "kernels/gemm.h"
}
#include "kernels/cuda/fault.cuh"

struct cuda_launcher {
    cudaStream_t stream;
    cuda_fault *fault;
    bool describe;     /* do not launch: append a description to the list */
    gemm_kernel *list; /* of `size` entries, the first `count` of them written */
    size_t size, count;
};

/* Whether a usable GPU exists; if not, `why` says the reason. */
bool cuda_probe(char *why, size_t size);

/* Can this GPU keep all thread blocks of a kernel resident? */
bool cuda_launches_cooperatively(void);

/* Appends a description to the list. */
void cuda_describe_launch(cuda_launcher &launcher, const char *name, const void *function, dim3 block,
                          size_t dynamic_bytes);

/* kernel<<<grid, block, dynamic_bytes>>>(arguments...), or its description. */
template <typename... P, typename... A>
void launch(cuda_launcher &launcher, const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
            size_t dynamic_bytes, const A &...arguments) {
    if (launcher.describe) {
        cuda_describe_launch(launcher, name, (const void *)kernel, block, dynamic_bytes);
    } else {
        kernel<<<grid, block, dynamic_bytes, launcher.stream>>>(arguments...);
        cuda_launched(launcher.fault, name, __FILE__, __LINE__);
    }
}

/* Is this GPU of compute capability 9.0, and was the kernel compiled for it? */
bool cuda_compiled_for_wgmma(const void *kernel);

/* From now on, thread blocks of the kernel may have this much dynamic shared memory, or more if they could
   have more: another user of the kernel may need that. */
cudaError_t cuda_allow_shared_bytes(const void *kernel, size_t dynamic_bytes);

/* Both: the second if the first is true. */
bool cuda_allows_wgmma(const void *kernel, size_t dynamic_bytes);

/* The multiprocessors that a call can count on, of `all`. NCCL sums on up to 32: of 16 to 40 left to it, 32
   and 40 were fastest on two H100. */
static inline int gemm_multiprocessors(const gemm_call &call, int all) {
    const int sums = 32;
    return call.beside_sums && all > sums ? all - sums : all;
}

static inline unsigned blocks_for(size_t count, unsigned per_block) {
    return (unsigned)((count + per_block - 1) / per_block);
}

/* A launch in clusters of `blocks`. The attribute belongs to the configuration. */
static inline cudaLaunchConfig_t cluster_config(cudaLaunchAttribute *attribute, dim3 grid, dim3 block,
                                                size_t dynamic_bytes, unsigned blocks) {
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim = {blocks, 1, 1};
    return {.gridDim = grid,
            .blockDim = block,
            .dynamicSmemBytes = dynamic_bytes,
            .attrs = attribute,
            .numAttrs = blocks > 1};
}

/* How many clusters of `blocks` of a kernel fit on the GPU at the same time; 0: none, or unknown. */
static inline unsigned clusters_that_fit(const void *kernel, unsigned blocks, dim3 block,
                                         size_t dynamic_bytes) {
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = cluster_config(&attribute, dim3(blocks), block, dynamic_bytes, blocks);
    int clusters = 0;
    const bool known = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess;
    if (!known) cudaGetLastError(); /* it is no error of a later launch */
    return known ? (unsigned)clusters : 0;
}

/* As launch, in clusters of `blocks`; 1: without. */
template <typename... P, typename... A>
void launch_cluster(cuda_launcher &launcher, const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                    size_t dynamic_bytes, unsigned blocks, const A &...arguments) {
    if (launcher.describe)
        return cuda_describe_launch(launcher, name, (const void *)kernel, block, dynamic_bytes);
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = cluster_config(&attribute, grid, block, dynamic_bytes, blocks);
    config.stream = launcher.stream;
    CUDA_TRY(launcher.fault, cudaLaunchKernelEx(&config, kernel, arguments...));
}

/* The same, and the kernel may start before the one before it has ended (programmatic dependent launch). It
   has to wait for that itself, with griddepcontrol.wait. */
template <typename... P, typename... A>
void launch_dependent(cuda_launcher &launcher, const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                      size_t dynamic_bytes, unsigned blocks, const A &...arguments) {
    if (launcher.describe)
        return cuda_describe_launch(launcher, name, (const void *)kernel, block, dynamic_bytes);
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = cluster_config(attributes, grid, block, dynamic_bytes, blocks);
    cudaLaunchAttribute &dependent = attributes[config.numAttrs++];
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
    config.stream = launcher.stream;
    CUDA_TRY(launcher.fault, cudaLaunchKernelEx(&config, kernel, arguments...));
}

#endif
