/* Programmatic dependent launch, the device side (launch_dependent in launch.cuh is the host side): a kernel
   starts before the kernel issued before it has ended. Without that attribute, and below compute capability
   9.0, these functions do nothing. */
#ifndef TESSERA_KERNELS_CUDA_DEPENDENT_LAUNCH_CUH
#define TESSERA_KERNELS_CUDA_DEPENDENT_LAUNCH_CUH

/* Waits until the kernels before this one have ended, and their results are visible. */
__device__ inline void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

/* The next kernel may start when each block of this one has called it or ended. A kernel that may itself
   start early calls it after its own wait: so all but the kernel right before have ended when a kernel
   starts. */
__device__ inline void start_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

#endif
