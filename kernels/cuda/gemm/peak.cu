/* The peak of the GPU: multiply-adds in registers, and a copy in memory.

   Idea       an SM starts a multiply-add on each lane every cycle, with a latency of four: 8 warps a
              scheduler with 8 independent chains each keep it busy and touch no memory.
   Float64    from compute capability 8.0 on, tensor cores multiply float64 matrices in full precision: twice
              as fast on data-centre chips, where cuBLAS uses them, and not faster on others.
   Bound by   lanes: 132 SMs of 128 at 1.8 GHz are 61 TFLOP/s in float32; the copy by memory.
   Run        ./train bench gemm */
#include "kernels/cuda/gemm/peak.cuh"

static const int THREADS = 256, BLOCKS = 4;                 /* blocks of an SM */
static const int CHAINS = 8, TENSOR_CHAINS = 4, STEPS = 16; /* of each chain in a round */
static const double LONG_ENOUGH = 20e-3;                    /* seconds */
static const int REPEATS = 7, MOST = 1 << 26;               /* rounds */

/* Sums stay positive, so that nothing is written. The compiler does not know this and keeps the loop. */
template <typename T>
__global__ void __launch_bounds__(THREADS) lanes_kernel(int rounds, T factor, T *never) {
    /* differs by lane, so that it is in a register as in a GEMM */
    const T own = factor + T(1e-6) * T(threadIdx.x);
    T sum[CHAINS], total = 0;
#pragma unroll
    for (int c = 0; c < CHAINS; c++) sum[c] = T(threadIdx.x + c);
#pragma unroll 1
    for (int r = 0; r < rounds; r++)
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int c = 0; c < CHAINS; c++) sum[c] = sum[c] * own + own;
#pragma unroll
    for (int c = 0; c < CHAINS; c++) total += sum[c];
    if (total < 0) *never = total;
}

/* Flops of one mma instruction of a warp by architecture (90 for 9.0), 0 without float64 tensor cores. */
static __host__ __device__ constexpr int tensor_flops(int architecture) {
    return architecture >= 90 ? 2 * 16 * 8 * 16 : architecture >= 80 ? 2 * 8 * 8 * 4 : 0;
}

/* sum += a * b, of a warp's matrices: 16 x 8 x 16, or 8 x 8 x 4. */
static __device__ inline void tensor_step(double (&sum)[4], const double (&a)[8], const double (&b)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
                 : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
                   "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(sum[0]), "+d"(sum[1])
                 : "d"(a[0]), "d"(b[0]));
#endif
}

/* Sums grow from 0 and stay finite. */
__global__ void __launch_bounds__(THREADS, BLOCKS) tensor_kernel(int rounds, double factor, double *never) {
    double sum[TENSOR_CHAINS][4] = {}, total = 0;
    double a[8], b[4]; /* all different, so that each needs a register */
#pragma unroll
    for (int i = 0; i < 8; i++) a[i] = factor * (i + 1);
#pragma unroll
    for (int i = 0; i < 4; i++) b[i] = a[i];
#pragma unroll 1
    for (int r = 0; r < rounds; r++)
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int c = 0; c < TENSOR_CHAINS; c++) tensor_step(sum[c], a, b);
#pragma unroll
    for (int c = 0; c < TENSOR_CHAINS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) total += sum[c][i];
    if (total < 0) *never = total;
}

/* --- time --- */

struct stopwatch {
    cudaStream_t stream;
    cuda_fault *fault;
    cudaEvent_t start, stop;
};

static bool stopwatch_open(stopwatch *watch, cudaStream_t stream, cuda_fault *fault) {
    *watch = {.stream = stream, .fault = fault};
    return CUDA_TRY(fault, cudaEventCreate(&watch->start)) && CUDA_TRY(fault, cudaEventCreate(&watch->stop));
}

static void stopwatch_close(stopwatch *watch) {
    if (watch->start) cudaEventDestroy(watch->start);
    if (watch->stop) cudaEventDestroy(watch->stop);
}

/* Seconds of issue(rounds) on the stream, 0 on failure. */
template <typename F> static double seconds_of(const stopwatch *watch, F issue, int rounds) {
    float milliseconds = 0;
    if (!CUDA_TRY(watch->fault, cudaEventRecord(watch->start, watch->stream))) return 0;
    issue(rounds);
    if (!CUDA_TRY(watch->fault, cudaEventRecord(watch->stop, watch->stream)) ||
        !CUDA_TRY(watch->fault, cudaEventSynchronize(watch->stop)) ||
        !CUDA_TRY(watch->fault, cudaEventElapsedTime(&milliseconds, watch->start, watch->stop)))
        return 0;
    return 1e-3 * (double)milliseconds;
}

/* Rounds a second, best of REPEATS, 0 on failure. */
template <typename F> static double rate_of(const stopwatch *watch, F issue) {
    int rounds = 1;
    double best = 0;
    while (seconds_of(watch, issue, rounds) < LONG_ENOUGH / 2 && rounds < MOST && !watch->fault->message[0])
        rounds *= 2;
    for (int i = 0; i < REPEATS; i++) {
        const double seconds = seconds_of(watch, issue, rounds);
        if (seconds > 0 && rounds / seconds > best) best = rounds / seconds;
    }
    return watch->fault->message[0] ? 0 : best;
}

/* --- rates --- */

template <typename T> static double lanes_peak(const stopwatch *watch, unsigned blocks) {
    const double flops = 2.0 * CHAINS * STEPS * THREADS * blocks;
    return flops * rate_of(watch, [&](int rounds) {
               lanes_kernel<T><<<blocks, THREADS, 0, watch->stream>>>(rounds, T(0.999), NULL);
               CUDA_LAUNCHED(watch->fault, "lanes_kernel");
           });
}

/* 0 without float64 tensor cores. */
static double tensor_peak(const stopwatch *watch, unsigned blocks) {
    cudaFuncAttributes attributes;
    if (!CUDA_TRY(watch->fault, cudaFuncGetAttributes(&attributes, tensor_kernel))) return 0;
    const int of_one_mma = tensor_flops(attributes.ptxVersion); /* architecture of the code that is loaded */
    if (!of_one_mma) return 0;
    const double flops = (double)of_one_mma * TENSOR_CHAINS * STEPS * (THREADS / 32) * blocks;
    return flops * rate_of(watch, [&](int rounds) {
               tensor_kernel<<<blocks, THREADS, 0, watch->stream>>>(rounds, 1e-3, NULL);
               CUDA_LAUNCHED(watch->fault, "tensor_kernel");
           });
}

bool cuda_peak(cudaStream_t stream, cuda_fault *fault, enum gemm_dtype dtype, double *flops_per_second) {
    int device = 0, processors = 0;
    stopwatch watch;
    *flops_per_second = 0;
    if (stopwatch_open(&watch, stream, fault) && CUDA_TRY(fault, cudaGetDevice(&device)) &&
        CUDA_TRY(fault, cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device))) {
        const unsigned blocks = (unsigned)(processors * BLOCKS);
        if (dtype == GEMM_F32) {
            *flops_per_second = lanes_peak<float>(&watch, blocks);
        } else {
            const double lanes = lanes_peak<double>(&watch, blocks), tensor = tensor_peak(&watch, blocks);
            *flops_per_second = lanes > tensor ? lanes : tensor;
        }
    }
    stopwatch_close(&watch);
    return *flops_per_second > 0;
}

/* Bytes of each of the two buffers: 5 times the L2 cache, at least 256 MB, at most an eighth of the free
   memory. */
static bool buffer_size(cuda_fault *fault, size_t *bytes) {
    int device = 0, cache = 0;
    size_t free_bytes = 0, total = 0;
    if (!CUDA_TRY(fault, cudaGetDevice(&device)) ||
        !CUDA_TRY(fault, cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device)) ||
        !CUDA_TRY(fault, cudaMemGetInfo(&free_bytes, &total)))
        return false;
    *bytes = (size_t)cache * 5 > (size_t)256 << 20 ? (size_t)cache * 5 : (size_t)256 << 20;
    if (*bytes > free_bytes / 8) *bytes = free_bytes / 8;
    return true;
}

bool cuda_copy_rate(cudaStream_t stream, cuda_fault *fault, double *bytes_per_second) {
    size_t bytes = 0;
    void *to = NULL, *from = NULL;
    stopwatch watch;
    *bytes_per_second = 0;
    if (stopwatch_open(&watch, stream, fault) && buffer_size(fault, &bytes) &&
        CUDA_TRY(fault, cudaMalloc(&to, bytes)) && CUDA_TRY(fault, cudaMalloc(&from, bytes)) &&
        CUDA_TRY(fault, cudaMemsetAsync(from, 1, bytes, stream)))
        *bytes_per_second =
            2.0 * (double)bytes * rate_of(&watch, [&](int rounds) {
                for (int i = 0; i < rounds; i++)
                    CUDA_TRY(fault, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
            });
    cudaFree(to);
    cudaFree(from);
    stopwatch_close(&watch);
    return *bytes_per_second > 0;
}
