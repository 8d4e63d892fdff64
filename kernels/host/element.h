/* Parameters of the templates under kernels/host, for elements of ELEMENT_BITS: 32 (the default, for a
   template that is parsed by itself), 64, or 16: bfloat16, or half precision if ELEMENT_HALF is defined.

   NAME(x)  x with the suffix of the dtype
   REAL     type of the arithmetic
   STORED   type in memory; LOAD(x) converts to REAL, STORE(x) from it
   BOUNDED  the nearest finite number, if the type has a small range */
#undef NAME
#undef REAL
#undef STORED
#undef LOAD
#undef STORE
#undef BOUNDED
#if defined(ELEMENT_BITS) && ELEMENT_BITS == 16
#    ifdef ELEMENT_HALF
#        include "kernels/f16.h"
#        define NAME(x) x##_f16
#        define LOAD(x) f16_to_float(x)
#        define STORE(x) f16_from_float(x)
#        define BOUNDED(x) f16_bounded(x)
#    else
#        include "kernels/bf16.h"
#        define NAME(x) x##_bf16
#        define LOAD(x) bf16_to_float(x)
#        define STORE(x) bf16_from_float(x)
#    endif
#    define REAL float
#    define STORED uint16_t
#else
#    if defined(ELEMENT_BITS) && ELEMENT_BITS == 64
#        define NAME(x) x##_f64
#        define REAL double
#    else
#        define NAME(x) x##_f32
#        define REAL float
#    endif
#    define STORED REAL
#    define LOAD(x) (x)
#    define STORE(x) (x)
#endif
#ifndef BOUNDED
#    define BOUNDED(x) (x)
#endif
#undef ELEMENT_BITS
#undef ELEMENT_HALF
