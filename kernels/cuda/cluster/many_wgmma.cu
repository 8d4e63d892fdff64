/* The kernels of many_kernel.cuh for each dtype, format and number of features; their launches. */
#include "kernels/cuda/cluster/many_kernel.cuh"
#include "kernels/cuda/launch.cuh"

namespace many {

/* Calls `function<S>()` with the most rows that fit into shared memory. */
template <typename T, wgmma_format F, bool COLLECT, typename V>
static auto with_rows(unsigned chunks, V function) {
    if (chunks <= MOST_CHUNKS / 4) return function.template operator()<kernel_shape<T, F, 2, 2, COLLECT>>();
    if (chunks <= MOST_CHUNKS / 2) return function.template operator()<kernel_shape<T, F, 2, 1, COLLECT>>();
    return function.template operator()<kernel_shape<T, F, 1, 1, COLLECT>>();
}

template <typename V> static auto with_kernel(const kernel_choice &choice, bool collect, V function) {
    if (choice.format == WGMMA_BF16) return with_rows<float, WGMMA_BF16, false>(choice.chunks, function);
    if (choice.format == WGMMA_TF32) return with_rows<float, WGMMA_TF32, false>(choice.chunks, function);
    if (choice.dtype == GEMM_F32)
        return collect ? with_rows<float, WGMMA_F16, true>(choice.chunks, function)
                       : with_rows<float, WGMMA_F16, false>(choice.chunks, function);
    return collect ? with_rows<double, WGMMA_F16, true>(choice.chunks, function)
                   : with_rows<double, WGMMA_F16, false>(choice.chunks, function);
}

template <typename S> static size_t shared_bytes_of(unsigned chunks) {
    return barriers_at(S::TOGETHER, chunks) + ring::BARRIERS_BYTES;
}

bool wgmma_open(const kernel_choice &choice, int shared_bytes) {
    if (choice.chunks > MOST_CHUNKS) return false;
    for (int collect = 0; collect < 2; collect++) {
        const bool usable = with_kernel(choice, collect, [&]<typename S>() {
            const size_t bytes = shared_bytes_of<S>(choice.chunks);
            return bytes <= (size_t)shared_bytes && cuda_allows_wgmma((const void *)many_kernel<S>, bytes);
        });
        if (!usable) return false;
    }
    return true;
}

void wgmma_launch(const kernel_choice &choice, bool collect, const pass &p, unsigned processors,
                  cudaStream_t stream, struct cuda_fault *fault) {
    with_kernel(choice, collect, [&]<typename S>() {
        const size_t tiles = (p.rows + S::TOGETHER - 1) / S::TOGETHER;
        many_kernel<S><<<(unsigned)(tiles < processors && !collect ? tiles : processors), S::THREADS,
                         shared_bytes_of<S>(p.chunks), stream>>>(p);
        CUDA_LAUNCHED(fault, collect ? "many_kernel of the undecided rows" : "many_kernel");
    });
}

} // namespace many
