/* Stage profiling of persistent kernels: with -DFUSED_STAGES (make NVCCFLAGS=-DFUSED_STAGES) threads read
   clock64 between the stages of a step, and those that call `print` print the mean cycles of each stage when
   a launch of 100 steps or more ends. Without that macro nothing is compiled. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_STAGE_PROFILE_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_STAGE_PROFILE_CUH

#ifdef FUSED_STAGES
#    include <stdio.h>

struct stage_profile {
    long long last, cycles[16];
    __device__ void start() {
        for (int i = 0; i < 16; i++) cycles[i] = 0;
        last = clock64();
    }
    __device__ void stage(int which) {
        const long long now = clock64();
        cycles[which] += now - last;
        last = now;
    }
    __device__ __noinline__ void print(int steps) const {
        if (steps < 100) return;
        long long mean[16];
        for (int i = 0; i < 16; i++) mean[i] = cycles[i] / steps;
        printf("block %d, thread %d, cycles per step: %lld %lld %lld %lld %lld %lld %lld %lld "
               "%lld %lld %lld %lld %lld %lld %lld %lld\n",
               blockIdx.x, threadIdx.x, mean[0], mean[1], mean[2], mean[3], mean[4], mean[5], mean[6],
               mean[7], mean[8], mean[9], mean[10], mean[11], mean[12], mean[13], mean[14], mean[15]);
    }
};
#else
struct stage_profile {
    __device__ void start() {}
    __device__ void stage(int) {}
    __device__ void print(int) const {}
};
#endif

#endif
