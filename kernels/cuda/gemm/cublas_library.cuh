/* cuBLAS as a library that is loaded when a product first needs it. Linked, each start of the program would
   wait for its 600 MB to be mapped, relocated and initialised, used or not: 65 ms with its files in the page
   cache, 0.3 s without. */
#ifndef TESSERA_KERNELS_CUDA_GEMM_CUBLAS_LIBRARY_CUH
#define TESSERA_KERNELS_CUDA_GEMM_CUBLAS_LIBRARY_CUH

#include <cublas_v2.h>
#include <stddef.h>

/* These two are overloaded in C++: the functions that the library exports. */
typedef cublasStatus_t cublas_gemm_ex(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                                      int m, int n, int k, const void *alpha, const void *a,
                                      cudaDataType_t a_type, int lda, const void *b, cudaDataType_t b_type,
                                      int ldb, const void *beta, void *c, cudaDataType_t c_type, int ldc,
                                      cublasComputeType_t compute, cublasGemmAlgo_t algorithm);
typedef cublasStatus_t cublas_gemm_strided_ex(cublasHandle_t handle, cublasOperation_t ta,
                                              cublasOperation_t tb, int m, int n, int k, const void *alpha,
                                              const void *a, cudaDataType_t a_type, int lda,
                                              long long a_stride, const void *b, cudaDataType_t b_type,
                                              int ldb, long long b_stride, const void *beta, void *c,
                                              cudaDataType_t c_type, int ldc, long long c_stride, int count,
                                              cublasComputeType_t compute, cublasGemmAlgo_t algorithm);

struct cublas_library {
    decltype(&cublasCreate) create;
    decltype(&cublasDestroy) destroy;
    decltype(&cublasSetStream) set_stream;
    decltype(&cublasSetWorkspace) set_workspace;
    decltype(&cublasSetMathMode) set_math_mode;
    decltype(&cublasSetSmCountTarget) set_sm_count_target;
    decltype(&cublasGetVersion) get_version;
    decltype(&cublasGetStatusString) get_status_string;
    decltype(static_cast<cublas_gemm_ex *>(&cublasGemmEx)) gemm;
    decltype(static_cast<cublas_gemm_strided_ex *>(&cublasGemmStridedBatchedEx)) gemm_batch;
};

/* The functions of the library, which the first call loads; NULL, with the reason in `why`, if it cannot be
   loaded. */
const struct cublas_library *cublas_load(char *why, size_t size);

#endif
