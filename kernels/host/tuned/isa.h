/* Backend `tuned` for one instruction set. isa_*.c define its parameters (by default portable: vector.h):

   TARGET      (x86-64) instruction sets that the compiler may use beyond those of the whole program
   BYTES       of a vector, with LANES_F32 and LANES_F64
   MR, FOR_MR  rows of the largest micro-tile; FOR_MR(DO) is DO(1) .. DO(MR)
   DOT         (optional) see dtype_bf16.h
   BF16_ONLY   (optional) compiles no float64, and of float32 what bfloat16 needs

   Defines kernel_f32, kernel_f64 and kernel_bf16, of struct tuned_kernel. */
#include <stdint.h>

#include "kernels/activation.h"
#include "kernels/bf16.h"
#include "kernels/host/tuned/tuned.h"

#define PRAGMA_(text) _Pragma(#text)
#define PRAGMA(text) PRAGMA_(text)
#if defined(TARGET) && defined(__clang__)
PRAGMA(clang attribute push(__attribute__((target(TARGET))), apply_to = function))
#elif defined(TARGET)
PRAGMA(GCC push_options)
PRAGMA(GCC target(TARGET))
#endif

#ifndef BF16_ONLY
#    define ELEMENT_BITS 64
#    include "kernels/host/element.h"
#    define BITS int64_t
#    define LANES LANES_F64
#    include "kernels/host/tuned/dtype.h"
#    undef BITS
#    undef LANES
#endif

#define ELEMENT_BITS 32
#include "kernels/host/element.h"
#define BITS int32_t
#define LANES LANES_F32
#include "kernels/host/tuned/dtype.h"
#include "kernels/host/tuned/dtype_bf16.h"

#if defined(TARGET) && defined(__clang__)
PRAGMA(clang attribute pop)
#elif defined(TARGET)
PRAGMA(GCC pop_options)
#endif
