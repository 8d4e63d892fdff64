/* Rows that enter a triangle (kernels/qr.h): a template, parameters in kernels/host/element.h.

   Idea       reflector c has its one in row c of R, and one more element for each row that enters. BLOCK
              reflectors I - V T V^T are computed first, then applied to strips of columns: the products of a
              strip stay in registers, the rows that enter, packed by strips, in the L1 or L2 cache, and R is
              read and written once. Square roots and divisions have a long latency, so that a vector has
              those of GROUP triangles.
   Bound by   FMA: 4 rows flops for each element of R, and BLOCK + 2 for T. With few rows, the bytes of R: at
              8 rows, 32 flops for 8 bytes. A thread has whole triangles: one triangle is not shared. */
#ifndef TESSERA_KERNELS_HOST_OPS_APPEND_H
#    define TESSERA_KERNELS_HOST_OPS_APPEND_H

#    include <math.h>

#    include "kernels/host/ops/template.h"
#    include "kernels/qr.h"

enum {
    APPEND_BLOCK = 4,
    APPEND_GROUP = 4,   /* triangles of a vector of double */
    APPEND_VECTORS = 2, /* of a strip */
    APPEND_AHEAD = 4,   /* strips of R to prefetch */
#    ifdef __AVX512F__
    APPEND_BYTES = 64 /* of a vector */
#    else
    APPEND_BYTES = 32
#    endif
};

typedef double append_lanes __attribute__((vector_size(APPEND_GROUP * sizeof(double))));

/* BLOCK columns of GROUP triangles, in double precision. A lane without a triangle has zeros. */
struct append_block {
    append_lanes r[APPEND_BLOCK][APPEND_BLOCK];   /* becomes the new one */
    append_lanes a[QR_APPEND_ROWS][APPEND_BLOCK]; /* becomes V below its ones */
    append_lanes t[APPEND_BLOCK][APPEND_BLOCK];
};

/* The head of a reflector of each lane, from the element on the diagonal and the squares below it. */
static inline void append_heads(const double *restrict head, const double *restrict squares,
                                double *restrict beta, double *restrict factor, double *restrict tau) {
#    pragma omp simd
    for (size_t g = 0; g < APPEND_GROUP; g++) {
        const bool any = squares[g] != 0; /* else nothing is to eliminate; NaN spreads */
        const double length = sqrt(head[g] * head[g] + squares[g]), moved = head[g] > 0 ? -length : length,
                     one = any ? 1 : 0, safe = any ? moved : 1, pivot = any ? head[g] - moved : 1;
        beta[g] = any ? moved : head[g];
        factor[g] = one / pivot;
        tau[g] = -pivot / safe * one;
    }
}

/* Reflector k: applied to the columns after it, and its column of T. */
static inline void append_reflect(struct append_block *block, size_t rows, size_t k) {
    append_lanes sum[APPEND_BLOCK] = {{0}}, beta, factor, tau;
    for (size_t i = 0; i < rows; i++)
        for (size_t l = 0; l < APPEND_BLOCK; l++) sum[l] += block->a[i][k] * block->a[i][l];
    append_heads((const double *)&block->r[k][k], (const double *)&sum[k], (double *)&beta, (double *)&factor,
                 (double *)&tau);
    block->r[k][k] = beta;
    for (size_t l = k + 1; l < APPEND_BLOCK; l++) {
        const append_lanes w = tau * (block->r[k][l] + factor * sum[l]), scaled = w * factor;
        block->r[k][l] -= w;
        for (size_t i = 0; i < rows; i++) block->a[i][l] -= scaled * block->a[i][k];
    }
    for (size_t i = 0; i < rows; i++) block->a[i][k] *= factor;
    for (size_t j = 0; j < k; j++) { /* -tau T (V^T v) */
        append_lanes product = {0};
        for (size_t l = j; l < k; l++) product += block->t[j][l] * sum[l];
        block->t[j][k] = -tau * factor * product;
    }
    block->t[k][k] = tau;
}

#endif

#ifndef NAME
#    include "kernels/host/element.h"
#endif

enum {
    NAME(APPEND_LANES) = APPEND_BYTES / sizeof(REAL),
    NAME(APPEND_STRIP) = APPEND_VECTORS * NAME(APPEND_LANES) /* columns */
};
typedef REAL NAME(append_vector) __attribute__((vector_size(APPEND_BYTES), aligned(sizeof(REAL)), may_alias));

/* BLOCK reflectors of one triangle. */
struct NAME(reflectors) {
    REAL v[QR_APPEND_ROWS][APPEND_BLOCK], t[APPEND_BLOCK][APPEND_BLOCK];
};

/* Applies them to a strip: `from` of R, [BLOCK][..], becomes `to`; a [rows][STRIP] is packed. */
INLINE void NAME(append_strip)(const struct NAME(reflectors) * by, size_t rows, const REAL *from, REAL *to,
                               size_t ld, REAL *restrict a) {
    enum { V = APPEND_VECTORS, K = APPEND_BLOCK, L = NAME(APPEND_LANES), STRIP = NAME(APPEND_STRIP) };
    typedef NAME(append_vector) vector;
    vector w[K][V];
#pragma GCC unroll 8
    for (size_t k = 0; k < K; k++)
#pragma GCC unroll 8
        for (size_t v = 0; v < V; v++) w[k][v] = (vector){0}; /* R arrives from memory meanwhile */
    for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (size_t k = 0; k < K; k++)
#pragma GCC unroll 8
            for (size_t v = 0; v < V; v++) w[k][v] += by->v[i][k] * *(const vector *)(a + i * STRIP + v * L);
    vector r[K][V];
#pragma GCC unroll 8
    for (size_t k = 0; k < K; k++)
#pragma GCC unroll 8
        for (size_t v = 0; v < V; v++) {
            r[k][v] = *(const vector *)(from + k * ld + v * L);
            w[k][v] += r[k][v];
        }
#pragma GCC unroll 8
    for (size_t k = K; k-- > 0;)
#pragma GCC unroll 8
        for (size_t v = 0; v < V; v++) {
            w[k][v] *= by->t[k][k];
#pragma GCC unroll 8
            for (size_t l = 0; l < k; l++) w[k][v] += by->t[l][k] * w[l][v];
            *(vector *)(to + k * ld + v * L) = r[k][v] - w[k][v];
        }
    for (size_t i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (size_t v = 0; v < V; v++) {
            vector sum = *(const vector *)(a + i * STRIP + v * L);
#pragma GCC unroll 8
            for (size_t k = 0; k < K; k++) sum -= by->v[i][k] * w[k][v];
            *(vector *)(a + i * STRIP + v * L) = sum;
        }
}

/* A strip of which R has only columns first .. end - 1, of its first `height` rows. */
static void NAME(append_part)(const struct NAME(reflectors) * by, size_t rows, size_t height, size_t first,
                              size_t end, const REAL *from, REAL *to, size_t ld, REAL *a) {
    enum { STRIP = NAME(APPEND_STRIP) };
    _Alignas(APPEND_BYTES) REAL r[APPEND_BLOCK][STRIP];
    for (size_t k = 0; k < APPEND_BLOCK; k++)
        for (size_t j = 0; j < STRIP; j++)
            r[k][j] = k < height && j >= first && j < end ? from[k * ld + j] : 0;
    NAME(append_strip)(by, rows, r[0], r[0], STRIP, a);
    for (size_t k = 0; k < height; k++)
        for (size_t j = 0; j < STRIP; j++)
            if (j >= first && j < end) to[k * ld + j] = r[k][j];
}

/* One triangle: the rows that enter as strips, [cols / STRIP][rows][STRIP]. */
struct NAME(entering) {
    const REAL *from;
    REAL *to, *strips;
    struct NAME(reflectors) by;
};

/* Copies columns first .. cols - 1 of the rows that enter to strips, or back. */
static void NAME(pack_strips)(const struct qr_append *call, const struct NAME(entering) * one, REAL *a,
                              size_t first, bool back) {
    enum { STRIP = NAME(APPEND_STRIP) };
    for (size_t j = first / STRIP * STRIP; j < call->cols; j += STRIP)
        for (size_t i = 0; i < call->rows; i++) {
            REAL *restrict strip = one->strips + j * call->rows + i * STRIP, *restrict row =
                                                                                 a + i * call->a.ld + j;
            const size_t left = call->cols - j, begin = first > j ? first - j : 0;
            for (size_t l = 0; l < STRIP && !back; l++) strip[l] = l < left ? row[l] : 0;
            for (size_t l = 0; l < STRIP && back; l++)
                if (l >= begin && l < left) row[l] = strip[l];
        }
}

/* Columns c .. c + width - 1, to a lane and from there. */
static void NAME(read_lane)(const struct qr_append *call, const struct NAME(entering) * one, size_t c,
                            size_t width, struct append_block *block, size_t lane) {
    enum { STRIP = NAME(APPEND_STRIP) };
    const REAL *r = one->from + c * call->r.ld + c,
               *a = one->strips + c / STRIP * STRIP * call->rows + c % STRIP;
    for (size_t k = 0; k < width; k++)
        for (size_t l = k; l < width; l++) block->r[k][l][lane] = (double)r[k * call->r.ld + l];
    for (size_t i = 0; i < call->rows; i++)
        for (size_t l = 0; l < APPEND_BLOCK; l++)
            block->a[i][l][lane] = l < width ? (double)a[i * STRIP + l] : 0;
}

static void NAME(write_lane)(const struct qr_append *call, struct NAME(entering) * one, size_t c,
                             size_t width, const struct append_block *block, size_t lane) {
    REAL *r = one->to + c * call->r.ld + c;
    for (size_t k = 0; k < width; k++)
        for (size_t l = k; l < width; l++) r[k * call->r.ld + l] = (REAL)block->r[k][l][lane];
    for (size_t i = 0; i < call->rows; i++)
        for (size_t k = 0; k < APPEND_BLOCK; k++) one->by.v[i][k] = (REAL)block->a[i][k][lane];
    for (size_t k = 0; k < APPEND_BLOCK; k++)
        for (size_t l = k; l < APPEND_BLOCK; l++) one->by.t[k][l] = (REAL)block->t[k][l][lane];
}

/* The columns after a block. The columns before them in its strip are done: what they become is not used. */
static void NAME(append_columns)(const struct qr_append *call, const struct NAME(entering) * one, size_t c,
                                 size_t width) {
    enum { STRIP = NAME(APPEND_STRIP) };
    const size_t ld = call->r.ld, begin = c + width;
    for (size_t j = begin / STRIP * STRIP; j < call->cols; j += STRIP) {
        const REAL *from = one->from + c * ld + j;
        REAL *to = one->to + c * ld + j, *a = one->strips + j * call->rows;
        const size_t left = call->cols - j;
        if (j >= begin && left >= STRIP && width == APPEND_BLOCK) {
            for (size_t k = 0; k < APPEND_BLOCK; k++)
                for (size_t l = 0; l < APPEND_VECTORS; l++)
                    __builtin_prefetch(from + k * ld + APPEND_AHEAD * STRIP + l * NAME(APPEND_LANES), 1);
            NAME(append_strip)(&one->by, call->rows, from, to, ld, a);
        } else {
            NAME(append_part)
            (&one->by, call->rows, width, j < begin ? begin - j : 0, left < STRIP ? left : STRIP, from, to,
             ld, a);
        }
    }
}

/* Triangles first .. first + count - 1, at most GROUP. */
static void NAME(append_group)(const struct qr_append *call, size_t first, size_t count) {
    struct append_block block = {0};
    struct NAME(entering) group[APPEND_GROUP];
    REAL *a = (REAL *)call->a.values + first * call->a.stride;
    for (size_t g = 0; g < count; g++) {
        group[g].from = call->r.from[first + g];
        group[g].to = call->r.to[first + g];
        group[g].strips = (REAL *)call->scratch + (first + g) * qr_append_scratch(call->rows, call->cols);
        NAME(pack_strips)(call, &group[g], a + g * call->a.stride, 0, false);
    }
    for (size_t c = 0; c < call->n; c += APPEND_BLOCK) {
        const size_t left = call->n - c, width = left < APPEND_BLOCK ? left : APPEND_BLOCK;
        if (width < APPEND_BLOCK) block = (struct append_block){0};
        for (size_t g = 0; g < count; g++) NAME(read_lane)(call, &group[g], c, width, &block, g);
        for (size_t k = 0; k < width; k++) append_reflect(&block, call->rows, k);
        for (size_t g = 0; g < count; g++) {
            NAME(write_lane)(call, &group[g], c, width, &block, g);
            NAME(append_columns)(call, &group[g], c, width);
        }
    }
    for (size_t g = 0; g < count; g++)
        if (call->cols > call->n) NAME(pack_strips)(call, &group[g], a + g * call->a.stride, call->n, true);
}

static void NAME(append)(void *context, const struct qr_append *append) {
    const int threads = threads_for(context, append->count * append->rows * append->n * append->cols);
    const size_t share = (append->count + (size_t)threads - 1) / (size_t)threads,
                 size = share < APPEND_GROUP ? share : APPEND_GROUP,
                 groups = (append->count + size - 1) / size;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (size_t group = 0; group < groups; group++) {
        const size_t first = group * size, left = append->count - first;
        NAME(append_group)(append, first, left < size ? left : size);
    }
}
