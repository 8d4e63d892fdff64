#define _GNU_SOURCE
#include "src/base/platform.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "buildinfo.h" /* written by the Makefile: BUILD_COMMIT, BUILD_FLAGS */
#include "src/base/text.h"

const char *platform_commit(void) {
    return BUILD_COMMIT;
}

const char *platform_compiler(void) {
#ifdef __clang__
    return "clang " __clang_version__;
#else
    return "gcc " __VERSION__;
#endif
}

const char *platform_flags(void) {
    return BUILD_FLAGS;
}

/* The first line of a file that starts with `key`, without the key; "" if there is none. */
static void find_line(const char *path, const char *key, char *text, size_t size) {
    char line[256];
    FILE *file = fopen(path, "r");
    text[0] = '\0';
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        snprintf(text, size, "%s", text_trim(line + strlen(key)));
        break;
    }
    if (file) fclose(file);
}

const char *platform_cpu(void) {
    static char name[128];
    if (!name[0]) find_line("/proc/cpuinfo", "model name\t:", name, sizeof name);
    if (!name[0]) snprintf(name, sizeof name, "unknown");
    return name;
}

const char *platform_system(void) {
    static char text[256];
    struct utsname name;
    if (!text[0] && uname(&name) == 0)
        snprintf(text, sizeof text, "%.80s %.80s %.80s", name.sysname, name.release, name.machine);
    return text;
}

int platform_threads(void) {
    const char *wanted = getenv("OMP_NUM_THREADS");
    int64_t count = 0;
    if (wanted) {
        char first[16]; /* a list has one entry for each nesting level */
        snprintf(first, sizeof first, "%.*s", (int)strcspn(wanted, ","), wanted);
        if (text_parse_int(first, &count) && count > 0 && count <= 1024) return (int)count;
    }
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    return 1;
}

uint64_t platform_memory(void) {
    const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

uint64_t platform_memory_available(void) {
    char text[64];
    find_line("/proc/meminfo", "MemAvailable:", text, sizeof text);
    const unsigned long long kibibytes = strtoull(text, NULL, 10);
    return kibibytes ? kibibytes * 1024 : platform_memory();
}

/* Reads a property of cache `index` of the first core from /sys; "" if there is none. */
static void read_cache(int index, const char *entry, char *text, size_t size) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, entry);
    find_line(path, "", text, size);
}

/* "266240K" in bytes. */
static size_t parse_size(const char *text) {
    char *unit;
    const size_t number = strtoull(text, &unit, 10);
    return *unit == 'K' ? number << 10 : *unit == 'M' ? number << 20 : *unit == 'G' ? number << 30 : number;
}

size_t platform_last_cache(void) {
    char text[32];
    int64_t last = 0, level;
    size_t bytes = 0;
    for (int index = 0; read_cache(index, "level", text, sizeof text), text_parse_int(text, &level);
         index++) {
        read_cache(index, "type", text, sizeof text);
        if (level < last || strcmp(text, "Instruction") == 0) continue;
        read_cache(index, "size", text, sizeof text);
        last = level;
        bytes = parse_size(text);
    }
    return bytes;
}
