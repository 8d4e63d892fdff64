/* Shared by the files of backend `tuned`. The templates (ukernel.h, pack.h, gemm_loops.h ..) are compiled for
   each instruction set (isa_*.c) and dtype; tuned.c selects the instruction set at run time, and plan.c
   partitions a call among threads and chooses the cache blocks. The names are those of BLIS: an MR x NR
   micro-tile, blocks of MC, KC and NC, micro-panels. */
#ifndef TESSERA_KERNELS_HOST_TUNED_TUNED_H
#define TESSERA_KERNELS_HOST_TUNED_TUNED_H

#include "kernels/nearest.h"

/* SGD (kernels/ops.h: struct update) as an epilogue: the product is the gradient, C holds the weights and is
   updated. (Without momentum and weight decay, alpha = -learning rate and beta = 1 do the same.) */
struct tuned_update {
    double learning_rate, momentum, weight_decay;
    void *velocity; /* as C; NULL without momentum */
};

/* The algorithm. All but the first are for products with a small n or k. */
enum tuned_variant {
    TUNED_BLOCKED,      /* gemm_loops.h */
    TUNED_DOT,          /* dot.h: small n, A not transposed */
    TUNED_TRANSPOSED_C, /* transposed_c.h: small n, A transposed */
    TUNED_SMALL_K,      /* small_k.h */
    TUNED_VARIANTS
};

/* The largest n or k of the variants after the first. */
enum { TUNED_NARROW = 16 };

/* Of nearest centres: vectors of points and centres together, and the most features (few_features.h). */
enum { FEW_VECTORS = 4, FEW_CENTRES = 2, FEW_FEATURES = 96 };

/* How a call is partitioned, and the extensions that engine fused needs. There call->backward->bias_grad may
   be NULL: the column sums are not computed. */
struct tuned_plan {
    enum tuned_variant variant;
    size_t row_parts, col_parts; /* C is a grid of parts, one for each thread */
    size_t kc, nc;               /* of a block of B; kc in packed elements */
    bool pack_b_once;            /* every block of A reads the same packed B; else B is packed for each */
    size_t mc;        /* of a block of A; TUNED_TRANSPOSED_C: rows of C that are computed at a time */
    bool jr_outer;    /* loop order of the macro-kernel: jr outside ir, else ir outside jr */
    size_t mr;        /* the most rows of a micro-tile */
    bool pack_a;      /* else the micro-kernel reads A in place */
    bool nontemporal; /* C is written by non-temporal stores */
    /* If not 0 (TUNED_BLOCKED only), B or C is stored as micro-panels of NR columns, this many elements
       apart. Columns beyond the last hold 0. Such a C has no epilogue, backward epilogue or update. */
    size_t b_panel_stride, c_panel_stride;
    const struct tuned_update *update; /* or NULL */
    void *partial_sums;                /* scratch, as C, for incomplete sums over k; NULL: C itself */
};

/* BLIS's next_a or next_b: memory that a micro-kernel prefetches for later micro-tiles, a line every few
   steps of k. `stride`: bytes between them, or one of the values below. (A larger struct costs 4 %.) */
struct tuned_next {
    const char *address;
    size_t stride;
};
enum {
    TUNED_NEXT_B_ROWS, /* a micro-kernel that reads B in place: the same rows of the next micro-panel */
    TUNED_NEXT_NONE    /* the same line every time */
};

/* A centre that is a candidate of some points of a group: bit i for point i. */
struct tuned_survivor {
    uint64_t points;
    size_t centre;
};

/* One instruction set and one dtype. */
struct tuned_kernel {
    size_t size;   /* of a packed element, in bytes */
    size_t vnni;   /* elements along k in a packed element */
    bool converts; /* packed elements differ from stored ones: A and B are always packed */
    size_t mr, nr; /* of the largest micro-tile; nr is a multiple of lanes */
    size_t lanes;  /* of a vector */
    size_t packmr; /* rows of a packed micro-panel of A: mr rounded up to whole vectors */

    /* Computes one part, 0 .. row_parts * col_parts - 1. `workspace` is 64-byte aligned, has
       tuned_workspace bytes, and is used by this part alone. */
    void (*part)(const struct gemm_call *call, const struct tuned_plan *plan, size_t part, void *workspace);

    /* (f32, f64) Of nearest centres, with at most FEW_FEATURES features. `points` are FEW_VECTORS * lanes
       points, [features][FEW_VECTORS * lanes] and 64-byte aligned, as pack_points writes them from `rows`
       rows x and zeros. `gap` [of the dtype]: the best score less the second best; `index`: the centre of the
       best. */
    void (*pack_points)(size_t features, size_t rows, const void *x, void *points);
    void (*nearest)(const struct nearest_centres *centres, const void *points, void *gap, uint32_t *index);

    /* (f32, f64) The centres whose score is not below the threshold of a point, one for each point, in
       ascending order; `to` has room for all centres and one more. Returns how many. */
    size_t (*survivors)(const struct nearest_centres *centres, const void *points, const void *threshold,
                        struct tuned_survivor *to);
};

struct tuned_isa {
    const char *name;
    bool (*usable)(void);
    const struct tuned_kernel *f32, *f64, *bf16;
    const struct tuned_isa *base; /* (optional) the instruction set whose f32 and f64 kernels are used */
};

extern const struct gemm_fused tuned_fused; /* fused_state.c */
extern const struct tuned_isa tuned_avx512bf16, tuned_avx512, tuned_avx2, tuned_portable;

struct tuned_context {
    const struct tuned_isa *isa;
    int threads;
    char *workspace; /* of `capacity` threads, `stride` bytes each */
    size_t stride;
    int capacity;
    float *sums; /* partial sums of a bfloat16 C */
    size_t sums_capacity;
};

/* A context with this instruction set, or NULL without memory. */
struct tuned_context *tuned_open(const struct tuned_isa *isa, int threads);

static inline const struct tuned_kernel *tuned_kernel_for(const struct tuned_context *tuned,
                                                          enum gemm_dtype dtype) {
    const bool base = tuned->isa->base && dtype != GEMM_BF16;
    const struct tuned_isa *isa = base ? tuned->isa->base : tuned->isa;
    return dtype == GEMM_F32 ? isa->f32 : dtype == GEMM_F64 ? isa->f64 : isa->bf16;
}

/* The first item of part `part`, if `count` items are split into `parts` parts whose sizes differ by at most
   one. */
static inline size_t tuned_part_begin(size_t count, size_t parts, size_t part) {
    return count * part / parts;
}

/* A plan for at most `threads` threads. */
struct tuned_plan tuned_plan_for(const struct tuned_kernel *kernel, const struct gemm_call *call,
                                 size_t threads);

/* The same, with as many parts along n as possible: a thread then reads the same columns of W in every step,
   from its cache. */
struct tuned_plan tuned_plan_split_n(const struct tuned_kernel *kernel, const struct gemm_call *call,
                                     size_t threads);

/* The rows of `cols` columns that fit in half of the L2 cache: at least one. */
size_t tuned_rows_in_l2(const struct tuned_kernel *kernel, size_t cols);

/* C^T = op(B)^T op(A)^T, without beta; the caller sets c and ldc. */
struct gemm_call tuned_transposed_call(const struct gemm_call *call);

/* Bytes of workspace of a part, for any call. */
size_t tuned_workspace(const struct tuned_kernel *kernel);

/* Elements of the two buffers of a workspace: the packed block of A, then the packed block of B. */
size_t tuned_a_elements(const struct tuned_kernel *kernel);
size_t tuned_b_elements(const struct tuned_kernel *kernel);

#endif
