/* Elements: storage type, arithmetic type, and packs of several in one memory access. */
#ifndef TESSERA_KERNELS_CUDA_OPS_ELEMENT_CUH
#define TESSERA_KERNELS_CUDA_OPS_ELEMENT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include <type_traits>

/* The type of the arithmetic: float for types of 16 bits, else the same. */
template <typename T> struct real_of { using type = T; };
template <> struct real_of<__nv_bfloat16> { using type = float; };
template <> struct real_of<__half> { using type = float; };
template <typename T> using real = typename real_of<T>::type;

/* A gradient that will be stored as T: in half precision the nearest finite number; NaN stays NaN. */
template <typename T> __device__ inline real<T> bounded(real<T> gradient) {
    const float most = 65504;
    if constexpr (sizeof(T) == 2 && !std::is_same_v<T, __nv_bfloat16>)
        return gradient > most ? most : gradient < -most ? -most : gradient;
    return gradient;
}

/* Elements in the widest memory access of a thread, 16 bytes. */
template <typename T> constexpr int WIDEST = 16 / (int)sizeof(T);

/* N neighbours, read and written in one access. */
template <typename T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) pack { T value[N]; };

template <int N, typename T> __device__ inline const pack<T, N> &pack_at(const T *memory) {
    return *reinterpret_cast<const pack<T, N> *>(memory);
}

template <int N, typename T> __device__ inline pack<T, N> &pack_at(T *memory) {
    return *reinterpret_cast<pack<T, N> *>(memory);
}

/* Can rows of `cols` elements with leading dimension `ld` be accessed in packs of `width`? */
static inline bool packs_fit(const void *memory, size_t cols, size_t ld, size_t width, size_t element_bytes) {
    return (uintptr_t)memory % (width * element_bytes) == 0 && cols % width == 0 && ld % width == 0;
}

template <typename T> static inline bool packs_fit(const T *memory, size_t cols, size_t ld, int width) {
    return packs_fit((const void *)memory, cols, ld, (size_t)width, sizeof(T));
}

#endif
