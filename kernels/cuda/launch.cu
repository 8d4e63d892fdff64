/* What is usable of this GPU, and the description of a launch. */
#include "kernels/cuda/launch.cuh"

bool cuda_probe(char *why, size_t size) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return true;
    snprintf(why, size, "%s",
             error == cudaSuccess ? "no CUDA device is visible (CUDA_VISIBLE_DEVICES?)"
             : error == cudaErrorInsufficientDriver
                 ? "no NVIDIA driver, or one that is older than this CUDA toolkit"
                 : cudaGetErrorString(error));
    cudaGetLastError(); /* clears the error, so that a later call may probe again */
    return false;
}

void cuda_describe_launch(cuda_launcher &launcher, const char *name, const void *function, dim3 block,
                          size_t dynamic_bytes) {
    const int warp = 32, threads = (int)(block.x * block.y * block.z);
    int blocks = 0, device = 0, most = 0; /* blocks and threads that an SM can hold */
    cudaFuncAttributes attributes;
    cuda_fault *fault = launcher.fault;
    if (launcher.count == launcher.size) return;
    if (!CUDA_TRY(fault, cudaFuncGetAttributes(&attributes, function)) ||
        !CUDA_TRY(fault,
                  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, dynamic_bytes)) ||
        !CUDA_TRY(fault, cudaGetDevice(&device)) ||
        !CUDA_TRY(fault, cudaDeviceGetAttribute(&most, cudaDevAttrMaxThreadsPerMultiProcessor, device)))
        return;
    gemm_kernel *kernel = &launcher.list[launcher.count++];
    snprintf(kernel->name, sizeof kernel->name, "%s", name);
    kernel->threads = (unsigned)threads;
    kernel->registers = (unsigned)attributes.numRegs;
    kernel->shared_bytes = attributes.sharedSizeBytes + dynamic_bytes;
    kernel->occupancy = (double)(blocks * ((threads + warp - 1) / warp)) / (most / warp);
}

bool cuda_launches_cooperatively(void) {
    int device = 0, can = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&can, cudaDevAttrCooperativeLaunch, device) == cudaSuccess && can;
}

bool cuda_compiled_for_wgmma(const void *kernel) {
    int device = 0, major = 0;
    cudaFuncAttributes attributes;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           major == 9 && cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
           attributes.binaryVersion == 90;
}

cudaError_t cuda_allow_shared_bytes(const void *kernel, size_t dynamic_bytes) {
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess || attributes.maxDynamicSharedSizeBytes >= (int)dynamic_bytes) return error;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)dynamic_bytes);
}

bool cuda_allows_wgmma(const void *kernel, size_t dynamic_bytes) {
    return cuda_compiled_for_wgmma(kernel) && cuda_allow_shared_bytes(kernel, dynamic_bytes) == cudaSuccess;
}
