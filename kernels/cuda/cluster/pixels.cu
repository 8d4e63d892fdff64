/* The nearest centres of pixels, by integer products: the slot of cuda-tuned.

   Idea       as kernels/host/tuned/nearest_int8.c: pixels are bytes already, and a centre is two slices of
              signed bytes. The products are exact on the int8 tensor cores (pixels_kernel.cuh). A second
              pass of the same kernel collects the candidates of the rows that the first did not decide,
              and a thread block for each such row compares them in float64 (decide.cuh).
   Bound by   the pixels for few centres, 47 MB for MNIST: 11 us at 4.2 TB/s; for many the tensor cores: 188
              Gop for 1,000 centres, 0.1 ms at 1,979 Top/s, which mma.sync does not reach
   Improves   a GEMM of float32 and a pass over its scores (nearest.cu)
   Run        ./train kmeans --backend cuda-tuned --clusters 1000 */
#include <stdlib.h>

#include "kernels/cuda/cluster/decide.cuh"
#include "kernels/cuda/cluster/lloyd.cuh"
#include "kernels/cuda/cluster/pixels_wgmma.cuh"

using namespace pixels;

typedef tile_shape<4, 1, 1, 2, 3> narrow; /* 64 rows, 16 centres */
typedef tile_shape<4, 1, 1, 4, 3> small;  /* 64 rows, 32 centres */
typedef tile_shape<2, 2, 2, 4, 2> medium; /* 64 rows, 64 centres */
typedef tile_shape<2, 4, 4, 4, 1> wide;   /* 128 rows, 128 centres */

struct pixel_state {
    fused_nearest base;
    int kind;   /* the index of the tile shape */
    bool wgmma; /* for `wide` and aligned rows */
    unsigned pitch, chunks;
    struct nearest_centres centres;
    int8_t *packed;
    int *bias;
    double *rounding;
    void *lists; /* of the rows that the first pass does not decide */
    size_t list_bytes;
    struct cuda_lloyd *lloyd; /* NULL: iterations are done step by step */
};

/* Calls `function<S>()` with a tile shape. */
template <typename F> static auto with_shape(int kind, F function) {
    if (kind == 0) return function.template operator()<narrow>();
    if (kind == 1) return function.template operator()<small>();
    if (kind == 2) return function.template operator()<medium>();
    return function.template operator()<wide>();
}

/* --- the centres --- */

static const int PACK_THREADS = 128;

/* A block packs a centre; those beyond the last one are 0, with a bias below every score. */
template <typename S>
__global__ void __launch_bounds__(PACK_THREADS)
    pack_kernel(size_t count, unsigned features, unsigned chunks, const float *values, int8_t *packed,
                int *bias, double *rounding) {
    __shared__ double parts[2][PACK_THREADS / 32];
    const size_t j = blockIdx.x;
    double left = 0, square = 0;
    for (unsigned f = threadIdx.x * 4; f < chunks * CHUNK; f += PACK_THREADS * 4) {
        uint32_t high = 0, low = 0;
        for (unsigned e = 0; e < 4; e++) {
            const double c = j < count && f + e < features ? (double)values[j * features + f + e] : 0;
            const slices of = slices_of(c);
            left += of.square_of_error;
            square += c * c;
            high |= (uint32_t)(of.high & 255) << 8 * e;
            low |= (uint32_t)(of.low & 255) << 8 * e;
        }
        *(uint32_t *)(packed + packed_offset<S>(j, f, 0, chunks)) = high;
        *(uint32_t *)(packed + packed_offset<S>(j, f, 1, chunks)) = low;
    }
    for (int offset = 16; offset; offset /= 2) {
        left += __shfl_xor_sync(0xffffffffu, left, offset);
        square += __shfl_xor_sync(0xffffffffu, square, offset);
    }
    if (threadIdx.x % 32 == 0) {
        parts[0][threadIdx.x / 32] = left;
        parts[1][threadIdx.x / 32] = square;
    }
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < PACK_THREADS / 32; w++) {
        left += parts[0][w];
        square += parts[1][w];
    }
    bias[j] = j < count ? bias_of(square, &left) : LOWEST;
    if (j < count) atomic_max_positive(rounding, rounding_of(left));
}

static bool pixels_centres(void *opaque, const struct nearest_centres *centres) {
    pixel_state *state = (pixel_state *)opaque;
    fused_nearest *base = &state->base;
    state->centres = *centres;
    CUDA_TRY(&base->fault, cudaMemsetAsync(state->rounding, 0, sizeof *state->rounding, base->stream));
    with_shape(state->kind, [&]<typename S>() {
        const size_t padded = (centres->count + S::N - 1) / S::N * S::N;
        pack_kernel<S><<<(unsigned)padded, PACK_THREADS, 0, base->stream>>>(
            centres->count, (unsigned)centres->features, state->chunks, (const float *)centres->values,
            state->packed, state->bias, state->rounding);
    });
    CUDA_LAUNCHED(&base->fault, "pack_kernel");
    return true;
}

/* --- the points --- */

__global__ void __launch_bounds__(decide::THREADS)
    decide_candidates_kernel(const __grid_constant__ pass p, const float *values) {
    __shared__ decide::candidates some;
    const unsigned rows = *p.list.count;
    for (unsigned i = blockIdx.x; i < rows; i += gridDim.x) {
        const size_t r = p.list.row[i], features = p.features;
        const uint8_t *x = p.x + r * features;
        const unsigned found = p.list.found[i];
        if (found > MOST_CANDIDATES) {
            decide::store(
                decide::nearest_of(some, p.clusters, features, x, values, [](size_t) { return true; }),
                &p.label[r], p.counts);
            continue;
        }
        decide::store(decide::nearest_of_listed(some, p.list.candidate + i * MOST_CANDIDATES, found, features,
                                                x, values),
                      &p.label[r], p.counts);
    }
}

/* Memory for up to `rows` undecided rows. */
static bool open_lists(pixel_state *state, size_t rows, undecided &list) {
    fused_nearest *base = &state->base;
    const size_t header = 256, row_bytes = (3 + MOST_CANDIDATES) * sizeof(uint32_t);
    char *memory = (char *)cuda_grow(&state->lists, &state->list_bytes, header + rows * row_bytes,
                                     base->stream, &base->fault);
    if (!memory) return false;
    uint32_t *at = (uint32_t *)(memory + header);
    list = {(unsigned *)memory, at, (int *)(at + rows), at + 2 * rows, at + 3 * rows};
    return CUDA_TRY(&base->fault, cudaMemsetAsync(list.count, 0, sizeof *list.count, base->stream));
}

template <typename S> static void launch_part(pixel_state *state, pass &p) {
    fused_nearest *base = &state->base;
    const size_t tiles = (p.rows + S::M - 1) / S::M, most = (size_t)base->processors * S::BLOCKS;
    const size_t shared = S::shared_bytes(state->pitch);
    p.tiles = (unsigned)((state->centres.count + S::N - 1) / S::N);
    if (S::N == wide::N && state->wgmma && p.aligned) {
        wgmma_launch(p, (unsigned)base->processors, base->stream, &base->fault);
    } else {
        const unsigned grid = (unsigned)(tiles < most ? tiles : most);
        score_kernel<S, false><<<grid, S::THREADS, shared, base->stream>>>(p);
        CUDA_LAUNCHED(&base->fault, "score_kernel");
    }
    if (!p.certify) return;
    score_kernel<S, true><<<(unsigned)most, S::THREADS, shared, base->stream>>>(p);
    CUDA_LAUNCHED(&base->fault, "score_kernel of the undecided rows");
    decide_candidates_kernel<<<(unsigned)base->processors * 8, decide::THREADS, 0, base->stream>>>(
        p, (const float *)state->centres.values);
    CUDA_LAUNCHED(&base->fault, "decide_candidates_kernel");
}

static void pixels_run(void *opaque, const struct nearest_call *call, struct nearest_counts *counts) {
    pixel_state *state = (pixel_state *)opaque;
    const size_t features = state->centres.features;
    for (size_t first = 0; first < call->rows; first += PART) {
        pass p = {.x = (const uint8_t *)call->x + first * features,
                  .rows = call->rows - first < PART ? call->rows - first : PART,
                  .features = (unsigned)features,
                  .pitch = state->pitch,
                  .chunks = state->chunks,
                  .clusters = (uint32_t)state->centres.count,
                  .packed = state->packed,
                  .bias = state->bias,
                  .rounding = state->rounding,
                  .norm = call->norm + first / NEAREST_BLOCK,
                  .certify = call->certify,
                  .label = call->label + first,
                  .counts = counts};
        p.aligned = features % 16 == 0 && (uintptr_t)p.x % 16 == 0;
        if (!open_lists(state, p.rows, p.list)) return;
        with_shape(state->kind, [&]<typename S>() { launch_part<S>(state, p); });
    }
}

/* --- the state --- */

static size_t pixels_lloyd(void *opaque, const struct nearest_lloyd *run, struct nearest_iteration *record) {
    pixel_state *state = (pixel_state *)opaque;
    return state->lloyd ? cuda_lloyd_run(state->lloyd, run, record, &state->base.fault) : 0;
}

static void pixels_close(void *opaque) {
    pixel_state *state = (pixel_state *)opaque;
    cuda_lloyd_close(state->lloyd);
    cudaFree(state->packed);
    cudaFree(state->bias);
    cudaFree(state->rounding);
    cudaFree(state->lists);
    free(state);
}

static void pixels_describe(void *opaque, char *text, size_t size) {
    with_shape(((pixel_state *)opaque)->kind, [&]<typename S>() {
        snprintf(text, size, "pixels by two slices of the centres, int8 tensor cores, tiles of %d x %d%s",
                 S::M, S::N, ((pixel_state *)opaque)->lloyd ? "; all iterations in one launch" : "");
    });
}

static const struct gemm_nearest table = {.close = pixels_close,
                                          .centres = pixels_centres,
                                          .run = pixels_run,
                                          .describe = pixels_describe,
                                          .lloyd = pixels_lloyd};

template <typename S> static bool open_memory(pixel_state *state) {
    fused_nearest *base = &state->base;
    const size_t padded = (base->shape.clusters + S::N - 1) / S::N * S::N;
    const int shared = (int)S::shared_bytes(state->pitch);
    return CUDA_TRY(&base->fault, cudaMalloc((void **)&state->packed, padded * state->chunks * CHUNK * 2)) &&
           CUDA_TRY(&base->fault, cudaMalloc((void **)&state->bias, padded * sizeof *state->bias)) &&
           CUDA_TRY(&base->fault, cudaMalloc((void **)&state->rounding, sizeof *state->rounding)) &&
           CUDA_TRY(&base->fault,
                    cudaFuncSetAttribute(score_kernel<S, false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         shared)) &&
           CUDA_TRY(&base->fault, cudaFuncSetAttribute(score_kernel<S, true>,
                                                       cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
}

/* The tile shape for so many centres, or a narrower one if the rows do not fit; -1: none. */
static int choose(const fused_nearest *base, unsigned pitch) {
    const size_t clusters = base->shape.clusters, limit = (size_t)base->shared_bytes;
    for (int kind = clusters <= 16 ? 0 : clusters <= 32 ? 1 : clusters <= 64 ? 2 : 3; kind >= 0; kind--)
        if (with_shape(kind, [&]<typename S>() { return S::shared_bytes(pitch) <= limit; })) return kind;
    return -1;
}

void *cuda_nearest_pixels(const fused_nearest *base, char *why, size_t size) {
    if (base->shape.dtype != GEMM_F32 || base->shape.features > 8192) {
        snprintf(why, size, "for pixels it needs dtype f32 and at most 8192 features");
        return NULL;
    }
    const unsigned pitch = pitch_for(base->shape.features);
    const int kind = choose(base, pitch);
    if (kind < 0) {
        snprintf(why, size, "rows of %zu pixels do not fit into shared memory", base->shape.features);
        return NULL;
    }
    pixel_state *state = (pixel_state *)calloc(1, sizeof *state);
    if (!state) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    state->base = *base;
    state->base.table = &table;
    state->kind = kind;
    state->pitch = pitch;
    state->chunks = (unsigned)((base->shape.features + CHUNK - 1) / CHUNK);
    if (with_shape(kind, [&]<typename S>() { return open_memory<S>(state); })) {
        state->lloyd = cuda_lloyd_open(base);
        state->wgmma = wgmma_open(state->chunks, base->shared_bytes);
        return state;
    }
    snprintf(why, size, "%s", state->base.fault.message);
    cudaGetLastError(); /* clears the error */
    pixels_close(state);
    return NULL;
}
