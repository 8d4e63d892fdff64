/* Stage profiling of persistent kernels: with -DFUSED_STAGES (make NVCCFLAGS=-DFUSED_STAGES) threads read
   clock64 between the stages of a step, and one thread prints the mean cycles of each stage when a launch of
   100 steps or more ends. Without that macro nothing is compiled. */
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
    __device__ void print(int steps) const {
        if (threadIdx.x || blockIdx.x != gridDim.x / 2 || steps < 100) return;
        printf("cycles per step:");
        for (int i = 0; i < 16; i++)
            if (cycles[i]) printf(" %d:%lld", i, cycles[i] / steps);
        printf("\n");
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
