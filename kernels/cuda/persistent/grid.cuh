/* How the blocks of one launch wait for each other. All of them must be on the GPU at once
   (cudaLaunchCooperativeKernel sees to it).

   meet       a barrier: what any block wrote before is visible to all after it. About 1 us on 132 SMs: a
              write to the L2 cache, and reads of it until the last block has come.
   arrive     .. and await: its halves, with other work between them, or for some of the blocks
   packet     a number, or three of them, and the step that it belongs to in one word, which travels whole:
              whoever reads the word until the step is right has the number too, without a barrier or a fence.
              About half the time of a barrier, and only those wait that need the number. (NCCL's "LL"
              protocol does the same between GPUs.) */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_GRID_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_GRID_CUH

#include <stdint.h>

__device__ inline unsigned read_acquire(const unsigned *at) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

__device__ inline void add_release(unsigned *at, unsigned value) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" : : "l"(at), "r"(value) : "memory");
}

/* What this block wrote is there for those who await it. */
__device__ inline void arrive(unsigned *arrived) {
    __syncthreads();
    if (threadIdx.x == 0) add_release(arrived, 1);
}

/* Until `count` blocks have arrived, in all since the counter was 0. */
__device__ inline void await(const unsigned *arrived, unsigned count) {
    if (threadIdx.x == 0)
        while ((int)(read_acquire(arrived) - count) < 0) continue;
    __syncthreads();
}

/* `arrived` is 0 when the kernel starts; `awaited`, of every thread, too. */
__device__ inline void meet(unsigned *arrived, unsigned &awaited) {
    awaited += gridDim.x;
    arrive(arrived);
    await(arrived, awaited);
}

struct packet {
    float value;
    uint32_t step;
};

__device__ inline void send(packet *to, float value, uint32_t step) {
    const uint64_t word = (uint64_t)step << 32 | __float_as_uint(value);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" : : "l"(to), "l"(word) : "memory");
}

/* The word as it is now. */
__device__ inline uint64_t look(const packet *from) {
    uint64_t word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return word;
}

/* Waits for N packets of this step, which is not 0, at(0) .. at(N - 1): reads all that are missing at once,
   again and again. (One after the other, each that was missing at first would cost a round trip of its
   own.) */
template <int N, typename P> __device__ inline void receive(float (&values)[N], uint32_t step, P at) {
    uint64_t word[N] = {};
    bool missing = true;
    while (missing) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if ((uint32_t)(word[i] >> 32) != step) word[i] = look(at(i));
        missing = false;
#pragma unroll
        for (int i = 0; i < N; i++) missing |= (uint32_t)(word[i] >> 32) != step;
    }
#pragma unroll
    for (int i = 0; i < N; i++) values[i] = __uint_as_float((uint32_t)word[i]);
}

/* The same for packets that are `stride` apart. */
template <int N>
__device__ inline void receive(float (&values)[N], uint32_t step, const packet *from, size_t stride) {
    receive(values, step, [&](int i) { return from + i * stride; });
}

/* Three numbers and their step, in one access of 16 bytes. Needs compute capability 7.0. */
struct __align__(16) packet_of_3 {
    float value[3];
    uint32_t step;
};

__device__ inline void send(packet_of_3 *to, float first, float second, float third, uint32_t step) {
    const uint64_t low = (uint64_t)__float_as_uint(second) << 32 | __float_as_uint(first),
                   high = (uint64_t)step << 32 | __float_as_uint(third);
    asm volatile("{ .reg .b128 all; mov.b128 all, {%1, %2}; st.relaxed.gpu.global.b128 [%0], all; }"
                 :
                 : "l"(to), "l"(low), "l"(high)
                 : "memory");
}

/* N of them that come: `look` asks for all and does not wait; `wait` asks for those that are missing until
   none is. What is done between the two hides the way through the L2 cache. */
template <int N> struct packets_to_come {
    uint64_t low[N], high[N];

    __device__ void look_at(int i, const packet_of_3 *from) {
        asm volatile("{ .reg .b128 all; ld.relaxed.gpu.global.b128 all, [%2]; mov.b128 {%0, %1}, all; }"
                     : "=l"(low[i]), "=l"(high[i])
                     : "l"(from)
                     : "memory");
    }

    __device__ bool misses(int i, uint32_t step) const {
        return (uint32_t)(high[i] >> 32) != step;
    }

    template <typename P> __device__ void look(P at) {
#pragma unroll
        for (int i = 0; i < N; i++) look_at(i, at(i));
    }

    template <typename P> __device__ void wait(uint32_t step, P at) {
        bool missing = true;
        while (missing) {
#pragma unroll
            for (int i = 0; i < N; i++)
                if (misses(i, step)) look_at(i, at(i));
            missing = false;
#pragma unroll
            for (int i = 0; i < N; i++) missing |= misses(i, step);
        }
    }

    __device__ float value(int i, int j) const {
        const uint64_t word = j < 2 ? low[i] : high[i];
        return __uint_as_float((uint32_t)(j == 1 ? word >> 32 : word));
    }
};

/* Waits for N of them, at(0) .. at(N - 1). */
template <int N, typename P> __device__ inline void receive(float (&values)[N][3], uint32_t step, P at) {
    packets_to_come<N> packets = {};
    packets.wait(step, at);
#pragma unroll
    for (int i = 0; i < 3 * N; i++) values[i / 3][i % 3] = packets.value(i / 3, i % 3);
}

/* Eight numbers, and one more that belongs to all of them, as three packets that lie `apart`: lanes that lie
   together write and read in one piece. */
__device__ inline void send_eight(packet_of_3 *to, int apart, const float (&v)[8], float more,
                                  uint32_t step) {
    send(to, v[0], v[1], v[2], step);
    send(to + apart, v[3], v[4], v[5], step);
    send(to + 2 * apart, v[6], v[7], more, step);
}

/* The same, of eight neighbouring lanes with a number each: number i is that of lane lane_of(i) of them. */
template <typename L>
__device__ inline void send_of_eight(packet_of_3 *to, int apart, float mine, float more, uint32_t step,
                                     L lane_of) {
    const int which = threadIdx.x % 8;
    float three[3];
#pragma unroll
    for (int i = 0; i < 3; i++) three[i] = __shfl_sync(0xffffffffu, mine, lane_of((3 * which + i) % 8), 8);
    if (which < 3) send(to + which * apart, three[0], three[1], which < 2 ? three[2] : more, step);
}

#endif
