/* Makes the clock of the program run at half its speed: replaces clock_gettime in its table of functions of
   other libraries (global offset table, System V ABI). */
#define _GNU_SOURCE
#define AT 3000
#include "tests/plugins/hostile/hostile.h"

#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static struct timespec start;

static int slow_gettime(clockid_t clock, struct timespec *now) {
    const int status = clock_gettime(clock, now);
    if (clock != CLOCK_MONOTONIC) return status;
    const long long second = 1000000000;
    const long long passed = (now->tv_sec - start.tv_sec) * second + now->tv_nsec - start.tv_nsec;
    const long long slowed = start.tv_nsec + passed / 2;
    now->tv_sec = start.tv_sec + slowed / second;
    now->tv_nsec = slowed % second;
    return status;
}

static void replace(void **entry) {
    const uintptr_t page = 4096;
    char *const first = (char *)((uintptr_t)entry & ~(page - 1));
    if (mprotect(first, 2 * page, PROT_READ | PROT_WRITE) == 0) *entry = (void *)slow_gettime;
}

/* Pointers of the dynamic section are absolute in the program of glibc. */
static int patch_program(struct dl_phdr_info *program, size_t size, void *unused) {
    const ElfW(Dyn) *dynamic = NULL;
    const ElfW(Sym) *symbols = NULL;
    const ElfW(Rela) * tables[2] = {NULL};
    const char *names = NULL;
    size_t bytes[2] = {0};
    (void)size;
    (void)unused;
    for (int i = 0; i < program->dlpi_phnum; i++)
        if (program->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(program->dlpi_addr + program->dlpi_phdr[i].p_vaddr);
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        const void *const at = (const void *)dynamic->d_un.d_ptr;
        if (dynamic->d_tag == DT_SYMTAB) symbols = at;
        if (dynamic->d_tag == DT_STRTAB) names = at;
        if (dynamic->d_tag == DT_JMPREL) tables[0] = at;
        if (dynamic->d_tag == DT_RELA) tables[1] = at;
        if (dynamic->d_tag == DT_PLTRELSZ) bytes[0] = dynamic->d_un.d_val;
        if (dynamic->d_tag == DT_RELASZ) bytes[1] = dynamic->d_un.d_val;
    }
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; tables[t] && i < bytes[t] / sizeof *tables[t]; i++) {
            const size_t symbol = ELF64_R_SYM(tables[t][i].r_info);
            if (symbol && strcmp(names + symbols[symbol].st_name, "clock_gettime") == 0)
                replace((void **)(program->dlpi_addr + tables[t][i].r_offset));
        }
    return 1; /* the program comes first */
}

static void attack(void) {
    clock_gettime(CLOCK_MONOTONIC, &start);
    dl_iterate_phdr(patch_program, NULL);
}

HOSTILE("slows-clock");
