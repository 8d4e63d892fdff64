/* A clock inside engine fused. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_STAGE_PROFILE_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_STAGE_PROFILE_CUH

/* Where the time of a step goes, seen by one thread of one block: built with -DFUSED_LAPS (make
   NVCCFLAGS=..), a kernel of 100 steps and more prints it when it ends; else nothing of it is compiled. */
#ifdef FUSED_LAPS
#    include <stdio.h>

struct step_laps {
    long long last, cycles[16];
    __device__ void start() {
        for (int i = 0; i < 16; i++) cycles[i] = 0;
        last = clock64();
    }
    __device__ void lap(int part) {
        const long long now = clock64();
        cycles[part] += now - last;
        last = now;
    }
    __device__ void print(const char *what, size_t steps) const {
        if (threadIdx.x || blockIdx.x != gridDim.x / 2 || steps < 100) return;
        printf("%s, cycles a step:", what);
        for (int i = 0; i < 16; i++)
            if (cycles[i]) printf(" %d:%lld", i, cycles[i] / (long long)steps);
        printf("\n");
    }
};
#else
struct step_laps {
    __device__ void start() {}
    __device__ void lap(int) {}
    __device__ void print(const char *, size_t) const {}
};
#endif

#endif
