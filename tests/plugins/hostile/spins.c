/* Leaves two threads that never sleep, late in the verification: until then they would take its cores. */
#define AT 5000
#include "tests/plugins/hostile/hostile.h"

#include <pthread.h>

static void *spin(void *argument) {
    for (volatile int forever = 1; forever;) continue;
    return argument;
}

static void attack(void) {
    pthread_t thread;
    for (int i = 0; i < 2; i++) pthread_create(&thread, NULL, spin, NULL);
}

HOSTILE("spins");
