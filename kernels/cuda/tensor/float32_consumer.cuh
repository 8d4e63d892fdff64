/* The float32 GEMM of the tensor cores: a warpgroup that multiplies. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_CONSUMER_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_CONSUMER_CUH

#include "kernels/cuda/tensor/float32_ring.cuh"

namespace float32 {

/* Chunks of k between promotions: a block each, and a stage. */
static __device__ unsigned chunks_of(const float32_product &p) {
    return (unsigned)((p.k + PLANE_SIDE - 1) / PLANE_SIDE);
}

/* sums += part times the factors of its blocks, of 32 registers. If a float cannot hold 2^e, in two steps. */
template <class S>
static __device__ void promote_half(float *sums, float *part, unsigned of_a, unsigned of_b) {
    const block_factor a = S::factor(of_a), b = S::factor(of_b);
    const int e = uniform(-(a.e + b.e)), outer = e < -100 || e > 126 ? e / 2 : 0;
    const float first = power_of_two(outer), factor = power_of_two(e - outer) * (a.scale * b.scale);
    if (outer) {
#pragma unroll
        for (int i = 0; i < 32; i++) part[i] *= first;
    }
#pragma unroll
    for (int i = 0; i < 32; i++) sums[i] = fmaf(part[i], factor, sums[i]);
}

static __device__ void clear(float (&sums)[64]) {
#pragma unroll
    for (int i = 0; i < 64; i++) sums[i] = 0;
}

/* The warpgroups that multiply take turns at starting products, the first one first: while one adds its
   partial sums, the tensor cores have the products of the other. Without turns both would wait at the same
   time. */
struct turns {
    static constexpr int FIRST_BARRIER = 1 + GROUPS; /* after those of block_planes */

    __device__ static void begin(int group) {
        asm volatile("bar.sync %0, %1;" : : "r"(FIRST_BARRIER + group), "n"(GROUPS * GROUP) : "memory");
    }
    __device__ static void end(int group) {
        asm volatile("bar.arrive %0, %1;" : : "r"(FIRST_BARRIER + !group), "n"(GROUPS * GROUP) : "memory");
    }
    /* Before the first turn, and after the last. */
    __device__ static void open(int group) {
        if (group == 1) end(1);
    }
    __device__ static void close(int group) {
        if (group == 0) begin(0);
    }
};

/* The codes of the four blocks that a tile reads at a chunk: lanes 0 and 1 have those of its rows, lane 2 and
   the others those of its columns. Loaded two chunks ahead: nothing waits for them. */
struct chunk_codes {
    const unsigned *at;
    unsigned step, left, code, next; /* left: chunks whose codes are not loaded; of this chunk, of the next */

    __device__ chunk_codes(const float32_product &p, const tile &own, int lane) : left(chunks_of(p)) {
        const bool second = lane % 2, of_b = lane >= 2;
        const plane_operand &of = of_b ? p.b : p.a;
        at = of.codes + of.index((of_b ? own.column_block : own.row_block) + second, 0);
        step = of.k_is_rows ? of.columns : 1;
        code = load();
        next = load();
    }
    __device__ unsigned of_lane(int lane) const {
        return __shfl_sync(0xffffffffu, code, lane);
    }
    __device__ bool wide() const {
        return __any_sync(0xffffffffu, code & CODE_WIDE);
    }
    __device__ unsigned load() {
        if (!left) return 0;
        const unsigned loaded = __ldg(at);
        at += step;
        left--;
        return loaded;
    }
    __device__ void advance(unsigned loaded) {
        code = next;
        next = loaded;
    }
};

/* A consumer warpgroup. Registers of D as in wgmma.cuh. */
struct consumer {
    const float32_product &p;
    char *shared;
    const int lane, warp, group;

    __device__ consumer(const float32_product &product, char *memory)
        : p(product), shared(memory), lane(threadIdx.x % 32), warp(uniform(threadIdx.x / 32 % 4)),
          group(uniform(threadIdx.x / GROUP)) {}

    template <bool T> __device__ static uint64_t descriptor(const char *at) {
        return T ? wgmma_swizzle128_transposed(at, PLANE_BYTES) : wgmma_swizzle128(at);
    }

    /* The descriptor of what is `bytes` further. */
    __device__ static uint64_t further(uint64_t descriptor, uint32_t bytes) {
        return descriptor >> 32 << 32 | ((uint32_t)descriptor + bytes / 16);
    }

    /* Starts the products of a chunk: part = A B over 64 of k. The other warpgroup may prepare its own while
       the last of them are under way. */
    template <class S, bool A_T, bool B_T>
    __device__ void multiply(float (&part)[64], const char *a, const char *b) const {
        const uint64_t of_a = descriptor<A_T>(a + group * PLANE_BYTES), of_b = descriptor<B_T>(b);
        turns::begin(group);
        wgmma_fence();
#pragma unroll
        for (int x = 0; x < S::PRODUCTS; x++) {
            if (x == S::PRODUCTS - 1) turns::end(group);
#pragma unroll
            for (int step = 0; step < K / 16; step++)
                wgmma_n128<S::FORMAT, A_T, B_T>(
                    part, further(of_a, (S::A >> 4 * x & 15) * TILE_BYTES + step * (A_T ? 2048 : 32)),
                    further(of_b, (S::B >> 4 * x & 15) * TILE_BYTES + step * (B_T ? 2048 : 32)), x || step);
        }
        wgmma_commit();
    }

    template <class S>
    __device__ void promote(float (&sums)[64], float (&part)[64], const chunk_codes &of) const {
        const unsigned rows = of.of_lane(group);
        wgmma_done(part);
        promote_half<S>(sums, part, rows, of.of_lane(2));
        promote_half<S>(sums + 32, part + 32, rows, of.of_lane(3));
    }

    /* sums += a chunk. release(): its planes may be replaced. request(): while the last products of a tile
       are under way. */
    template <class S, bool A_T, bool B_T, typename F, typename R>
    __device__ void add(float (&sums)[64], const char *a, const char *b, chunk_codes &of, bool last,
                        F release, R request) const {
        float part[64];
        multiply<S, A_T, B_T>(part, a, b);
        const unsigned loaded = of.load();
        if (last) request();
        wgmma_wait<0>();
        release();
        promote<S>(sums, part, of);
        of.advance(loaded);
    }

    /* sums = the tile of A B. `use`: of the ring buffer, counted over all tiles. */
    template <class S, bool A_T, bool B_T, typename R>
    __device__ void sum_tile(float (&sums)[64], const tile &own, unsigned chunks, unsigned &use,
                             R request) const {
        const ring<S> stages(shared);
        chunk_codes of(p, own, lane);
        clear(sums);
#pragma unroll 1
        for (unsigned k = 0; k < chunks; k++, use++) {
            const char *const stage = stages.wait(use);
            add<S, A_T, B_T>(
                sums, stage, stage + S::A_PLANES * TILE_BYTES, of, k + 1 == chunks,
                [&] { stages.release(use); }, request);
        }
    }

    /* The same where some chunks are wide. */
    template <bool A_T, bool B_T, typename R>
    __device__ void sum_tile_mixed(float (&sums)[64], const tile &own, unsigned chunks, plane_slots &slots,
                                   R request) const {
        const bool low = uniform(p.a.flags->state & PLANES_LOW);
        chunk_codes of(p, own, lane);
        clear(sums);
#pragma unroll 1
        for (unsigned k = 0; k < chunks; k++, slots.chunk++) {
            const bool wide = of.wide(), last = k + 1 == chunks;
            const unsigned at = slots.chunk % plane_slots::CHUNKS;
            unsigned used = 0;
            const char *const a = slots.take(planes_of_a(wide, low), used), *const b = slots.take(
                                                                                planes_of_b(wide), used);
            mbarrier_wait(slots.full + at, slots.chunk / plane_slots::CHUNKS);
            const auto release = [&] {
                if (lane == 0) mbarrier_arrive(slots.empty + at);
            };
            if (wide)
                add<wide_planes, A_T, B_T>(sums, a, b, of, last, release, request);
            else if (low)
                add<half_planes, A_T, B_T>(sums, a, b, of, last, release, request);
            else
                add<high_planes, A_T, B_T>(sums, a, b, of, last, release, request);
        }
    }

    /* The same in float32 arithmetic, from the matrices as they are. */
    __device__ void sum_tile_plainly(float (&sums)[64], const tile &own) const {
        const size_t row0 = (size_t)(own.row_block + group) * 64 + warp * 16 + lane / 4;
        const size_t column0 = (size_t)own.column_block * 64 + lane % 4 * 2;
        clear(sums);
#pragma unroll 1
        for (size_t k = 0; k < p.k; k++) {
            float a[2];
#pragma unroll
            for (int h = 0; h < 2; h++)
                a[h] = __ldg(p.a_values + min(row0 + h * 8, p.m - 1) * p.a_row + k * p.a_column);
#pragma unroll
            for (int i = 0; i < 32; i++) {
                const size_t column = min(column0 + i / 2 * 8 + i % 2, p.n - 1);
                const float b = __ldg(p.b_values + k * p.b_row + column * p.b_column);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float &sum = sums[i / 2 * 4 + h * 2 + i % 2];
                    sum = fmaf(a[h], b, sum);
                }
            }
        }
    }
};

} // namespace float32

#endif
