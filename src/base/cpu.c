/* Compiled for the oldest x86-64 (see the Makefile), and calls only the C library: the other files of the
   program may use instructions that the CPU lacks. */
#define _GNU_SOURCE /* program_invocation_short_name */
#include "src/base/cpu.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/status.h"

static const struct {
    const char *name;
    enum cpu_word word;
    int bit;
    uint32_t state;
} features[] = {
#define FEATURE(macro, name, word, bit, state) {name, word, bit, state},
    CPU_FEATURES(FEATURE)};

void cpu_missing(const bool needed[CPU_FEATURE_COUNT], const uint32_t registers[CPU_WORDS], char *names,
                 size_t size) {
    names[0] = '\0';
    for (int i = 0; i < CPU_FEATURE_COUNT; i++) {
        const uint32_t state = features[i].state;
        const bool has =
            registers[features[i].word] >> features[i].bit & 1 && (registers[CPU_XCR0] & state) == state;
        const size_t used = strlen(names);
        if (needed[i] && !has)
            snprintf(names + used, size - used, "%s%s", used ? ", " : "", features[i].name);
    }
}

#ifdef __x86_64__
#    include <cpuid.h>

static void read_registers(uint32_t registers[CPU_WORDS]) {
    enum { OSXSAVE = 1 << 27 };
    uint32_t a, b, c, d, high;
    memset(registers, 0, CPU_WORDS * sizeof *registers);
    __get_cpuid(1, &a, &b, &registers[CPU_1_ECX], &d);
    __get_cpuid(0x80000001, &a, &b, &registers[CPU_80000001_ECX], &d);
    if (__get_cpuid_count(7, 0, &a, &registers[CPU_7_EBX], &registers[CPU_7_ECX], &registers[CPU_7_EDX]) &&
        a >= 1)
        __get_cpuid_count(7, 1, &registers[CPU_7_1_EAX], &b, &c, &d);
    if (registers[CPU_1_ECX] & OSXSAVE) __asm__("xgetbv" : "=a"(registers[CPU_XCR0]), "=d"(high) : "c"(0));
}

__attribute__((constructor)) static void check(void) {
    uint32_t registers[CPU_WORDS];
    char names[512];
    read_registers(registers);
    cpu_missing(cpu_needed, registers, names, sizeof names);
    if (!names[0]) return;
    fprintf(stderr,
            "%s: this program was built for another CPU: it needs %s, which this one lacks. Build it here "
            "(make clean, then make), or for any x86-64 CPU (make PORTABLE=1).\n",
            program_invocation_short_name, names);
    _exit(STATUS_UNAVAILABLE);
}
#endif
