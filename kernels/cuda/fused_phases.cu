/* Engine fused, the form for any network: a step is a list of phases, a phase a list of tiles, and the blocks meet between phases.

   Phases     forward, layer after layer but the last: tiles of Y = act(X W + b)
              turn: a block has a row of the batch: last layer, loss, and the way back through the last layer. Beside it the next batch
              is gathered.
              back, layer after layer: tiles of dZ = (dZ' W^T) act'(Z)
              update: tiles of all dW = X^T dZ, each with its SGD in the write-back; biases; the tally
              That is 2 L - 1 meetings a step of L layers. Updates come last, so that no weight changes while it is read.
   Tile       a warp computes 32 x 16 from slabs of 64 bytes of k that it copies for itself, some ahead, and waits for nobody. Its lanes
              have 8 x 8 outputs each, for every fourth pack of k: 16 multiply-adds for 16 bytes of shared memory, which is what that
              memory can give; at the end they add up. The 8 warps of a block lie side by side or share the k of one tile (then they
              add up too), as fills the GPU best.
   Bound by   small batches: meetings (1 us each) and latency. 784-512-512-10 at batch 128: 410 MFLOP a step, 7 us at 59 TFLOP/s;
              about 50 MB through the L2 cache, 9 us; 5 meetings.
   Same bits  whenever the same GPU runs it: every sum has one order. */
#include <cuda_pipeline.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/fused.cuh"
#include "kernels/cuda/grid.cuh"

static const int WARPS = 8, THREADS = 32 * WARPS;
static const int R = 8;                          /* a lane has R x R outputs .. */
static const int LANES_M = 4, LANES_N = 2;        /* .. of such a tile .. */
static const int WARP_M = LANES_M * R, WARP_N = LANES_N * R;
static const int LANES_K = 32 / LANES_M / LANES_N; /* .. for its share of k */
static const int UNIT = 16;                       /* bytes of one access */
static const int SLAB_UNITS = LANES_K;            /* of k */
static const int UNITS_A = 144, UNITS_B = 80;     /* of a slab at most: see slab_layout */
static const int MOST_STAGES = 4;                 /* slabs of a warp: one is multiplied, the others come */

/* Elements of k in a slab. */
template <typename T> constexpr int SLAB = SLAB_UNITS * UNIT / (int)sizeof(T);
__host__ __device__ static constexpr size_t shared_for(int stages) {
    return (size_t)stages * WARPS * (UNITS_A + UNITS_B) * UNIT;
}

/* --- what there is to do --- */

template <typename T> struct fused_matrix {
    T *at;
    size_t ld;
    bool packs; /* rows may be read in packs of 16 bytes */
};

template <typename T> struct phase_layer {
    int in, out;
    enum activation activation;
    fused_matrix<T> weight, input, grad; /* [in][out]; [batch][in], of layer 0 the first of two; [batch][out] */
    T *bias, *weight_velocity, *bias_velocity, *output, *pre; /* output and pre: [batch][out] with the ld of grad */
};

/* How the warps of a block lie over a tile: side by side along m and n, and in k. */
struct warp_shape { int m, n, k; };

struct phase_shapes {
    warp_shape forward[FUSED_MAX_LAYERS], back[FUSED_MAX_LAYERS], update;
};

struct phase_control {
    unsigned arrived; /* grid.cuh */
    int bad;          /* a loss of this launch was not finite */
};

template <typename T> struct phase_plan {
    int depth, batch, features;
    int stages; /* slabs in shared memory: MOST_STAGES, or 2 where they do not fit */
    bool quads; /* pixels of an image may be read 4 at once */
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

template <typename T> struct operand {
    fused_matrix<T> from;
    int rows, cols;
};

/* How ROWS x COLS of a matrix lie in a slab, in units of 16 bytes: ALONG k as rows of OTHER with k as columns, else k rows of OTHER. The
   pitch keeps the lanes of a warp on different banks. */
template <typename T, bool ALONG, int OTHER> struct slab_layout {
    static constexpr int W = WIDEST<T>, ROWS = ALONG ? OTHER : SLAB<T>, UNITS = ALONG ? SLAB_UNITS : OTHER / W,
                         PITCH = ALONG ? UNITS : UNITS + 1;
};

/* Of rows row0 .. row_end - 1 and columns col0 .. col_end - 1, the next slab, on its way; 0 beyond them. In packs, what is between the
   last column and the end of its pack is copied: it is 0. */
template <typename L, typename T>
__device__ inline void copy_slab(T *slab, const fused_matrix<T> &from, int row0, int row_end, int col0, int col_end) {
    constexpr int W = L::W, STEP = 32 / L::UNITS;
    const int lane = threadIdx.x % 32, unit = lane % L::UNITS, c = col0 + unit * W;
    int r = row0 + lane / L::UNITS;
    const T *at = from.at + (size_t)r * from.ld + c;
    T *to = slab + (lane / L::UNITS * L::PITCH + unit) * W;
    if (from.packs) {
#pragma unroll
        for (int i = 0; i < L::ROWS / STEP; i++, r += STEP, at += STEP * from.ld, to += STEP * L::PITCH * W) {
            const bool inside = r < row_end && c < col_end;
            __pipeline_memcpy_async(to, inside ? at : from.at, UNIT, inside ? 0 : UNIT);
        }
    } else {
        for (int i = 0; i < L::ROWS / STEP; i++, r += STEP, at += STEP * from.ld, to += STEP * L::PITCH * W)
            for (int q = 0; q < W; q++) {
                const bool inside = r < row_end && c + q < col_end;
                __pipeline_memcpy_async(to + q, inside ? at + q : from.at, sizeof(T), inside ? 0 : sizeof(T));
            }
    }
}

/* Row i of a lane's outputs in its warp's tile, and column j. Along k neighbours are in other lanes, for the banks. */
template <bool ALONG> __device__ inline int row_of_lane(int i) {
    const int m = threadIdx.x % LANES_M;
    return ALONG ? m + LANES_M * i : R * m + i;
}

template <bool ALONG> __device__ inline int col_of_lane(int j) {
    const int n = threadIdx.x / LANES_M % LANES_N;
    return ALONG ? n + LANES_N * j : R * n + j;
}

__device__ inline int part_of_lane() {
    return threadIdx.x / (LANES_M * LANES_N) % LANES_K;
}

/* R values of each of the lane's k in a slab: of rows, or of columns, `where(i)`. */
template <typename L, bool ALONG, bool BLOCKED, typename T, typename I>
__device__ inline void read_slab(T (&to)[R][L::W], const T *slab, I where) {
    constexpr int W = L::W;
    if (ALONG) {
#pragma unroll
        for (int i = 0; i < R; i++) {
            const pack<T, W> some = pack_at<W>(slab + (where(i) * L::PITCH + part_of_lane()) * W);
#pragma unroll
            for (int e = 0; e < W; e++) to[i][e] = some.value[e];
        }
    } else {
#pragma unroll
        for (int e = 0; e < W; e++) {
            const int k = BLOCKED ? W * part_of_lane() + e : part_of_lane() + LANES_K * e;
#pragma unroll
            for (int i = 0; i < R; i += W) {
                const pack<T, W> some = pack_at<W>(slab + k * L::PITCH * W + where(i));
#pragma unroll
                for (int q = 0; q < W; q++) to[i + q][e] = some.value[q];
            }
        }
    }
}

/* Adds up over the lanes that share outputs: a lane is left with rows R / LANES_K * part .. of its outputs. */
template <typename T> __device__ inline void add_lanes(T (&sum)[R][R]) {
    int rows = R;
#pragma unroll
    for (int offset = 16; offset > LANES_M * LANES_N / 2; offset /= 2) {
        const bool upper = threadIdx.x & offset;
        rows /= 2;
#pragma unroll
        for (int i = 0; i < R / 2; i++)
#pragma unroll
            for (int j = 0; j < R; j++)
                if (i < rows) {
                    const T other = __shfl_xor_sync(0xffffffffu, upper ? sum[i][j] : sum[i + rows][j], offset);
                    sum[i][j] = (upper ? sum[i + rows][j] : sum[i][j]) + other;
                }
    }
}

/* A warp's tile at (m0, n0), from k = k0 to k1: the sums of this lane's k. `k1` is a multiple of a pack or the end of k. */
template <bool A_ALONG, bool B_ALONG, typename T>
__device__ inline void warp_product(T (&sum)[R][R], const operand<T> &a, const operand<T> &b, int m0, int n0, int k0,
                                    int k1, T *slabs, int stages) {
    typedef slab_layout<T, A_ALONG, WARP_M> LA;
    typedef slab_layout<T, B_ALONG, WARP_N> LB;
    static_assert(LA::ROWS * LA::PITCH <= UNITS_A && LB::ROWS * LB::PITCH <= UNITS_B, "a slab has its place");
    constexpr int W = WIDEST<T>, STAGE = (UNITS_A + UNITS_B) * W;
    const auto copy = [&](int k, int stage) {
        T *slab = slabs + stage * STAGE;
        if (k < k1) {
            if (A_ALONG) {
                copy_slab<LA>(slab, a.from, m0, a.rows, k, k1);
            } else {
                copy_slab<LA>(slab, a.from, k, k1, m0, a.cols);
            }
            if (B_ALONG) {
                copy_slab<LB>(slab + UNITS_A * W, b.from, n0, b.rows, k, k1);
            } else {
                copy_slab<LB>(slab + UNITS_A * W, b.from, k, k1, n0, b.cols);
            }
        }
        __pipeline_commit();
    };
    int ahead = 0, stage = 0;
    for (; ahead < stages - 1; ahead++) copy(k0 + ahead * SLAB<T>, ahead);
    for (int k = k0; k < k1; k += SLAB<T>) {
        if (stages == MOST_STAGES) {
            __pipeline_wait_prior(MOST_STAGES - 2);
        } else {
            __pipeline_wait_prior(0);
        }
        __syncwarp(); /* all lanes' copies have come, and the slab before has been read */
        copy(k + (stages - 1) * SLAB<T>, ahead);
        T of_a[R][W], of_b[R][W];
        const T *slab = slabs + stage * STAGE;
        read_slab<LA, A_ALONG, B_ALONG>(of_a, slab, row_of_lane<A_ALONG>);
        read_slab<LB, B_ALONG, A_ALONG>(of_b, slab + UNITS_A * W, col_of_lane<B_ALONG>);
#pragma unroll
        for (int e = 0; e < W; e++)
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < R; j++) sum[i][j] += of_a[i][e] * of_b[j][e];
        ahead = ahead + 1 == stages ? 0 : ahead + 1;
        stage = stage + 1 == stages ? 0 : stage + 1;
    }
    __pipeline_wait_prior(0);
}

/* A block's tile of the m x n product over k: `before(i, j)` reads what an element needs, some elements ahead, and
   `finish(i, j, sum, that)` takes it. */
template <bool A_ALONG, bool B_ALONG, typename T, typename P, typename F>
__device__ inline void block_tile(const operand<T> &a, const operand<T> &b, int m, int n, int k, int m0, int n0,
                                  warp_shape shape, T *shared, int stages, P before, F finish) {
    constexpr int W = WIDEST<T>, AHEAD = 4, SLABS = (UNITS_A + UNITS_B) * W;
    const int warp = threadIdx.x / 32, wk = warp % shape.k, wn = warp / shape.k % shape.n, wm = warp / shape.k / shape.n;
    const int rows = WARP_M * shape.m, cols = WARP_N * shape.n, packs = (k + W - 1) / W;
    const int k0 = W * (packs * wk / shape.k), k1 = min(k, W * (packs * (wk + 1) / shape.k));
    const int i0 = m0 + WARP_M * wm, j0 = n0 + WARP_N * wn;
    T sum[R][R] = {};
    if (i0 < m && j0 < n)
        warp_product<A_ALONG, B_ALONG>(sum, a, b, i0, j0, k0, k1, shared + warp * stages * SLABS, stages);
    add_lanes(sum);
    __syncthreads(); /* the slabs have been read: the sums take their place */
    T *part = shared + (wk * rows + WARP_M * wm) * cols + WARP_N * wn;
#pragma unroll
    for (int x = 0; x < R / LANES_K; x++) {
        T *row = part + row_of_lane<A_ALONG>(R / LANES_K * part_of_lane() + x) * cols;
#pragma unroll
        for (int j = 0; j < R; j++) row[col_of_lane<B_ALONG>(j)] = sum[x][j];
    }
    __syncthreads();
    const int shift = 31 - __clz(cols); /* a power of 2 */
    for (int e0 = threadIdx.x; e0 < rows * cols; e0 += AHEAD * THREADS) {
        decltype(before(0, 0)) old[AHEAD];
        T total[AHEAD];
#pragma unroll
        for (int x = 0; x < AHEAD; x++) {
            const int e = e0 + x * THREADS, i = m0 + (e >> shift), j = n0 + (e & (cols - 1));
            if (e < rows * cols && i < m && j < n) old[x] = before(i, j);
        }
#pragma unroll
        for (int x = 0; x < AHEAD; x++) {
            const int e = e0 + x * THREADS;
            total[x] = 0;
            if (e < rows * cols)
                for (int p = 0; p < shape.k; p++) total[x] += shared[p * rows * cols + e];
        }
#pragma unroll
        for (int x = 0; x < AHEAD; x++) {
            const int e = e0 + x * THREADS, i = m0 + (e >> shift), j = n0 + (e & (cols - 1));
            if (e < rows * cols && i < m && j < n) finish(i, j, total[x], old[x]);
        }
    }
    __syncthreads(); /* before the next tile */
}

__device__ inline int tiles_along(int length, int side) {
    return (length + side - 1) / side;
}

/* Those of the tiles first .. that are this block's, when tiles are dealt out one by one to the blocks. Returns the number of the
   tile after the last of this product. */
template <bool A_ALONG, bool B_ALONG, typename T, typename P, typename F>
__device__ inline int block_tiles(int first, const operand<T> &a, const operand<T> &b, int m, int n, int k, warp_shape shape,
                                  T *shared, int stages, P before, F finish) {
    const int rows = WARP_M * shape.m, cols = WARP_N * shape.n, down = tiles_along(m, rows);
    const int count = down * tiles_along(n, cols), blocks = gridDim.x;
    const int mine = (int)blockIdx.x - first % blocks;
    for (int t = mine < 0 ? mine + blocks : mine; t < count; t += blocks)
        block_tile<A_ALONG, B_ALONG>(a, b, m, n, k, t % down * rows, t / down * cols, shape, shared, stages, before, finish);
    return first + count;
}

/* --- the phases --- */

template <typename T> struct worker {
    const phase_plan<T> &plan;
    T *shared;
    unsigned awaited;
    size_t step;
    int rows; /* of the batch of this step */

    __device__ int rows_of(size_t which) const {
        const size_t left = plan.count - which * plan.batch;
        return left < (size_t)plan.batch ? (int)left : plan.batch;
    }

    __device__ fused_matrix<T> input_of(int l, size_t which) const {
        fused_matrix<T> input = plan.layer[l].input;
        if (l == 0) input.at += which % 2 * plan.input_stride;
        return input;
    }

    __device__ void meet_all() {
        meet(&plan.control->arrived, awaited);
    }

    /* The images of a step, `skip` of this block's rows left out. */
    __device__ void gather(size_t which, int skip) const {
        const fused_matrix<T> to = input_of(0, which);
        const int count = rows_of(which);
        for (int r = blockIdx.x + skip * gridDim.x; r < count; r += gridDim.x) {
            const uint8_t *image = plan.images + (size_t)plan.order[which * plan.batch + r] * plan.features;
            for (int j = threadIdx.x; j < plan.features; j += THREADS)
                to.at[r * to.ld + j] = T(1.0 / 255.0) * T(image[j]);
        }
    }

    __device__ uint8_t *labels_of(size_t which) const {
        return plan.batch_labels + which % 2 * plan.batch;
    }

    /* The labels of a step: by the last block, which has the least to do. */
    __device__ void gather_labels(size_t which) const {
        const int count = rows_of(which);
        if (blockIdx.x != gridDim.x - 1) return;
        for (int r = threadIdx.x; r < count; r += THREADS) labels_of(which)[r] = plan.labels[plan.order[which * plan.batch + r]];
    }

    __device__ void forward(int l) const {
        const phase_layer<T> &layer = plan.layer[l];
        const operand<T> a = {input_of(l, step), rows, layer.in}, b = {layer.weight, layer.in, layer.out};
        const size_t ld = layer.grad.ld;
        block_tiles<true, false>(
            0, a, b, rows, layer.out, layer.in, plan.shapes.forward[l], shared, plan.stages, [&](int, int j) { return layer.bias[j]; },
            [&](int i, int j, T sum, T bias) {
                const T z = sum + bias;
                if (layer.pre != layer.output) layer.pre[i * ld + j] = z;
                layer.output[i * ld + j] = activate_compactly(layer.activation, z);
            });
    }

    /* dL/dZ of layer l - 1 from that of layer l. */
    __device__ void back(int l) const {
        const phase_layer<T> &layer = plan.layer[l], &below = plan.layer[l - 1];
        const operand<T> a = {layer.grad, rows, layer.out}, b = {layer.weight, layer.in, layer.out};
        const size_t ld = below.grad.ld;
        block_tiles<true, true>(
            0, a, b, rows, layer.in, layer.out, plan.shapes.back[l], shared, plan.stages,
            [&](int i, int j) {
                const T y = below.output[i * ld + j], z = below.pre != below.output ? below.pre[i * ld + j] : y;
                return derivative_compactly(below.activation, z, y);
            },
            [&](int i, int j, T sum, T slope) { below.grad.at[i * ld + j] = sum * slope; });
    }

    struct descent { T weight, velocity; };

    __device__ descent before_descent(const T *weight, const T *velocity) const {
        return {*weight, velocity ? *velocity : T(0)};
    }

    /* SGD as kernels/ops.h has it. */
    __device__ void descend(T rate, T gradient, T *weight, T *velocity, descent old) const {
        gradient += plan.weight_decay * old.weight;
        gradient += plan.momentum * old.velocity;
        if (velocity) *velocity = gradient;
        *weight = old.weight - rate * gradient;
    }

    /* 32 columns of a layer's bias: the gradient is the sum of those of dL/dZ. */
    __device__ void update_bias(const phase_layer<T> &layer, T rate, int first) const {
        const int part = threadIdx.x / 32, col = first + threadIdx.x % 32;
        T sum = 0;
        if (col < layer.out)
#pragma unroll 8
            for (int r = rows * part / WARPS; r < rows * (part + 1) / WARPS; r++) sum += layer.grad.at[r * layer.grad.ld + col];
        shared[threadIdx.x] = sum;
        __syncthreads();
        if (part == 0 && col < layer.out) {
            for (int p = 1; p < WARPS; p++) sum += shared[threadIdx.x + 32 * p];
            T *velocity = layer.bias_velocity ? layer.bias_velocity + col : NULL;
            descend(rate, sum, layer.bias + col, velocity, before_descent(layer.bias + col, velocity));
        }
        __syncthreads();
    }

    __device__ void update() const {
        const T rate = T(plan.rates[step]);
        const int blocks = gridDim.x;
        int tile = 0;
        for (int l = 0; l < plan.depth; l++) {
            const phase_layer<T> &layer = plan.layer[l];
            const operand<T> a = {input_of(l, step), rows, layer.in}, b = {layer.grad, rows, layer.out};
            const auto velocity = [&](size_t at) { return layer.weight_velocity ? layer.weight_velocity + at : (T *)NULL; };
            tile = block_tiles<false, false>(
                tile, a, b, layer.in, layer.out, rows, plan.shapes.update, shared, plan.stages,
                [&](int i, int j) {
                    const size_t at = (size_t)i * layer.out + j;
                    return before_descent(layer.weight.at + at, velocity(at));
                },
                [&](int i, int j, T sum, descent old) {
                    const size_t at = (size_t)i * layer.out + j;
                    descend(rate, sum, layer.weight.at + at, velocity(at), old);
                });
        }
        for (int l = 0; l < plan.depth; l++)
            for (int col = 0; col < plan.layer[l].out; col += 32, tile++)
                if (tile % blocks == (int)blockIdx.x) update_bias(plan.layer[l], rate, col);
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
        for (int c = lane; c < classes; c += 32) gradient[c] = g[c] = g[c] * factor - (c == label ? scale : T(0));
        if (lane) return;
        const double loss = label < classes ? log((double)sum) - ((double)z[label] - (double)max) : NAN;
        plan.row_loss[row] = loss;
        plan.row_correct[row] = best == label && sum > 0;
        if (!isfinite(loss)) plan.control->bad = 1;
    }

    /* What a turn keeps in shared memory: partial sums, logits, their gradients, a row of the input and, if they fit, the weights. */
    static constexpr int PARTS = 3 * THREADS;

    __device__ static int padded(int count) {
        return (count + WIDEST<T> - 1) / WIDEST<T> * WIDEST<T>;
    }

    __device__ bool weights_fit() const {
        const phase_layer<T> &last = plan.layer[plan.depth - 1];
        return (size_t)padded(last.in) + (size_t)last.in * last.out + PARTS <= shared_for(plan.stages) / sizeof(T);
    }

    /* Copies, all reads at once: it is their latency that costs. */
    __device__ void stage(T *to, const T *from, int count) const {
        constexpr int W = WIDEST<T>;
        const int packs = (uintptr_t)from % UNIT == 0 ? count / W : 0;
        for (int e = threadIdx.x; e < packs; e += THREADS) __pipeline_memcpy_async(to + e * W, from + e * W, UNIT);
        for (int e = packs * W + threadIdx.x; e < count; e += THREADS) to[e] = from[e];
    }

    /* Row r through the last layer, whose weights are at `weight`, and back. */
    __device__ void turn_row(int r, const T *weight) const {
        const phase_layer<T> &last = plan.layer[plan.depth - 1];
        const int classes = last.out, groups = THREADS / classes, t = threadIdx.x;
        const fused_matrix<T> from = input_of(plan.depth - 1, step);
        const T *input = from.at + r * from.ld;
        const int label = labels_of(step)[r];
        T *part = shared, *logits = shared + THREADS, *gradient = logits + THREADS, sum = 0;
        if (weights_fit()) {
            stage(shared + PARTS, input, last.in);
            input = shared + PARTS;
            __pipeline_commit();
            __pipeline_wait_prior(0);
            __syncthreads(); /* for the weights too */
        }
        if (t < groups * classes)
#pragma unroll 8
            for (int k = t / classes; k < last.in; k += groups) sum += input[k] * weight[k * classes + t % classes];
        part[t] = sum;
        __syncthreads();
        if (t < classes) {
#pragma unroll 8
            for (int p = 1; p < groups; p++) sum += part[t + p * classes];
            logits[t] = sum + last.bias[t];
        }
        __syncthreads();
        if (t < 32) loss_of_row(logits, gradient, last.grad.at + r * last.grad.ld, classes, label, r);
        __syncthreads();
        if (plan.depth > 1) {
            const phase_layer<T> &below = plan.layer[plan.depth - 2];
            const size_t row = r * below.grad.ld;
#pragma unroll 2
            for (int k = t; k < last.in; k += THREADS) {
                const T slope = derivative_compactly(below.activation, below.pre[row + k], below.output[row + k]);
                T value = 0;
#pragma unroll 8
                for (int c = 0; c < classes; c++) value += gradient[c] * weight[k * classes + c];
                below.grad.at[row + k] = value * slope;
            }
        }
        __syncthreads(); /* before the next row */
    }

    /* The turn, and the pixels of the step after it: those of the first row are on their way meanwhile. */
    __device__ void turn(bool another) const {
        const int t = 4 * threadIdx.x, next = another ? rows_of(step + 1) : 0;
        const bool ahead = plan.quads && plan.features <= 4 * THREADS && (int)blockIdx.x < next;
        pack<uint8_t, 4> pixels = {};
        if (ahead && t < plan.features)
            pixels = pack_at<4>(plan.images + (size_t)plan.order[(step + 1) * plan.batch + blockIdx.x] * plan.features + t);
        const phase_layer<T> &last = plan.layer[plan.depth - 1];
        const T *weight = last.weight.at;
        if (weights_fit() && (int)blockIdx.x < rows) {
            T *const place = shared + PARTS + padded(last.in);
            stage(place, weight, last.in * last.out);
            weight = place;
        }
        for (int r = blockIdx.x; r < rows; r += gridDim.x) turn_row(r, weight);
        if (!another) return;
        if (ahead && t < plan.features) {
            const fused_matrix<T> to = input_of(0, step + 1);
#pragma unroll
            for (int q = 0; q < 4; q++) to.at[blockIdx.x * to.ld + t + q] = T(1.0 / 255.0) * T(pixels.value[q]);
        }
        gather(step + 1, ahead);
        gather_labels(step + 1);
    }
};

/* Steps first .. end - 1; it stops after one whose loss is not finite, which changes no weight. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    phases_kernel(const __grid_constant__ phase_plan<T> plan, size_t first, size_t end) {
    extern __shared__ double2 memory[];
    worker<T> me = {plan, reinterpret_cast<T *>(memory), 0, first, 0};
    const int depth = plan.depth;
    me.gather(first, 0);
    me.gather_labels(first);
    me.meet_all();
    step_laps laps;
    laps.start();
    for (; me.step < end; me.step++) {
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
        const bool bad = __ldcg(&plan.control->bad);
        for (int l = depth - 2; l > 0 && !bad; l--) {
            me.back(l);
            laps.lap(6);
            me.meet_all();
            laps.lap(7);
        }
        if (!bad) me.update();
        laps.lap(8);
        me.count_up(bad);
        if (bad) return; /* all blocks alike */
        me.meet_all();
        laps.lap(9);
    }
    laps.print("phases", end - first);
}

/* --- on the host --- */

struct phases_state {
    tuned_context *context;
    fused_network network;
    void *plan;   /* a phase_plan */
    void *memory; /* of the GPU */
    phase_control *control;
    int blocks, stages;
};

static int stages_for(const tuned_context *context) {
    return context->shared_bytes >= (int)shared_for(MOST_STAGES) ? MOST_STAGES : 2;
}

/* Hands out pieces of `base`; with NULL it only measures. */
static void *take(char *base, size_t *used, size_t bytes) {
    void *piece = base ? base + *used : NULL;
    *used += (bytes + 255) / 256 * 256;
    return piece;
}

template <typename T> static size_t pitch_of(size_t cols) {
    return (cols + WIDEST<T> - 1) / WIDEST<T> * WIDEST<T>;
}

/* Cycles of an SM for `tiles` tiles over `k`, dealt out to `blocks` blocks; measured tiles need about 1.6 times what their
   multiplications do, and as many cycles again to start, add up and write. */
static double cycles_for(size_t tiles, warp_shape shape, size_t k, int blocks) {
    const double side = (double)(WARP_M * shape.m) * (WARP_N * shape.n);
    return (double)((tiles + blocks - 1) / blocks) * (1.6 * side * (double)k / 128 + 1200 + side * shape.k / 16);
}

static size_t tiles_for(size_t m, size_t n, warp_shape shape) {
    const size_t rows = WARP_M * shape.m, cols = WARP_N * shape.n;
    return ((m + rows - 1) / rows) * ((n + cols - 1) / cols);
}

/* The best shape for `count` products of m[i] x n[i] over k, in one phase. */
static warp_shape best_shape(size_t count, const size_t *m, const size_t *n, size_t k, int blocks, double *cycles) {
    static const warp_shape shapes[] = {{1, 1, 8}, {1, 2, 4}, {2, 2, 2}, {2, 4, 1}};
    warp_shape best = shapes[0];
    double least = INFINITY;
    for (const warp_shape &shape : shapes) {
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
static double shape_phases(const fused_network *network, int blocks, phase_shapes *shapes) {
    size_t in[FUSED_MAX_LAYERS], out[FUSED_MAX_LAYERS];
    double cycles = 0;
    for (size_t l = 0; l < network->depth; l++) {
        in[l] = network->layer[l].in;
        out[l] = network->layer[l].out;
        if (l + 1 < network->depth)
            shapes->forward[l] = best_shape(1, &network->batch, &out[l], in[l], blocks, &cycles);
        if (l > 0 && l + 1 < network->depth)
            shapes->back[l] = best_shape(1, &network->batch, &in[l], out[l], blocks, &cycles);
    }
    shapes->update = best_shape(network->depth, in, out, network->batch, blocks, &cycles);
    const size_t last = network->depth - 1, rows = (network->batch + blocks - 1) / blocks;
    return cycles + (double)rows * (2500 + 2.0 * (double)(in[last] * out[last]) / 32);
}

template <typename T> static size_t lay_out(const phases_state *state, phase_plan<T> *plan, char *base) {
    const fused_network &network = state->network;
    const size_t batch = network.batch;
    size_t used = 0;
    plan->control = (phase_control *)take(base, &used, sizeof *plan->control);
    plan->input_stride = batch * pitch_of<T>(network.features);
    T *input = (T *)take(base, &used, 2 * plan->input_stride * sizeof(T));
    size_t ld = pitch_of<T>(network.features);
    for (size_t l = 0; l < network.depth; l++) {
        const fused_layer &layer = network.layer[l];
        phase_layer<T> &to = plan->layer[l];
        const size_t out = pitch_of<T>(layer.out), bytes = batch * out * sizeof(T);
        to.in = (int)layer.in;
        to.out = (int)layer.out;
        to.activation = layer.activation;
        to.weight = {(T *)layer.weight, layer.out, packs_fit((T *)layer.weight, layer.out, layer.out, WIDEST<T>)};
        to.input = {input, ld, true};
        to.bias = (T *)layer.bias;
        to.weight_velocity = (T *)layer.weight_velocity;
        to.bias_velocity = (T *)layer.bias_velocity;
        to.output = (T *)take(base, &used, bytes);
        to.pre = activation_needs_input(layer.activation) ? (T *)take(base, &used, bytes) : to.output;
        to.grad = {(T *)take(base, &used, bytes), out, true};
        input = to.output;
        ld = out;
    }
    plan->row_loss = (double *)take(base, &used, batch * sizeof *plan->row_loss);
    plan->batch_labels = (uint8_t *)take(base, &used, 2 * batch);
    plan->row_correct = (int *)take(base, &used, batch * sizeof *plan->row_correct);
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
    plan->features = (int)network.features;
    plan->quads = packs_fit(network.images, network.features, network.features, 4);
    plan->momentum = (T)network.momentum;
    plan->weight_decay = (T)network.weight_decay;
    plan->count = network.count;
    plan->images = network.images;
    plan->labels = network.labels;
    plan->order = network.order;
    plan->rates = network.rates;
    plan->losses = network.losses;
    plan->tally = network.tally;
    state->stages = plan->stages = stages_for(state->context);
    shape_phases(&network, state->blocks, &plan->shapes);
    const size_t bytes = lay_out(state, plan, NULL);
    if (!CUDA_TRY(fault, cudaMalloc(&state->memory, bytes)) ||
        !CUDA_TRY(fault, cudaMemsetAsync(state->memory, 0, bytes, stream)))
        return false;
    lay_out(state, plan, (char *)state->memory);
    state->control = plan->control;
    return CUDA_TRY(fault, cudaStreamSynchronize(stream)) &&
           CUDA_TRY(fault, cudaFuncSetAttribute((const void *)phases_kernel<T>,
                                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                (int)shared_for(plan->stages)));
}

static const double CLOCK = 1.7e9, MEETING = 1.1e-6; /* Hz, s: of an H100; others are in proportion */

static double phases_estimate(const tuned_context *context, const fused_network *network, char *why, size_t size) {
    phase_shapes shapes;
    if (network->dtype != GEMM_F32 && network->dtype != GEMM_F64) {
        snprintf(why, size, "it has float32 and float64 only");
        return 0;
    }
    if (network->layer[network->depth - 1].out > (size_t)THREADS) {
        snprintf(why, size, "it takes up to %d classes", THREADS);
        return 0;
    }
    if (context->shared_bytes < (int)shared_for(2)) {
        snprintf(why, size, "it needs %zu bytes of shared memory a block", shared_for(2));
        return 0;
    }
    const double slower = network->dtype == GEMM_F64 ? 2 : 1;
    return slower * shape_phases(network, context->processors, &shapes) / CLOCK + MEETING * (double)(2 * network->depth - 1);
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
    const bool ran = CUDA_TRY(fault, cudaMemsetAsync(state->control, 0, sizeof *state->control, stream)) &&
                     CUDA_TRY(fault, cudaLaunchCooperativeKernel(kernel, dim3(state->blocks), dim3(THREADS), arguments,
                                                          shared_for(state->stages), stream));
    return ran ? count : 0;
}

const fused_form fused_phases = {"phases of tiles", phases_estimate, phases_open, phases_close, phases_run};
