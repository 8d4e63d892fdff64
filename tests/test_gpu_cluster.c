/* Every op of k-means on the GPU against the same call on the host, bit by bit. */
#include "tests/mirror.h"

#include <math.h>
#include <stdlib.h>

#include "src/base/rng.h"

enum data_kind { UNIFORM, LATTICE, OFFSET, EQUAL, TINY, HUGE_VALUES, KINDS };

static const struct {
    size_t rows, features, clusters;
} shapes[] = {{1, 1, 1},        {7, 1, 5},       {300, 3, 17},   {513, 33, 31},   {257, 9, 64},
              {1000, 784, 10},  {4099, 70, 20},  {9001, 2, 64},  {20000, 32, 3},  {20000, 11, 7},
              {40001, 31, 300}, {40007, 2, 64},  {70001, 1, 1},  {20001, 7, 100}, {20001, 3, 100},
              {5001, 33, 64},   {9000, 32, 250}, {20011, 2, 600}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* One problem on both devices. */
struct problem {
    struct device_pair *pair;
    const struct cluster_ops *host, *gpu;
    void *host_context, *gpu_context;
    enum gemm_dtype dtype;
    size_t rows, features, clusters;
    bool bytes;
    struct mirror pixels, x, values, transposed, bias, norm, row_norm, scores, label, before, counts;
    struct mirror sums, count, moved, slices, squared, cost, shift, mean, index;
};

static double draw_value(struct rng *rng, enum data_kind kind, enum gemm_dtype dtype, bool bytes) {
    const double uniform = rng_uniform(rng);
    if (bytes) return kind == EQUAL ? 7 : kind == LATTICE ? rng_below(rng, 3) : rng_below(rng, 256);
    switch (kind) {
    case LATTICE:
        return rng_below(rng, 4);
    case OFFSET:
        return 1e5 + uniform;
    case EQUAL:
        return 0.1;
    case TINY:
        return uniform * (dtype == GEMM_F32 ? 0x1p-140 : 0x1p-700);
    case HUGE_VALUES:
        return uniform * (dtype == GEMM_F32 ? 0x1p100 : 0x1p700);
    default:
        return uniform - 0.5;
    }
}

static struct mirror make(struct problem *problem, size_t bytes) {
    return mirror_alloc(problem->pair, bytes ? bytes : 1);
}

/* Asserts equal content: bit by bit for integers, and for reals but for the bits of a NaN. */
static void assert_same(struct problem *problem, struct mirror mirror, size_t element, const char *what) {
    struct device *gpu = &problem->pair->gpu.device;
    unsigned char *got = malloc(mirror.bytes), *want = mirror.host;
    assert_non_null(got);
    gpu->driver->download(gpu, got, mirror.gpu, mirror.bytes);
    assert_status(gpu->driver->synchronize(gpu), STATUS_OK);
    for (size_t i = 0; i < mirror.bytes / element; i++) {
        if (!memcmp(got + i * element, want + i * element, element)) continue;
        const bool real = element == 4 || element == 8;
        const enum gemm_dtype dtype = element == 4 ? GEMM_F32 : GEMM_F64;
        const double a = real ? dtype_get(dtype, got, i) : 0, b = real ? dtype_get(dtype, want, i) : 0;
        if (real && isnan(a) && isnan(b)) continue;
        fail_msg("%s of %zu x %zu, %zu clusters, %s%s: element %zu is %.17g, on the host %.17g", what,
                 problem->rows, problem->features, problem->clusters, dtype_name(problem->dtype),
                 problem->bytes ? ", pixels" : "", i, a, b);
    }
    free(got);
}

static void fill(struct problem *problem, enum data_kind kind) {
    struct rng rng = rng_open(problem->rows * 31 + problem->features, RNG_TEST, (uint32_t)kind);
    const size_t elements = problem->rows * problem->features;
    for (size_t i = 0; i < elements; i++) {
        const double value = draw_value(&rng, kind, problem->dtype, problem->bytes);
        if (problem->bytes) {
            ((uint8_t *)problem->pixels.host)[i] = (uint8_t)value;
        } else {
            dtype_set(problem->dtype, problem->x.host, i, value);
        }
    }
    for (size_t i = 0; i < problem->clusters * problem->features; i++) {
        const double value = draw_value(&rng, kind, problem->dtype, false);
        const size_t duplicate = i / problem->features % 3 == 2 ? i - problem->features : i;
        dtype_set(problem->dtype, problem->values.host, i,
                  duplicate == i ? value * (problem->bytes ? 255 : 1)
                                 : dtype_get(problem->dtype, problem->values.host, duplicate));
    }
    for (size_t f = 0; f < problem->features; f++)
        ((double *)problem->mean.host)[f] = draw_value(&rng, kind, problem->dtype, false);
    for (size_t r = 0; r < problem->rows; r++) {
        ((uint32_t *)problem->index.host)[r] = rng_below(&rng, (uint32_t)problem->rows);
        ((uint32_t *)problem->label.host)[r] = r % 5 ? NEAREST_NONE : 0;
    }
    const struct mirror inputs[] = {problem->pixels, problem->x,     problem->values,
                                    problem->mean,   problem->index, problem->label};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) mirror_upload(problem->pair, inputs[i]);
}

static void open_problem(struct problem *problem, struct device_pair *pair, size_t shape,
                         enum gemm_dtype dtype, bool bytes) {
    *problem = (struct problem){.pair = pair,
                                .dtype = dtype,
                                .rows = shapes[shape].rows,
                                .features = shapes[shape].features,
                                .clusters = shapes[shape].clusters,
                                .bytes = bytes};
    const size_t rows = problem->rows, features = problem->features, clusters = problem->clusters,
                 size = dtype_size(dtype);
    problem->host = pair->host.device.driver->cluster_ops(&pair->host.device, dtype);
    problem->gpu = pair->gpu.device.driver->cluster_ops(&pair->gpu.device, dtype);
    problem->host_context = pair->host.device.ops_context;
    problem->gpu_context = pair->gpu.device.ops_context;
    problem->pixels = make(problem, bytes ? rows * features : 1);
    problem->x = make(problem, rows * features * size);
    problem->values = make(problem, clusters * features * size);
    problem->transposed = make(problem, clusters * features * size);
    problem->bias = make(problem, clusters * size);
    problem->norm = make(problem, sizeof(double));
    problem->row_norm = make(problem, (rows + NEAREST_BLOCK - 1) / NEAREST_BLOCK * sizeof(double));
    problem->scores = make(problem, rows * (clusters + 3) * size);
    problem->label = make(problem, rows * sizeof(uint32_t));
    problem->before = make(problem, rows * sizeof(uint32_t));
    problem->moved = make(problem, rows * sizeof(uint32_t));
    problem->index = make(problem, rows * sizeof(uint32_t));
    problem->counts = make(problem, sizeof(struct nearest_counts));
    problem->sums = make(problem, clusters * features * sizeof(double));
    problem->count = make(problem, clusters * sizeof(uint64_t));
    problem->slices = make(problem, cluster_scratch(rows, clusters, features) * sizeof(double));
    problem->squared = make(problem, rows * sizeof(double));
    problem->cost = make(problem, clusters * sizeof(double));
    problem->shift = make(problem, clusters * sizeof(double));
    problem->mean = make(problem, features * sizeof(double));
}

static void close_problem(struct problem *problem) {
    const struct mirror all[] = {problem->pixels,  problem->x,      problem->values, problem->transposed,
                                 problem->bias,    problem->norm,   problem->scores, problem->row_norm,
                                 problem->label,   problem->before, problem->moved,  problem->index,
                                 problem->counts,  problem->sums,   problem->count,  problem->slices,
                                 problem->squared, problem->cost,   problem->shift,  problem->mean};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mirror_free(problem->pair, all[i]);
}

static struct nearest_centres centres_of(const struct problem *problem, bool gpu) {
    return (struct nearest_centres){.count = problem->clusters,
                                    .features = problem->features,
                                    .values = gpu ? problem->values.gpu : problem->values.host,
                                    .transposed = gpu ? problem->transposed.gpu : problem->transposed.host,
                                    .bias = gpu ? problem->bias.gpu : problem->bias.host,
                                    .norm = gpu ? problem->norm.gpu : problem->norm.host};
}

static void check_points(struct problem *problem) {
    const size_t rows = problem->rows, features = problem->features, size = dtype_size(problem->dtype);
    const struct mirror from = problem->bytes ? problem->pixels : problem->x;
    struct mirror drawn = make(problem, rows * features * size);
    problem->host->rows(problem->host_context, rows, features, problem->bytes, from.host, problem->index.host,
                        drawn.host);
    problem->gpu->rows(problem->gpu_context, rows, features, problem->bytes, from.gpu, problem->index.gpu,
                       drawn.gpu);
    assert_same(problem, drawn, size, "rows by index");
    mirror_free(problem->pair, drawn);
    if (problem->bytes) {
        problem->host->rows(problem->host_context, rows, features, true, from.host, NULL, problem->x.host);
        problem->gpu->rows(problem->gpu_context, rows, features, true, from.gpu, NULL, problem->x.gpu);
        assert_same(problem, problem->x, size, "rows");
    }
    problem->host->norms(problem->host_context, rows, features, problem->x.host, problem->row_norm.host);
    problem->gpu->norms(problem->gpu_context, rows, features, problem->x.gpu, problem->row_norm.gpu);
    assert_same(problem, problem->row_norm, sizeof(double), "norms");
}

static void check_centres(struct problem *problem) {
    const struct nearest_centres host = centres_of(problem, false), gpu = centres_of(problem, true);
    const size_t size = dtype_size(problem->dtype);
    problem->host->centres(problem->host_context, &host);
    problem->gpu->centres(problem->gpu_context, &gpu);
    assert_same(problem, problem->transposed, size, "transposed centres");
    assert_same(problem, problem->bias, size, "bias");
    assert_same(problem, problem->norm, sizeof(double), "norm of the centres");
}

/* The same scores on both. */
static void fill_scores(struct problem *problem) {
    const size_t clusters = problem->clusters, features = problem->features, ld = clusters + 3;
    for (size_t r = 0; r < problem->rows; r++)
        for (size_t j = 0; j < clusters; j++) {
            double sum = dtype_get(problem->dtype, problem->bias.host, j);
            for (size_t f = 0; f < features; f++)
                sum += dtype_get(problem->dtype, problem->x.host, r * features + f) *
                       dtype_get(problem->dtype, problem->values.host, j * features + f);
            dtype_set(problem->dtype, problem->scores.host, r * ld + j, sum);
        }
    mirror_upload(problem->pair, problem->scores);
}

/* NaN and infinity in the scores of some rows. */
static void spoil_scores(struct problem *problem) {
    const size_t clusters = problem->clusters, ld = clusters + 3;
    for (size_t r = 5; r < problem->rows; r += 97)
        for (size_t j = 0; j < clusters; j++)
            dtype_set(problem->dtype, problem->scores.host, r * ld + j,
                      r % 2 && j % 2 ? (double)NAN : (double)-INFINITY);
    mirror_upload(problem->pair, problem->scores);
}

static void check_nearest(struct problem *problem, bool certify) {
    const struct nearest_centres host_centres = centres_of(problem, false),
                                 gpu_centres = centres_of(problem, true);
    struct nearest_call host = {.rows = problem->rows,
                                .x = problem->x.host,
                                .scores = problem->scores.host,
                                .score_ld = problem->clusters + 3,
                                .centres = &host_centres,
                                .norm = problem->row_norm.host,
                                .certify = certify,
                                .label = problem->label.host};
    struct nearest_call gpu = host;
    gpu.x = problem->x.gpu;
    gpu.scores = problem->scores.gpu;
    gpu.centres = &gpu_centres;
    gpu.norm = problem->row_norm.gpu;
    gpu.label = problem->label.gpu;
    memcpy(problem->before.host, problem->label.host, problem->before.bytes); /* for check_sums */
    mirror_upload(problem->pair, problem->before);
    problem->host->nearest(problem->host_context, &host, problem->counts.host);
    problem->gpu->nearest(problem->gpu_context, &gpu, problem->counts.gpu);
    assert_same(problem, problem->label, sizeof(uint32_t), certify ? "labels" : "labels of the scores");
    assert_same(problem, problem->counts, sizeof(uint64_t), "counts");
}

/* All rows, and then those that moved. */
static void check_sums(struct problem *problem) {
    const struct cluster_sums host = {problem->clusters, problem->features, problem->sums.host,
                                      problem->count.host},
                              gpu = {problem->clusters, problem->features, problem->sums.gpu,
                                     problem->count.gpu};
    const struct mirror from = problem->bytes ? problem->pixels : problem->x;
    for (int listed = 0; listed < 3; listed++) {
        struct cluster_rows rows = {.count = problem->rows,
                                    .bytes = problem->bytes,
                                    .x = from.host,
                                    .label = listed == 1 ? problem->before.host : problem->label.host,
                                    .before = listed == 1   ? problem->label.host
                                              : listed == 2 ? problem->before.host
                                                            : NULL,
                                    .moved = problem->moved.host,
                                    .slices = problem->slices.host};
        struct cluster_rows copy = rows;
        copy.x = from.gpu;
        copy.label = listed == 1 ? problem->before.gpu : problem->label.gpu;
        copy.before = listed == 1 ? problem->label.gpu : listed == 2 ? problem->before.gpu : NULL;
        copy.moved = problem->moved.gpu;
        copy.slices = problem->slices.gpu;
        if (listed == 1) { /* they move somewhere */
            for (size_t r = 0; r < problem->rows; r++) {
                const uint32_t label = ((uint32_t *)problem->label.host)[r];
                ((uint32_t *)problem->before.host)[r] =
                    r % 3 ? label : (uint32_t)((label + r) % problem->clusters);
            }
            mirror_upload(problem->pair, problem->before);
        }
        if (listed == 2) { /* rows without a label before */
            for (size_t r = 0; r < problem->rows; r += 4)
                ((uint32_t *)problem->before.host)[r] = NEAREST_NONE;
            mirror_upload(problem->pair, problem->before);
        }
        problem->host->sum(problem->host_context, &rows, &host);
        problem->gpu->sum(problem->gpu_context, &copy, &gpu);
        assert_same(problem, problem->sums, sizeof(double), listed ? "sums of rows that moved" : "sums");
        assert_same(problem, problem->count, sizeof(uint64_t), "counts of the clusters");
    }
}

/* All rows in one call on the host, and in parts on the GPU. */
static void check_parts(struct problem *problem) {
    const struct cluster_sums host = {problem->clusters, problem->features, problem->sums.host,
                                      problem->count.host},
                              gpu = {problem->clusters, problem->features, problem->sums.gpu,
                                     problem->count.gpu};
    const size_t element = problem->bytes ? 1 : dtype_size(problem->dtype), all = problem->rows,
                 multiple = cluster_part_rows(all, problem->clusters, problem->features),
                 step = (1000 + multiple - 1) / multiple * multiple;
    const struct mirror from = problem->bytes ? problem->pixels : problem->x;
    const struct cluster_rows rows = {.count = all,
                                      .bytes = problem->bytes,
                                      .x = from.host,
                                      .label = problem->label.host,
                                      .moved = problem->moved.host,
                                      .slices = problem->slices.host};
    problem->host->sum(problem->host_context, &rows, &host);
    for (size_t first = 0; first < all; first += step) {
        struct cluster_rows part = rows;
        part.first = first;
        part.total = all;
        part.count = all - first < step ? all - first : step;
        part.x = (const char *)from.gpu + first * problem->features * element;
        part.label = (const uint32_t *)problem->label.gpu + first;
        part.moved = problem->moved.gpu;
        part.slices = problem->slices.gpu;
        problem->gpu->sum(problem->gpu_context, &part, &gpu);
    }
    assert_same(problem, problem->sums, sizeof(double), "sums of parts");
    assert_same(problem, problem->count, sizeof(uint64_t), "counts of parts");
}

static void check_means(struct problem *problem) {
    const struct cluster_sums host = {problem->clusters, problem->features, problem->sums.host,
                                      problem->count.host},
                              gpu = {problem->clusters, problem->features, problem->sums.gpu,
                                     problem->count.gpu};
    problem->host->distances(problem->host_context, problem->rows, problem->features, problem->x.host,
                             problem->values.host, problem->label.host, problem->squared.host);
    problem->gpu->distances(problem->gpu_context, problem->rows, problem->features, problem->x.gpu,
                            problem->values.gpu, problem->label.gpu, problem->squared.gpu);
    assert_same(problem, problem->squared, sizeof(double), "distances");
    problem->host->distances(problem->host_context, problem->rows, problem->features, problem->x.host,
                             problem->values.host, NULL, problem->squared.host);
    problem->gpu->distances(problem->gpu_context, problem->rows, problem->features, problem->x.gpu,
                            problem->values.gpu, NULL, problem->squared.gpu);
    assert_same(problem, problem->squared, sizeof(double), "distances from one centre");
    problem->host->costs(problem->host_context, &host, problem->mean.host, problem->values.host,
                         problem->cost.host);
    problem->gpu->costs(problem->gpu_context, &gpu, problem->mean.gpu, problem->values.gpu,
                        problem->cost.gpu);
    assert_same(problem, problem->cost, sizeof(double), "costs");
    problem->host->means(problem->host_context, &host, problem->values.host, problem->shift.host);
    problem->gpu->means(problem->gpu_context, &gpu, problem->values.gpu, problem->shift.gpu);
    assert_same(problem, problem->values, dtype_size(problem->dtype), "means");
    assert_same(problem, problem->shift, sizeof(double), "shifts");
}

static void ops_have_the_bits_of_the_host(void **state) {
    (void)state;
    struct device_pair pair;
    size_t number = 0;
    pair_open(&pair, GEMM_F32);
    for (size_t shape = 0; shape < SHAPES; shape++)
        for (int form = 0; form < 4; form++)
            for (int kind = 0; kind < KINDS; kind++) {
                struct problem problem;
                const bool bytes = form >= 2;
                if (bytes && kind >= TINY) continue;
                if (kind == HUGE_VALUES && shape > 4) continue; /* each comparison is exact, and slow */
                if (number++ % support_stride()) continue;
                open_problem(&problem, &pair, shape, form % 2 ? GEMM_F64 : GEMM_F32, bytes);
                fill(&problem, (enum data_kind)kind);
                check_points(&problem);
                check_centres(&problem);
                fill_scores(&problem);
                check_nearest(&problem, true);
                spoil_scores(&problem);
                check_nearest(&problem, false);
                check_nearest(&problem, true);
                check_sums(&problem);
                check_parts(&problem);
                check_means(&problem);
                close_problem(&problem);
            }
    pair_close(&pair);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ops_have_the_bits_of_the_host)};
    return cmocka_run_group_tests_name("gpu clustering ops", tests, NULL, NULL);
}
