/* float32 GEMM on the tensor cores, as accurate as float32 arithmetic: docs/tensor-cores.md. Compute
   capability 9.0 alone. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_FLOAT32_CUH

#include "kernels/cuda/ops/epilogue.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor/planes.cuh"

static const unsigned FLOAT32_TILE = 128; /* rows and columns of a tile of C: two blocks of planes */

/* All that a launch needs. */
struct float32_product {
    size_t m, n, k;
    plane_operand a, b;
    planes c;               /* receives the planes of C; `blocks` NULL: nothing */
    float *column_partials; /* [m / 64, rounded up][n]: sums of 64 rows, for the backward epilogue */
    const float *a_values, *b_values; /* as they are: op(A)(i,p) = a_values[i * a_row + p * a_column] */
    size_t a_row, a_column, b_row, b_column;
};

/* Is this GPU, and the code that is loaded, of compute capability 9.0 (float32_wgmma.cu)? */
bool float32_open(void);

/* After split_launch (float32_wgmma.cu). */
void float32_launch(enum gemm_op op, const float32_product &product, const sink<float> &out,
                    const slope<float> &back, unsigned processors, cuda_launcher &launcher);

/* A matrix that was split, or transposed, and where. */
struct float32_operand {
    split_source source; /* without `wide` */
    size_t capacity;     /* blocks that it has memory for */
    bool valid;          /* the planes, or the transpose, are those of the matrix */
    bool not_written;    /* the transpose was written, the matrix itself not */
    bool needed;         /* a kernel has read the matrix itself, since the operand has this memory */
    uint64_t last_call;
};

/* Memory of split operands: recent ones are kept, for calls that read them again. Memory grows, and is only
   freed at the end: captured graphs use it. */
enum { FLOAT32_OPERANDS = 64, FLOAT32_MOST_ALLOCATIONS = 256 };
struct float32_workspace {
    bool open;       /* float32_open returned true */
    bool transposes; /* operands are kept as their transpose, for TF32, and not as planes */
    unsigned processors;
    uint64_t calls;
    plane_flags *flags; /* of the operands */
    struct float32_operand operand[FLOAT32_OPERANDS];
    char *scratch; /* for bf16 planes and column sums */
    size_t scratch_bytes;
    void *allocation[FLOAT32_MOST_ALLOCATIONS];
    unsigned allocations;
};

/* Allocates the flags if the GPU is usable. False on an error. */
bool float32_workspace_open(struct float32_workspace *workspace, unsigned processors, bool tf32,
                            cuda_fault *fault);
void float32_workspace_close(struct float32_workspace *workspace);

/* For every call that other kernels run: C changes, and A and B may have since they were read, unless the
   call says that they have not. */
void float32_forget(struct float32_workspace *workspace, const struct gemm_call *call);
void float32_forget_all(struct float32_workspace *workspace);

/* The planes of C if an earlier call read it as an operand, for another kernel that writes them with C;
   `blocks` NULL: none. After float32_forget. */
planes float32_planes_of_c(struct float32_workspace *workspace, const struct gemm_call *call);

/* Products of TF32 (tf32.cu) need the gradient of a call, B of TN or A of NT, as its transpose:
   [columns][ld], in the place of its planes. */
struct float32_transposed {
    float *values; /* NULL, of C: not wanted */
    size_t ld;
    bool valid; /* of a gradient: written, and unchanged since; else the caller must write it now */
    bool alone; /* of C: C itself need not be written */
};

/* Makes room for it; false: there is no memory. */
bool float32_reserve_transposed(struct float32_workspace *workspace, const struct gemm_call *call,
                                cuda_fault *fault);
/* Is it the matrix A of the call, or B: as many rows and columns of the same memory? */
bool float32_is_operand(const struct float32_operand *operand, const struct gemm_call *call, bool b);
/* After float32_forget: of the gradient, for which there is room, and of C, for a kernel that writes it.
   Later calls take it as written. */
float32_transposed float32_transposed_of_gradient(struct float32_workspace *workspace,
                                                  const struct gemm_call *call);
float32_transposed float32_transposed_of_c(struct float32_workspace *workspace, const struct gemm_call *call);

/* Is this a float32 call that float32_gemm can run: any shape with k > 0, NN, TN or NT? */
bool float32_supports(const struct float32_workspace *workspace, const struct gemm_call *call);

/* Makes room for the planes of a call that float32_supports; false: there is no memory for them. */
bool float32_reserve(struct float32_workspace *workspace, const struct gemm_call *call, cuda_fault *fault);

/* Is it faster than float32 arithmetic for this call? */
bool float32_pays(const struct gemm_call *call);

/* After float32_reserve. */
void float32_gemm(struct float32_workspace *workspace, const struct gemm_call *call, cuda_launcher &launcher);

#endif
