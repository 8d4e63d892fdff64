/* Inside the backend `tuned`: what its files share. One set of templates (tuned_*.inc) is compiled once for
   each instruction set (tuned_avx512.c, tuned_avx2.c, tuned_portable.c) and each dtype; tuned.c chooses at
   run time, and tuned_plan.c cuts a call into parts for threads and blocks for caches. */
#ifndef TESSERA_KERNELS_HOST_TUNED_TUNED_H
#define TESSERA_KERNELS_HOST_TUNED_TUNED_H

#include "kernels/gemm.h"

/* SGD (struct ops: sgd) with the product as the gradient of C: C holds the weights, and they are updated.
   (Without momentum and weight decay the product does it alone: alpha = -learning rate, beta = 1.) */
struct tuned_update {
    double learning_rate, momentum, weight_decay;
    void *velocity; /* as C; NULL without momentum */
};

/* How C is computed: in tiles, or one of the ways for products that are narrow. */
enum tuned_way {
    TUNED_TILES,  /* tuned_loops.inc */
    TUNED_DOTS,   /* tuned_dots.inc: few columns, A as it is */
    TUNED_TURNED, /* tuned_turned.inc: few columns, A transposed */
    TUNED_THIN,   /* tuned_thin.inc: few steps of k */
    TUNED_WAYS
};

/* How a call is cut, and what engine fused wants beyond the contract. There call->backward->bias_grad may be
   NULL: no sums. */
struct tuned_plan {
    enum tuned_way way;
    size_t row_parts, col_parts; /* C is a grid of so many parts, a part for a thread */
    size_t depth, cols;          /* of a block of B, in packed elements */
    bool keep_b;                 /* all blocks of columns stay packed, for every block of rows */
    size_t rows;      /* of a block of A; TUNED_TURNED: of C, whose transpose is computed at a time */
    bool by_panels;   /* all tiles of that block meet one panel of B, or all panels one tile */
    size_t tile_rows; /* at most */
    bool pack_a;      /* copy A to panels */
    bool streams;     /* C goes to memory past the caches */
    /* Of TUNED_TILES. 0; or B, or C, is in panels: `code->cols` columns of all rows, one below the other,
       then the next columns; and so many elements has each. What stands beside the last column is 0. C has no
       epilogue, way back or update then. */
    size_t b_panel, c_panel;
    const struct tuned_update *update; /* NULL: C is the product */
    void *sums; /* as C: scratch, for sums over k that are not complete yet; NULL: C itself */
};

/* What will be read next, for a tile to ask for meanwhile: a line every few steps of k, and `pace` bytes on;
   or one of two other paces. (It is passed in two registers: with more members a tile takes 4 % longer.) */
struct tuned_stream {
    const char *at;
    size_t pace;
};
enum {
    TUNED_BESIDE, /* who reads B where it is asks for the same rows of the panel beside */
    TUNED_NOTHING /* the same line again and again */
};

/* The most columns, or steps of k, that are few. */
enum { TUNED_FEW = 16 };

/* One instruction set and one dtype. */
struct tuned_code {
    size_t size;       /* of a packed element, in bytes */
    size_t pair;       /* elements of k in a packed one */
    bool converts;     /* A and B are never read where they are: a packed element is something else */
    size_t rows, cols; /* of the largest tile of C that is kept in registers */
    size_t lanes;      /* of a vector; cols is a multiple */
    size_t a_width;    /* of a panel of A: rows, in whole vectors */

    /* Computes one part, 0 .. row_parts * col_parts - 1. `workspace` is 64-byte aligned, tuned_workspace
       bytes, and the part's own. */
    void (*part)(const struct gemm_call *call, const struct tuned_plan *plan, size_t part, void *workspace);
};

struct tuned_isa {
    const char *name;
    bool (*usable)(void);
    const struct tuned_code *f32, *f64, *bf16;
    const struct tuned_isa *base; /* (optional) the instruction set whose f32 and f64 code is used */
};

extern const struct gemm_fused tuned_fused; /* tuned_fused_state.c */
extern const struct tuned_isa tuned_avx512bf16, tuned_avx512, tuned_avx2, tuned_portable;

struct tuned_context {
    const struct tuned_isa *isa;
    int threads;
    char *workspace; /* of `capacity` threads, `stride` bytes each */
    size_t stride;
    int capacity;
    float *sums; /* of a bfloat16 C, where k has several blocks */
    size_t sums_capacity;
};

/* A context with this instruction set, or NULL without memory. */
struct tuned_context *tuned_open(const struct tuned_isa *isa, int threads);

static inline const struct tuned_code *tuned_code_for(const struct tuned_context *tuned,
                                                      enum gemm_dtype dtype) {
    const bool base = tuned->isa->base && dtype != GEMM_BF16;
    const struct tuned_isa *isa = base ? tuned->isa->base : tuned->isa;
    return dtype == GEMM_F32 ? isa->f32 : dtype == GEMM_F64 ? isa->f64 : isa->bf16;
}

/* For `threads` threads at most. */
struct tuned_plan tuned_plan_for(const struct tuned_code *code, const struct gemm_call *call, size_t threads);

/* The same, with as many parts side by side as there can be: then a thread that has some columns of W in its
   cache meets them again in the next step. */
struct tuned_plan tuned_plan_by_columns(const struct tuned_code *code, const struct gemm_call *call,
                                        size_t threads);

/* So many rows of `cols` columns take half of the L2 cache, or less: at least one. */
size_t tuned_rows_in_cache(const struct tuned_code *code, size_t cols);

/* C^T = op(B)^T op(A)^T, without beta; where C is, is still to be said. */
struct gemm_call tuned_turn(const struct gemm_call *call);

/* Bytes that a part needs, whatever the call. */
size_t tuned_workspace(const struct tuned_code *code);

/* Elements of the two buffers of a workspace: the packed block of A, then the packed block of B. */
size_t tuned_a_elements(const struct tuned_code *code);
size_t tuned_b_elements(const struct tuned_code *code);

#endif
