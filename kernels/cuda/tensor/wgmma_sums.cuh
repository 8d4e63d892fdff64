/* For inline PTX wgmma: the registers of D, float d[..], as operands 0, 1, .. of an asm statement, and the
   list of their numbers. */
#ifndef TESSERA_KERNELS_CUDA_TENSOR_WGMMA_SUMS_CUH
#define TESSERA_KERNELS_CUDA_TENSOR_WGMMA_SUMS_CUH

#define WGMMA_D8(i)                                                                             \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA_D32_FROM(i) WGMMA_D8(i), WGMMA_D8(i + 8), WGMMA_D8(i + 16), WGMMA_D8(i + 24)
#define WGMMA_D32 WGMMA_D32_FROM(0)
#define WGMMA_D64 WGMMA_D32, WGMMA_D32_FROM(32)
#define WGMMA_D96 WGMMA_D64, WGMMA_D32_FROM(64)
#define WGMMA_D128 WGMMA_D96, WGMMA_D32_FROM(96)

#define WGMMA_FIVE(t, a, b, c, d, e) "%" t a ", %" t b ", %" t c ", %" t d ", %" t e ", "
#define WGMMA_TEN(t) WGMMA_FIVE(t, "0", "1", "2", "3", "4") WGMMA_FIVE(t, "5", "6", "7", "8", "9")
#define WGMMA_TO_29 WGMMA_TEN("") WGMMA_TEN("1") WGMMA_TEN("2")
#define WGMMA_TO_59 WGMMA_TO_29 WGMMA_TEN("3") WGMMA_TEN("4") WGMMA_TEN("5")
#define WGMMA_TO_89 WGMMA_TO_59 WGMMA_TEN("6") WGMMA_TEN("7") WGMMA_TEN("8")
#define WGMMA_TO_119 WGMMA_TO_89 WGMMA_TEN("9") WGMMA_TEN("10") WGMMA_TEN("11")
#define WGMMA_TO_31 WGMMA_TO_29 "%30, %31"
#define WGMMA_TO_63 WGMMA_TO_59 "%60, %61, %62, %63"
#define WGMMA_TO_95 WGMMA_TO_89 "%90, %91, %92, %93, %94, %95"
#define WGMMA_TO_127 WGMMA_TO_119 "%120, %121, %122, %123, %124, %125, %126, %127"

#endif
