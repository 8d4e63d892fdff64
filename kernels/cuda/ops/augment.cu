/* Augmentation on the GPU: a block an image, or a tile of one that is larger; both fields of the displacement
   stay in shared memory.

   A thread smooths RUN neighbours at once: RUN + 20 numbers read for 21 RUN multiply-adds, along rows first
   (lanes are rows), then down the columns (lanes are columns), where it goes on to read the pixels that it
   has displaced.

   Bound by   arithmetic: an image of 28 x 28 is 2 fields x 2 directions x 784 x 21 = 66,000 multiply-adds,
              112 blocks of random numbers and 784 pixels read at 4 places: some 5,000 instructions of a warp,
              60,000 images in about 0.5 ms on an H100. Bytes: 94 MB, 0.03 ms.
   Run        ./train augment --backend cuda-tuned --show 10 -o sheet.png */
#include "kernels/cuda/ops/ops.cuh"

static const int WARPS = 4, THREADS = 32 * WARPS, REACH = AUGMENT_REACH, TAPS = 2 * REACH + 1;

/* Columns of noise in front of a tile and behind it: REACH, in whole groups in front. */
static const int LEAD = 16;

template <int RUN> struct shape {
    static const int SIDE = WARPS * RUN; /* of a tile; at most 32 */
    static const int GROUPS = (LEAD + SIDE + REACH + AUGMENT_GROUP - 1) / AUGMENT_GROUP;
    static const int COLUMNS = GROUPS * AUGMENT_GROUP + 1; /* odd, so that rows start in different banks */
    static const int HALF = SIDE | 1;
};

/* A tile of the result: its first pixel, and the rows that its displacement depends on. */
struct tile {
    int x, y, first, rows;
};

template <int RUN> __device__ tile tile_of(const augment_plan &plan, int place) {
    const int SIDE = shape<RUN>::SIDE, across = (plan.to_width + SIDE - 1) / SIDE;
    tile at;
    at.x = place % across * SIDE;
    at.y = place / across * SIDE;
    at.first = max(at.y - REACH, 0);
    at.rows = min(at.y + SIDE + REACH, plan.to_height) - at.first;
    return at;
}

/* noise[field][row][column]: column LEAD is that of the tile's first. */
template <int RUN>
__device__ void draw_noise(const augment_plan &plan, uint32_t epoch, uint32_t image, const tile &at,
                           float *noise) {
    for (int group = threadIdx.x / 32; group < shape<RUN>::GROUPS; group += WARPS)
        for (int row = threadIdx.x % 32; row < at.rows; row += 32) {
            const int x = at.x - LEAD + group * AUGMENT_GROUP;
            uint32_t block[4] = {};
            if (x >= 0 && x < plan.to_width)
                augment_noise_draw(&plan, epoch, image, at.first + row, x / AUGMENT_GROUP, block);
#pragma unroll
            for (int field = 0; field < 2; field++)
#pragma unroll
                for (int column = 0; column < AUGMENT_GROUP; column++)
                    noise[(field * at.rows + row) * shape<RUN>::COLUMNS + group * AUGMENT_GROUP + column] =
                        x >= 0 && x + column < plan.to_width ? augment_noise(block + 2 * field, column) : 0;
        }
}

/* What undoes the size that the taps give to a tile's rows and columns. */
template <int RUN>
__device__ void make_gains(const augment_plan &plan, const tile &at, float *gain_x, float *gain_y) {
    const int i = threadIdx.x, x = at.x + i, y = at.y + i;
    if (i >= shape<RUN>::SIDE) return;
    if (x < plan.to_width) gain_x[i] = augment_gain(&plan, x, plan.to_width);
    if (y < plan.to_height) gain_y[i] = augment_gain(&plan, y, plan.to_height) * plan.strength;
}

/* sum[i] += what `value` gives RUN outputs, `offset` - REACH places from the first of them. */
template <int RUN>
__device__ inline void spread(const augment_plan &plan, float value, int offset, float (&sum)[RUN]) {
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        const int distance = offset - i < REACH ? REACH - offset + i : offset - i - REACH;
        if (distance <= REACH) sum[i] += plan.taps[distance] * value;
    }
}

/* half[field][row][x]: lanes are rows, of both fields one after the other. */
template <int RUN>
__device__ void smooth_rows(const augment_plan &plan, const tile &at, const float *noise, float *half) {
    const int x = threadIdx.x / 32 * RUN;
    for (int row = threadIdx.x % 32; row < 2 * at.rows; row += 32) {
        const float *from = noise + row * shape<RUN>::COLUMNS + LEAD - REACH + x;
        float sum[RUN] = {};
#pragma unroll
        for (int k = 0; k < RUN + TAPS - 1; k++) spread<RUN>(plan, from[k], k, sum);
#pragma unroll
        for (int k = 0; k < RUN; k++) half[row * shape<RUN>::HALF + x + k] = augment_half(sum[k]);
    }
}

/* RUN rows of a column, from row y of the image on. */
template <int RUN>
__device__ void smooth_column(const augment_plan &plan, const tile &at, const float *half, int y,
                              float (&sum)[RUN]) {
#pragma unroll
    for (int k = 0; k < RUN + TAPS - 1; k++) {
        const int row = y - REACH + k - at.first;
        if (row >= 0 && row < at.rows) spread<RUN>(plan, half[row * shape<RUN>::HALF], k, sum);
    }
}

/* RUN pixels of a column. */
template <int RUN>
__device__ void read_column(const augment_plan &plan, const augment_map &map, const tile &at,
                            const float *half, const float *gain_x, const float *gain_y, const uint8_t *image,
                            uint8_t *deformed) {
    const int lane = threadIdx.x % 32, run = threadIdx.x / 32 * RUN, x = at.x + lane, y = at.y + run;
    float across[RUN] = {}, down[RUN] = {};
    if (lane >= shape<RUN>::SIDE || x >= plan.to_width || y >= plan.to_height) return;
    if (plan.strength > 0) {
        smooth_column<RUN>(plan, at, half + lane, y, across);
        smooth_column<RUN>(plan, at, half + at.rows * shape<RUN>::HALF + lane, y, down);
    }
#pragma unroll
    for (int k = 0; k < RUN; k++) {
        if (y + k >= plan.to_height) return;
        const float gain = plan.strength > 0 ? gain_x[lane] * gain_y[run + k] : 0;
        const int32_t place_x = map.x0 + 2 * (y + k) * map.xy + 2 * x * map.xx +
                                augment_displacement(across[k], gain, plan.ratio_x);
        const int32_t place_y = map.y0 + 2 * (y + k) * map.yy + 2 * x * map.yx +
                                augment_displacement(down[k], gain, plan.ratio_y);
        deformed[(size_t)(y + k) * plan.to_width + x] =
            augment_read(&plan, image, augment_fine(place_x), augment_fine(place_y));
    }
}

template <int RUN>
__global__ void __launch_bounds__(THREADS)
    augment_kernel(const __grid_constant__ augment_plan plan, uint32_t epoch, const uint8_t *images,
                   const uint8_t *labels, uint8_t *deformed) {
    extern __shared__ float noise[];
    __shared__ augment_map map;
    __shared__ float gain_x[32], gain_y[32];
    const uint32_t image = blockIdx.x;
    const tile at = tile_of<RUN>(plan, blockIdx.y);
    float *half = noise + 2 * at.rows * shape<RUN>::COLUMNS;
    if (threadIdx.x == THREADS - 1) map = augment_map_of(&plan, epoch, image, labels[image]);
    if (plan.strength > 0) {
        make_gains<RUN>(plan, at, gain_x, gain_y);
        draw_noise<RUN>(plan, epoch, image, at, noise);
        __syncthreads();
        smooth_rows<RUN>(plan, at, noise, half);
    }
    __syncthreads();
    read_column<RUN>(plan, map, at, half, gain_x, gain_y, images + (size_t)image * plan.height * plan.width,
                     deformed + (size_t)image * plan.to_height * plan.to_width);
}

template <int RUN>
static void launch(cuda_ops_context *context, const augment_plan *plan, uint32_t epoch, size_t count,
                   const uint8_t *images, const uint8_t *labels, uint8_t *deformed) {
    const int SIDE = shape<RUN>::SIDE,
              rows = plan->to_height < SIDE + 2 * REACH ? plan->to_height : SIDE + 2 * REACH;
    const size_t floats = 2 * (size_t)rows * (shape<RUN>::COLUMNS + shape<RUN>::HALF);
    const size_t bytes = plan->strength > 0 ? sizeof(float) * floats : 0;
    const dim3 grid((unsigned)count,
                    (unsigned)((plan->to_width + SIDE - 1) / SIDE * ((plan->to_height + SIDE - 1) / SIDE)));
    augment_kernel<RUN><<<grid, THREADS, bytes, context->stream>>>(*plan, epoch, images, labels, deformed);
    CUDA_LAUNCHED(&context->fault, "augment_kernel");
}

void cuda_augment(void *opaque, const struct augment_plan *plan, uint32_t epoch, size_t count,
                  const uint8_t *images, const uint8_t *labels, uint8_t *deformed) {
    cuda_ops_context *context = open_ops(opaque);
    if (!count) return;
    if (plan->to_width <= shape<7>::SIDE && plan->to_height <= shape<7>::SIDE) {
        launch<7>(context, plan, epoch, count, images, labels, deformed);
    } else {
        launch<8>(context, plan, epoch, count, images, labels, deformed);
    }
}
