/* Augmentation on the GPU: a block computes an image, or a tile of a large one. Both displacement fields stay
   in shared memory.

   Idea       a thread smooths RUN neighbours: it reads RUN + 20 numbers for 21 RUN multiply-adds. The
              lanes of the pass along rows are rows. Those of the pass along columns are columns, and each
              thread then interpolates its pixels at the displaced positions.
   Bound by   arithmetic: an image of 28 x 28 needs 2 fields x 2 directions x 784 x 21 = 66,000 multiply-adds,
              112 blocks of random numbers and 784 interpolations of 4 pixels: some 5,000 warp instructions,
              0.5 ms for 60,000 images on an H100. Bytes: 94 MB, 0.03 ms.
   Run        ./train augment --backend cuda-tuned --show 10 -o sheet.png */
#include "kernels/cuda/ops/ops.cuh"

static const int WARPS = 4, THREADS = 32 * WARPS, REACH = AUGMENT_REACH, TAPS = 2 * REACH + 1;

/* Columns of noise to the left of a tile: REACH, rounded up to whole groups. */
static const int LEAD = 16;

template <int RUN> struct shape {
    static const int SIDE = WARPS * RUN; /* of a tile; at most 32 */
    static const int GROUPS = (LEAD + SIDE + REACH + AUGMENT_GROUP - 1) / AUGMENT_GROUP;
    static const int COLUMNS = GROUPS * AUGMENT_GROUP + 1; /* odd, so that rows start in different banks */
    static const int HALF = SIDE | 1;
};

/* A tile of the result: its first pixel, and the rows of noise that it needs. */
struct tile {
    int x, y, first, rows;
};

template <int RUN> __device__ tile tile_of(const augment_plan &plan, int index) {
    const int SIDE = shape<RUN>::SIDE, across = (plan.to_width + SIDE - 1) / SIDE;
    tile at;
    at.x = index % across * SIDE;
    at.y = index / across * SIDE;
    at.first = max(at.y - REACH, 0);
    at.rows = min(at.y + SIDE + REACH, plan.to_height) - at.first;
    return at;
}

/* noise[field][row][column]: column LEAD is the first column of the tile. */
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

/* The gains of the rows and columns of a tile. */
template <int RUN>
__device__ void make_gains(const augment_plan &plan, const tile &at, float *gain_x, float *gain_y) {
    const int i = threadIdx.x, x = at.x + i, y = at.y + i;
    if (i >= shape<RUN>::SIDE) return;
    if (x < plan.to_width) gain_x[i] = augment_gain(&plan, x, plan.to_width);
    if (y < plan.to_height) gain_y[i] = augment_gain(&plan, y, plan.to_height) * plan.strength;
}

/* sum[i] += the contribution of `value`, which is `offset` - REACH pixels from output 0. */
template <int RUN>
__device__ inline void add_tap(const augment_plan &plan, float value, int offset, float (&sum)[RUN]) {
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        const int distance = offset - i < REACH ? REACH - offset + i : offset - i - REACH;
        if (distance <= REACH) sum[i] += plan.taps[distance] * value;
    }
}

/* half[field][row][x]: lanes are rows, those of field 0, then those of field 1. */
template <int RUN>
__device__ void smooth_rows(const augment_plan &plan, const tile &at, const float *noise, float *half) {
    const int x = threadIdx.x / 32 * RUN;
    for (int row = threadIdx.x % 32; row < 2 * at.rows; row += 32) {
        const float *from = noise + row * shape<RUN>::COLUMNS + LEAD - REACH + x;
        float sum[RUN] = {};
#pragma unroll
        for (int k = 0; k < RUN + TAPS - 1; k++) add_tap<RUN>(plan, from[k], k, sum);
#pragma unroll
        for (int k = 0; k < RUN; k++) half[row * shape<RUN>::HALF + x + k] = augment_row_sum(sum[k]);
    }
}

/* RUN rows of a column, starting at row y of the image. */
template <int RUN>
__device__ void smooth_column(const augment_plan &plan, const tile &at, const float *half, int y,
                              float (&sum)[RUN]) {
#pragma unroll
    for (int k = 0; k < RUN + TAPS - 1; k++) {
        const int row = y - REACH + k - at.first;
        if (row >= 0 && row < at.rows) add_tap<RUN>(plan, half[row * shape<RUN>::HALF], k, sum);
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
        const int32_t position_x = map.x0 + 2 * (y + k) * map.xy + 2 * x * map.xx +
                                   augment_displacement(across[k], gain, plan.ratio_x);
        const int32_t position_y = map.y0 + 2 * (y + k) * map.yy + 2 * x * map.yx +
                                   augment_displacement(down[k], gain, plan.ratio_y);
        deformed[(size_t)(y + k) * plan.to_width + x] =
            augment_read(&plan, image, augment_fine(position_x), augment_fine(position_y));
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
