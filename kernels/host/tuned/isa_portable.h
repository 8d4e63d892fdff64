/* Vectors and micro-tile for any processor: 16 registers of 16 bytes (SSE2, NEON). Included before isa.h. */
#define BYTES 16
#define LANES_F32 4
#define LANES_F64 2
#define MR 6
#define FOR_MR(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6)
