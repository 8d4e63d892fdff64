/* Of backend `tuned`, the variant avx512bf16 with its one instruction in plain C: the same packing, loops and
   tiles, for processors that have no VDPBF16PS. */
#ifndef TESSERA_TESTS_TUNED_EMULATED_H
#define TESSERA_TESTS_TUNED_EMULATED_H

#include "kernels/host/tuned/tuned.h"

extern const struct tuned_isa tuned_emulated;

#endif
