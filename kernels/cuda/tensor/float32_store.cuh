/* The float32 GEMM of the tensor cores: from sums in registers to C and, if it has any, its planes, with the
   epilogues. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_STORE_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_STORE_CUH

#include "kernels/cuda/tensor/float32_planes.cuh"

namespace float32 {

/* An index of the thread that the compiler computes anew here, instead of keeping what depends on it in
   registers while the tile is multiplied. */
static __device__ unsigned thread_again() {
    unsigned thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

/* What the epilogue reads, requested ahead: of the backward epilogue 64 x 64 elements of Y (or Z), in
   the float4 of block_planes; of the forward one the bias of both halves of the columns, in [j] those of the
   pair of x[j]. */
typedef float4 epilogue_inputs[8];

/* A consumer warpgroup that stores its 64 x 128 sums, one block of 64 x 64 after the other. */
struct tile_store {
    const float32_product &p;
    const sink<float> &out;
    const slope<float> &back;
    const block_planes shared;
    size_t first_row, first_column; /* of the sums */

    __device__ tile_store(const float32_product &product, const sink<float> &to, const slope<float> &slopes,
                          char *memory, const tile &own)
        : p(product), out(to), back(slopes), shared(memory, thread_again()) {
        first_row = (size_t)(own.row_block + uniform(threadIdx.x / GROUP)) * 64;
        first_column = (size_t)own.column_block * 64;
    }

    /* Can all threads of the warpgroup access whole, aligned fours of a block? half: of the columns. */
    __device__ bool aligned(int half) const {
        const uintptr_t all = (uintptr_t)out.c | (uintptr_t)out.pre | (uintptr_t)out.bias |
                              (uintptr_t)back.output | (uintptr_t)back.pre | out.ldc * sizeof(float);
        return all % 16 == 0 && first_row + 64 <= out.m && first_column + half * 64 + 64 <= out.n;
    }

    __device__ unsigned row() const {
        return shared.warp * 16 + shared.lane / 4;
    }
    __device__ unsigned column() const {
        return shared.lane % 4 * 2;
    }

    /* The index in C of four i of this lane, for i < 8: as block_planes has them. */
    __device__ size_t at_four(int half, unsigned i) const {
        return (first_row + shared.warp * 16 + shared.lane / 8 + i % 4 * 4) * out.ldc + first_column +
               half * 64 + i / 4 * 32 + shared.lane % 8 * 4;
    }
    __device__ void load(float4 (&to)[8], const float *from, int half) const {
#pragma unroll
        for (unsigned i = 0; i < 8; i++) to[i] = *(const float4 *)(from + at_four(half, i));
    }
    __device__ void store(float *to, const fragment &x, int half) const {
        shared.each_four(x, [&](unsigned i, float4 four) { *(float4 *)(to + at_four(half, i)) = four; });
    }

    /* What the derivative reads of one half, or the bias of both. */
    __device__ void request(epilogue_inputs &in, int half) const {
        if (back.on && aligned(half)) load(in, back.pre ? back.pre : back.output, half);
        if (!out.bias || half) return;
        const float *const bias = out.bias + first_column + column();
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (aligned(0)) in[j].x = __ldg(bias + j * 8), in[j].y = __ldg(bias + j * 8 + 1);
            if (aligned(1)) in[j].z = __ldg(bias + 64 + j * 8), in[j].w = __ldg(bias + 64 + j * 8 + 1);
        }
    }

    __device__ void scale(fragment &x, int half) const {
#pragma unroll
        for (int i = 0; i < 32; i++) x[i / 4][i % 4] *= out.alpha;
        if (out.beta == 0) return;
        float4 c[8];
        load(c, out.c, half);
        shared.with_pairs(x, c, [&](float &to, float y) { to += out.beta * y; });
    }

    __device__ void forward(fragment &x, const epilogue_inputs &in, int half) const {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float left = half ? in[j].z : in[j].x, right = half ? in[j].w : in[j].y;
#pragma unroll
            for (int i = 0; i < 4; i++) x[j][i] += i % 2 ? right : left;
        }
        if (out.pre) store(out.pre, x, half);
        with_activation(
            out.activation, [&]<enum activation A>() {
#pragma unroll
                for (int i = 0; i < 32; i++) x[i / 4][i % 4] = activate(A, x[i / 4][i % 4]);
            });
    }

    __device__ void backward(fragment &x, const epilogue_inputs &in) const {
        with_activation(
            back.activation, [&]<enum activation A>() {
                shared.with_pairs(x, in, [](float &to, float y) { to *= derivative(A, y, y); });
            });
    }

    /* Any rows and columns, one element at a time, in memory of this thread; 0 outside C. */
    __device__ void store_any(fragment &x, int half) const {
        float *const own = (float *)shared.own + shared.lane;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 32; i++) own[i * 32] = x[i / 4][i % 4];
#pragma unroll 1
        for (unsigned i = 0; i < 32; i++) {
            const size_t r = first_row + row() + i / 2 % 2 * 8,
                         c = first_column + half * 64 + column() + i / 4 * 8 + i % 2;
            float &value = own[i * 32];
            if (r < out.m && c < out.n) {
                const size_t at = r * out.ldc + c;
                value = back.apply(at, out.finish(r, c, value));
                out.c[at] = value;
            } else {
                value = 0;
            }
        }
#pragma unroll
        for (int i = 0; i < 32; i++) x[i / 4][i % 4] = own[i * 32];
    }

    __device__ void store_block(fragment &x, epilogue_inputs &in, int half) const {
        const size_t column0 = first_column + half * 64;
        if (aligned(half)) {
            scale(x, half);
            if (out.bias) forward(x, in, half);
            if (back.on) {
                backward(x, in);
                if (half == 0) request(in, 1);
            }
            store(out.c, x, half);
        } else {
            store_any(x, half);
        }
        float *const totals = back.on ? p.column_partials + first_row / 64 * p.n + column0 : NULL;
        if (p.c.blocks) {
            const size_t block = first_row / 64 * p.c.column_blocks + column0 / 64;
            const unsigned raised = shared.write(x, p.c, block, totals, p.n - column0);
            if (raised) atomicOr(&p.c.flags->state, raised); /* split_wide_kernel has reset it */
        } else if (totals) {
            shared.sum_columns(x, totals, p.n - column0);
        }
    }

    /* Without anything else. */
    __device__ void store_plainly(const float (&sums)[64]) const {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const size_t r = first_row + row() + h * 8, c = first_column + column();
            if (r >= out.m) continue;
            float *at = out.c + r * out.ldc + c;
#pragma unroll
            for (int j = 0; j < 16; j++) {
                const float x = out.alpha * sums[j * 4 + h * 2], y = out.alpha * sums[j * 4 + h * 2 + 1];
                if (c + j * 8 + 1 < out.n)
                    *(float2 *)(at + j * 8) = make_float2(x, y);
                else if (c + j * 8 < out.n)
                    at[j * 8] = x;
            }
        }
    }

    __device__ bool plain() const {
        return !out.bias && !back.on && out.beta == 0 && !p.c.blocks &&
               ((uintptr_t)out.c | out.ldc * sizeof(float)) % 8 == 0;
    }

    /* requested: `in` has what request(in, 0) gives. */
    __device__ void store(const float (&sums)[64], epilogue_inputs &in, bool requested) const {
        if (!requested && plain()) return store_plainly(sums);
        if (!requested) request(in, 0);
#pragma unroll 1 /* so that the epilogues are in the instruction cache once */
        for (int half = 0; half < 2; half++) {
            if (first_row >= p.m || first_column + half * 64 >= p.n) return;
            fragment x;
#pragma unroll
            for (int i = 0; i < 32; i++) x[i / 4][i % 4] = half ? sums[32 + i] : sums[i];
            store_block(x, in, half);
        }
    }
};

} // namespace float32

#endif
