/* The group of windows.h and its division into levels, by flops. */
#include "src/window/windows_parts.h"

#include <math.h>

/* Writing a triangle costs as much as this number of rows that enter it. Measured with AVX2 and float32: 1.3
   to 5, for 128 to 2048 columns. */
static const double COPY_ROWS = 4;
/* Flops of a group in use, relative to the fewest of any group. */
static const double NEAR_FEWEST = 1.2;

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

size_t windows_sharing(const struct windows_shape *shape) {
    return smaller(shape->count, (shape->window - 1) / shape->stride + 1);
}

size_t windows_group_start(const struct windows *windows, size_t group) {
    return (size_t)((unsigned __int128)windows->shape.count * group / windows->groups);
}

/* --- flops --- */

struct work {
    double flops, triangles; /* triangles that are written beyond those of level 0 */
};

/* Rows that enter triangles of a tree over `windows` windows, in strides: each level that halves nodes of s
   windows has s for each pair. */
static double tree_rows(size_t windows) {
    size_t power = 1, level = 0;
    for (; 2 * power <= windows; power *= 2) level++;
    return (double)windows * (double)level + 2 * (double)(windows - power);
}

/* The flops of C = A^T B, [n][cols], on and above the diagonal. */
static double gram_flops(const struct windows_shape *shape, double rows) {
    const double n = (double)shape->n, cols = (double)shape->cols;
    return rows * (2 * n * cols - n * n);
}

static struct work group_work(enum windows_method method, const struct windows_shape *shape, size_t windows) {
    const double count = (double)windows, n = (double)shape->n, cols = (double)shape->cols,
                 row = qr_append_flops(1, shape->n, shape->cols) * (double)shape->stride;
    if (method == WINDOWS_GRAM)
        return (struct work){gram_flops(shape, (double)shape->window) +
                                 (count - 1) * gram_flops(shape, 2 * (double)shape->stride) +
                                 count * (n * n * n / 3 + n * n * (cols - n)),
                             0};
    const size_t common = shape->window - (windows - 1) * shape->stride;
    const double root = shape->ridge > 0 ? qr_append_flops(common, shape->n, shape->cols)
                                         : qr_factor_flops(common, shape->n, shape->cols);
    if (windows == 1) return (struct work){root, 0};
    if (method == WINDOWS_COMMON) return (struct work){root + count * (count - 1) * row, count};
    return (struct work){root + tree_rows(windows) * row, 2 * count - 2};
}

static struct work all_work(enum windows_method method, const struct windows_shape *shape, size_t group) {
    const size_t groups = (shape->count + group - 1) / group, size = shape->count / groups,
                 larger = shape->count % groups;
    struct work work = group_work(method, shape, size), more = {0, 0};
    if (larger) more = group_work(method, shape, size + 1);
    const double few = (double)(groups - larger), many = (double)larger;
    return (struct work){few * work.flops + many * more.flops, few * work.triangles + many * more.triangles};
}

double windows_plan_flops(enum windows_method method, const struct windows_shape *shape, size_t group) {
    return all_work(method, shape, group).flops;
}

/* The fastest of the groups whose flops are near the fewest: the cost of a copy depends on the machine. */
size_t windows_plan_group(enum windows_method method, const struct windows_shape *shape) {
    const size_t most = method == WINDOWS_NAIVE ? 1 : windows_sharing(shape);
    const double copy = COPY_ROWS * qr_append_flops(1, shape->n, shape->cols);
    double fewest = INFINITY, best = INFINITY;
    size_t group = 1;
    for (size_t trial = 1; trial <= most; trial++)
        fewest = fmin(fewest, all_work(method, shape, trial).flops);
    for (size_t trial = 1; trial <= most; trial++) {
        const struct work work = all_work(method, shape, trial);
        const double cost = work.flops + work.triangles * copy;
        if (work.flops > NEAR_FEWEST * fewest || cost >= best) continue;
        best = cost;
        group = trial;
    }
    return group;
}

/* --- levels --- */

/* The most rows that enter a node of level `level` in a group of `size` windows. */
static size_t level_rows(const struct windows *windows, size_t level, size_t size) {
    const size_t above = windows->levels[level - 1].parts, parts = windows->levels[level].parts;
    size_t most = 0;
    for (size_t i = 0; i < parts; i++) {
        const size_t outer = i / (parts / above), first = size * i / parts, end = size * (i + 1) / parts,
                     all = size * (outer + 1) / above - size * outer / above;
        if (first < end && all - (end - first) > most) most = all - (end - first);
    }
    return most * windows->shape.stride;
}

/* Level 0 starts from nothing, or from the ridge: without it the rows are padded to a whole triangle. */
static size_t root_rows(const struct windows *windows, size_t size) {
    const struct windows_shape *shape = &windows->shape;
    const size_t common = shape->window - (size - 1) * shape->stride;
    return shape->ridge > 0 || common > shape->n ? common : shape->n;
}

void windows_plan_levels(struct windows *windows) {
    const struct windows_shape *shape = &windows->shape;
    const size_t size = shape->count / windows->groups, largest = size + (shape->count % windows->groups > 0);
    struct windows_level *level = windows->levels;
    level->parts = 1;
    level->rows = root_rows(windows, size);
    for (; level->parts < largest; windows->depth++) {
        level[1].parts = windows->method == WINDOWS_TREE ? 2 * level->parts : largest;
        level++;
        const size_t few = level_rows(windows, windows->depth + 1, size),
                     many = level_rows(windows, windows->depth + 1, largest);
        level->rows = few > many ? few : many;
    }
}
