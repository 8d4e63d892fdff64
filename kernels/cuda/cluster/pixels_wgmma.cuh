/* The nearest centres of pixels by wgmma: the first pass of pixels.cu for many centres, on compute capability
   9.0.

   Idea       as pixels_kernel.cuh, whose packed centres are also in the layout that wgmma reads: 128 centres
              in two slices are 256 columns. A warpgroup multiplies 64 rows, which stay in shared memory, and
              compares scores while another one multiplies.
   Bound by   the int8 tensor cores: 188 Gop for 60,000 points and 1,000 centres, 0.1 ms at 1,979 Top/s; and
              the packed centres, which each 128 rows read once from the L2 cache: 0.15 ms at 5.5 TB/s
   Improves   mma.sync, which reaches about 60 % of these tensor cores */
#ifndef TESSERA_KERNELS_CUDA_CLUSTER_PIXELS_WGMMA_CUH
#define TESSERA_KERNELS_CUDA_CLUSTER_PIXELS_WGMMA_CUH

#include "kernels/cuda/cluster/pixels_kernel.cuh"

namespace pixels {

/* True if the kernel can be used on this GPU, for rows of so many CHUNKs. */
bool wgmma_open(unsigned chunks, int shared_bytes);

/* Labels p.rows rows, which are aligned, with centres that are packed for tiles of 128. */
void wgmma_launch(const pass &p, unsigned processors, cudaStream_t stream, struct cuda_fault *fault);

} // namespace pixels

#endif
