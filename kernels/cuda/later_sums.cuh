/* Sums that no kernel needs soon, such as gradients of biases, on a stream of their own: they run where the
   next product leaves SMs idle. */
#ifndef TESSERA_KERNELS_CUDA_LATER_SUMS_CUH
#define TESSERA_KERNELS_CUDA_LATER_SUMS_CUH

#include "kernels/cuda/launch.cuh"

struct later_sums {
    cudaStream_t stream; /* of priority 0, the default, which is the lowest, in captures; NULL until used */
    cudaEvent_t ready, done;
    bool pending; /* some were launched, and `join` was not called since */

    /* A captured graph may have the first use: relaxed, because a stream may allocate memory. */
    void open(cuda_fault *fault) {
        cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        if (stream) return;
        cudaThreadExchangeStreamCaptureMode(&mode);
        CUDA_TRY(fault, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CUDA_TRY(fault, cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
        CUDA_TRY(fault, cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
        cudaThreadExchangeStreamCaptureMode(&mode);
    }

    void close() {
        if (done) cudaEventDestroy(done);
        if (ready) cudaEventDestroy(ready);
        if (stream) cudaStreamDestroy(stream);
    }

    /* Calls `launch` with a launcher whose kernels start after all that `before` has launched. */
    template <typename F> void run(const cuda_launcher &before, F launch) {
        cuda_launcher own = before;
        open(own.fault);
        own.stream = stream;
        CUDA_TRY(own.fault, cudaEventRecord(ready, before.stream));
        CUDA_TRY(own.fault, cudaStreamWaitEvent(stream, ready, 0));
        launch(own);
        pending = CUDA_TRY(own.fault, cudaEventRecord(done, stream));
    }

    /* Launches a kernel of sums: as `run`, or, if they are not late, by programmatic dependent launch. */
    template <typename... P, typename... A>
    void launch_sums(cuda_launcher &before, bool late, const char *name, void (*kernel)(P...), dim3 grid,
                     dim3 block, const A &...arguments) {
        if (late)
            run(before, [&](cuda_launcher &own) { launch(own, name, kernel, grid, block, 0, arguments...); });
        else
            launch_dependent(before, name, kernel, grid, block, 0, 1, arguments...);
    }

    /* What is launched on `after` from here on starts after the sums. */
    void join(cudaStream_t after, cuda_fault *fault) {
        if (pending) CUDA_TRY(fault, cudaStreamWaitEvent(after, done, 0));
        pending = false;
    }
};

#endif
