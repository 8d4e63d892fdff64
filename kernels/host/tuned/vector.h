/* Vectors of REAL, and all else that the templates of `tuned` share. isa.h and dtype_bf16.h set the
   parameters; a template that is parsed by itself gets the defaults below: portable, float32. */
#define PRAGMA_(text) _Pragma(#text)
#define PRAGMA(text) PRAGMA_(text)

#ifndef VECTOR /* the part that depends on the instruction set alone */
#    include <stdint.h>

#    include "kernels/activation.h"
#    include "kernels/bf16.h"
#    include "kernels/host/tuned/tuned.h"

#    ifndef BYTES
#        include "kernels/host/tuned/isa_portable.h"
#    endif

#    define VECTOR NAME(vector)
#    define LOAD_VECTOR(p) ((VECTOR) * (const NAME(unaligned) *)(p))
#    define STORE_VECTOR(p, v) (*(NAME(unaligned) *)(p) = (v))
#    define NR (NR_VECTORS * LANES)
#    define PACKMR ((MR + LANES - 1) / LANES * LANES)
#    define UKERNEL UKERNEL_NAME(ukernel_type)

enum {
    NR_VECTORS = 2,
#    ifdef SANITIZED
    K_UNROLL = 1, /* unrolled, sanitized code takes minutes to compile */
#    else
    K_UNROLL = 4, /* of the packed micro-kernel */
#    endif
    C_PREFETCH_STEPS = 32, /* before the end of k: C then arrives from memory in time */
    B_PREFETCH_ROWS = 16   /* enough for the latency of the L3 cache */
};

#    define JOIN_(a, b) a##b
#    define JOIN(a, b) JOIN_(a, b)
#    ifdef SANITIZED
#        define UNROLL
#    elif defined(__clang__)
#        define UNROLL PRAGMA(unroll)
#    else
#        define UNROLL PRAGMA(GCC unroll 16)
#    endif
#    ifdef __clang__
#        define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#        define STREAM(to, vector) __builtin_nontemporal_store(vector, to)
#    else
#        define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (NAME(bits)){__VA_ARGS__})
#    endif

/* STREAM: a non-temporal store. STREAM_FENCE makes earlier ones visible to other threads. */
#    if defined(__x86_64__)
#        define STREAM_FENCE() __builtin_ia32_sfence()
#        define STREAM_16 __builtin_ia32_movntps
#        define STREAM_32 __builtin_ia32_movntps256
#        define STREAM_64 __builtin_ia32_movntps512
typedef float floats __attribute__((vector_size(BYTES)));
#        ifndef STREAM
#            define STREAM(to, vector) JOIN(STREAM_, BYTES)((float *)(to), (floats)(vector))
#        endif
#    else
#        define STREAM_FENCE() (void)0
#        ifndef STREAM
#            define STREAM(to, vector) (*(to) = (vector))
#        endif
#    endif

/* OPAQUE: gcc keeps this pointer in a register instead of computing it from another. IN_REGISTER: the same
   for a vector. So a vector is loaded once and not for every use, and a sum is not spilled. */
#    define OPAQUE(x) __asm__("" : "+r"(x))
#    if defined(__x86_64__)
#        define IN_REGISTER(x) __asm__("" : "+v"(x))
#    elif defined(__aarch64__)
#        define IN_REGISTER(x) __asm__("" : "+w"(x))
#    else
#        define IN_REGISTER(x) (void)0
#    endif

/* x * y + z of vectors and of scalars: one rounding if the instruction set has FMA (it then defines FMA_f32
   and FMA_f64, of vectors), else two. These files are compiled with -ffp-contract=off, so that no compiler
   fuses one path and not another: an element has the same bits in a full and in a partial tile, in place and
   packed. */
#    define FMA_bf16 FMA_f32
#    define VECTOR_FMA(x, y, z) ((VECTOR)NAME(FMA)(x, y, z))
#    ifdef FMA_f32
#        define SCALAR_FMA FMA
#    else
#        define FMA_f32(x, y, z) ((x) * (y) + (z))
#        define FMA_f64 FMA_f32
#        define SCALAR_FMA FMA_f32
#    endif
#    define SPLAT(x) ((x) - (VECTOR){0}) /* exact: also -0 */

/* Perfect shuffle of two vectors: LOW interleaves their first halves, HIGH their second halves. */
#    define LOW JOIN(LOW_, LANES)
#    define HIGH JOIN(HIGH_, LANES)
#    define LOW_2 0, 2
#    define HIGH_2 1, 3
#    define LOW_4 0, 4, 1, 5
#    define HIGH_4 2, 6, 3, 7
#    define LOW_8 0, 8, 1, 9, 2, 10, 3, 11
#    define HIGH_8 4, 12, 5, 13, 6, 14, 7, 15
#    define LOW_16 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#    define HIGH_16 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

/* A packed element is a stored element: dtype_bf16.h changes that. */
#    define CONVERTS false
#    define VNNI 1
#    define LOAD_ACROSS_N(b, ld) LOAD_VECTOR(b)
#    define LOAD_ALONG_K(b) LOAD_VECTOR(b)
#    define MULTIPLY_ADD(sum, x, row) ((sum) = VECTOR_FMA(SPLAT(x), row, sum))
#    define UKERNEL_NAME(x) NAME(x)
#    define C_IS_REAL(call) true
#    define TILE_EPILOGUE(call) NAME(tile_epilogue)
#endif

#ifndef NAME
#    include "kernels/host/element.h"
#    define BITS int32_t
#    define LANES LANES_F32
#endif

typedef REAL NAME(vector) __attribute__((vector_size(BYTES)));
typedef REAL NAME(unaligned) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
typedef BITS NAME(bits) __attribute__((vector_size(BYTES)));
