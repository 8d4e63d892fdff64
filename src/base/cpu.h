/* Does the CPU have the instructions that the compiler was told to use (-march=native)? The check runs before
   main, in code compiled without them, and ends the program with a message instead of SIGILL. */
#ifndef TESSERA_BASE_CPU_H
#define TESSERA_BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The results of CPUID and XGETBV. */
enum cpu_word {
    CPU_1_ECX,        /* leaf 1 */
    CPU_7_EBX,        /* leaf 7, subleaf 0 */
    CPU_7_ECX,        /* the same */
    CPU_7_EDX,        /* the same */
    CPU_7_1_EAX,      /* leaf 7, subleaf 1 */
    CPU_80000001_ECX, /* leaf 80000001h */
    CPU_XCR0,         /* the registers that the operating system saves */
    CPU_WORDS
};

/* X(macro of the compiler, name, word, bit, registers needed in XCR0): the x86-64 extensions that a compiler
   uses on its own. AVX needs the upper halves of YMM saved, AVX-512 also ZMM and the mask registers. */
enum { CPU_YMM = 0x06, CPU_ZMM = 0xe6 };
#define CPU_FEATURES(X)                                               \
    X(__SSE3__, "sse3", CPU_1_ECX, 0, 0)                              \
    X(__SSSE3__, "ssse3", CPU_1_ECX, 9, 0)                            \
    X(__FMA__, "fma", CPU_1_ECX, 12, CPU_YMM)                         \
    X(__SSE4_1__, "sse4.1", CPU_1_ECX, 19, 0)                         \
    X(__SSE4_2__, "sse4.2", CPU_1_ECX, 20, 0)                         \
    X(__MOVBE__, "movbe", CPU_1_ECX, 22, 0)                           \
    X(__POPCNT__, "popcnt", CPU_1_ECX, 23, 0)                         \
    X(__AVX__, "avx", CPU_1_ECX, 28, CPU_YMM)                         \
    X(__F16C__, "f16c", CPU_1_ECX, 29, CPU_YMM)                       \
    X(__BMI__, "bmi", CPU_7_EBX, 3, 0)                                \
    X(__AVX2__, "avx2", CPU_7_EBX, 5, CPU_YMM)                        \
    X(__BMI2__, "bmi2", CPU_7_EBX, 8, 0)                              \
    X(__AVX512F__, "avx512f", CPU_7_EBX, 16, CPU_ZMM)                 \
    X(__AVX512DQ__, "avx512dq", CPU_7_EBX, 17, CPU_ZMM)               \
    X(__AVX512IFMA__, "avx512ifma", CPU_7_EBX, 21, CPU_ZMM)           \
    X(__AVX512CD__, "avx512cd", CPU_7_EBX, 28, CPU_ZMM)               \
    X(__AVX512BW__, "avx512bw", CPU_7_EBX, 30, CPU_ZMM)               \
    X(__AVX512VL__, "avx512vl", CPU_7_EBX, 31, CPU_ZMM)               \
    X(__AVX512VBMI__, "avx512vbmi", CPU_7_ECX, 1, CPU_ZMM)            \
    X(__AVX512VBMI2__, "avx512vbmi2", CPU_7_ECX, 6, CPU_ZMM)          \
    X(__GFNI__, "gfni", CPU_7_ECX, 8, 0)                              \
    X(__AVX512VNNI__, "avx512vnni", CPU_7_ECX, 11, CPU_ZMM)           \
    X(__AVX512BITALG__, "avx512bitalg", CPU_7_ECX, 12, CPU_ZMM)       \
    X(__AVX512VPOPCNTDQ__, "avx512vpopcntdq", CPU_7_ECX, 14, CPU_ZMM) \
    X(__AVX512FP16__, "avx512fp16", CPU_7_EDX, 23, CPU_ZMM)           \
    X(__AVXVNNI__, "avxvnni", CPU_7_1_EAX, 4, CPU_YMM)                \
    X(__AVX512BF16__, "avx512bf16", CPU_7_1_EAX, 5, CPU_ZMM)          \
    X(__LZCNT__, "lzcnt", CPU_80000001_ECX, 5, 0)                     \
    X(__XOP__, "xop", CPU_80000001_ECX, 11, CPU_YMM)                  \
    X(__FMA4__, "fma4", CPU_80000001_ECX, 16, CPU_YMM)

#define CPU_PLUS_ONE(macro, name, word, bit, state) +1
enum { CPU_FEATURE_COUNT = 0 CPU_FEATURES(CPU_PLUS_ONE) };

/* Does this build use the feature? In the order of CPU_FEATURES. */
extern const bool cpu_needed[CPU_FEATURE_COUNT];

/* Writes the names of the needed features that a CPU with these registers lacks: "avx2, fma"; "" if it has
   all. */
void cpu_missing(const bool needed[CPU_FEATURE_COUNT], const uint32_t registers[CPU_WORDS], char *names,
                 size_t size);

#endif
