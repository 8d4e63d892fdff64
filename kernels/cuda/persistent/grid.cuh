/* Synchronisation between the thread blocks of one cooperative launch, all of which are resident, and between
   some warps of a block.

   grid_barrier  what any block wrote before it is visible to all blocks after it. About 1.1 us on 132 SMs:
                 an atomic in the L2 cache, which every block then polls.
   LL packets    a value, or three, and the tag of its step in one word, which is written atomically: a
                 reader polls the word until the tag matches and then has the value, without barrier or
                 fence. Half the latency of a barrier, and a block waits only for the data that it needs.
                 (The low-latency protocol, "LL", of NCCL.) */
#ifndef TESSERA_KERNELS_CUDA_PERSISTENT_GRID_CUH
#define TESSERA_KERNELS_CUDA_PERSISTENT_GRID_CUH

#include <stdint.h>

/* `arrived` in global memory and `target` of every thread are 0 when the kernel starts. */
__device__ inline void grid_barrier(unsigned *arrived, unsigned &target) {
    target += gridDim.x;
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned count;
        asm volatile("red.release.gpu.global.add.u32 [%0], %1;" : : "l"(arrived), "r"(1) : "memory");
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
        while ((int)(count - target) < 0);
    }
    __syncthreads();
}

/* --- barrier ID of COUNT threads of a block (0 is that of all) --- */

template <int ID, int COUNT> __device__ inline void barrier_sync() {
    asm volatile("bar.sync %0, %1;" : : "n"(ID), "n"(COUNT) : "memory");
}

template <int ID, int COUNT> __device__ inline void barrier_arrive() {
    asm volatile("bar.arrive %0, %1;" : : "n"(ID), "n"(COUNT) : "memory");
}

/* --- packets: one value, or three in one access of 16 bytes (compute capability 7.0) --- */

__device__ inline void load_16_bytes(const void *from, uint64_t &low, uint64_t &high) {
    asm volatile("{ .reg .b128 all; ld.relaxed.gpu.global.b128 all, [%2]; mov.b128 {%0, %1}, all; }"
                 : "=l"(low), "=l"(high)
                 : "l"(from)
                 : "memory");
}

__device__ inline void store_16_bytes(void *to, uint64_t low, uint64_t high) {
    asm volatile("{ .reg .b128 all; mov.b128 all, {%1, %2}; st.relaxed.gpu.global.b128 [%0], all; }"
                 :
                 : "l"(to), "l"(low), "l"(high)
                 : "memory");
}

struct ll_packet {
    typedef uint64_t word;
    float value;
    uint32_t tag;

    __device__ static void load(word &to, const ll_packet *from) {
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(to) : "l"(from) : "memory");
    }
    __device__ static uint32_t tag_of(word from) {
        return (uint32_t)(from >> 32);
    }
};

struct __align__(16) ll_packet3 {
    struct word {
        uint64_t low, high;
    };
    float value[3];
    uint32_t tag;

    __device__ static void load(word & to, const ll_packet3 *from) {
        load_16_bytes(from, to.low, to.high);
    }
    __device__ static uint32_t tag_of(word from) {
        return (uint32_t)(from.high >> 32);
    }
};

/* Four values without a tag: the last bit of the fourth one is the phase of the step, which alternates. A
   launch starts with mailboxes of zeros and phase 1, and each step writes all packets. */
struct __align__(16) ll_packet4 {
    typedef ll_packet3::word word;
    float value[4];

    __device__ static void load(word & to, const ll_packet4 *from) {
        ll_packet3::load(to, reinterpret_cast<const ll_packet3 *>(from));
    }
    __device__ static uint32_t tag_of(word from) {
        return (uint32_t)(from.high >> 32) & 1;
    }
};

__device__ inline void ll_send(ll_packet *to, float value, uint32_t tag) {
    const uint64_t word = (uint64_t)tag << 32 | __float_as_uint(value);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" : : "l"(to), "l"(word) : "memory");
}

__device__ inline void ll_send(ll_packet3 *to, float first, float second, float third, uint32_t tag) {
    const uint64_t low = (uint64_t)__float_as_uint(second) << 32 | __float_as_uint(first),
                   high = (uint64_t)tag << 32 | __float_as_uint(third);
    store_16_bytes(to, low, high);
}

__device__ inline void ll_send(ll_packet4 *to, float first, float second, float third, float fourth,
                               uint32_t phase) {
    ll_send(reinterpret_cast<ll_packet3 *>(to), first, second, third,
            (__float_as_uint(fourth) & ~1u) | phase);
}

/* Receives packets at(0) .. at(N - 1): `try_poll` loads all of them and does not wait; `wait` polls every
   missing packet in one pass, so that the round trips overlap, until none is missing. Work between the two
   hides the latency of the L2 cache. `wait` looks at what has been loaded: try_poll comes first, or, if the
   tag is not 0, words that are 0 (a phase may be 0). */
template <int N, typename P = ll_packet3> struct ll_receiver {
    typename P::word words[N];

    template <typename A> __device__ void try_poll(A at) {
#pragma unroll
        for (int i = 0; i < N; i++) P::load(words[i], at(i));
    }

    template <typename A> __device__ void wait(uint32_t tag, A at) {
        bool missing = true;
        while (missing) {
#pragma unroll
            for (int i = 0; i < N; i++)
                if (P::tag_of(words[i]) != tag) P::load(words[i], at(i));
            missing = false;
#pragma unroll
            for (int i = 0; i < N; i++) missing |= P::tag_of(words[i]) != tag;
        }
    }

    /* Value j of packet i. */
    __device__ float value(int i, int j) const {
        const uint64_t word = j < 2 ? words[i].low : words[i].high;
        const uint32_t bits = (uint32_t)(j % 2 ? word >> 32 : word);
        return __uint_as_float(j == 3 ? bits & ~1u : bits);
    }
};

template <int N, typename A> __device__ inline void ll_receive(float (&values)[N], uint32_t tag, A at) {
    ll_receiver<N, ll_packet> packets = {};
    packets.wait(tag, at);
#pragma unroll
    for (int i = 0; i < N; i++) values[i] = __uint_as_float((uint32_t)packets.words[i]);
}

template <int N, typename A> __device__ inline void ll_receive(float (&values)[N][3], uint32_t tag, A at) {
    ll_receiver<N> packets = {};
    packets.wait(tag, at);
#pragma unroll
    for (int i = 0; i < 3 * N; i++) values[i / 3][i % 3] = packets.value(i / 3, i % 3);
}

/* --- eight values as two packets `stride` apart: accesses coalesce --- */

__device__ inline void ll_send8(ll_packet4 *to, int stride, const float (&v)[8], uint32_t phase) {
    ll_send(to, v[0], v[1], v[2], v[3], phase);
    ll_send(to + stride, v[4], v[5], v[6], v[7], phase);
}

/* The same from eight neighbouring lanes that hold one value each: value i is that of lane lane_of(i). */
template <typename L>
__device__ inline void ll_send8_from_lanes(ll_packet4 *to, int stride, float mine, uint32_t phase,
                                           L lane_of) {
    const int packet = threadIdx.x % 8;
    float four[4];
#pragma unroll
    for (int i = 0; i < 4; i++) four[i] = __shfl_sync(0xffffffffu, mine, lane_of((4 * packet + i) % 8), 8);
    if (packet < 2) ll_send(to + packet * stride, four[0], four[1], four[2], four[3], phase);
}

#endif
