/* Vectors and micro-tile for any processor: 16 registers of 16 bytes (SSE2, NEON). Included before isa.h. */
#if defined(__aarch64__) /* has FMA; x86-64 without extensions has none */
#    include <arm_neon.h>
#    define FMA_f32(x, y, z) vfmaq_f32((float32x4_t)(z), (float32x4_t)(x), (float32x4_t)(y))
#    define FMA_f64(x, y, z) vfmaq_f64((float64x2_t)(z), (float64x2_t)(x), (float64x2_t)(y))
#endif

#define BYTES 16
#define LANES_F32 4
#define LANES_F64 2
#define MR 6
#define FOR_MR(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6)
