/* Engine fused, the form for any network: a step is a list of phases, a phase a list of tiles, and the blocks meet between phases.

   Phases     forward, layer after layer but the last: tiles of Y = act(X W + b)
              turn: a block has a row of the batch: last layer, loss, and the way back through the last layer. Beside it the next batch
              is gathered.
              back, layer after layer: tiles of dZ = (dZ' W^T) act'(Z)
              update: tiles of all dW = X^T dZ, each with its SGD in the write-back; biases; the tally
              That is 2 L - 1 meetings a step of L layers (2 of one). Updates come last, so that no weight changes while it is read.
   Padding    while the kernel runs, weights are in copies of its own, and these and all that it computes are padded with zeros to whole
              tiles: no bound is looked at inside. (A step is thousands of instructions, most of which are not multiply-adds if one
              lets them; a kernel with bounds took twice as long.)
   Tile       a warp computes 32 x 16 from slabs of 64 bytes of k that it copies for itself, two ahead, and waits for nobody. Its lanes
              have 8 x 4 outputs each, for every other pack of k, and add up at the end. The warps of a block lie side by side or share
              the k of one tile (then they add up too, in a fixed order), as fills the GPU best.
   Bound by   small batches: meetings (1.1 us each) and latency. 784-512-512-10 at batch 128: 410 MFLOP a step, 7 us at 59 TFLOP/s;
              about 60 MB through the L2 cache, 12 us; 5 meetings. See docs/performance.md.
   Same bits  whenever the same GPU runs it: every sum has one order. */
#include <cuda_pipeline.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/fused.cuh"
#include "kernels/cuda/grid.cuh"

static const int R_M = 8, R_N = 4;         /* outputs of a lane .. */
static const int LANES_M = 4, LANES_N = 4; /* .. in such a tile .. */
static const int WARP_M = LANES_M * R_M, WARP_N = LANES_N * R_N;
static const int LANES_K = 32 / LANES_M / LANES_N; /* .. for its share of k */
static const int UNIT = 16;                        /* bytes of one access */
static const int SLAB_UNITS = 4;                   /* of k */
static const int UNITS_A = 192, UNITS_B = 80;      /* of a slab at most: see slab_layout */
static const int STAGES = 3;                       /* slabs of a warp: one is multiplied, two come */
static const int MOST_CLASSES = 128;               /* a thread each, of the smallest block */

/* Elements of k in a slab. */
template <typename T> constexpr int SLAB = SLAB_UNITS *UNIT / (int)sizeof(T);

/* Warps of a block: as many as have the registers, and shared memory for their slabs. */
template <typename T> constexpr int MOST_WARPS = sizeof(T) == sizeof(float) ? 16 : 8;
static size_t shared_for(int warps) {
    return (size_t)STAGES * warps * (UNITS_A + UNITS_B) * UNIT;
}

/* --- what there is to do --- */

/* [rows][ld], padded with zeros: rows to WARP_M, columns too, but for the last layer: to WARP_N. */
template <typename T> struct phase_matrix {
    T *at;
    int ld;
};

template <typename T> struct phase_layer {
    int in, out; /* as they are */
    enum activation activation;
    phase_matrix<T> weight, velocity, input,
        grad;                /* [in][out] twice, [batch][in] (of layer 0 the first of two), [batch][out] */
    T *output, *pre;         /* as grad */
    T *bias, *bias_velocity; /* [out] */
    T *user_weight, *user_velocity, *user_bias, *user_bias_velocity; /* where they come from, and go to */
};

/* How the warps of a block lie over a tile: side by side along m and n, and in k; powers of 2, as exponents. */
struct warp_shape {
    int m, n, k;
};

struct phase_shapes {
    warp_shape forward[FUSED_MAX_LAYERS], back[FUSED_MAX_LAYERS], update;
};

struct phase_control {
    unsigned arrived; /* grid.cuh */
    int bad;          /* a loss of this launch was not finite */
};

template <typename T> struct phase_plan {
    int depth, batch, features;
    int padded_batch;
    bool quads;       /* pixels of an image may be read 4 at once */
    bool weights_fit; /* of the last layer, in shared memory */
    bool has_velocity;
    phase_layer<T> layer[FUSED_MAX_LAYERS];
    phase_shapes shapes;
    T momentum, weight_decay;
    size_t count, input_stride; /* elements between the two buffers of the batch */
    const uint8_t *images, *labels;
    const uint32_t *order;
    const double *rates;
    double *losses, *row_loss; /* row_loss: [batch] */
    int *row_correct;          /* [batch] */
    uint8_t *batch_labels;     /* [2][batch] */
    struct tally *tally;
    phase_control *control;
};

/* --- a product --- */

/* How ROWS x COLS of a matrix lie in a slab, in units of 16 bytes: ALONG k as rows of OTHER with k as columns, else k rows of OTHER. The
   pitch keeps the lanes of a warp on different banks. */
template <typename T, bool ALONG, int OTHER, int PITCH_> struct slab_layout {
    static constexpr int W = WIDEST<T>, ROWS = ALONG ? OTHER : SLAB<T>,
                         UNITS = ALONG ? SLAB_UNITS : OTHER / W, PITCH = PITCH_;
};

/* 16 bytes on their way to shared memory through the L1 cache: warps that lie side by side read the same rows or columns, and together
   four times what the block needs. (__pipeline_memcpy_async goes past that cache.) */
__device__ inline void copy_cached(void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
#else
    __pipeline_memcpy_async(to, from, UNIT);
#endif
}

/* The slabs of an operand, one after the other, on their way to shared memory. */
template <typename L, bool ALONG, typename T> struct slab_source {
    static constexpr int W = L::W, STEP = 32 / L::UNITS; /* rows of one copy */
    const T *at;
    int ld, to;

    __device__ slab_source(phase_matrix<T> from, int other, int k) : ld(from.ld) {
        const int lane = threadIdx.x % 32, row = lane / L::UNITS, unit = lane % L::UNITS;
        at = from.at + (size_t)(row + (ALONG ? other : k)) * ld + (ALONG ? k : other) + unit * W;
        to = (row * L::PITCH + unit) * W;
    }

    __device__ void copy(T *slab) {
        const T *row = at;
#pragma unroll
        for (int i = 0; i < L::ROWS / STEP; i++, row += STEP * ld)
            copy_cached(slab + to + i * STEP * L::PITCH * W, row);
        at += ALONG ? SLAB<T> : SLAB<T> * ld;
    }
};

/* Row i of a lane's outputs in its warp's tile. Along k neighbours are in other lanes, for the banks. */
template <bool ALONG> __device__ inline int row_of_lane(int i) {
    const int m = threadIdx.x % LANES_M;
    return ALONG ? m + LANES_M * i : R_M * m + i;
}

__device__ inline int col_of_lane() {
    return R_N * (threadIdx.x / LANES_M % LANES_N);
}

__device__ inline int part_of_lane() {
    return threadIdx.x / (LANES_M * LANES_N) % LANES_K;
}

/* N values for each of the lane's k of a share of a slab: of rows, or of columns, where(i). BLOCKED: the k of a lane are neighbours. */
template <typename L, bool ALONG, bool BLOCKED, int N, typename T, typename I>
__device__ inline void read_slab(T (&to)[N][L::W], const T *slab, int share, I where) {
    constexpr int W = L::W;
    const int unit = part_of_lane() + LANES_K * share;
    if (ALONG) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const pack<T, W> some = pack_at<W>(slab + (where(i) * L::PITCH + unit) * W);
#pragma unroll
            for (int e = 0; e < W; e++) to[i][e] = some.value[e];
        }
    } else {
#pragma unroll
        for (int e = 0; e < W; e++) {
            const int k = BLOCKED ? W * unit + e : part_of_lane() + LANES_K * (W * share + e);
#pragma unroll
            for (int i = 0; i < N; i += W) {
                const pack<T, W> some = pack_at<W>(slab + k * L::PITCH * W + where(i));
#pragma unroll
                for (int q = 0; q < W; q++) to[i + q][e] = some.value[q];
            }
        }
    }
}

/* Adds up over the lanes that share outputs: a lane is left with half of its rows, from R_M / 2 * part on. */
template <typename T> __device__ inline void add_lanes(T (&sum)[R_M][R_N]) {
    static_assert(LANES_K == 2, "two shares");
    const bool upper = part_of_lane();
#pragma unroll
    for (int i = 0; i < R_M / 2; i++)
#pragma unroll
        for (int j = 0; j < R_N; j++) {
            const T other =
                __shfl_xor_sync(0xffffffffu, upper ? sum[i][j] : sum[i + R_M / 2][j], LANES_M * LANES_N);
            sum[i][j] = (upper ? sum[i + R_M / 2][j] : sum[i][j]) + other;
        }
}

/* A warp's tile at (m0, n0), of slabs s0 .. s1 - 1 of k: the sums of this lane's k. */
template <bool A_ALONG, bool B_ALONG, typename T>
__device__ inline void warp_product(T (&sum)[R_M][R_N], phase_matrix<T> a, phase_matrix<T> b, int m0, int n0,
                                    int s0, int s1, T *slabs) {
    constexpr int W = WIDEST<T>, STAGE = (UNITS_A + UNITS_B) * W;
    typedef slab_layout<T, A_ALONG, WARP_M, A_ALONG ? 6 : WARP_M / W + 1> LA;
    typedef slab_layout<T, B_ALONG, WARP_N, B_ALONG ? 5 : WARP_N / W + A_ALONG> LB;
    static_assert(LA::ROWS * LA::PITCH <= UNITS_A && LB::ROWS * LB::PITCH <= UNITS_B, "a slab has its place");
    slab_source<LA, A_ALONG, T> from_a(a, m0, s0 * SLAB<T>);
    slab_source<LB, B_ALONG, T> from_b(b, n0, s0 * SLAB<T>);
    int coming = s0, ahead = 0, stage = 0;
    const auto copy = [&] {
        if (coming < s1) {
            from_a.copy(slabs + ahead);
            from_b.copy(slabs + ahead + UNITS_A * W);
        }
        __pipeline_commit();
        coming++;
        ahead = ahead == (STAGES - 1) * STAGE ? 0 : ahead + STAGE;
    };
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) copy();
#pragma unroll 1
    for (int s = s0; s < s1; s++) {
        __pipeline_wait_prior(STAGES - 2);
        __syncwarp(); /* all lanes' copies have come, and the slab before has been read */
        copy();
        const T *slab = slabs + stage;
#pragma unroll
        for (int share = 0; share < SLAB_UNITS / LANES_K; share++) {
            T of_a[R_M][W], of_b[R_N][W];
            read_slab<LA, A_ALONG, B_ALONG>(of_a, slab, share, row_of_lane<A_ALONG>);
            read_slab<LB, B_ALONG, A_ALONG>(of_b, slab + UNITS_A * W, share,
                                            [](int j) { return col_of_lane() + j; });
#pragma unroll
            for (int e = 0; e < W; e++)
#pragma unroll
                for (int i = 0; i < R_M; i++)
#pragma unroll
                    for (int j = 0; j < R_N; j++) sum[i][j] += of_a[i][e] * of_b[j][e];
        }
        stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
    }
    __pipeline_wait_prior(0);
}

/* A block's tile of the m x n product over k: finish(i, j, sums) takes WIDEST sums of a row, from column j on. */
template <bool A_ALONG, bool B_ALONG, typename T, typename F>
__device__ inline void block_tile(phase_matrix<T> a, phase_matrix<T> b, int m, int n, int k, int m0, int n0,
                                  warp_shape shape, T *shared, F finish) {
    constexpr int W = WIDEST<T>, SLABS = STAGES * (UNITS_A + UNITS_B) * W;
    const int warp = threadIdx.x / 32, wk = warp & ((1 << shape.k) - 1),
              wn = warp >> shape.k & ((1 << shape.n) - 1), wm = warp >> (shape.k + shape.n),
              rows = WARP_M << shape.m, cols = WARP_N << shape.n, slabs = k / SLAB<T>;
    const int i0 = m0 + WARP_M * wm, j0 = n0 + WARP_N * wn;
    T sum[R_M][R_N] = {};
    if (i0 < m && j0 < n)
        warp_product<A_ALONG, B_ALONG>(sum, a, b, i0, j0, slabs * wk >> shape.k, slabs * (wk + 1) >> shape.k,
                                       shared + warp * SLABS);
    add_lanes(sum);
    __syncthreads(); /* the slabs have been read: the sums take their place */
    T *part = shared + (wk * rows + WARP_M * wm) * cols + WARP_N * wn + col_of_lane();
#pragma unroll
    for (int x = 0; x < R_M / 2; x++)
#pragma unroll
        for (int j = 0; j < R_N; j += W) {
            pack<T, W> some;
#pragma unroll
            for (int q = 0; q < W; q++) some.value[q] = sum[x][j + q];
            pack_at<W>(part + row_of_lane<A_ALONG>(R_M / 2 * part_of_lane() + x) * cols + j) = some;
        }
    __syncthreads();
#pragma unroll 1
    for (int e = threadIdx.x * W; e < rows * cols; e += blockDim.x * W) {
        const int i = m0 + (e >> (4 + shape.n)), j = n0 + (e & (cols - 1));
        static_assert(WARP_N == 16, "a power of 2, as above");
        if (i >= m || j >= n) continue;
        pack<T, W> total = pack_at<W>(shared + e);
#pragma unroll 2
        for (int p = 1; p < 1 << shape.k; p++) {
            const pack<T, W> more = pack_at<W>(shared + p * rows * cols + e);
#pragma unroll
            for (int q = 0; q < W; q++) total.value[q] += more.value[q];
        }
        finish(i, j, total);
    }
    __syncthreads(); /* before the next tile */
}

__host__ __device__ inline int tiles_along(int length, int side) {
    return (length + side - 1) / side;
}

/* Those of the tiles `first`, .. that are this block's, when tiles are dealt out one by one to the blocks. Returns the number of the
   tile after the last of this product. */
template <bool A_ALONG, bool B_ALONG, typename T, typename F>
__device__ inline int block_tiles(int first, phase_matrix<T> a, phase_matrix<T> b, int m, int n, int k,
                                  warp_shape shape, T *shared, F finish) {
    const int rows = WARP_M << shape.m, cols = WARP_N << shape.n, down = tiles_along(m, rows);
    const int count = down * tiles_along(n, cols), blocks = gridDim.x;
    const int mine = (int)blockIdx.x - first % blocks;
#pragma unroll 1
    for (int t = mine < 0 ? mine + blocks : mine; t < count; t += blocks)
        block_tile<A_ALONG, B_ALONG>(a, b, m, n, k, t % down * rows, t / down * cols, shape, shared, finish);
    return first + count;
}

/* --- the phases --- */

template <typename T> struct worker {
    static constexpr int W = WIDEST<T>;
    const phase_plan<T> &plan;
    T *shared;
    unsigned awaited;
    size_t step;
    int rows; /* of the batch of this step */

    __device__ int rows_of(size_t which) const {
        const size_t left = plan.count - which * plan.batch;
        return left < (size_t)plan.batch ? (int)left : plan.batch;
    }

    __device__ static int padded(int length) {
        return (length + WARP_M - 1) / WARP_M * WARP_M;
    }

    __device__ phase_matrix<T> input_of(int l, size_t which) const {
        phase_matrix<T> input = plan.layer[l].input;
        if (l == 0) input.at += which % 2 * plan.input_stride;
        return input;
    }

    __device__ void meet_all() {
        meet(&plan.control->arrived, awaited);
    }

    /* The images of a step, `skip` of this block's rows left out. */
    __device__ void gather(size_t which, int skip) const {
        const phase_matrix<T> to = input_of(0, which);
        const int count = rows_of(which);
        for (int r = blockIdx.x + skip * gridDim.x; r < count; r += gridDim.x) {
            const uint8_t *image = plan.images + (size_t)plan.order[which * plan.batch + r] * plan.features;
            for (int j = threadIdx.x; j < plan.features; j += blockDim.x)
                to.at[(size_t)r * to.ld + j] = T(1.0 / 255.0) * T(image[j]);
        }
    }

    __device__ uint8_t *labels_of(size_t which) const {
        return plan.batch_labels + which % 2 * plan.batch;
    }

    /* The labels of a step: by the last block, which has the least to do. */
    __device__ void gather_labels(size_t which) const {
        const int count = rows_of(which);
        if (blockIdx.x != gridDim.x - 1) return;
        for (int r = threadIdx.x; r < count; r += blockDim.x)
            labels_of(which)[r] = plan.labels[plan.order[which * plan.batch + r]];
    }

    __device__ void forward(int l) const {
        const phase_layer<T> &layer = plan.layer[l];
        block_tiles<true, false>(
            0, input_of(l, step), layer.weight, plan.padded_batch, layer.grad.ld, padded(layer.in),
            plan.shapes.forward[l], shared, [&](int i, int j, pack<T, W> z) {
                const size_t at = (size_t)i * layer.grad.ld + j;
                const pack<T, W> bias = pack_at<W>(layer.bias + j);
#pragma unroll
                for (int q = 0; q < W; q++) z.value[q] += bias.value[q];
                if (layer.pre != layer.output) pack_at<W>(layer.pre + at) = z;
#pragma unroll
                for (int q = 0; q < W; q++)
                    z.value[q] = j + q < layer.out ? activate_compactly(layer.activation, z.value[q]) : T(0);
                pack_at<W>(layer.output + at) = z;
            });
    }

    /* dL/dZ of layer l - 1 from that of layer l. */
    __device__ void back(int l) const {
        const phase_layer<T> &layer = plan.layer[l], &below = plan.layer[l - 1];
        block_tiles<true, true>(0, layer.grad, layer.weight, plan.padded_batch, below.grad.ld, layer.grad.ld,
                                plan.shapes.back[l], shared, [&](int i, int j, pack<T, W> sum) {
                                    const size_t at = (size_t)i * below.grad.ld + j;
                                    const pack<T, W> y = pack_at<W>(below.output + at),
                                                     z = pack_at<W>(below.pre + at);
#pragma unroll
                                    for (int q = 0; q < W; q++)
                                        sum.value[q] *=
                                            derivative_compactly(below.activation, z.value[q], y.value[q]);
                                    pack_at<W>(below.grad.at + at) = sum;
                                });
    }

    /* SGD as kernels/ops.h has it, for N neighbours. */
    template <int N> __device__ void descend(T rate, pack<T, N> gradient, T *weight, T *velocity) const {
        pack<T, N> w = pack_at<N>(weight), v = {};
        if (plan.has_velocity) v = pack_at<N>(velocity);
#pragma unroll
        for (int q = 0; q < N; q++) {
            gradient.value[q] += plan.weight_decay * w.value[q];
            gradient.value[q] += plan.momentum * v.value[q];
            w.value[q] -= rate * gradient.value[q];
        }
        if (plan.has_velocity) pack_at<N>(velocity) = gradient;
        pack_at<N>(weight) = w;
    }

    /* 32 columns of a layer's bias: the gradient is the sum of those of dL/dZ. */
    __device__ void update_bias(const phase_layer<T> &layer, T rate, int first) const {
        const int part = threadIdx.x / 32, parts = blockDim.x / 32, col = first + threadIdx.x % 32;
        pack<T, 1> sum = {};
        if (col < layer.out)
#pragma unroll 8
            for (int r = rows * part / parts; r < rows * (part + 1) / parts; r++)
                sum.value[0] += layer.grad.at[(size_t)r * layer.grad.ld + col];
        shared[threadIdx.x] = sum.value[0];
        __syncthreads();
        if (part == 0 && col < layer.out) {
            for (int p = 1; p < parts; p++) sum.value[0] += shared[threadIdx.x + 32 * p];
            descend(rate, sum, layer.bias + col, layer.bias_velocity + col);
        }
        __syncthreads();
    }

    __device__ void update() const {
        const T rate = T(plan.rates[step]);
        const int blocks = gridDim.x, k = (rows + SLAB<T> - 1) / SLAB<T> * SLAB<T>;
        int tile = 0;
#pragma unroll 1
        for (int l = 0; l < plan.depth; l++) {
            const phase_layer<T> &layer = plan.layer[l];
            tile = block_tiles<false, false>(
                tile, input_of(l, step), layer.grad, padded(layer.in), layer.grad.ld, k, plan.shapes.update,
                shared, [&](int i, int j, pack<T, W> sum) {
                    const size_t at = (size_t)i * layer.grad.ld + j;
                    descend(rate, sum, layer.weight.at + at, layer.velocity.at + at);
                });
        }
        int turn = ((int)blockIdx.x + blocks - tile % blocks) % blocks; /* biases until it is this block's */
#pragma unroll 1
        for (int l = 0; l < plan.depth; l++)
#pragma unroll 1
            for (int col = 0; col < plan.layer[l].out; col += 32) {
                if (turn == 0) update_bias(plan.layer[l], rate, col);
                turn = turn == 0 ? blocks - 1 : turn - 1;
            }
    }

    /* What the batch did: by the last block, which has the least to do in the other phases. */
    __device__ void count_up(bool bad) const {
        if (blockIdx.x != gridDim.x - 1 || threadIdx.x >= 32) return;
        double loss = 0;
        int correct = 0;
        for (int r = threadIdx.x; r < rows; r += 32) {
            loss += plan.row_loss[r];
            correct += plan.row_correct[r];
        }
        for (int offset = 16; offset > 0; offset /= 2) {
            loss += __shfl_xor_sync(0xffffffffu, loss, offset);
            correct += __shfl_xor_sync(0xffffffffu, correct, offset);
        }
        if (threadIdx.x) return;
        plan.tally->loss_sum += loss;
        plan.tally->correct += correct;
        plan.tally->images += rows;
        plan.tally->batches++;
        if (bad && !plan.tally->bad_step) plan.tally->bad_step = plan.tally->batches;
        plan.losses[step] = loss / rows;
    }

    /* Softmax and cross-entropy of the logits z[classes] by one warp: their gradient to `g`, whose values come to `gradient` too. */
    __device__ void loss_of_row(const T *z, T *g, T *gradient, int classes, int label, int row) const {
        const int lane = threadIdx.x % 32;
        T max = -INFINITY, sum = 0;
        for (int c = lane; c < classes; c += 32) max = z[c] > max ? z[c] : max;
        for (int offset = 16; offset > 0; offset /= 2) {
            const T other = __shfl_xor_sync(0xffffffffu, max, offset);
            max = other > max ? other : max;
        }
        int best = classes;
        for (int c = lane; c < classes; c += 32) {
            if (z[c] == max) best = min(best, c);
            g[c] = d_exp(z[c] - max);
            sum += g[c];
        }
        for (int offset = 16; offset > 0; offset /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            best = min(best, __shfl_xor_sync(0xffffffffu, best, offset));
        }
        const T scale = T(1.0 / rows), factor = scale / sum;
        for (int c = lane; c < classes; c += 32)
            gradient[c] = g[c] = g[c] * factor - (c == label ? scale : T(0));
        if (lane) return;
        const double loss = label < classes ? log((double)sum) - ((double)z[label] - (double)max) : NAN;
        plan.row_loss[row] = loss;
        plan.row_correct[row] = best == label && sum > 0;
        if (!isfinite(loss)) plan.control->bad = 1;
    }

    /* What a turn keeps in shared memory before the weights: partial sums, logits and their gradients, and a row of the input. */
    __device__ T *input_place() const {
        return shared + 3 * blockDim.x;
    }

    /* Copies, all reads at once: it is their latency that costs. */
    __device__ void stage(T *to, const T *from, int count) const {
        for (int e = threadIdx.x * W; e < count; e += blockDim.x * W)
            __pipeline_memcpy_async(to + e, from + e, UNIT);
    }

    /* Row r through the last layer, whose weights are at `weight`, and back. */
    __device__ void turn_row(int r, const T *weight) const {
        const phase_layer<T> &last = plan.layer[plan.depth - 1];
        const int classes = last.out, ld = last.grad.ld, threads = blockDim.x, groups = threads / classes,
                  t = threadIdx.x;
        const phase_matrix<T> from = input_of(plan.depth - 1, step);
        const int label = labels_of(step)[r], c = t % classes;
        const T *input = from.at + (size_t)r * from.ld;
        T *part = shared, *logits = shared + threads, *gradient = logits + threads, sum = 0;
        if (plan.weights_fit) {
            stage(input_place(), input, from.ld);
            input = input_place();
            __pipeline_commit();
            __pipeline_wait_prior(0);
            __syncthreads(); /* for the weights too */
        }
        if (t < groups * classes)
#pragma unroll 4
            for (int k = t / classes; k < last.in; k += groups) sum += input[k] * weight[k * ld + c];
        part[t] = sum;
        __syncthreads();
        if (t < classes) {
#pragma unroll 4
            for (int p = 1; p < groups; p++) sum += part[t + p * classes];
            logits[t] = sum + last.bias[t];
        }
        __syncthreads();
        if (t < 32) loss_of_row(logits, gradient, last.grad.at + (size_t)r * ld, classes, label, r);
        __syncthreads();
        if (plan.depth > 1) {
            const phase_layer<T> &below = plan.layer[plan.depth - 2];
            const size_t row = (size_t)r * below.grad.ld;
            for (int k = t; k < last.in; k += threads) {
                const T y = below.output[row + k], z = below.pre[row + k];
                T value = 0;
#pragma unroll 5
                for (int o = 0; o < classes; o++) value += gradient[o] * weight[k * ld + o];
                below.grad.at[row + k] = value * derivative_compactly(below.activation, z, y);
            }
        }
        __syncthreads(); /* before the next row */
    }

    /* Rows that a partial batch does not have: nothing comes from them. */
    __device__ void clear_row(int r) const {
        for (int l = max(plan.depth - 2, 0); l < plan.depth; l++) {
            const phase_matrix<T> &grad = plan.layer[l].grad;
            for (int j = threadIdx.x; j < grad.ld; j += blockDim.x) grad.at[(size_t)r * grad.ld + j] = 0;
        }
    }

    /* The turn, and the pixels of the step after it: those of the first row are on their way meanwhile. */
    __device__ void turn(bool another) const {
        const phase_layer<T> &last = plan.layer[plan.depth - 1];
        const int t = 4 * threadIdx.x, next = another ? rows_of(step + 1) : 0;
        const bool ahead = plan.quads && plan.features <= 4 * (int)blockDim.x && (int)blockIdx.x < next;
        const T *weight = last.weight.at;
        pack<uint8_t, 4> pixels = {};
        if (plan.weights_fit && (int)blockIdx.x < rows) {
            T *const place = input_place() + last.input.ld;
            stage(place, weight, last.in * last.grad.ld);
            weight = place;
        }
        if (ahead && t < plan.features)
            pixels = pack_at<4>(plan.images +
                                (size_t)plan.order[(step + 1) * plan.batch + blockIdx.x] * plan.features + t);
#pragma unroll 1
        for (int r = blockIdx.x; r < plan.batch; r += gridDim.x) {
            if (r < rows) {
                turn_row(r, weight);
            } else {
                clear_row(r);
            }
        }
        if (!another) return;
        if (ahead && t < plan.features) {
            const phase_matrix<T> to = input_of(0, step + 1);
#pragma unroll
            for (int q = 0; q < 4; q++)
                to.at[(size_t)blockIdx.x * to.ld + t + q] = T(1.0 / 255.0) * T(pixels.value[q]);
        }
        gather(step + 1, ahead);
        gather_labels(step + 1);
    }

    /* --- before and after --- */

    /* Rows of `cols`, from a dense matrix to a padded one or back. */
    __device__ void copy_rows(T *to, int to_ld, const T *from, int from_ld, int count, int cols) const {
        for (int r = blockIdx.x; r < count; r += gridDim.x)
            for (int j = threadIdx.x; j < cols; j += blockDim.x)
                to[(size_t)r * to_ld + j] = from[(size_t)r * from_ld + j];
    }

    __device__ void load_weights() const {
        for (int l = 0; l < plan.depth; l++) {
            const phase_layer<T> &layer = plan.layer[l];
            copy_rows(layer.weight.at, layer.weight.ld, layer.user_weight, layer.out, layer.in, layer.out);
            copy_rows(layer.bias, 0, layer.user_bias, 0, 1, layer.out);
            if (!plan.has_velocity) continue;
            copy_rows(layer.velocity.at, layer.velocity.ld, layer.user_velocity, layer.out, layer.in,
                      layer.out);
            copy_rows(layer.bias_velocity, 0, layer.user_bias_velocity, 0, 1, layer.out);
        }
    }

    __device__ void store_weights() const {
        for (int l = 0; l < plan.depth; l++) {
            const phase_layer<T> &layer = plan.layer[l];
            copy_rows(layer.user_weight, layer.out, layer.weight.at, layer.weight.ld, layer.in, layer.out);
            copy_rows(layer.user_bias, 0, layer.bias, 0, 1, layer.out);
            if (!plan.has_velocity) continue;
            copy_rows(layer.user_velocity, layer.out, layer.velocity.at, layer.velocity.ld, layer.in,
                      layer.out);
            copy_rows(layer.user_bias_velocity, 0, layer.bias_velocity, 0, 1, layer.out);
        }
    }
};

/* Steps first .. end - 1; it stops after one whose loss is not finite, which changes no weight. */
template <typename T>
__global__ void __launch_bounds__(32 * MOST_WARPS<T>, 1)
    phases_kernel(const __grid_constant__ phase_plan<T> plan, size_t first, size_t end) {
    extern __shared__ double2 memory[];
    worker<T> me = {plan, reinterpret_cast<T *>(memory), 0, first, 0};
    const int depth = plan.depth;
    bool bad = false;
    if (plan.tally->bad_step) return; /* as every update after a bad step */
    me.load_weights();
    me.gather(first, 0);
    me.gather_labels(first);
    me.meet_all();
    step_laps laps;
    laps.start();
    for (; me.step < end && !bad; me.step++) {
        me.rows = me.rows_of(me.step);
        for (int l = 0; l < depth - 1; l++) {
            me.forward(l);
            laps.lap(l ? 2 : 0);
            me.meet_all();
            laps.lap(l ? 3 : 1);
        }
        me.turn(me.step + 1 < end);
        laps.lap(4);
        me.meet_all();
        laps.lap(5);
        bad = __ldcg(&plan.control->bad); /* all blocks alike */
        for (int l = depth - 2; l > 0 && !bad; l--) {
            me.back(l);
            laps.lap(6);
            me.meet_all();
            laps.lap(7);
        }
        if (!bad) me.update();
        laps.lap(8);
        me.count_up(bad);
        me.meet_all();
        laps.lap(9);
    }
    laps.print("phases", end - first);
    me.store_weights();
}

/* --- on the host --- */

struct phases_state {
    tuned_context *context;
    fused_network network;
    void *plan;   /* a phase_plan */
    void *memory; /* of the GPU */
    phase_control *control;
    int blocks, warps;
};

/* 0: not even the smallest block fits. */
static int warps_for(const tuned_context *context, enum gemm_dtype dtype) {
    int warps = dtype == GEMM_F32 ? MOST_WARPS<float> : MOST_WARPS<double>;
    while (warps * 32 >= MOST_CLASSES && context->shared_bytes < (int)shared_for(warps)) warps /= 2;
    return warps * 32 >= MOST_CLASSES ? warps : 0;
}

static size_t padded(size_t length) {
    return (length + WARP_M - 1) / WARP_M * WARP_M;
}

/* Columns of a layer's output: the last one is no layer's input. */
static size_t columns_of(const fused_network &network, size_t l) {
    const size_t out = network.layer[l].out;
    return l + 1 < network.depth ? padded(out) : (out + WARP_N - 1) / WARP_N * WARP_N;
}

static size_t tiles_for(size_t m, size_t n, warp_shape shape) {
    return (size_t)tiles_along((int)padded(m), WARP_M << shape.m) *
           (size_t)tiles_along((int)n, WARP_N << shape.n);
}

/* Cycles of an SM for `tiles` tiles over `k`, dealt out to `blocks` blocks: the multiply-adds of the longest share of k, at two thirds of
   the rate, and what it takes to start, add up and write. */
static double cycles_for(size_t tiles, warp_shape shape, size_t k, int blocks) {
    const double area = (double)(WARP_M << shape.m) * (WARP_N << shape.n), parts = 1 << shape.k;
    const double slabs = ceil((double)k / 16 / parts) * parts;
    return (double)((tiles + blocks - 1) / blocks) *
           (1.5 * area * slabs * 16 / 128 + 1500 + area * parts / 16);
}

/* The best shape for `count` products of m[i] x n[i] over k, in one phase. */
static warp_shape best_shape(size_t count, const size_t *m, const size_t *n, size_t k, int blocks, int warps,
                             double *cycles) {
    int all = 0;
    while (2 << all <= warps) all++;
    warp_shape best = {0, 0, all};
    double least = INFINITY;
    for (int down = 0; down <= all; down++)
        for (int across = down; down + across <= all && across <= down + 1; across++) {
            const warp_shape shape = {down, across, all - down - across};
            size_t tiles = 0;
            for (size_t i = 0; i < count; i++) tiles += tiles_for(m[i], n[i], shape);
            const double needed = cycles_for(tiles, shape, k, blocks);
            if (needed < least) {
                least = needed;
                best = shape;
            }
        }
    *cycles += least;
    return best;
}

/* Shapes for every phase; returns the cycles of a step, but for meetings. */
static double shape_phases(const fused_network *network, int blocks, int warps, phase_shapes *shapes) {
    size_t in[FUSED_MAX_LAYERS], out[FUSED_MAX_LAYERS];
    double cycles = 0;
    for (size_t l = 0; l < network->depth; l++) {
        in[l] = network->layer[l].in;
        out[l] = network->layer[l].out;
        if (l + 1 < network->depth)
            shapes->forward[l] = best_shape(1, &network->batch, &out[l], in[l], blocks, warps, &cycles);
        if (l > 0 && l + 1 < network->depth)
            shapes->back[l] = best_shape(1, &network->batch, &in[l], out[l], blocks, warps, &cycles);
    }
    shapes->update = best_shape(network->depth, in, out, network->batch, blocks, warps, &cycles);
    const size_t last = network->depth - 1, rows = (network->batch + blocks - 1) / blocks;
    return cycles + (double)rows * (3000 + 2.0 * (double)(in[last] * out[last]) / 32);
}

template <typename T> static size_t lay_out(const phases_state *state, phase_plan<T> *plan, char *base) {
    const fused_network &network = state->network;
    const size_t batch = padded(network.batch);
    size_t used = 0, ld = padded(network.features);
    plan->control = (phase_control *)fused_take(base, &used, sizeof *plan->control);
    plan->input_stride = batch * ld;
    T *input = (T *)fused_take(base, &used, 2 * plan->input_stride * sizeof(T));
    for (size_t l = 0; l < network.depth; l++) {
        const fused_layer &layer = network.layer[l];
        phase_layer<T> &to = plan->layer[l];
        const size_t out = columns_of(network, l), bytes = batch * out * sizeof(T),
                     weights = ld * out * sizeof(T);
        to.in = (int)layer.in;
        to.out = (int)layer.out;
        to.activation = layer.activation;
        to.user_weight = (T *)layer.weight;
        to.user_velocity = (T *)layer.weight_velocity;
        to.user_bias = (T *)layer.bias;
        to.user_bias_velocity = (T *)layer.bias_velocity;
        to.weight = {(T *)fused_take(base, &used, weights), (int)out};
        to.velocity = {(T *)fused_take(base, &used, plan->has_velocity ? weights : 0), (int)out};
        to.bias = (T *)fused_take(base, &used, out * sizeof(T));
        to.bias_velocity = (T *)fused_take(base, &used, out * sizeof(T));
        to.input = {input, (int)ld};
        to.output = (T *)fused_take(base, &used, bytes);
        to.pre = activation_needs_input(layer.activation) ? (T *)fused_take(base, &used, bytes) : to.output;
        to.grad = {(T *)fused_take(base, &used, bytes), (int)out};
        input = to.output;
        ld = out;
    }
    plan->row_loss = (double *)fused_take(base, &used, batch * sizeof *plan->row_loss);
    plan->batch_labels = (uint8_t *)fused_take(base, &used, 2 * batch);
    plan->row_correct = (int *)fused_take(base, &used, batch * sizeof *plan->row_correct);
    return used;
}

template <typename T> static bool set_up(phases_state *state) {
    const fused_network &network = state->network;
    const cudaStream_t stream = state->context->stream;
    cuda_fault *fault = &state->context->fault;
    phase_plan<T> *plan = (phase_plan<T> *)calloc(1, sizeof *plan);
    if (!plan) return false;
    state->plan = plan;
    plan->depth = (int)network.depth;
    plan->batch = (int)network.batch;
    plan->padded_batch = (int)padded(network.batch);
    plan->features = (int)network.features;
    plan->quads = packs_fit(network.images, network.features, network.features, 4);
    plan->has_velocity = network.layer[0].weight_velocity != NULL;
    plan->momentum = (T)network.momentum;
    plan->weight_decay = (T)network.weight_decay;
    plan->count = network.count;
    plan->images = network.images;
    plan->labels = network.labels;
    plan->order = network.order;
    plan->rates = network.rates;
    plan->losses = network.losses;
    plan->tally = network.tally;
    const fused_layer &last = network.layer[network.depth - 1];
    const size_t turn =
        3 * 32 * state->warps + padded(last.in) + last.in * columns_of(network, network.depth - 1);
    plan->weights_fit = turn * sizeof(T) <= shared_for(state->warps);
    shape_phases(&network, state->blocks, state->warps, &plan->shapes);
    const size_t bytes = lay_out(state, plan, NULL);
    if (!CUDA_TRY(fault, cudaMalloc(&state->memory, bytes)) ||
        !CUDA_TRY(fault, cudaMemsetAsync(state->memory, 0, bytes, stream)))
        return false;
    lay_out(state, plan, (char *)state->memory);
    state->control = plan->control;
    return CUDA_TRY(fault, cudaStreamSynchronize(stream)) &&
           CUDA_TRY(fault, cudaFuncSetAttribute((const void *)phases_kernel<T>,
                                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                (int)shared_for(state->warps)));
}

static const double CLOCK = 1.7e9, MEETING = 1.1e-6; /* Hz, s: of an H100; others are in proportion */

static double phases_estimate(const tuned_context *context, const fused_network *network, char *why,
                              size_t size) {
    phase_shapes shapes;
    if (network->dtype != GEMM_F32 && network->dtype != GEMM_F64) {
        snprintf(why, size, "it has float32 and float64 only");
        return 0;
    }
    if (network->layer[network->depth - 1].out > (size_t)MOST_CLASSES) {
        snprintf(why, size, "it takes up to %d classes", MOST_CLASSES);
        return 0;
    }
    const int warps = warps_for(context, network->dtype);
    if (!warps) {
        snprintf(why, size, "it needs %zu bytes of shared memory a block", shared_for(MOST_CLASSES / 32));
        return 0;
    }
    const double slower = network->dtype == GEMM_F64 ? 2 : 1;
    return slower * shape_phases(network, context->processors, warps, &shapes) / CLOCK +
           MEETING * (double)(2 * network->depth - 1);
}

static void phases_close(void *opaque) {
    phases_state *state = (phases_state *)opaque;
    cudaFree(state->memory);
    free(state->plan);
    free(state);
}

static void *phases_open(tuned_context *context, const fused_network *network, char *why, size_t size) {
    phases_state *state = (phases_state *)calloc(1, sizeof *state);
    if (!state) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    state->context = context;
    state->network = *network;
    state->blocks = context->processors;
    state->warps = warps_for(context, network->dtype);
    if (network->dtype == GEMM_F32 ? set_up<float>(state) : set_up<double>(state)) return state;
    snprintf(why, size, "%s", context->fault.message[0] ? context->fault.message : "out of memory");
    phases_close(state);
    return NULL;
}

static size_t phases_run(void *opaque, size_t first, size_t count) {
    phases_state *state = (phases_state *)opaque;
    cuda_fault *fault = &state->context->fault;
    const cudaStream_t stream = state->context->stream;
    const void *kernel = state->network.dtype == GEMM_F32 ? (const void *)phases_kernel<float>
                                                          : (const void *)phases_kernel<double>;
    size_t end = first + count;
    void *arguments[] = {state->plan, &first, &end};
    const bool ran =
        CUDA_TRY(fault, cudaMemsetAsync(state->control, 0, sizeof *state->control, stream)) &&
        CUDA_TRY(fault, cudaLaunchCooperativeKernel(kernel, dim3(state->blocks), dim3(32 * state->warps),
                                                    arguments, shared_for(state->warps), stream));
    return ran ? count : 0;
}

static void phases_describe(void *opaque, char *text, size_t size) {
    const phases_state *state = (const phases_state *)opaque;
    snprintf(text, size, "phases of tiles on %d blocks", state->blocks);
}

const fused_form fused_phases = {phases_estimate, phases_open, phases_close, phases_run, phases_describe};
