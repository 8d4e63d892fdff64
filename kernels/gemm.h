/* The GEMM contract: what a matrix multiply must do to train a network here.

   C = alpha * op(A) * op(B) + beta * C, then an epilogue       row-major, true precision of the dtype

   - op(A) is m x k, op(B) is k x n, C is m x n. Leading dimensions are in elements, and at least the stored
   columns:
       NN   A[m][k]  B[k][n]     forward          Y  = X W
       TN   A[k][m]  B[k][n]     weight gradient  dW = X^T dY
       NT   A[m][k]  B[n][k]     input gradient   dX = dY W^T
       TT   A[k][m]  B[n][k]     may be refused
   - beta == 0 never reads C, which may hold NaN. m == 0 or n == 0: nothing to do. k == 0: C = beta * C.
   - Any shape is valid: nothing is a multiple of a tile. C does not overlap A or B.
   - NaN and Inf in A, B and (beta != 0) C come out as IEEE 754 says. alpha == 0 may skip A and B, as BLAS
   does.
   - Pointers belong to the memory of the backend's device. A call may return before its work is done.
   - Of bfloat16 operands, sums are float32. C is float32, or bfloat16 with beta == 0 (rounded once, to
     nearest even). What is below 2^-126 may count as zero, as the instructions of some processors have it.
   - A call allocates nothing in steady state: workspace belongs to the context and grows at most once per
   shape.
   - The same call gives the same bits again.
   - A context is used by one thread at a time; on a GPU, threads with a context each may call at once
   (--ensemble).

   A backend is one const struct gemm_backend in a file of its own, and its entry in src/backend/registry.c;
   or a plug-in: a shared object with GEMM_PLUGIN(backend) at its end, for --backend ./my.so. This header is
   all that a plug-in needs. It includes standard headers only and is C11, C++17 and CUDA alike.
   kernels/bf16.h converts bfloat16, for those who want it. docs/your-own-gemm.md shows how. */
#ifndef TESSERA_KERNELS_GEMM_H
#define TESSERA_KERNELS_GEMM_H

#include <stdbool.h>
#include <stddef.h>

enum gemm_dtype { GEMM_F32, GEMM_F64, GEMM_BF16 };
enum gemm_op { GEMM_NN, GEMM_TN, GEMM_NT, GEMM_TT };
enum gemm_device { GEMM_ON_HOST, GEMM_ON_CUDA };

/* "Not supported" is no failure: the caller may take another way. */
enum gemm_status { GEMM_OK, GEMM_UNSUPPORTED, GEMM_FAILED };

/* The activations: X(with, ID, name, needs_input). `with` is passed on; needs_input: the derivative reads Z,
   where otherwise the output Y = act(Z) is enough. The formulas are in kernels/activation.h. scaled-tanh is
   1.7159 tanh(2x/3) (LeCun et al., "Efficient BackProp", 1998, section 4.4); gelu is the exact x Phi(x)
   (Hendrycks and Gimpel 2016, arXiv 1606.08415). */
#define ACTIVATIONS(X, with)                   \
    X(with, NONE, "none", false)               \
    X(with, RELU, "relu", false)               \
    X(with, TANH, "tanh", false)               \
    X(with, SCALED_TANH, "scaled-tanh", false) \
    X(with, SIGMOID, "sigmoid", false)         \
    X(with, GELU, "gelu", true)

#define ACTIVATION_ENUMERATOR(with, ID, name, needs_input) ACTIVATION_##ID,
#define ACTIVATION_PLUS_ONE(with, ID, name, needs_input) +1
#define ACTIVATION_NEEDS_INPUT(with, ID, name, needs_input) | (needs_input ? 1 << ACTIVATION_##ID : 0)

enum activation { ACTIVATIONS(ACTIVATION_ENUMERATOR, ) };
enum {
    ACTIVATION_COUNT = 0 ACTIVATIONS(ACTIVATION_PLUS_ONE, ),
    ACTIVATIONS_NEEDING_INPUT = 0 ACTIVATIONS(ACTIVATION_NEEDS_INPUT, ) /* a bit each */
};

/* Work to do on C while it is still in registers: C becomes act(C + bias). */
struct gemm_epilogue {
    const void *bias; /* [n], never NULL, added to every row; float32 with GEMM_BF16 */
    enum activation activation;
    void *pre; /* NULL, or [m][n] with ldc: receives the values before the activation */
};

/* The way back through the layer below, for C = dL/dY of its output Y = act(Z): C becomes dL/dZ = dL/dY *
   act'(Z), and its column sums, as stored, are the gradient of that layer's bias. */
struct gemm_backward {
    enum activation activation;
    const void *pre, *output; /* Z and Y: [m][n] with ldc. Z is only read where activation_needs_input */
    void *bias_grad;          /* [n]; float32 with GEMM_BF16 */
};

struct gemm_call {
    enum gemm_dtype dtype; /* of A, B and, but for bfloat16, of C */
    bool c_f32;            /* with GEMM_BF16: C is float32 */
    enum gemm_op op;
    size_t m, n, k;
    double alpha;
    const void *a;
    size_t lda;
    const void *b;
    size_t ldb;
    double beta;
    void *c;
    size_t ldc;
    /* NULL, or what only comes to a backend whose `fuses` says yes: at most one of the two. */
    const struct gemm_epilogue *epilogue;
    const struct gemm_backward *backward;
};

/* How float32 matrices are multiplied. Anything but the first rounds, and is only ever used because the user
   asked: GEMM_TF32 rounds operands to 10 bits of mantissa inside the call; with GEMM_MIXED_BF16 the caller
   keeps them as bfloat16 (7 bits), and calls with GEMM_BF16. */
enum gemm_precision { GEMM_TRUE, GEMM_TF32, GEMM_MIXED_BF16 };

/* Does the derivative read the value before the activation? Z and Y then have separate memory. */
static inline bool activation_needs_input(enum activation activation) {
    return ACTIVATIONS_NEEDING_INPUT >> activation & 1;
}

/* Is A, or B, stored as its transpose? */
static inline bool gemm_transposes_a(enum gemm_op op) {
    return op == GEMM_TN || op == GEMM_TT;
}

static inline bool gemm_transposes_b(enum gemm_op op) {
    return op == GEMM_NT || op == GEMM_TT;
}

/* How the tiles of A, then of B, lie in shared memory: R, rows as they are; C, transposed. */
enum gemm_order { GEMM_RR, GEMM_RC, GEMM_CR, GEMM_CC };

struct gemm_options {
    int threads;  /* host backends: how many to use, >= 1 */
    void *stream; /* cuda backends: the cudaStream_t to issue work on */
    enum gemm_precision precision;
    int tile;              /* cuda-shmem, cuda-order: 4, 8, 16 or 32 */
    bool dynamic_shared;   /* cuda-shmem, cuda-order: shared memory allocated at launch */
    enum gemm_order order; /* cuda-order */
    /* cuda-order: each product is rounded before it is added; otherwise a fused multiply-add */
    bool rounded_multiply;
    const char *isa; /* tuned: a name of --isa, as "avx512"; NULL: the best that the processor has */
};

/* One kernel that a call launches on a GPU. */
struct gemm_kernel {
    char name[48];
    unsigned threads;    /* of a block */
    unsigned registers;  /* of a thread */
    size_t shared_bytes; /* of a block: static and dynamic */
    double
        occupancy; /* theoretical: warps that an SM can hold at once, as a part of the most that it could */
};

struct gemm_fused;

struct gemm_backend {
    const char *name;    /* the key of --backend */
    const char *summary; /* one line */
    enum gemm_device device;

    /* Usable on this machine now? If not, writes the reason (a phrase) to `why`. */
    bool (*probe)(char *why, size_t size);

    /* A context, or NULL with the reason in `why`. */
    void *(*create)(const struct gemm_options *options, char *why, size_t size);
    void (*destroy)(void *context);

    bool (*supports)(enum gemm_dtype dtype, enum gemm_op op);
    enum gemm_status (*gemm)(void *context, const struct gemm_call *call);

    /* (optional) Sets the thread count and returns the count that is really in use. NULL: always one
       thread. */
    int (*set_threads)(void *context, int threads);

    /* (optional) Has it threads of its own, apart from OpenMP's? Element-wise work then stays on one thread:
       two pools that spin on the same cores cost both of them half their speed and more. */
    bool (*own_threads)(void *context);

    /* (optional) Can it work in this precision? NULL: in GEMM_TRUE alone. GEMM_MIXED_BF16 is not asked for
       here: `supports` says. */
    bool (*takes_precision)(enum gemm_precision precision);

    /* (optional) Can `gemm` do the epilogue or backward of this call? NULL: never; the element-wise op runs
       after the call instead. To be asked for the very call that follows: alignment counts too. */
    bool (*fuses)(void *context, const struct gemm_call *call);

    /* (optional) Version, core type and the like, for the header of every report. */
    void (*describe)(void *context, char *text, size_t size);

    /* (optional) The kernels that this call launches, up to `size`; returns how many. Launches nothing, reads
       no matrix; the alignment of pointers counts. */
    size_t (*kernels)(void *context, const struct gemm_call *call, struct gemm_kernel *list, size_t size);

    /* (optional) What went wrong, after GEMM_FAILED; "" if nothing. */
    const char *(*error)(void *context);

    /* (optional) Whole training steps: kernels/fused.h. */
    const struct gemm_fused *fused;
};

/* --- plug-ins --- */

/* What this header describes. New optional slots and options go to the end of their structs, and plug-ins
   that were built without them still work; any other change is a new number, and a plug-in of another number
   is refused. */
#define GEMM_ABI 1

/* What the program looks for in a shared object: the symbol `gemm_plugin`. */
struct gemm_plugin {
    int abi;             /* GEMM_ABI */
    size_t backend_size; /* of struct gemm_backend: slots beyond it are taken as NULL */
    const struct gemm_backend *backend;
};

#ifdef __cplusplus
#    define GEMM_LINKAGE extern "C"
#else
#    define GEMM_LINKAGE extern
#endif

/* GEMM_PLUGIN(my_backend); once, at file scope: my_backend is a const struct gemm_backend. */
#define GEMM_PLUGIN(backend_)                                                                 \
    GEMM_LINKAGE __attribute__((visibility("default"))) const struct gemm_plugin gemm_plugin; \
    const struct gemm_plugin gemm_plugin = {GEMM_ABI, sizeof(struct gemm_backend), &(backend_)}

#endif
