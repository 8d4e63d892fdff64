/* The float32 GEMM of the tensor cores: from sums in registers to C and, if it has any, its planes, through
   shared memory, with the epilogues. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_STORE_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_STORE_CUH

#include "kernels/cuda/tensor/float32_block.cuh"

namespace float32 {

static __device__ float4 each(float4 x, float4 y, float4 z, auto function) {
    return {function(x.x, y.x, z.x), function(x.y, y.y, z.y), function(x.z, y.z, z.z),
            function(x.w, y.w, z.w)};
}

/* An index of the thread that the compiler computes anew here, instead of keeping what depends on it in
   registers while the tile is multiplied. */
static __device__ unsigned thread_again() {
    unsigned thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

/* A consumer warpgroup that stores its 64 x 128 sums, one block of 64 x 64 after the other. */
struct tile_store {
    const float32_product &p;
    const sink<float> &out;
    const slope<float> &back;
    const block_area area;
    size_t first_row, first_column; /* of the sums */

    __device__ tile_store(const float32_product &product, const sink<float> &to, const slope<float> &slopes,
                          char *shared, const tile &own)
        : p(product), out(to), back(slopes), area(shared, thread_again()) {
        first_row = (size_t)(own.row_block + uniform(threadIdx.x / GROUP)) * 64;
        first_column = (size_t)own.column_block * 64;
    }

    /* Can all threads of the warpgroup access whole, aligned fours of this block? */
    __device__ bool aligned(size_t row0, size_t column0) const {
        const uintptr_t all = (uintptr_t)out.c | (uintptr_t)out.pre | (uintptr_t)out.bias |
                              (uintptr_t)back.output | (uintptr_t)back.pre | out.ldc * sizeof(float);
        return all % 16 == 0 && row0 + 64 <= out.m && column0 + 64 <= out.n && !(back.on && out.beta != 0);
    }

    /* The fours of this thread, AT_ONCE at a time: load(at), then finish(at, sum, loaded) returns what is
       stored; `at` is the index in C. */
    template <unsigned AT_ONCE, typename L, typename F>
    __device__ void each_four(size_t row0, size_t column0, L load, F finish) const {
        const size_t start = (row0 + area.row(0)) * out.ldc + column0 + area.column(), step = 2 * out.ldc;
#pragma unroll 1
        for (unsigned i = 0; i < block_area::FOURS; i += AT_ONCE) {
            decltype(load(start)) loaded[AT_ONCE];
#pragma unroll
            for (unsigned u = 0; u < AT_ONCE; u++) loaded[u] = load(start + (i + u) * step);
#pragma unroll
            for (unsigned u = 0; u < AT_ONCE; u++) {
                const size_t at = start + (i + u) * step;
                float4 *const four = area.four(i + u);
                *(float4 *)(out.c + at) = *four = finish(at, *four, loaded[u]);
            }
        }
    }

    __device__ float4 load_c(size_t at) const {
        return out.beta == 0 ? float4{} : *(const float4 *)(out.c + at);
    }

    __device__ float4 scaled(float4 sum, float4 c) const {
        return each(sum, c, {}, [&](float s, float x, float) { return out.alpha * s + out.beta * x; });
    }

    __device__ void store_forward(size_t row0, size_t column0) const {
        const float4 bias = __ldg((const float4 *)(out.bias + column0 + area.column()));
        with_activation(
            out.activation, [&]<enum activation A>() {
                each_four<2>(
                    row0, column0, [&](size_t at) { return load_c(at); },
                    [&](size_t at, float4 sum, float4 c) {
                        const float4 z =
                            each(scaled(sum, c), bias, {}, [](float x, float b, float) { return x + b; });
                        if (out.pre) *(float4 *)(out.pre + at) = z;
                        return each(z, {}, {}, [](float x, float, float) { return activate(A, x); });
                    });
            });
    }

    __device__ void store_backward(size_t row0, size_t column0) const {
        struct inputs {
            float4 y, z;
        };
        with_activation(
            back.activation, [&]<enum activation A>() {
                constexpr bool needs_input = ACTIVATIONS_NEEDING_INPUT >> A & 1;
                each_four<needs_input ? 2 : 8>(
                    row0, column0,
                    [&](size_t at) {
                        inputs in = {__ldg((const float4 *)(back.output + at)), {}};
                        if (needs_input) in.z = __ldg((const float4 *)(back.pre + at));
                        return in;
                    },
                    [&](size_t, float4 sum, const inputs &in) {
                        return each(sum, in.z, in.y, [&](float s, float z, float y) {
                            return out.alpha * s * derivative(A, z, y);
                        });
                    });
            });
    }

    __device__ void store_sum(size_t row0, size_t column0) const {
        each_four<4>(
            row0, column0, [&](size_t at) { return load_c(at); },
            [&](size_t, float4 sum, float4 c) { return scaled(sum, c); });
    }

    /* Any rows and columns, one element at a time; 0 outside C. */
    __device__ void store_any(size_t row0, size_t column0) const {
#pragma unroll 1
        for (unsigned i = 0; i < 4 * block_area::FOURS; i++) {
            const size_t row = row0 + area.row(i / 4), column = column0 + area.column() + i % 4;
            float *const value = (float *)area.four(i / 4) + i % 4;
            if (row < out.m && column < out.n) {
                const size_t at = row * out.ldc + column;
                *value = back.apply(at, out.finish(row, column, *value));
                out.c[at] = *value;
            } else {
                *value = 0;
            }
        }
    }

    __device__ void split_block(size_t block, float *totals, size_t width) const {
        float x[block_area::FOURS][4];
        area.take(x);
        const unsigned raised = area.split(x, p.c, block, totals, width);
        if (raised) atomicOr(&p.c.flags->state, raised); /* split_wide_kernel has reset it */
    }

    /* The block whose sums are in the area. */
    __device__ void store_block(size_t row0, size_t column0) const {
        if (!aligned(row0, column0))
            store_any(row0, column0);
        else if (back.on)
            store_backward(row0, column0);
        else if (out.bias)
            store_forward(row0, column0);
        else
            store_sum(row0, column0);
        float *const totals = back.on ? p.column_partials + row0 / 64 * p.n + column0 : NULL;
        if (p.c.blocks)
            split_block(row0 / 64 * p.c.column_blocks + column0 / 64, totals, p.n - column0);
        else if (totals)
            area.sum_columns(totals, p.n - column0);
    }

    /* From registers: 32 bytes of a row for four lanes. */
    __device__ void store_plainly(const float (&sums)[64]) const {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const size_t row = first_row + area.warp * 16 + area.lane / 4 + h * 8,
                         column = first_column + area.lane % 4 * 2;
            if (row >= out.m) continue;
            float *at = out.c + row * out.ldc + column;
#pragma unroll
            for (int j = 0; j < 16; j++) {
                const float x = out.alpha * sums[j * 4 + h * 2], y = out.alpha * sums[j * 4 + h * 2 + 1];
                if (column + j * 8 + 1 < out.n)
                    *(float2 *)(at + j * 8) = make_float2(x, y);
                else if (column + j * 8 < out.n)
                    at[j * 8] = x;
            }
        }
    }

    __device__ bool plain() const {
        return !out.bias && !back.on && out.beta == 0 && !p.c.blocks &&
               ((uintptr_t)out.c | out.ldc * sizeof(float)) % 8 == 0;
    }

    __device__ void store(const float (&sums)[64]) const {
        if (plain()) return store_plainly(sums);
#pragma unroll 1 /* so that the epilogues are in the instruction cache once */
        for (int half = 0; half < 2; half++) {
            const size_t column = first_column + half * 64;
            if (first_row >= p.m || column >= p.n) return;
            if (half == 0)
                area.put<0>(sums);
            else
                area.put<32>(sums);
            store_block(first_row, column);
        }
    }
};

} // namespace float32

#endif
