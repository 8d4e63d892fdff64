/* The float32 GEMM by six bf16 products: from sums in registers to C. The blocks of a cluster have the sums
   of their parts of k; each block adds those of its share of the columns, and finishes them. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_BF16X6_STORE_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_BF16X6_STORE_CUH

#include "kernels/cuda/tensor/bf16x6_split.cuh"
#include "kernels/cuda/tensor/cluster.cuh"

namespace bf16x6 {

static const unsigned CONSUMERS = 2 * GROUP; /* threads */
/* Of a thread, four sums each: enough for a block of eight that receives two octets. */
template <unsigned W> constexpr unsigned SLOTS = W == BF16X6_WIDE ? 14 : 8;
template <unsigned W> constexpr unsigned SLOTS_BYTES = SLOTS<W> * 32 * sizeof(float4); /* of a warp */

/* A barrier of the consumers. */
static __device__ void consumers_sync() {
    asm volatile("bar.sync 1, %0;" : : "n"(CONSUMERS) : "memory");
}

static __device__ float2 load_pair(const float *at, bool both) {
    return both ? *(const float2 *)at : make_float2(*at, 0);
}

/* Asynchronous: wait with copies_wait. */
static __device__ void copy_pair(float2 *to, const float *at, bool both) {
#if __CUDA_ARCH__ >= 800
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    if (both)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" : : "r"(address), "l"(at) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(address), "l"(at) : "memory");
#endif
}

static __device__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" : : : "memory");
#endif
}

static __device__ void store_pair(float *at, float2 pair, bool both) {
    if (both)
        *(float2 *)at = pair;
    else
        *at = pair.x;
}

/* A block in its cluster. Eight columns of a tile, octet 0 to 7 or 8, belong to block owner(octet). */
struct cluster_place {
    const unsigned (&first_of_part)[BF16X6_MOST_PARTS + 1];
    unsigned parts, part, first, count; /* the octets of this block */

    template <typename P>
    __device__ explicit cluster_place(const P &p)
        : first_of_part(p.octet), parts(p.parts), part(uniform(cluster_rank())), first(p.octet[part]),
          count(p.octet[part + 1] - first) {}
    template <unsigned W> __device__ unsigned owner(unsigned octet) const {
        return octet * parts / (W / 8);
    }
};

/* A tile of C, counted in tiles; of C of gradient `number` in a launch of several. */
struct tile_place {
    unsigned row, column;
    static constexpr unsigned number = 0;
};
struct gradient_place {
    unsigned row, column, number;
};

/* All lanes of a warp. */
template <unsigned N> static __device__ bool all_finite(const float (&sums)[N]) {
    float zero[4] = {}; /* four chains of additions */
#pragma unroll
    for (unsigned i = 0; i < N; i++) zero[i % 4] += 0 * sums[i];
    return !__any_sync(0xffffffffu, zero[0] + zero[1] + (zero[2] + zero[3]) != 0);
}

/* Octet `octet` of the sums of a thread. A jump is faster than to select each of the four words. */
template <unsigned W> static __device__ float4 octet_of(const float (&sums)[W / 2], unsigned octet) {
    const auto four = [&](unsigned j) {
        return make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
    };
    switch (octet) {
    case 0:
        return four(0);
    case 1:
        return four(1);
    case 2:
        return four(2);
    case 3:
        return four(3);
    case 4:
        return four(4);
    case 5:
        return four(5);
    case 6:
        return four(6);
    case 7:
        return four(7);
    default:
        return four(W / 8 - 1);
    }
}

/* A consumer thread: rows row and row + ROWS_APART, columns column and column + 1 of each octet. P, S:
   product and sink, or both a gradient. */
template <typename P, typename S, bool A_T, unsigned W> struct tile_store {
    static constexpr unsigned OCTETS = W / 8, INPUTS = 2 * ((OCTETS + 1) / 2);
    const P &p;
    const S &out;
    const slope<float> &back;
    const cluster_place &own;
    float4 *slots;    /* of this thread: [SLOTS][32], those of a warp beside each other */
    float *warp_sums; /* [8][W]: sums of the columns of each warp */
    float2 *inputs;   /* of this thread, with parts: what the epilogue reads, [2][INPUTS][CONSUMERS] */
    uint64_t *received;
    unsigned row, column;

    __device__ float4 &slot(unsigned i) const {
        return slots[i * 32];
    }

    /* The sums in slots that are not finite, anew, in float32 arithmetic: an infinity, split, becomes NaN. */
    __device__ void repair() const {
#pragma unroll 1
        for (unsigned e = 0; e < 4 * own.count; e++) {
            const unsigned y = row + e / 2 % 2 * ROWS_APART<A_T>,
                           x = column + (own.first + e / 4) * 8 + e % 2;
            float &sum = (&slot(e / 4).x)[e % 4];
            if (isfinite(sum) || y >= p.m || x >= p.n) continue;
            sum = 0;
#pragma unroll 1
            for (unsigned k = 0; k < p.k; k++)
                sum = fmaf(p.a_values[y * p.a_row + k * p.a_column], p.b_values[k * p.b_row + x * p.b_column],
                           sum);
        }
    }

    /* Puts the sums of the own octets into the first slots: those of all parts, in a fixed order. */
    __device__ void add_parts(const float (&sums)[W / 2]) const {
        const unsigned share = own.first_of_part[1]; /* the most */
        const auto four = [&](unsigned j) {
            return make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
        };
        if (own.parts > 1 && threadIdx.x == 0)
            mbarrier_expect_tx(received, (own.parts - 1) * own.count * CONSUMERS * sizeof(float4));
#pragma unroll
        for (unsigned j = 0; j < OCTETS; j++) {
            const unsigned to = own.template owner<W>(j);
            if (to == own.part) continue;
            const unsigned at = (own.part - (own.part > to)) * share + j - own.first_of_part[to];
            const float4 words = four(j);
            cluster_send((const uint4 *)&slot(at), to, *(const uint4 *)&words, received);
        }
        __syncwarp();
        if (own.parts > 1) mbarrier_wait(received, 0);
        bool finite = true;
#pragma unroll 1
        for (unsigned i = 0; i < own.count; i++) {
            float4 total = octet_of<W>(sums, own.first + i);
#pragma unroll 7
            for (unsigned other = 0; other + 1 < own.parts; other++) {
                const float4 more = slot(other * share + i);
                total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
            }
            slot(i) = total;
            finite = finite && isfinite(total.x + total.y + total.z + total.w);
        }
        if (!finite) repair();
    }

    /* With parts, requests what the epilogue reads: it arrives while the last stage is multiplied. */
    __device__ void request_inputs() const {
        if (own.parts == 1 || !(out.bias || back.on)) return;
#pragma unroll 1
        for (unsigned i = 0; i < 2 * own.count; i++) {
            const unsigned y = row + i % 2 * ROWS_APART<A_T>, x = column + (own.first + i / 2) * 8;
            if (y >= p.m || x >= p.n) continue;
            if (out.bias) copy_pair(input(0, i), out.bias + x, x + 1 < p.n);
            if (back.on) copy_pair(input(0, i), back.output + y * out.ldc + x, x + 1 < p.n);
            if (back.pre) copy_pair(input(1, i), back.pre + y * out.ldc + x, x + 1 < p.n);
        }
    }

    /* Pair i of array `which`: bias, or output of the activation (0), or its input (1). */
    __device__ float2 *input(unsigned which, unsigned i) const {
        return inputs + (which * INPUTS + i) * CONSUMERS;
    }

    /* C = finish(index in C, column, which pair, sums, both inside?) for the pairs of this thread. */
    template <typename F> __device__ void each_pair(F finish) const {
#pragma unroll 1
        for (unsigned i = 0; i < own.count; i++) {
            const float4 four = slot(i);
            const unsigned x = column + (own.first + i) * 8;
            const bool both = x + 1 < p.n;
            float2 totals = {0, 0};
#pragma unroll
            for (unsigned h = 0; h < 2; h++) {
                const unsigned y = row + h * ROWS_APART<A_T>;
                if (y >= p.m || x >= p.n) continue;
                const size_t at = y * out.ldc + x;
                const float2 sums = {h ? four.z : four.x, h ? four.w : four.y},
                             values = finish(at, x, i * 2 + h, sums, both);
                store_pair(out.c + at, values, both);
                totals.x += values.x, totals.y += values.y;
            }
            if (back.on) put_warp_sums(i, totals);
        }
    }

    __device__ void put_warp_sums(unsigned octet, float2 totals) const {
#pragma unroll
        for (unsigned offset = 4; offset < 32; offset *= 2) {
            totals.x += __shfl_xor_sync(0xffffffffu, totals.x, offset);
            totals.y += __shfl_xor_sync(0xffffffffu, totals.y, offset);
        }
        const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane < 4) *(float2 *)&warp_sums[warp * W + octet * 8 + lane * 2] = totals;
    }

    __device__ float2 scaled(size_t at, float2 sums, bool both) const {
        float2 z = {out.alpha * sums.x, out.alpha * sums.y};
        if (out.beta == 0) return z;
        const float2 c = load_pair(out.c + at, both);
        z.x += out.beta * c.x;
        z.y += out.beta * c.y;
        return z;
    }

    __device__ void store_forward() const {
        with_activation(
            out.activation, [&]<enum activation A>() {
                each_pair([&](size_t at, unsigned x, unsigned i, float2 sums, bool both) {
                    const float2 bias = own.parts > 1 ? *input(0, i) : load_pair(out.bias + x, both);
                    float2 z = scaled(at, sums, both);
                    z.x += bias.x;
                    z.y += bias.y;
                    if (out.pre) store_pair(out.pre + at, z, both);
                    return make_float2(activate(A, z.x), activate(A, z.y));
                });
            });
    }

    __device__ void store_backward() const {
        with_activation(
            back.activation, [&]<enum activation A>() {
                constexpr bool needs_input = ACTIVATIONS_NEEDING_INPUT >> A & 1;
                each_pair([&](size_t at, unsigned, unsigned i, float2 sums, bool both) {
                    const bool here = own.parts > 1;
                    const float2 y = here ? *input(0, i) : load_pair(back.output + at, both),
                                 z = !needs_input ? make_float2(0, 0)
                                     : here       ? *input(1, i)
                                                  : load_pair(back.pre + at, both),
                                 g = scaled(at, sums, both);
                    return make_float2(g.x * derivative(A, z.x, y.x), g.y * derivative(A, z.y, y.y));
                });
            });
    }

    /* A whole tile from registers, if it needs no more than that. */
    __device__ bool store_directly(const float (&sums)[W / 2]) const {
        if (own.parts > 1 || back.on || out.bias || out.beta != 0) return false;
        if (!all_finite(sums)) return false;
#pragma unroll
        for (unsigned h = 0; h < 2; h++) {
            const unsigned y = row + h * ROWS_APART<A_T>;
            float *const at = out.c + y * out.ldc + column;
            if (y >= p.m) continue;
#pragma unroll
            for (unsigned j = 0; j < OCTETS; j++) {
                const unsigned x = column + j * 8;
                if (x < p.n)
                    store_pair(at + j * 8,
                               {out.alpha * sums[4 * j + 2 * h], out.alpha * sums[4 * j + 2 * h + 1]},
                               x + 1 < p.n);
            }
        }
        return true;
    }

    /* The sums of the columns; over several tiles of rows, the last block of these columns to finish adds
       them in the order of the tiles. */
    __device__ void sum_columns(tile_place tile, unsigned *last) const {
        const unsigned tiles = p.rows, x = tile.column * W + own.first * 8 + threadIdx.x;
        const bool mine = threadIdx.x < own.count * 8 && x < p.n;
        float *const partials = (float *)p.reduction.scratch + x;
        float total = 0;
        consumers_sync();
        if (mine)
            for (unsigned warp = 0; warp < 8; warp++) total += warp_sums[warp * W + threadIdx.x];
        if (mine) (tiles > 1 ? partials + (size_t)tile.row * p.n : back.column_sums + x)[0] = total;
        if (tiles > 1) {
            unsigned *const ticket = p.reduction.tickets + tile.column * own.parts + own.part;
            __threadfence();
            consumers_sync();
            if (threadIdx.x == 0) {
                *last = atomicAdd(ticket, 1u) == tiles - 1;
                if (*last) *ticket = 0; /* ready for the next launch */
            }
            consumers_sync();
            if (*last) __threadfence();
            if (*last && mine) back.column_sums[x] = sum_of_chunks((const float *)partials, tiles, p.n);
        }
        consumers_sync(); /* before the sums of the next tile */
    }

    /* C. last: a word of shared memory. */
    __device__ void store(const float (&sums)[W / 2], tile_place tile, unsigned *last) const {
        if (store_directly(sums)) return;
        add_parts(sums);
        copies_wait();
        if constexpr (!A_T) { /* a weight gradient has no epilogue */
            if (back.on) store_backward();
            if (back.on) return sum_columns(tile, last);
            if (out.bias) return store_forward();
        }
        each_pair(
            [&](size_t at, unsigned, unsigned, float2 pair, bool both) { return scaled(at, pair, both); });
    }
};

} // namespace bf16x6

#endif
