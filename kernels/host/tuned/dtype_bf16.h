/* bfloat16 on one instruction set, included after float32: sums and packed elements have 32 bits, so REAL and
   LANES are those of float32.

   Without DOT a packed element is a bfloat16 widened to float32, and the micro-kernels are those of float32:
               the gain is memory.
   With DOT    a packed element is a pair of bfloat16 along k (VNNI layout, the first in the lower half), and
               DOT(sum, x, row) adds to each lane of `sum` both products of the pair x and the pair in that
               lane of `row`: half the steps of k and half the packed bytes. An odd k is padded with a zero.
   C           float32, or bfloat16 rounded once: partial sums over k are then kept in float32 scratch (struct
               tuned_plan). */
#ifndef NAME
#    include "kernels/host/tuned/dtype.h"
#endif

typedef uint16_t halves __attribute__((vector_size(BYTES / 2), aligned(2), may_alias));
typedef float pairs __attribute__((vector_size(BYTES), aligned(2), may_alias));

/* LANES bfloat16, each in the lower half of a lane. */
INLINE bits_f32 widen(const uint16_t *b) {
    return __builtin_convertvector(*(const halves *)b, bits_f32);
}

INLINE vector_f32 pair_across(const uint16_t *b, size_t ld) {
    return (vector_f32)(widen(b) | widen(b + ld) << 16);
}

#define ELEMENT_BITS 16
#include "kernels/host/element.h"
#undef CONVERTS
#undef LOAD_ACROSS_N
#undef LOAD_ALONG_K
#undef C_IS_REAL
#undef TILE_EPILOGUE
#define CONVERTS true
#define C_IS_REAL(call) (call)->c_f32
#define TILE_EPILOGUE(call) ((call)->c_f32 ? tile_epilogue_f32 : tile_epilogue_bf16)
#ifdef DOT
#    undef VNNI
#    undef MULTIPLY_ADD
#    define VNNI 2
#    define LOAD_ACROSS_N(b, ld) pair_across(b, ld)
#    define LOAD_ALONG_K(b) ((vector_f32) * (const pairs *)(b))
#    define MULTIPLY_ADD(sum, x, row) ((sum) = DOT(sum, x, row))
#else
#    undef UKERNEL_NAME
#    define LOAD_ACROSS_N(b, ld) ((vector_f32)(widen(b) << 16))
#    define LOAD_ALONG_K(b) ((vector_f32)(widen(b) << 16))
#    define UKERNEL_NAME(x) x##_f32
#    define BORROWS_UKERNELS
#endif
#include "kernels/host/tuned/dtype.h"
