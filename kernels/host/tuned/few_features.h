/* The nearest centres of points with few features: the running maximum stays in registers.

   Idea       points run along the lanes: FEW_VECTORS vectors of them share each coordinate of a centre. After
              the product of a centre, the best score, the second best and the index of the best are updated
              in registers: no score is stored.
   Bound by   instructions: features FMA and 5 of the update for the scores of a vector. A GEMM with 2
              features stores 64 scores for 256 flops of a point, and a second pass reads them again.
   Improves   gemm_loops.h and a pass over the scores, with up to FEW_FEATURES features
   Run        ./train kmeans --data uniform:1024MB,2 --dtype f64 --clusters 64 */
#ifndef NAME
#    include "kernels/host/tuned/pack.h"
#endif

#ifndef MAX_f32
#    define SELECT(type, mask, a, b) ((type)(((mask) & (NAME(bits))(a)) | (~(mask) & (NAME(bits))(b))))
#    define VECTOR_MAX(a, b) SELECT(VECTOR, (a) > (b), a, b)
#    define VECTOR_MIN(a, b) SELECT(VECTOR, (a) < (b), a, b)
#else
#    define VECTOR_MAX(a, b) ((VECTOR)NAME(MAX)(a, b))
#    define VECTOR_MIN(a, b) ((VECTOR)NAME(MIN)(a, b))
#endif
#define INDEX(mask, a, b) (((mask) & (a)) | (~(mask) & (b)))

/* The state of a group of points: best and second best score, and the centre of the best. */
struct NAME(few_best) {
    VECTOR best[FEW_VECTORS], second[FEW_VECTORS];
    NAME(bits) index[FEW_VECTORS];
};

INLINE void NAME(few_update)(struct NAME(few_best) * state, size_t v, VECTOR score, NAME(bits) centre) {
    const NAME(bits) above = score > state->best[v];
    state->second[v] = VECTOR_MAX(state->second[v], VECTOR_MIN(state->best[v], score));
    state->best[v] = VECTOR_MAX(state->best[v], score);
    state->index[v] = INDEX(above, centre, state->index[v]);
}

/* The scores of `count` (constant) centres from `first` on: each load of a coordinate of the points serves
   all of them. A sum starts with the bias. */
INLINE void NAME(few_scores)(const struct nearest_centres *centres, size_t features, size_t first,
                             size_t count, const REAL *x, VECTOR (*sum)[FEW_VECTORS]) {
    const size_t width = FEW_VECTORS * LANES;
    const REAL *c = (const REAL *)centres->values + first * features,
               *bias = (const REAL *)centres->bias + first;
    UNROLL for (size_t i = 0; i < count; i++) UNROLL for (size_t v = 0; v < FEW_VECTORS; v++) sum[i][v] =
        SPLAT(bias[i]);
    for (size_t f = 0; f < features; f++) UNROLL for (size_t v = 0; v < FEW_VECTORS; v++) {
            VECTOR point = LOAD_VECTOR(x + f * width + v * LANES);
            IN_REGISTER(point);
            UNROLL for (size_t i = 0; i < count; i++) sum[i][v] =
                VECTOR_FMA(point, SPLAT(c[i * features + f]), sum[i][v]);
        }
}

INLINE void NAME(few_centres)(struct NAME(few_best) * state, const struct nearest_centres *centres,
                              size_t features, size_t first, size_t count, const REAL *x) {
    VECTOR sum[FEW_CENTRES][FEW_VECTORS];
    NAME(few_scores)(centres, features, first, count, x, sum);
    UNROLL for (size_t i = 0; i < count; i++) {
        NAME(bits) centre = (NAME(bits)){0} + (BITS)(first + i);
        IN_REGISTER(centre);
        UNROLL for (size_t v = 0; v < FEW_VECTORS; v++) NAME(few_update)(state, v, sum[i][v], centre);
    }
}

INLINE void NAME(few_nearest)(const struct nearest_centres *centres, size_t features, const REAL *x,
                              REAL *gap, uint32_t *index) {
    struct NAME(few_best) state; /* in registers: all its indices are constants */
    BITS indices[FEW_VECTORS * LANES];
    size_t j = 0;
    UNROLL for (size_t v = 0; v < FEW_VECTORS; v++) {
        state.best[v] = state.second[v] = SPLAT((REAL)-INFINITY);
        state.index[v] = (NAME(bits)){0};
    }
    for (; j + FEW_CENTRES <= centres->count; j += FEW_CENTRES)
        NAME(few_centres)(&state, centres, features, j, FEW_CENTRES, x);
    for (; j < centres->count; j++) NAME(few_centres)(&state, centres, features, j, 1, x);
    UNROLL for (size_t v = 0; v < FEW_VECTORS; v++) {
        STORE_VECTOR(gap + v * LANES, state.best[v] - state.second[v]);
        STORE_VECTOR((REAL *)indices + v * LANES, (VECTOR)state.index[v]);
    }
    for (size_t r = 0; r < FEW_VECTORS * LANES; r++) index[r] = (uint32_t)indices[r];
}

/* See struct tuned_kernel. Two features are frequent, and the loop over a constant number is unrolled. */
static void NAME(nearest)(const struct nearest_centres *centres, const void *x, void *gap, uint32_t *index) {
    if (centres->features == 2) {
        NAME(few_nearest)(centres, 2, x, gap, index);
    } else {
        NAME(few_nearest)(centres, centres->features, x, gap, index);
    }
}

/* The lanes of `score` that are not below `least`: bit i for lane i. A NaN is not below. */
INLINE uint64_t NAME(not_below)(VECTOR score, VECTOR least) {
#ifdef NOT_BELOW_f32
    return NAME(NOT_BELOW)(score, least);
#else
    const NAME(bits) below = score < least;
    uint64_t mask = 0;
    UNROLL for (size_t i = 0; i < LANES; i++) mask |= (uint64_t)(below[i] == 0) << i;
    return mask;
#endif
}

INLINE size_t NAME(few_survivors)(const struct nearest_centres *centres, size_t first, size_t count,
                                  const REAL *x, const VECTOR *least, struct tuned_survivor *to) {
    VECTOR sum[FEW_CENTRES][FEW_VECTORS];
    size_t found = 0;
    NAME(few_scores)(centres, centres->features, first, count, x, sum);
    UNROLL for (size_t i = 0; i < count; i++) {
        uint64_t points = 0;
        UNROLL for (size_t v = 0; v < FEW_VECTORS; v++) points |= NAME(not_below)(sum[i][v], least[v])
                                                                  << (v * LANES);
        to[found] = (struct tuned_survivor){points, first + i};
        found += points != 0; /* no branch to predict */
    }
    return found;
}

/* See struct tuned_kernel. */
static size_t NAME(survivors)(const struct nearest_centres *centres, const void *x, const void *threshold,
                              struct tuned_survivor *to) {
    VECTOR least[FEW_VECTORS];
    size_t found = 0, j = 0;
    UNROLL for (size_t v = 0; v < FEW_VECTORS; v++) least[v] =
        LOAD_VECTOR((const REAL *)threshold + v * LANES);
    for (; j + FEW_CENTRES <= centres->count; j += FEW_CENTRES)
        found += NAME(few_survivors)(centres, j, FEW_CENTRES, x, least, to + found);
    for (; j < centres->count; j++) found += NAME(few_survivors)(centres, j, 1, x, least, to + found);
    return found;
}

static void NAME(pack_points)(size_t features, size_t rows, const void *x, void *packed) {
    NAME(pack_transposed)
    (features, rows, FEW_VECTORS * LANES, x, features, (const REAL *)x + rows * features, packed);
}
#undef SELECT
#undef VECTOR_MAX
#undef VECTOR_MIN
#undef INDEX
