/* Copies, differences and magnitudes of QR on the GPU (kernels/qr.h).

   Bound by   bytes of device memory, or the launch: a thread an element, neighbours in a row. */
#include "kernels/cuda/qr/qr.cuh"

enum { THREADS = 256 };

/* blockIdx.y: the matrix; each block strides over the [rows][cols] elements of one. */
static dim3 grid_for(size_t elements, size_t matrices) {
    return dim3(cuda_grid_for(elements, THREADS), (unsigned)matrices);
}

struct extent {
    size_t rows, cols;
    __device__ size_t elements() const {
        return rows * cols;
    }
};

/* Calls body(row, column) for the elements of this thread. */
template <typename F> __device__ inline void each_element(extent of, F body) {
    for (size_t k = blockIdx.x * THREADS + threadIdx.x; k < of.elements(); k += (size_t)gridDim.x * THREADS)
        body(k / of.cols, k % of.cols);
}

/* to = the block of `from` [with w subtracted, then to the triangle `to` of the table]. */
template <typename T>
__global__ void copy_block(const __grid_constant__ qr_table table, extent of, size_t ld, size_t at, T *w,
                           size_t w_ld, size_t stride, bool subtract) {
    const T *from = (const T *)table.from[blockIdx.y] + at;
    T *to = (T *)table.to[blockIdx.y] + at, *block = w + blockIdx.y * stride;
    each_element(of, [&](size_t i, size_t j) {
        if (subtract)
            to[i * ld + j] = from[i * ld + j] - block[i * w_ld + j];
        else
            block[i * w_ld + j] = from[i * ld + j];
    });
}

template <typename T>
static void launch_block(void *opaque, size_t count, size_t rows, size_t cols, const struct qr_triangles *r,
                         size_t row, size_t col, const struct qr_matrix *w, bool subtract) {
    struct cuda_ops_context *context = open_ops(opaque);
    if (!rows || !cols) return;
    qr_each_table(r, count, [&](size_t first, size_t some, const qr_table &table) {
        copy_block<T><<<grid_for(rows * cols, some), THREADS, 0, context->stream>>>(
            table, extent{rows, cols}, r->ld, row * r->ld + col, (T *)w->values + first * w->stride, w->ld,
            w->stride, subtract);
        CUDA_LAUNCHED(&context->fault, "copy_block");
    });
}

template <typename T>
void cuda_qr_block(void *context, size_t count, size_t rows, size_t cols, const struct qr_triangles *r,
                   size_t row, size_t col, const struct qr_matrix *w) {
    launch_block<T>(context, count, rows, cols, r, row, col, w, false);
}

template <typename T>
void cuda_qr_subtract(void *context, size_t count, size_t rows, size_t cols, const struct qr_triangles *r,
                      size_t row, size_t col, const struct qr_matrix *w) {
    launch_block<T>(context, count, rows, cols, r, row, col, w, true);
}

struct pieces {
    qr_rows of[QR_TABLE];
};

template <typename T>
__global__ void gather_rows(const __grid_constant__ pieces from, extent of, size_t from_ld,
                            const double *scale, T *to, size_t ld, size_t stride) {
    const qr_rows &piece = from.of[blockIdx.y];
    const T *first = (const T *)piece.from[0], *second = (const T *)piece.from[1];
    T *out = to + blockIdx.y * stride;
    each_element(of, [&](size_t i, size_t j) {
        T value = 0;
        if (i < piece.rows[0])
            value = first[i * from_ld + j];
        else if (i < piece.rows[0] + piece.rows[1])
            value = second[(i - piece.rows[0]) * from_ld + j];
        out[i * ld + j] = scale ? (T)scale[j] * value : value;
    });
}

/* `values`, in host memory, on the device until the next op that takes scratch memory; NULL: none. */
static const double *on_device(struct cuda_ops_context *context, const double *values, size_t count) {
    if (!values) return NULL;
    double *copy = (double *)cuda_scratch(context, count * sizeof *copy);
    if (!copy || !CUDA_TRY(&context->fault, cudaMemcpyAsync(copy, values, count * sizeof *copy,
                                                            cudaMemcpyHostToDevice, context->stream)))
        return NULL;
    return copy;
}

template <typename T>
void cuda_qr_gather(void *opaque, size_t count, size_t to_rows, size_t cols, const struct qr_rows *list,
                    size_t from_ld, const double *scale, const struct qr_matrix *to) {
    struct cuda_ops_context *context = open_ops(opaque);
    if (!to_rows || !cols) return;
    const double *scales = on_device(context, scale, cols);
    for (size_t first = 0, some; first < count; first += some) {
        some = count - first < QR_TABLE ? count - first : (size_t)QR_TABLE;
        pieces piece = {};
        memcpy(piece.of, list + first, some * sizeof *list);
        gather_rows<T><<<grid_for(to_rows * cols, some), THREADS, 0, context->stream>>>(
            piece, extent{to_rows, cols}, from_ld, scales, (T *)to->values + first * to->stride, to->ld,
            to->stride);
        CUDA_LAUNCHED(&context->fault, "gather_rows");
    }
}

template <typename T>
void cuda_qr_rows(void *context, size_t rows, size_t to_rows, size_t cols, const void *from, size_t from_ld,
                  const double *scale, void *to, size_t to_ld) {
    const struct qr_rows piece = {{from, NULL}, {rows, 0}};
    const struct qr_matrix matrix = {to, to_ld, 0};
    cuda_qr_gather<T>(context, 1, to_rows, cols, &piece, from_ld, scale, &matrix);
}

template <typename T>
__global__ void scale_triangle(const __grid_constant__ qr_table table, extent of, size_t ld, T factor) {
    T *to = (T *)table.to[blockIdx.y];
    each_element(of, [&](size_t i, size_t j) {
        if (j >= i) to[i * ld + j] *= factor;
    });
}

template <typename T>
void cuda_qr_scale(void *opaque, size_t count, size_t n, size_t cols, double factor,
                   const struct qr_triangles *r) {
    struct cuda_ops_context *context = open_ops(opaque);
    qr_each_table(r, count, [&](size_t, size_t some, const qr_table &table) {
        scale_triangle<T><<<grid_for(n * cols, some), THREADS, 0, context->stream>>>(table, extent{n, cols},
                                                                                     r->ld, (T)factor);
        CUDA_LAUNCHED(&context->fault, "scale_triangle");
    });
}

/* Magnitudes are at least 0, and then in the order of their bits; infinity is the largest. */
template <typename T>
__global__ void largest_magnitudes(size_t rows, size_t cols, const T *a, size_t lda,
                                   unsigned long long *largest) {
    const size_t j = blockIdx.x * THREADS + threadIdx.x;
    if (j >= cols) return;
    double found = 0;
    for (size_t i = blockIdx.y; i < rows; i += gridDim.y) {
        const double magnitude = fabs((double)a[i * lda + j]);
        found = isnan(magnitude) ? INFINITY : magnitude > found ? magnitude : found;
    }
    atomicMax(&largest[j], (unsigned long long)__double_as_longlong(found));
}

template <typename T>
void cuda_qr_largest(void *opaque, size_t rows, size_t cols, const void *a, size_t lda, double *largest) {
    struct cuda_ops_context *context = open_ops(opaque);
    const size_t bytes = cols * sizeof *largest, chunks = (cols + THREADS - 1) / THREADS;
    unsigned long long *found = (unsigned long long *)cuda_scratch(context, bytes);
    memset(largest, 0, bytes);
    if (!found || !CUDA_TRY(&context->fault, cudaMemsetAsync(found, 0, bytes, context->stream))) return;
    const dim3 grid((unsigned)chunks, cuda_grid_for(rows, 16 * chunks));
    if (rows)
        largest_magnitudes<T><<<grid, THREADS, 0, context->stream>>>(rows, cols, (const T *)a, lda, found);
    CUDA_LAUNCHED(&context->fault, "largest_magnitudes");
    qr_to_host(context, largest, found, bytes);
}

#define INSTANTIATE(T)                                                                                     \
    template void cuda_qr_block<T>(void *, size_t, size_t, size_t, const struct qr_triangles *, size_t,    \
                                   size_t, const struct qr_matrix *);                                      \
    template void cuda_qr_subtract<T>(void *, size_t, size_t, size_t, const struct qr_triangles *, size_t, \
                                      size_t, const struct qr_matrix *);                                   \
    template void cuda_qr_gather<T>(void *, size_t, size_t, size_t, const struct qr_rows *, size_t,        \
                                    const double *, const struct qr_matrix *);                             \
    template void cuda_qr_rows<T>(void *, size_t, size_t, size_t, const void *, size_t, const double *,    \
                                  void *, size_t);                                                         \
    template void cuda_qr_scale<T>(void *, size_t, size_t, size_t, double, const struct qr_triangles *);   \
    template void cuda_qr_largest<T>(void *, size_t, size_t, const void *, size_t, double *);
INSTANTIATE(float)
INSTANTIATE(double)
