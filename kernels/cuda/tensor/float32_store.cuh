/* The float32 GEMM of the tensor cores: from sums in registers to C, through shared memory, with the
   epilogues. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_STORE_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_STORE_CUH

#include "kernels/cuda/tensor/float32_ring.cuh"

namespace float32 {

/* A consumer warpgroup that stores its 64 x 128 sums. */
struct tile_store {
    const float32_product &p;
    const sink<float> &out;
    const slope<float> &back;
    float *area; /* of the warpgroup, in shared memory: [64][64] */
    const int lane, warp, group;

    __device__ tile_store(const float32_product &product, const sink<float> &to, const slope<float> &slopes,
                          char *shared)
        : p(product), out(to), back(slopes), lane(threadIdx.x % 32), warp(uniform(threadIdx.x / 32 % 4)),
          group(uniform(threadIdx.x / GROUP)) {
        area = (float *)(shared + RING_BYTES) + group * AREA_FLOATS;
    }

    __device__ void synchronize() const {
        asm volatile("bar.sync %0, %1;" : : "r"(1 + group), "n"(GROUP) : "memory");
    }

    /* Four neighbours of a row of C from their sums; adds what it stores to `totals`. */
    __device__ void store_four(size_t row, size_t column, float4 sum, float (&totals)[4]) const {
        const size_t at = row * out.ldc + column;
        float value[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (column + e < out.n) {
                value[e] = back.apply(at + e, out.finish(row, column + e, value[e]));
                totals[e] += value[e];
            }
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (column + e < out.n) out.c[at + e] = value[e];
    }

    /* Sums of the columns, of the totals of all threads, in a fixed order. */
    __device__ void store_totals(const float (&totals)[4], size_t row0, size_t column0) const {
        const unsigned thread = threadIdx.x % GROUP;
        synchronize(); /* the values in the area were read */
#pragma unroll
        for (int e = 0; e < 4; e++) area[thread * 4 + e] = totals[e]; /* [8][64] */
        synchronize();
        if (thread < 64 && row0 < p.m && column0 + thread < p.n) {
            float total = 0;
            for (int i = 0; i < 8; i++) total += area[i * 64 + thread];
            p.column_partials[row0 / 64 * p.n + column0 + thread] = total;
        }
    }

    /* What the epilogue reads of four neighbours of a row of C: C itself, or Y and Z of the layer below. */
    struct inputs {
        float4 first, second;
    };

    __device__ inputs load(size_t at) const {
        inputs in = {};
        if (back.on) {
            in.first = __ldg((const float4 *)(back.output + at));
            if (back.pre) in.second = __ldg((const float4 *)(back.pre + at));
        } else if (out.beta != 0) {
            in.first = *(const float4 *)(out.c + at);
        }
        return in;
    }

    __device__ float finish(float sum, float first, float second, float bias, float &pre) const {
        pre = out.alpha * sum;
        if (back.on) return back.scaled(pre, second, first);
        if (out.beta != 0) pre += out.beta * first;
        if (!out.bias) return pre;
        pre += bias;
        return activate(out.activation, pre);
    }

    /* The same as store_four for aligned matrices and whole fours, with the inputs loaded. */
    __device__ void store_aligned(size_t at, float4 sum, const inputs &in, float4 bias,
                                  float (&totals)[4]) const {
        float4 pre, value;
        value.x = finish(sum.x, in.first.x, in.second.x, bias.x, pre.x);
        value.y = finish(sum.y, in.first.y, in.second.y, bias.y, pre.y);
        value.z = finish(sum.z, in.first.z, in.second.z, bias.z, pre.z);
        value.w = finish(sum.w, in.first.w, in.second.w, bias.w, pre.w);
        totals[0] += value.x, totals[1] += value.y, totals[2] += value.z, totals[3] += value.w;
        if (out.pre) *(float4 *)(out.pre + at) = pre;
        *(float4 *)(out.c + at) = value;
    }

    /* Can all threads of the warpgroup access whole, aligned fours in these rows and columns? */
    __device__ bool aligned(size_t row0, size_t column0) const {
        const uintptr_t all = (uintptr_t)out.c | (uintptr_t)out.pre | (uintptr_t)out.bias |
                              (uintptr_t)back.output | (uintptr_t)back.pre | out.ldc * sizeof(float);
        return all % 16 == 0 && row0 + 64 <= out.m && column0 + 64 <= out.n && !(back.on && out.beta != 0);
    }

    /* Stores half of a tile from the area of the warpgroup, 64 x 64. */
    __device__ void store_half(size_t row0, size_t column0) const {
        const unsigned thread = threadIdx.x % GROUP, column = thread % 16 * 4;
        float totals[4] = {};
        const auto sum_at = [&](unsigned row) {
            return *(const float4 *)(area + row * 64 + (column ^ (row & 3) << 3));
        };
        if (aligned(row0, column0)) {
            const float4 bias = out.bias ? __ldg((const float4 *)(out.bias + column0 + column)) : float4{};
            const size_t at = (row0 + thread / 16) * out.ldc + column0 + column;
#pragma unroll 1
            for (unsigned i = 0; i < 8; i += 4) {
                inputs in[4];
#pragma unroll
                for (unsigned j = 0; j < 4; j++) in[j] = load(at + (i + j) * 8 * out.ldc);
#pragma unroll
                for (unsigned j = 0; j < 4; j++)
                    store_aligned(at + (i + j) * 8 * out.ldc, sum_at(thread / 16 + (i + j) * 8), in[j], bias,
                                  totals);
            }
        } else {
#pragma unroll 1
            for (unsigned row = thread / 16; row < 64 && row0 + row < out.m; row += 8)
                store_four(row0 + row, column0 + column, sum_at(row), totals);
        }
        if (back.on) store_totals(totals, row0, column0);
    }

    /* From registers: 32 bytes of a row for four lanes. */
    __device__ void store_plainly(const float (&sums)[64], const tile &own) const {
        const size_t row0 = (size_t)(own.row_block + group) * 64 + warp * 16 + lane / 4;
        const size_t column0 = (size_t)own.column_block * 64 + lane % 4 * 2;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const size_t row = row0 + h * 8;
            if (row >= out.m) continue;
            float *at = out.c + row * out.ldc + column0;
#pragma unroll
            for (int j = 0; j < 16; j++) {
                const float x = out.alpha * sums[j * 4 + h * 2], y = out.alpha * sums[j * 4 + h * 2 + 1];
                if (column0 + j * 8 + 1 < out.n)
                    *(float2 *)(at + j * 8) = make_float2(x, y);
                else if (column0 + j * 8 < out.n)
                    at[j * 8] = x;
            }
        }
    }

    __device__ bool plain() const {
        return !out.bias && !back.on && out.beta == 0 &&
               ((uintptr_t)out.c | out.ldc * sizeof(float)) % 8 == 0;
    }

    /* Through shared memory, so that rows are accessed in 256 bytes. */
    __device__ void store(const float (&sums)[64], const tile &own) const {
        if (plain()) return store_plainly(sums, own);
        const size_t row0 = (size_t)(own.row_block + group) * 64, column0 = (size_t)own.column_block * 64;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            synchronize(); /* what was in the area before was read */
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int row = warp * 16 + lane / 4 + h * 8, column = j * 8 + lane % 4 * 2;
                    const int i = half * 32 + j * 4 + h * 2;
                    *(float2 *)(area + row * 64 + (column ^ (row & 3) << 3)) =
                        make_float2(sums[i], sums[i + 1]);
                }
            synchronize();
            store_half(row0, column0 + half * 64);
        }
    }
};

} // namespace float32

#endif
