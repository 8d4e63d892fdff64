/* Parameters of the templates under kernels/host, for elements of ELEMENT_BITS: 32 (the default, for a
   template that is parsed by itself), 64, or 16 (bfloat16).

   NAME(x)  x with the suffix of the dtype
   REAL     type of the arithmetic
   STORED   type in memory; LOAD(x) converts to REAL, STORE(x) from it */
#undef NAME
#undef REAL
#undef STORED
#undef LOAD
#undef STORE
#if defined(ELEMENT_BITS) && ELEMENT_BITS == 16
#    include "kernels/bf16.h"
#    define NAME(x) x##_bf16
#    define REAL float
#    define STORED uint16_t
#    define LOAD(x) bf16_to_float(x)
#    define STORE(x) bf16_from_float(x)
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
#undef ELEMENT_BITS
