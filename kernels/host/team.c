/* The barrier of a team of threads.

   Idea       a thread spins for 20 us, longer than threads wait for each other on a quiet machine. Then it
              sleeps in the kernel (futex): its core can run the thread that it waits for.
   Contended  a thread that spins uses up its share of a core beside a busy process. So it is preempted for a
              whole time slice, of 1 to 6 ms, and its team waits. A thread that sleeps keeps its share, and is
              scheduled as soon as it wakes. So after a wait as long as a time slice, some hundred barriers do
              not spin. With more threads than cores none does. (sched_yield before the sleep takes 1.2
              times as long beside busy processes, and 1.8 times with 64 threads on two cores.)
   Bound by   the transfer of a cache line between cores, 0.1 to 0.3 us; 10 to 20 us if a sleeping core wakes.
   Improves   the barrier of OpenMP, which spins for minutes (libgomp) or 200 ms (libomp)
   Run        tests/bench/neighbours.py */
#include "kernels/host/team.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#    include <omp.h>
#endif

enum { SPINS = 16 /* between readings of the clock */, CONTENDED_BARRIERS = 512 };
static const double SPIN_SECONDS = 20e-6, SLICE_SECONDS = 1e-3;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void team_init(struct team *team, size_t size) {
    *team = (struct team){.size = size};
#ifdef _OPENMP
    team->oversubscribed = size > (size_t)omp_get_num_procs();
#endif
}

static bool waits(struct team *team, unsigned generation) {
    return atomic_load_explicit(&team->generation, memory_order_acquire) == generation;
}

/* Returns false if the other threads have not arrived after SPIN_SECONDS. */
static bool spin(struct team *team, unsigned generation, double start) {
    do {
        for (int i = 0; i < SPINS; i++) {
            if (!waits(team, generation)) return true;
            relax();
        }
    } while (now() - start < SPIN_SECONDS);
    return false;
}

/* `sleepers` is raised before the kernel compares `generation`, and read after `generation` is raised: no
   wake-up is lost. */
static void sleep_in_kernel(struct team *team, unsigned generation) {
    atomic_fetch_add(&team->sleepers, 1);
    while (waits(team, generation))
        syscall(SYS_futex, &team->generation, FUTEX_WAIT_PRIVATE, generation, NULL, NULL, 0);
    atomic_fetch_sub(&team->sleepers, 1);
}

/* By the last thread that arrives. */
static void release(struct team *team) {
    const unsigned contended = atomic_load_explicit(&team->contended, memory_order_relaxed);
    if (contended) atomic_store_explicit(&team->contended, contended - 1, memory_order_relaxed);
    atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
    atomic_fetch_add(&team->generation, 1);
    if (atomic_load(&team->sleepers))
        syscall(SYS_futex, &team->generation, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void team_barrier(struct team *team) {
    if (team->size == 1) return;
    const unsigned generation = atomic_load_explicit(&team->generation, memory_order_relaxed);
    const bool contended = atomic_load_explicit(&team->contended, memory_order_relaxed);
    if (atomic_fetch_add(&team->arrived, 1) + 1 == team->size) {
        release(team);
        return;
    }
    const double start = now();
    if (!team->oversubscribed && !contended && spin(team, generation, start)) return;
    sleep_in_kernel(team, generation);
    const double waited = now() - start;
    atomic_fetch_add_explicit(&team->lost, (unsigned)(waited < 1 ? 1e6 * waited : 1e6), memory_order_relaxed);
    if (waited > SLICE_SECONDS)
        atomic_store_explicit(&team->contended, CONTENDED_BARRIERS, memory_order_relaxed);
}

double team_lost(const struct team *team) {
    const double lost = 1e-6 * atomic_load_explicit(&team->lost, memory_order_relaxed);
    return team->size > 1 ? lost / (double)(team->size - 1) : 0;
}
