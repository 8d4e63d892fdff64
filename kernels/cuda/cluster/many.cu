/* The nearest centres of reals with many features: the slot of cuda-tuned, on compute capability 9.0.

   Idea       one product on the tensor cores, with its error (many.cuh), and the comparison in its registers
              (many_kernel.cuh). For exact labels the product is of float16; a second pass of the same kernel
              collects the candidates of the rows that the first did not decide, and a thread block for each
              such row compares them in float64 (decide.cuh). Labels of tf32 and bf16 are those of one pass.
   Bound by   the tensor cores; with few centres by the bytes of the points
   Improves   a GEMM of float32 and a pass over its scores (nearest.cu)
   Run        ./train kmeans --data uniform:512MB,128 --dtype f32 --clusters 1024 --backend cuda-tuned */
#include <stdlib.h>

#include "kernels/cuda/cluster/decide.cuh"
#include "kernels/cuda/cluster/fused.cuh"
#include "kernels/cuda/cluster/many_round.cuh"

using namespace many;

struct many_state {
    fused_nearest base;
    kernel_choice choice;
    struct nearest_centres centres;
    char *packed;
    float *bias;
    void *mean;
    centre_facts *facts;
    void *lists; /* of the rows that the first pass does not decide */
    size_t list_bytes;
};

static bool certifies(const many_state *state) {
    return state->choice.format == WGMMA_F16;
}

/* --- the centres --- */

static const int FACT_THREADS = 1024, FACT_LANES = 128, FACT_PARTS = FACT_THREADS / FACT_LANES;
static const int SAMPLE = 128; /* centres, and points */
static const int PACK_THREADS = 128;

/* The median norm of row - mean of SAMPLE rows, in all threads. */
template <typename T>
__device__ static double median_norm(size_t rows, unsigned features, const T *from, const T *mean) {
    __shared__ double of_row[SAMPLE], median;
    const unsigned count = rows < SAMPLE ? (unsigned)rows : SAMPLE, lane = threadIdx.x % 32;
    for (unsigned i = threadIdx.x / 32; i < count; i += FACT_THREADS / 32) {
        const T *row = from + rows * i / count * features;
        double squares = 0;
        for (unsigned f = lane; f < features; f += 32) {
            const double difference = (double)row[f] - (double)mean[f];
            squares += difference * difference;
        }
        for (int distance = 1; distance < 32; distance *= 2)
            squares += __shfl_xor_sync(0xffffffffu, squares, distance);
        if (lane == 0) of_row[i] = sqrt(squares);
    }
    __syncthreads();
    unsigned below = 0;
    for (unsigned i = 0; threadIdx.x < count && i < count; i++)
        below += of_row[i] < of_row[threadIdx.x] || (of_row[i] == of_row[threadIdx.x] && i < threadIdx.x);
    if (threadIdx.x < count && below == count / 2) median = of_row[threadIdx.x];
    __syncthreads();
    return median;
}

/* A block: the mean of some centres, and the share t, such that the two parts of the error are as large for a
   typical point and centre. */
template <typename T>
__global__ void __launch_bounds__(FACT_THREADS)
    facts_kernel(size_t rows, const T *x, size_t clusters, unsigned features, unsigned padded, double error,
                 const T *values, T *mean, centre_facts *facts) {
    __shared__ double parts[FACT_PARTS][FACT_LANES];
    const unsigned lane = threadIdx.x % FACT_LANES, part = threadIdx.x / FACT_LANES;
    const unsigned count = clusters < SAMPLE ? (unsigned)clusters : SAMPLE;
    for (unsigned first = 0; first < padded; first += FACT_LANES) {
        const unsigned f = first + lane;
        double sum = 0;
        for (unsigned i = part; f < features && i < count; i += FACT_PARTS)
            sum += (double)values[clusters * i / count * features + f] / count;
        parts[part][lane] = sum;
        __syncthreads();
        for (int i = 1; part == 0 && i < FACT_PARTS; i++) sum += parts[i][lane];
        if (part == 0 && f < padded) mean[f] = (T)sum;
        __syncthreads();
    }
    const double of_point = median_norm(rows, features, x, mean),
                 of_centre = median_norm(clusters, features, values, mean);
    if (threadIdx.x) return;
    facts->relative = 0x1p-22;
    facts->floor = sqrt((double)features) * 0x1p-25;                        /* float16 below 2^-14 */
    facts->share = fmax(0x1p-12, fmin(0.25, error * of_point / of_centre)); /* a NaN is ignored */
}

/* A block packs a centre. */
template <typename T, wgmma_format F>
__global__ void __launch_bounds__(PACK_THREADS)
    pack_kernel(size_t count, unsigned features, unsigned chunks, const T *values, const double *norm,
                const T *mean, char *packed, float *bias, centre_facts *facts) {
    constexpr int UNIT = format<F>::UNIT;
    __shared__ double parts[2][PACK_THREADS / 32];
    const size_t j = blockIdx.x;
    const T scale = power_of_two<T>(centre_exponent<T>(*norm));
    double squares = 0, errors = 0;
    for (unsigned unit = threadIdx.x; unit < chunks * UNITS; unit += PACK_THREADS) {
        float value[UNIT], unit_squares = 0, unit_errors = 0;
#pragma unroll
        for (int e = 0; e < UNIT; e++) {
            const unsigned f = unit * UNIT + e;
            value[e] =
                j < count && f < features ? (float)((values[j * features + f] - mean[f]) * scale) : 0.0f;
        }
        *(uint4 *)(packed + j / N * chunks * STAGE + unit_offset(N, j % N, unit)) =
            encode_unit<F>(value, &unit_squares, &unit_errors);
        squares += unit_squares;
        errors += unit_errors;
    }
    for (int offset = 16; offset; offset /= 2) {
        squares += __shfl_xor_sync(0xffffffffu, squares, offset);
        errors += __shfl_xor_sync(0xffffffffu, errors, offset);
    }
    if (threadIdx.x % 32 == 0) {
        parts[0][threadIdx.x / 32] = squares;
        parts[1][threadIdx.x / 32] = errors;
    }
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < PACK_THREADS / 32; w++) {
        squares += parts[0][w];
        errors += parts[1][w];
    }
    const double share = format<F>::CERTIFIES ? facts->share : 0;
    bias[j] = j < count ? (float)(-(1 - share) * squares / 2) : -INFINITY;
    if (j < count && format<F>::CERTIFIES && squares > 0)
        atomic_max_positive(&facts->relative,
                            fmax(0.0, sqrt(errors) - facts->floor) / sqrt(squares) * 1.0001 + 0x1p-22);
}

static bool many_centres(void *opaque, const struct nearest_centres *centres) {
    ((many_state *)opaque)->centres = *centres; /* `run` packs them */
    return true;
}

template <typename T> static void pack_centres(many_state *state, const pass &p) {
    fused_nearest *base = &state->base;
    const struct nearest_centres *centres = &state->centres;
    const T *values = (const T *)centres->values;
    T *mean = (T *)state->mean;
    const unsigned element = state->choice.format == WGMMA_TF32 ? 4 : 2;
    facts_kernel<T><<<1, FACT_THREADS, 0, base->stream>>>(
        p.rows, (const T *)p.x, centres->count, p.features, p.chunks * CHUNK / element,
        0x1p-11 + step_error(p.chunks * STEPS), values, mean, state->facts);
    CUDA_LAUNCHED(&base->fault, "facts_kernel");
    const auto pack = [&]<wgmma_format F>() {
        pack_kernel<T, F><<<p.tiles * N, PACK_THREADS, 0, base->stream>>>(
            centres->count, p.features, p.chunks, values, centres->norm, mean, state->packed, state->bias,
            state->facts);
    };
    switch (state->choice.format) {
    case WGMMA_F16:
        pack.template operator()<WGMMA_F16>();
        break;
    case WGMMA_BF16:
        pack.template operator()<WGMMA_BF16>();
        break;
    default:
        pack.template operator()<WGMMA_TF32>();
    }
    CUDA_LAUNCHED(&base->fault, "pack_kernel");
}

/* --- the points --- */

template <typename T>
__global__ void __launch_bounds__(decide::THREADS)
    decide_many_kernel(const __grid_constant__ pass p, const T *values) {
    __shared__ decide::candidates some;
    const unsigned rows = *p.list.count;
    for (unsigned i = blockIdx.x; i < rows; i += gridDim.x) {
        const size_t r = p.list.row[i], features = p.features;
        const T *x = (const T *)p.x + r * features;
        const unsigned found = p.list.found[i];
        decide::store(
            found > MOST_CANDIDATES
                ? decide::nearest_of(some, p.clusters, features, x, values, [](size_t) { return true; })
                : decide::nearest_of_listed(some, p.list.candidate + i * MOST_CANDIDATES, found, features, x,
                                            values),
            &p.label[r], p.counts);
    }
}

/* Memory for up to `rows` undecided rows. */
static bool open_lists(many_state *state, size_t rows, undecided &list) {
    fused_nearest *base = &state->base;
    const size_t header = 256, row_bytes = (3 + MOST_CANDIDATES) * sizeof(uint32_t);
    char *memory = (char *)cuda_grow(&state->lists, &state->list_bytes, header + rows * row_bytes,
                                     base->stream, &base->fault);
    if (!memory) return false;
    uint32_t *at = (uint32_t *)(memory + header);
    list = {(unsigned *)memory, at, (float *)(at + rows), at + 2 * rows, at + 3 * rows};
    return CUDA_TRY(&base->fault, cudaMemsetAsync(list.count, 0, sizeof *list.count, base->stream));
}

template <typename T> static void launch_part(many_state *state, const pass &p, bool first) {
    fused_nearest *base = &state->base;
    const unsigned processors = (unsigned)base->processors;
    if (first) pack_centres<T>(state, p);
    wgmma_launch(state->choice, false, p, processors, base->stream, &base->fault);
    if (!certifies(state)) return;
    wgmma_launch(state->choice, true, p, processors, base->stream, &base->fault);
    decide_many_kernel<T>
        <<<processors * 8, decide::THREADS, 0, base->stream>>>(p, (const T *)state->centres.values);
    CUDA_LAUNCHED(&base->fault, "decide_many_kernel");
}

static void many_run(void *opaque, const struct nearest_call *call, struct nearest_counts *counts) {
    many_state *state = (many_state *)opaque;
    const struct nearest_centres *centres = &state->centres;
    const bool single = state->choice.dtype == GEMM_F32;
    const size_t row_bytes = centres->features * (single ? 4 : 8);
    for (size_t first = 0; first < call->rows; first += PART) {
        pass p = {.x = (const char *)call->x + first * row_bytes,
                  .rows = call->rows - first < PART ? call->rows - first : PART,
                  .features = (unsigned)centres->features,
                  .chunks = state->choice.chunks,
                  .tiles = (unsigned)((centres->count + N - 1) / N),
                  .clusters = (uint32_t)centres->count,
                  .packed = state->packed,
                  .bias = state->bias,
                  .mean = state->mean,
                  .facts = state->facts,
                  .norm = call->norm + first / NEAREST_BLOCK,
                  .centre_norm = centres->norm,
                  .label = call->label + first,
                  .counts = counts};
        p.aligned = row_bytes % 16 == 0 && (uintptr_t)p.x % 16 == 0;
        if (certifies(state) && !open_lists(state, p.rows, p.list)) return;
        if (single) {
            launch_part<float>(state, p, first == 0);
        } else {
            launch_part<double>(state, p, first == 0);
        }
    }
}

/* --- the state --- */

static void many_close(void *opaque) {
    many_state *state = (many_state *)opaque;
    cudaFree(state->packed);
    cudaFree(state->bias);
    cudaFree(state->mean);
    cudaFree(state->facts);
    cudaFree(state->lists);
    free(state);
}

static void many_describe(void *opaque, char *text, size_t size) {
    static const char *const formats[] = {"float16 tensor cores before float64", "bfloat16 tensor cores",
                                          "tf32 tensor cores"};
    snprintf(text, size, "many features, maxima in registers, %s",
             formats[((many_state *)opaque)->choice.format]);
}

static const struct gemm_nearest table = {
    .close = many_close, .centres = many_centres, .run = many_run, .describe = many_describe};

static bool open_memory(many_state *state) {
    fused_nearest *base = &state->base;
    const size_t padded = (base->shape.clusters + N - 1) / N * N, bytes = state->choice.chunks * CHUNK;
    return CUDA_TRY(&base->fault, cudaMalloc((void **)&state->packed, padded * bytes)) &&
           CUDA_TRY(&base->fault, cudaMalloc((void **)&state->bias, padded * sizeof *state->bias)) &&
           CUDA_TRY(&base->fault, cudaMalloc(&state->mean, bytes / 2 * sizeof(double))) &&
           CUDA_TRY(&base->fault, cudaMalloc((void **)&state->facts, sizeof *state->facts));
}

void *cuda_nearest_many(const fused_nearest *base, char *why, size_t size) {
    const struct nearest_shape *shape = &base->shape;
    const wgmma_format format = shape->precision == NEAREST_BF16   ? WGMMA_BF16
                                : shape->precision == NEAREST_TF32 ? WGMMA_TF32
                                                                   : WGMMA_F16;
    const size_t in_chunk = CHUNK / (format == WGMMA_TF32 ? 4 : 2);
    if (format != WGMMA_F16 && shape->dtype != GEMM_F32) {
        snprintf(why, size, "they need --dtype f32");
        return NULL;
    }
    if (shape->features > in_chunk * MOST_CHUNKS) {
        snprintf(why, size, "for these reals it takes at most %zu features", in_chunk * MOST_CHUNKS);
        return NULL;
    }
    const kernel_choice choice = {shape->dtype, format,
                                  (unsigned)((shape->features + in_chunk - 1) / in_chunk)};
    if (!wgmma_open(choice, base->shared_bytes)) {
        cudaGetLastError(); /* clears the error */
        snprintf(why, size, "for these reals it needs a GPU of compute capability 9.0");
        return NULL;
    }
    many_state *state = (many_state *)calloc(1, sizeof *state);
    if (!state) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    state->base = *base;
    state->base.table = &table;
    state->choice = choice;
    if (open_memory(state)) return state;
    snprintf(why, size, "%s", state->base.fault.message);
    cudaGetLastError(); /* clears the error */
    many_close(state);
    return NULL;
}
