/* The barrier of a team of threads. */
#include "tests/support.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

#include "kernels/host/team.h"
#include "kernels/host/team_size.h"
#include "src/base/profile.h"

enum { MOST_THREADS = 16, MOST_ROUNDS = 500 };

struct member {
    struct team *team;
    const struct member *all;
    size_t rank, rounds, slow;              /* thread 0 sleeps in every `slow`-th round; 0: never */
    size_t done, early;                     /* rounds; threads that were behind after a barrier */
    double called[MOST_ROUNDS + 1], waited; /* when in each round, and the seconds of all its barriers */
};

static void clocked_barrier(struct member *member, double *called) {
    *called = clock_seconds();
    team_barrier(member->team);
    member->waited += clock_seconds() - *called;
}

static void *take_part(void *opaque) {
    struct member *member = opaque;
    double called;
    for (size_t round = 1; round <= member->rounds; round++) {
        if (member->rank == 0 && member->slow && round % member->slow == 0)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        member->done = round; /* not atomic: the barrier orders it */
        clocked_barrier(member, &member->called[round]);
        for (size_t t = 0; t < member->team->size; t++) member->early += member->all[t].done != round;
        clocked_barrier(member, &called);
    }
    return NULL;
}

/* Seconds that the others waited for the thread that came last. */
static double waits_of(const struct member *all, size_t round) {
    double last = 0, sum = 0;
    for (size_t t = 0; t < all->team->size; t++) last = fmax(last, all[t].called[round]);
    for (size_t t = 0; t < all->team->size; t++) sum += last - all[t].called[round];
    return sum;
}

static void check(size_t threads, size_t rounds, size_t slow, bool oversubscribed) {
    struct team team;
    struct member member[MOST_THREADS];
    pthread_t thread[MOST_THREADS];
    team_init(&team, threads);
    team.oversubscribed = oversubscribed;
    for (size_t t = 0; t < threads; t++)
        member[t] = (struct member){.team = &team, .all = member, .rank = t, .rounds = rounds, .slow = slow};
    for (size_t t = 0; t < threads; t++)
        assert_int_equal(pthread_create(&thread[t], NULL, take_part, &member[t]), 0);
    for (size_t t = 0; t < threads; t++) assert_int_equal(pthread_join(thread[t], NULL), 0);
    for (size_t t = 0; t < threads; t++) {
        assert_int_equal(member[t].done, rounds);
        assert_int_equal(member[t].early, 0);
    }
    if (slow && threads > 1) assert_true(atomic_load(&team.contended) > 0);
    const double lost = team_lost(&team) * (double)(threads - 1);
    double least = 0, most = 0;
    for (size_t round = slow; slow && round <= rounds; round += slow) least += waits_of(member, round);
    for (size_t t = 0; t < threads; t++) most += member[t].waited;
    assert_true(lost >= 0.9 * least && lost <= most);
    if (threads == 1) assert_true(team_lost(&team) == 0);
    assert_int_equal(atomic_load(&team.sleepers), 0);
}

static void all_threads_arrive(void **state) {
    (void)state;
    check(1, 10, 0, false);
    check(2, 500, 0, false);
    check(5, 200, 0, true);
    check(16, 50, 0, true);
}

/* The others sleep, and the next barriers do not spin. */
static void a_thread_is_late(void **state) {
    (void)state;
    check(2, 41, 4, false);
    check(3, 41, 4, true);
}

/* Calls of a team whose steps take times[threads] seconds, of which each thread waits the share
   lost[threads]. Returns how many of the last 90 calls had `expected` threads. */
static size_t calls_with(struct team_size *size, const double *times, const double *lost, size_t expected) {
    size_t count = 0;
    for (int call = 0; call < 180; call++) {
        const size_t threads = team_size_next(size);
        assert_true(threads >= 1 && threads <= size->most);
        count += call >= 90 && threads == expected;
        team_size_measured(size, times[threads], lost[threads]);
    }
    return count;
}

/* Quiet, beside one busy process, beside two, quiet again; four threads beside two. */
static void the_fastest_size_is_found(void **state) {
    (void)state;
    static const double quiet[] = {0, 1, 0.62}, one[] = {0, 1, 1.4}, two[] = {0, 1.6, 1.3},
                        none[] = {0, 0, 0.4}, half[] = {0, 0, 0.5};
    static const double four[] = {0, 4, 2, 2.2, 3}, share[] = {0, 0, 0.1, 0.4, 0.5};
    struct team_size size = team_size_init(2);
    assert_int_equal(calls_with(&size, quiet, none, 2), 90);
    assert_int_equal(calls_with(&size, one, half, 1), 81); /* the others look whether it is over */
    assert_int_equal(calls_with(&size, two, half, 2), 81);
    calls_with(&size, one, half, 1);
    assert_int_equal(calls_with(&size, quiet, none, 2), 90);
    size = team_size_init(4);
    assert_true(calls_with(&size, four, share, 2) >= 80);
    size = team_size_init(1);
    assert_int_equal(calls_with(&size, quiet, none, 1), 90);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_threads_arrive),
        cmocka_unit_test(a_thread_is_late),
        cmocka_unit_test(the_fastest_size_is_found),
    };
    return cmocka_run_group_tests_name("team", tests, NULL, NULL);
}
