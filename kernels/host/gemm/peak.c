/* The peak of the host: a loop of FMAs in registers, and a copy in memory.

   Idea       a core starts one or two FMAs a cycle, each with a latency of four: 12 independent sums keep the
              units busy without touching memory. The fastest vector width of this processor counts: the
              widest may lower the clock frequency, or have one unit instead of two.
   Bound by   FMA: 2 units of 16 float32 lanes at 3.8 GHz are 243 GFLOP/s a core. The copy: memory bandwidth.
   Run        ./train bench gemm */
#include "kernels/host/gemm/peak.h"

#include <math.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#    include <emmintrin.h>
#endif

/* Rounds of a loop: 1 ms and 12 ms at 6 cycles a round, where a fork and join take microseconds. The best of
   many short repeats is undisturbed by other processes; they end when SETTLED in a row raise it by less than
   0.5 %. */
enum { ROUNDS_1MS = 1 << 19, ROUNDS_12MS = 12 * ROUNDS_1MS, TRIALS = 4, COPIES = 7 };
enum { REPEATS = 20, SETTLED = 8 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* --- multiply-adds --- */

/* Separate variables, because gcc 12 keeps an array of vectors on the stack; each pinned to one register,
   because clang may split a vector of 64 bytes in two. */
#if defined(__x86_64__)
#    define IN_REGISTER(x) __asm__("" : "+v"(x));
#else
#    define IN_REGISTER(x)
#endif
#define SUMS(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define START(i) vector sum##i = (vector){0} + (1 + (i));
#define STEP(i)                      \
    sum##i = sum##i * factor + term; \
    IN_REGISTER(sum##i)
#define ADD(i) total += (double)sum##i[0];

/* NAME(rounds): each round is one FMA on each of 12 vectors of BYTES bytes. The sums converge to 1. */
#define LOOP(NAME, TARGET, TYPE, BYTES)                                                    \
    TARGET static double NAME(size_t rounds) {                                             \
        typedef TYPE vector __attribute__((vector_size(BYTES)));                           \
        const vector factor = (vector){0} + (TYPE)0.999, term = (vector){0} + (TYPE)0.001; \
        double total = 0;                                                                  \
        SUMS(START)                                                                        \
        while (rounds--) {                                                                 \
            SUMS(STEP)                                                                     \
        }                                                                                  \
        SUMS(ADD)                                                                          \
        return total;                                                                      \
    }

struct loop {
    bool (*usable)(void);
    double (*f32)(size_t rounds), (*f64)(size_t rounds);
    size_t bytes; /* of a vector */
};

static bool always(void) {
    return true;
}

LOOP(portable_f32, , float, 16)
LOOP(portable_f64, , double, 16)

#if defined(__x86_64__)
LOOP(avx2_f32, __attribute__((target("avx2,fma"))), float, 32)
LOOP(avx2_f64, __attribute__((target("avx2,fma"))), double, 32)
LOOP(avx512_f32, __attribute__((target("avx512f"))), float, 64)
LOOP(avx512_f64, __attribute__((target("avx512f"))), double, 64)

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f");
}
#endif

static const struct loop loops[] = {
    {always, portable_f32, portable_f64, 16},
#if defined(__x86_64__)
    {has_avx2, avx2_f32, avx2_f64, 32},
    {has_avx512, avx512_f32, avx512_f64, 64},
#endif
};

static double seconds_of(double (*run)(size_t rounds), size_t rounds, int threads) {
    double total = 0;
    const double start = now();
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : total)
    for (int t = 0; t < threads; t++) total += run(rounds);
    volatile double used = total; /* else the compiler removes the loop */
    (void)used;
    return now() - start;
}

/* Flops a second of all threads. */
static double rate_of(const struct loop *loop, enum gemm_dtype dtype, size_t rounds, int threads) {
    const bool single = dtype == GEMM_F32;
    const size_t lanes = loop->bytes / (single ? sizeof(float) : sizeof(double));
    const double flops = 2.0 * 12 * (double)lanes; /* of a round */
    return flops * (double)rounds * threads / seconds_of(single ? loop->f32 : loop->f64, rounds, threads);
}

/* The fastest loop, measured once, with the number of threads of the first call. */
static const struct loop *fastest(enum gemm_dtype dtype, int threads) {
    static const struct loop *found[GEMM_F64 + 1];
    if (found[dtype]) return found[dtype];
    const struct loop *best = loops;
    double most = 0;
    for (size_t i = 0; i < TRIALS * sizeof loops / sizeof *loops; i++) {
        const struct loop *loop = &loops[i / TRIALS];
        const double rate = loop->usable() ? rate_of(loop, dtype, ROUNDS_1MS, threads) : 0;
        if (rate <= most) continue;
        most = rate;
        best = loop;
    }
    return found[dtype] = best;
}

double host_peak_now(enum gemm_dtype dtype, int threads) {
    return rate_of(fastest(dtype, threads), dtype, ROUNDS_1MS, threads);
}

double host_peak(enum gemm_dtype dtype, int threads) {
    const struct loop *loop = fastest(dtype, threads);
    double best = 0;
    for (int i = 0, settled = 0; i < REPEATS && settled < SETTLED; i++) {
        const double rate = rate_of(loop, dtype, ROUNDS_12MS, threads);
        settled = rate > 1.005 * best ? 0 : settled + 1;
        best = fmax(best, rate);
    }
    return best;
}

/* --- copy --- */

/* memcpy uses non-temporal stores for large blocks only. */
static void library_copy(char *to, const char *from, size_t bytes) {
    memcpy(to, from, bytes);
}

/* Non-temporal stores: an ordinary store first reads the line that it overwrites. */
static void streaming_copy(char *to, const char *from, size_t bytes) {
#if defined(__x86_64__)
    for (size_t i = 0; i < bytes; i += 16)
        _mm_stream_si128((__m128i *)(to + i), _mm_load_si128((const __m128i *)(from + i)));
    _mm_sfence();
#else
    memcpy(to, from, bytes);
#endif
}

static void fill(char *to, const char *from, size_t bytes) {
    (void)from;
    memset(to, 1, bytes);
}

/* Runs `work` on one slice in each thread. Returns the seconds. */
static double in_slices(void (*work)(char *to, const char *from, size_t bytes), char *to, const char *from,
                        size_t slice, int threads) {
    const double start = now();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int t = 0; t < threads; t++) work(to + (size_t)t * slice, from + (size_t)t * slice, slice);
    return now() - start;
}

double host_copy_rate(void *to, void *from, size_t bytes, int threads) {
    const size_t slice = bytes / (size_t)threads / 64 * 64;
    const double moved = 2.0 * (double)slice * threads;
    double best = 0;
    in_slices(fill, from, to, slice, threads);
    in_slices(fill, to, from, slice, threads);
    for (int repeat = 0; repeat < COPIES; repeat++) {
        const double streaming = moved / in_slices(streaming_copy, to, from, slice, threads);
        const double library = moved / in_slices(library_copy, to, from, slice, threads);
        if (streaming > best) best = streaming;
        if (library > best) best = library;
    }
    return best;
}
