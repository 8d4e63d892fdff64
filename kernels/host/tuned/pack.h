/* Packing: copies blocks of A and B into micro-panels, in the order in which the micro-kernel reads them.

   Idea       a micro-panel of B is [k][width], padded with zeros to whole vectors. B stored as [k][n] is
              copied row by row; stored as [n][k], it is transposed in registers, LANES x LANES elements at a
              time: in log2(LANES) rounds of perfect shuffles, each of which rotates the bits of (row, column)
              by one. A micro-panel of A is [k][PACKMR], packed by the same functions with rows as columns.
   Bound by   bytes: each element is read and written once; the transpose costs log2(LANES) shuffles a vector.
   Run        ./train bench gemm --backends tuned

   A packed element is an element of A or B; dtype_bf16.h widens it, or joins VNNI of them along k. */
#ifndef NAME
#    include "kernels/host/tuned/vector.h"
#endif

/* Rows cut into `count` micro-tiles of `height` rows; the first `taller` of them have one more. */
#define TILES struct NAME(tiles)
TILES {
    size_t first_row, count, height, taller;
};

INLINE TILES NAME(split_rows)(size_t first_row, size_t rows, size_t most) {
    const size_t count = (rows + most - 1) / most;
    return (TILES){first_row, count, rows / count, rows % count};
}

INLINE void NAME(transpose)(VECTOR *square) {
    UNROLL for (size_t round = 1; round < LANES; round *= 2) {
        VECTOR half[LANES];
        UNROLL for (size_t i = 0; i < LANES; i++) half[i] = square[i];
        UNROLL for (size_t i = 0; i < LANES / 2; i++) {
            square[2 * i] = SHUFFLE(half[i], half[i + LANES / 2], LOW);
            square[2 * i + 1] = SHUFFLE(half[i], half[i + LANES / 2], HIGH);
        }
    }
}

/* Ones in the first `count` lanes. */
INLINE NAME(bits) NAME(lane_mask)(size_t count) {
    NAME(bits) lane;
    UNROLL for (size_t j = 0; j < LANES; j++) lane[j] = (BITS)j;
    return (NAME(bits))(lane < (NAME(bits)){0} + (BITS)count);
}

/* A packed vector of one step of k: `cols` columns from `b` on, `depth` stored elements along k; the rest is
   0. If the whole vector is `inside` B, it is loaded and masked. */
INLINE VECTOR NAME(load_partial_n)(const STORED *b, size_t ldb, size_t depth, size_t cols, bool inside) {
    if (inside) {
        return (VECTOR)((NAME(bits))LOAD_ACROSS_N(b, ldb) & NAME(lane_mask)(cols));
    }
    STORED piece[VNNI][LANES] = {{0}};
    for (size_t p = 0; p < VNNI && p < depth; p++)
        for (size_t j = 0; j < cols; j++) piece[p][j] = b[p * ldb + j];
    return LOAD_ACROSS_N(piece[0], LANES);
}

/* The same along k: `depth` elements, at most VNNI * LANES. */
INLINE VECTOR NAME(load_partial_k)(const STORED *b, size_t depth, bool inside) {
    if (inside && depth % VNNI == 0) {
        return (VECTOR)((NAME(bits))LOAD_ALONG_K(b) & NAME(lane_mask)(depth / VNNI));
    }
    STORED piece[VNNI * LANES] = {0};
    for (size_t p = 0; p < depth; p++) piece[p] = b[p];
    return LOAD_ALONG_K(piece);
}

/* Packs `cols` columns of B[k][n], padded to `vectors` vectors. */
INLINE void NAME(pack_vectors)(size_t vectors, size_t k, size_t cols, const STORED *b, size_t ldb,
                               REAL *packed) {
    const size_t whole = cols / LANES, rest = cols % LANES;
    const size_t end = k ? (k - 1) * ldb + cols : 0; /* elements of B from `b` on */
    for (size_t p = 0; p < k; p += VNNI, packed += vectors * LANES) {
        UNROLL for (size_t v = 0; v < vectors; v++) {
            const STORED *from = b + p * ldb + v * LANES;
            const bool full = v < whole && p + VNNI <= k,
                       inside = (p + VNNI - 1) * ldb + (v + 1) * LANES <= end;
            __builtin_prefetch(from + B_PREFETCH_ROWS * ldb);
            const size_t width = v < whole ? LANES : v == whole ? rest : 0;
            VECTOR element = {0};
            if (full) {
                element = LOAD_ACROSS_N(from, ldb);
            } else if (width) {
                element = NAME(load_partial_n)(from, ldb, k - p, width, inside);
            }
            STORE_VECTOR(packed + v * LANES, element);
        }
    }
}

static void NAME(pack_rows)(size_t k, size_t cols, size_t width, const STORED *b, size_t ldb, REAL *packed) {
    if (width == LANES) {
        NAME(pack_vectors)(1, k, cols, b, ldb, packed);
    } else if (width == 2 * LANES && cols == width) {
        NAME(pack_vectors)(2, k, 2 * LANES, b, ldb, packed);
    } else if (width == 2 * LANES) {
        NAME(pack_vectors)(2, k, cols, b, ldb, packed);
    } else {
        NAME(pack_vectors)(width / LANES, k, cols, b, ldb, packed);
    }
}

/* A square of `rows` x `depth` elements of B[n][k], depth <= VNNI * LANES. Rows below are 0. Elements to the
   right are arbitrary: store_rows skips them after the transpose. Nothing is read from `end` (of B) on. */
INLINE void NAME(load_square)(VECTOR *square, size_t rows, size_t depth, const STORED *b, size_t ldb,
                              const STORED *end) {
    enum { DEPTH = VNNI * LANES };
    STORED copy[LANES * DEPTH];
    if (rows == 0 || depth % VNNI || (size_t)(end - b) < (rows - 1) * ldb + DEPTH) {
        for (size_t i = 0; i < LANES; i++)
            for (size_t j = 0; j < DEPTH; j++)
                copy[i * DEPTH + j] = i < rows && j < depth ? b[i * ldb + j] : (STORED)0;
        b = copy;
        ldb = DEPTH;
        rows = LANES;
    }
    UNROLL for (size_t i = 0; i < LANES; i++) square[i] = i < rows ? LOAD_ALONG_K(b + i * ldb) : (VECTOR){0};
}

/* Stores the first `rows` of a square. Unrolled: constant indices keep the square in registers. */
INLINE void NAME(store_rows)(const VECTOR *square, size_t rows, REAL *to, size_t ld) {
    UNROLL for (size_t i = 0; i < LANES; i++) if (i < rows) STORE_VECTOR(to + i * ld, square[i]);
}

/* As pack_rows, for B[n][k]. `end`: of B. */
static void NAME(pack_transposed)(size_t k, size_t cols, size_t width, const STORED *b, size_t ldb,
                                  const STORED *end, REAL *packed) {
    for (size_t j = 0; j < width; j += LANES)
        for (size_t p = 0; p < k; p += VNNI * LANES) {
            VECTOR square[LANES];
            const size_t depth = k - p < VNNI * LANES ? k - p : VNNI * LANES;
            NAME(load_square)(square, cols > j ? cols - j : 0, depth, b + j * ldb + p, ldb, end);
            NAME(transpose)(square);
            NAME(store_rows)(square, (depth + VNNI - 1) / VNNI, packed + p / VNNI * width + j, width);
        }
}
