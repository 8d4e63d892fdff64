/* Tensor maps on the host. */
#include "kernels/cuda/tensor/tensor_map.cuh"

#include "kernels/cuda/fault.cuh"

typedef CUresult encode(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                        const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                        CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* cuTensorMapEncodeTiled of the driver, which has it from version 12.0 on; NULL: an older one. */
static encode *encoder(void) {
    void *function = NULL;
    cudaDriverEntryPointQueryResult result;
    const bool found = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                        cudaEnableDefault, &result) == cudaSuccess;
    return found && result == cudaDriverEntryPointSuccess ? (encode *)function : NULL;
}

bool tensor_map_open(void) {
    return encoder();
}

bool tensor_map_fits(const void *memory, size_t ld, size_t element_bytes) {
    return (uintptr_t)memory % 16 == 0 && ld * element_bytes % 16 == 0 && ld < (size_t)1 << 31;
}

void tensor_map_matrix(CUtensorMap *map, const void *memory, enum tensor_element element, size_t rows,
                       size_t columns, size_t ld, unsigned box_rows, cuda_fault *fault) {
    static const CUtensorMapDataType types[] = {
        CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32};
    const unsigned bytes = element == TENSOR_16BIT ? 2 : 4;
    const cuuint64_t sizes[] = {columns, rows}, stride = ld * bytes;
    const cuuint32_t box[] = {128 / bytes, box_rows}, steps[] = {1, 1};
    const CUresult result = encoder()(map, types[element], 2, (void *)memory, sizes, &stride, box, steps,
                                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        cuda_note(fault, cudaErrorInvalidValue, "cuTensorMapEncodeTiled", __FILE__, __LINE__);
}
