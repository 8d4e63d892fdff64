/* The first CUDA or cuBLAS error of a context: stored until the caller reports it. */
#ifndef TESSERA_KERNELS_CUDA_FAULT_CUH
#define TESSERA_KERNELS_CUDA_FAULT_CUH

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

struct cuda_fault {
    /* "" without an error; else file, line, call, the message of the library, and a hint */
    char message[400];
};

static inline const char *cuda_hint(cudaError_t error) {
    switch (error) {
    case cudaErrorMemoryAllocation:
        return "use a smaller batch, a smaller network or fewer clusters, or free the GPU";
    case cudaErrorNoKernelImageForDevice:
        return "this GPU's architecture was not built in: make SM=<its number>";
    case cudaErrorInsufficientDriver:
        return "the driver is older than the CUDA toolkit: update it";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
        return "a kernel went wrong: run under compute-sanitizer, and report it";
    case cudaErrorDevicesUnavailable:
        return "another process holds the GPU";
    default:
        return "see nvidia-smi for the state of the GPU";
    }
}

/* Stores `error` unless it is cudaSuccess or an earlier error is stored. True on success. */
static inline bool cuda_note(struct cuda_fault *fault, cudaError_t error, const char *call, const char *file,
                             int line) {
    if (error == cudaSuccess) return true;
    if (!fault->message[0])
        snprintf(fault->message, sizeof fault->message, "%s:%d: %s: %s (%s)", file, line, call,
                 cudaGetErrorString(error), cuda_hint(error));
    return false;
}

#define CUDA_TRY(fault, call) cuda_note(fault, call, #call, __FILE__, __LINE__)

/* Checks the last kernel launch. */
static inline bool cuda_launched(struct cuda_fault *fault, const char *kernel, const char *file, int line) {
    const cudaError_t error = cudaGetLastError();
    char what[80];
    if (error == cudaSuccess) return true;
    snprintf(what, sizeof what, "launch of %s", kernel);
    return cuda_note(fault, error, what, file, line);
}

#define CUDA_LAUNCHED(fault, kernel) cuda_launched(fault, kernel, __FILE__, __LINE__)

#endif
