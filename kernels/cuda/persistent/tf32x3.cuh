/* Small products of floats on the tf32 tensor cores with the accuracy of float32: each float is the sum of
   two tf32, up to 2^-23 of it, and three of the four products of these are computed; the one left out is at
   most 2^-24 of |a b|. No scales: tf32 has the exponents of float32. Infinity becomes NaN. Needs compute
   capability 8.0. */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_TF32X3_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_TF32X3_CUH

#include <stdint.h>

namespace persistent {

/* N floats; the tensor cores ignore the last 13 bits. If a float is NaN, `small` is. */
template <int N> struct tf32_pair {
    uint32_t big[N], small[N];

    template <typename... F> __device__ explicit tf32_pair(F... values) {
        const float of[N] = {values...};
#pragma unroll
        for (int i = 0; i < N; i++) {
            big[i] = (__float_as_uint(of[i]) + 0x1000) & 0xffffe000; /* to nearest */
            small[i] = __float_as_uint(of[i] - __uint_as_float(big[i]));
        }
    }
};

/* sum += A B, m16n8k8. Lane 4 g + t holds of A rows g and g + 8 at k = t, then at k = t + 4; of B column g at
   k = t and t + 4; of the sum columns 2 t and 2 t + 1 of row g, then of row g + 8. */
__device__ inline void mma_tf32(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/* The same, m16n8k4: without k = t + 4. */
__device__ inline void mma_tf32(float (&sum)[4], const uint32_t (&a)[2], const uint32_t (&b)[1]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
#endif
}

/* sum += a b: the small products first. */
template <int A, int B>
__device__ inline void multiply_tf32x3(float (&sum)[4], const tf32_pair<A> &a, const tf32_pair<B> &b) {
    mma_tf32(sum, a.small, b.big);
    mma_tf32(sum, a.big, b.small);
    mma_tf32(sum, a.big, b.big);
}

} // namespace persistent

#endif
