#include "tests/tuned_emulated.h"

#include <stdint.h>

/* The micro-tile of isa_avx512bf16.c if compiled for AVX-512; else, and under sanitizers, a small one. */
#if defined(__AVX512F__) && !defined(SANITIZED)
#    include "kernels/host/tuned/isa_avx512.h"
#    define BASE tuned_avx512
#else
#    include "kernels/host/tuned/isa_portable.h"
#    define BASE tuned_portable
#endif

typedef float lanes __attribute__((vector_size(BYTES)));
typedef uint32_t lane_bits __attribute__((vector_size(BYTES)));

/* Flushes denormals to zero. */
static inline __attribute__((always_inline)) lanes flush(lane_bits bits) {
    return (lanes)(bits & ((lane_bits)((bits & 0x7F800000u) != 0) | 0x80000000u));
}

/* VDPBF16PS (Intel, "Architecture Instruction Set Extensions Programming Reference"): the second product of a
   pair, then the first, each added with one rounding to nearest. A product of two bfloat16 is exact. */
static inline __attribute__((always_inline)) lanes dot(lanes sum, float x, lanes row) {
    uint32_t pair;
    __builtin_memcpy(&pair, &x, sizeof pair);
    const lane_bits a = (lane_bits){0} + pair, b = (lane_bits)row;
    sum = flush((lane_bits)(flush((lane_bits)sum) + flush(a & 0xFFFF0000u) * flush(b & 0xFFFF0000u)));
    return flush((lane_bits)(sum + flush(a << 16) * flush(b << 16)));
}

#define DOT(sum, x, row) dot(sum, x, row)
#define BF16_ONLY
#include "kernels/host/tuned/isa.h"

size_t tuned_emulated_lanes(void) {
    return LANES;
}

void tuned_emulated_pack(size_t k, size_t cols, size_t width, const uint16_t *b, size_t ldb, float *packed) {
    const uint16_t *end = b + (cols ? (cols - 1) * ldb + k : 0);
    pack_transposed_bf16(k, cols, width, b, ldb, end, packed);
}

static bool usable(void) {
    return true;
}

static const struct tuned_isa isa = {"emulated", usable, .bf16 = &kernel_bf16, .base = &BASE};

static void *create(const struct gemm_setup *setup, char *why, size_t size) {
    (void)why;
    (void)size;
    return tuned_open(&isa, setup->threads);
}

const struct gemm_backend *tuned_emulated_backend(void) {
    static struct gemm_backend emulated;
    emulated = gemm_tuned;
    emulated.create = create;
    return &emulated;
}
