/* The GEMM contract: what a matrix multiply must do to train a network here.

   C = alpha * op(A) * op(B) + beta * C, then an epilogue       row-major, true precision of the dtype

   - op(A) is m x k, op(B) is k x n, C is m x n. A leading dimension is a number of elements, at least the
     columns as stored:
       NN   A[m][k]  B[k][n]     forward          Y  = X W
       TN   A[k][m]  B[k][n]     weight gradient  dW = X^T dY
       NT   A[m][k]  B[n][k]     input gradient   dX = dY W^T
       TT   A[k][m]  B[n][k]     may be refused
   - beta == 0 never reads C, which may hold NaN. m == 0 or n == 0: nothing to do. k == 0: C = beta * C.
   - Any shape is valid: nothing is a multiple of a tile. C does not overlap A or B.
   - NaN and Inf in A, B and (if beta != 0) C propagate as IEEE 754 says. With alpha == 0 a call may skip A
     and B, as in BLAS.
   - Pointers belong to the memory of the backend's device. A call may return before its work is done.
   - With operands of 16 bits (GEMM_BF16, GEMM_F16), sums are float32. C is float32, or of the type of the
     operands with beta == 0 (rounded once, to nearest even; in GEMM_F16 what rounds to more than 65504 is
     Inf, but not with struct gemm_backward). Denormals of bfloat16 (below 2^-126) may count as zero: some
     CPU instructions flush them.
   - A call allocates nothing in steady state. Workspace belongs to the context and grows at most once per
     shape.
   - The same call returns the same bits every time.
   - One thread at a time uses a context. On a GPU, several threads, each with its own context, may call
     concurrently (--ensemble).

   A backend is one const struct gemm_backend in one file. Either src/backend/registry.c has a line for it,
   or it is a plug-in: a shared object whose source ends with GEMM_PLUGIN(backend), for --backend ./my.so.
   A plug-in needs this header alone, which includes only standard headers and compiles as C11, C++17 and
   CUDA. kernels/bf16.h and f16.h convert types of 16 bits. docs/your-own-gemm.md has examples. */
#ifndef TESSERA_KERNELS_GEMM_H
#define TESSERA_KERNELS_GEMM_H

#include <stdbool.h>
#include <stddef.h>

/* bfloat16 has the exponent of float32 and 8 significant bits; GEMM_F16 is IEEE half precision, with 11.
   `supports` must refuse values that it does not know. */
enum gemm_dtype { GEMM_F32, GEMM_F64, GEMM_BF16, GEMM_F16 };
enum gemm_op { GEMM_NN, GEMM_TN, GEMM_NT, GEMM_TT };
enum gemm_device { GEMM_ON_HOST, GEMM_ON_CUDA };

/* GEMM_UNSUPPORTED is no failure: the caller may use another method. */
enum gemm_status { GEMM_OK, GEMM_UNSUPPORTED, GEMM_FAILED };

/* The activations: X(with, ID, name, needs_input). `with` is passed through. needs_input: the derivative
   reads Z; otherwise the output Y = act(Z) is enough. The formulas are in kernels/activation.h. scaled-tanh
   is 1.7159 tanh(2x/3) (LeCun et al., "Efficient BackProp", 1998, section 4.4); gelu is the exact x Phi(x)
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
    ACTIVATIONS_NEEDING_INPUT = 0 ACTIVATIONS(ACTIVATION_NEEDS_INPUT, ) /* one bit each */
};

/* Work to do on C while it is still in registers: C becomes act(C + bias). */
struct gemm_epilogue {
    const void *bias; /* [n], never NULL, added to every row; float32 if operands have 16 bits */
    enum activation activation;
    void *pre; /* (optional) [m][n] with ldc: receives the values before the activation */
};

/* The backward epilogue of an input gradient. C = dL/dY of the layer below, with output Y = act(Z), becomes
   dL/dZ = dL/dY * act'(Z). A C of half precision beyond 65504 becomes 65504 with its sign; NaN stays NaN. The
   column sums of C, as stored, are the gradient of that layer's bias. */
struct gemm_backward {
    enum activation activation;
    const void *pre, *output; /* Z and Y: [m][n] with ldc. Z is read only if activation_needs_input */
    void *bias_grad;          /* [n]; float32 if operands have 16 bits */
    double bias_scale;        /* with GEMM_F16: bias_grad is the column sums times this */
};

struct gemm_call {
    enum gemm_dtype dtype; /* of A, B and C */
    bool c_f32;            /* C is float32, and operands have 16 bits */
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
    /* Both NULL, unless `fuses` of the backend returned true for this call; at most one is set. */
    const struct gemm_epilogue *epilogue;
    const struct gemm_backward *backward;
    /* A, or B, is what it was when the last call on it in this context read it, or wrote it as C. A backend
       that keeps what it made of a matrix, such as a copy in another format, may use it; others ignore
       this. */
    bool a_unchanged, b_unchanged;
    /* Sums over several processes run on the device meanwhile, and occupy some of its multiprocessors. */
    bool beside_sums;
    /* B was complete before the kernel issued last lets the next one start: a kernel that starts that early
       (programmatic dependent launch) may read B before it waits. In gemm_update this holds for A, too. */
    bool b_complete;
    /* A weight gradient in place of gemm_update: it has the bits of the sums there. */
    bool as_update;
    /* Nothing but updates reads the bias gradient of `backward`, and they come after the next call on this
       context: it need not be complete before that call has ended. With an output layer (kernels/ops.h) the
       same holds for its weight and bias gradients, and for its loss. */
    bool sums_later;
    /* Nothing reads C but later calls of `gemm` on this context, each the whole matrix as an operand that it
       says is unchanged: a backend may keep C in another form, and not write it. */
    bool c_only_operand;
};

/* What the column sums of a backward epilogue are multiplied by. */
static inline double gemm_bias_scale(const struct gemm_call *call) {
    return call->dtype == GEMM_F16 ? call->backward->bias_scale : 1;
}

/* Elements from one matrix of a batch to the next. */
struct gemm_strides {
    size_t a, b, c;
};

/* Call `item` of a batch. */
static inline struct gemm_call gemm_batch_item(const struct gemm_call *call,
                                               const struct gemm_strides *strides, size_t item) {
    struct gemm_call one = *call;
    const size_t size = call->dtype == GEMM_F64 ? 8 : call->dtype == GEMM_F32 ? 4 : 2;
    one.a = (const char *)call->a + item * strides->a * size;
    one.b = (const char *)call->b + item * strides->b * size;
    one.c = (char *)call->c + item * strides->c * (call->c_f32 ? 4 : size);
    return one;
}

/* How float32 matrices are multiplied. The user requests all but the first by name. GEMM_TF32 rounds the
   operands to at least 10 bits of mantissa inside the call. With GEMM_MIXED_BF16 the caller stores them
   as bfloat16 (7 bits) and calls with GEMM_BF16; with GEMM_MIXED_F16 as half precision (10 bits), with
   GEMM_F16. */
enum gemm_precision { GEMM_TRUE, GEMM_TF32, GEMM_MIXED_BF16, GEMM_MIXED_F16 };

/* Are elements of this type of 16 bits, with float32 sums, biases and bias gradients? */
static inline bool gemm_is_16bit(enum gemm_dtype dtype) {
    return dtype == GEMM_BF16 || dtype == GEMM_F16;
}

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

/* An option of a backend: --backend NAME:key=value,key=value. The program checks the text before it calls
   `create`, says what is wrong with it, and lists the options in `devices` and --help. */
struct gemm_option {
    const char *key;      /* letters, digits, '-' and '_' */
    const char *values;   /* "static|dynamic": one of these; "1..64": a whole number in this range;
                             else a word for --help ("FILE"): any text, which `create` checks */
    const char *fallback; /* the value if the option is not given; NULL: it must be given. The first option
                             then needs no key: --backend NAME:value */
    const char *help;     /* one line */
};
enum { GEMM_MOST_OPTIONS = 8 };

struct gemm_value {
    const char *text; /* without ',' */
    long number;      /* the value, if a whole number; else its position in "a|b|c", from 0 */
};

/* What `create` receives. New members come at the end. */
struct gemm_setup {
    int threads;  /* host backends: how many to use, >= 1 */
    void *stream; /* cuda backends: the cudaStream_t to issue work on */
    enum gemm_precision precision;
    /* [GEMM_MOST_OPTIONS]: the values of `options`, in the order of that table; valid during the call. */
    const struct gemm_value *option;
};

/* One kernel that a call launches on a GPU. */
struct gemm_kernel {
    char name[48];
    unsigned threads;    /* of a block */
    unsigned registers;  /* of a thread */
    size_t shared_bytes; /* of a block: static and dynamic */
    double occupancy;    /* theoretical: resident warps of an SM / the maximum */
};

struct gemm_fused;
struct gemm_nearest;
struct weight_update;
struct output_layer;

struct gemm_backend {
    const char *name;    /* the key of --backend */
    const char *summary; /* one line */
    enum gemm_device device;
    bool (*supports)(enum gemm_dtype dtype, enum gemm_op op);
    enum gemm_status (*gemm)(void *context, const struct gemm_call *call);

    /* All slots below are optional. */

    /* Returns the `context` of the other slots, or NULL with the reason in `why`. Without `create` the
       context is NULL. */
    void *(*create)(const struct gemm_setup *setup, char *why, size_t size);
    void (*destroy)(void *context);

    /* Ends with an entry whose key is NULL. Needs `create`, which receives the values. */
    const struct gemm_option *options;

    /* Usable on this machine now? If not, writes the reason (a phrase) to `why`. NULL: usable
       wherever its device is. */
    bool (*probe)(char *why, size_t size);

    /* Sets the thread count and returns the count that is really in use. NULL: always one thread. */
    int (*set_threads)(void *context, int threads);

    /* Does it use threads other than OpenMP's? Element-wise work then stays on one thread: two thread pools
       that spin on the same cores run at half their speed or less. */
    bool (*own_threads)(void *context);

    /* Does it support this precision of float32 matrices? NULL: GEMM_TRUE alone. For mixed precisions
       the program asks `supports` instead. */
    bool (*takes_precision)(enum gemm_precision precision);

    /* Can `gemm` do the epilogue or backward of this call? The program asks before each call, since
       alignment counts too. NULL: never; an element-wise op runs after the call instead. */
    bool (*fuses)(void *context, const struct gemm_call *call);

    /* Version, core type and the like, for the header of every run and log. */
    void (*describe)(void *context, char *text, size_t size);

    /* Lists the kernels that this call would launch, up to `size`, and returns how many. Launches nothing and
       reads no matrix, but the alignment of pointers counts. */
    size_t (*kernels)(void *context, const struct gemm_call *call, struct gemm_kernel *list, size_t size);

    /* The reason of the last GEMM_FAILED; "" if there was none. */
    const char *(*error)(void *context);

    /* Whole training steps: kernels/fused.h. */
    const struct gemm_fused *fused;

    /* The nearest centres of k-means: kernels/nearest.h. */
    const struct gemm_nearest *nearest;

    /* `count` calls of `gemm` in one, without epilogues: those of matrices i times the strides after the
       ones of `call`. Matrices that are written do not overlap with others; A or B may be the same one for
       all. On the host the bits are those of `gemm`. NULL: the program calls `gemm` for each. */
    enum gemm_status (*gemm_batch)(void *context, const struct gemm_call *call, size_t count,
                                   const struct gemm_strides *strides);

    /* The first product of more float32 multiplications may load a library, in a good part of a second: the
       program keeps short evaluations below. 0: no product does. */
    double light_multiplications;

    /* Weight gradients that update the weights themselves (kernels/ops.h), from the same sums as `gemm`, and
       do not write C: `count` of them, no two of the same weights. With k == 0 and beta == 1 the gradient is
       C as it is. The program asks `fuses_update` before, for each. GEMM_UNSUPPORTED for several: the
       program calls it for each. NULL: never; an op updates the weights after `gemm`. For built-in backends
       alone, because the verification of plug-ins does not cover it. */
    bool (*fuses_update)(void *context, const struct gemm_call *call, const struct weight_update *update);
    enum gemm_status (*gemm_update)(void *context, const struct gemm_call *calls,
                                    const struct weight_update *updates, size_t count);

    /* The output layer of a training step, from its input to all gradients (kernels/ops.h), or
       GEMM_UNSUPPORTED: then the program calls `gemm` and the ops. For built-in backends alone. */
    enum gemm_status (*output_layer)(void *context, const struct output_layer *layer);
};

/* --- plug-ins --- */

/* The version of this header. New optional slots go to the end of struct gemm_backend: plug-ins that were
   built without them still work. Slots for built-in backends alone may change in place, because the program
   takes them as NULL in a plug-in, and so may what struct gemm_call has for them at its end. Any other change
   raises the number, and the program refuses plug-ins of another number. */
#define GEMM_ABI 4

/* The symbol `gemm_plugin`, which the program looks up in the shared object. */
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
