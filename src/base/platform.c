#define _GNU_SOURCE
#include "src/base/platform.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "buildinfo.h" /* written by the Makefile: BUILD_COMMIT, BUILD_FLAGS */
#include "src/base/cgroup.h"
#include "src/base/text.h"

enum { MOST_THREADS = 1024 };

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

const char *platform_cpu(void) {
    static char name[128];
    if (!name[0]) text_find_line("/proc/cpuinfo", "model name\t:", name, sizeof name);
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

/* --- processors --- */

/* A count in an environment variable; 0 if it is not set to one. OMP_NUM_THREADS may be a list: one entry for
   each nesting level. */
static int environment_count(const char *name) {
    const char *value = getenv(name);
    int64_t count = 0;
    char first[16];
    if (!value) return 0;
    snprintf(first, sizeof first, "%.*s", (int)strcspn(value, ","), value);
    return text_parse_int(first, &count) && count > 0 && count <= MOST_THREADS ? (int)count : 0;
}

int platform_cores(void) {
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? (int)cores : 1;
}

int platform_usable_cores(void) {
    cpu_set_t set;
    const bool known = sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0;
    const int cores = known ? CPU_COUNT(&set) : 1;
    const double quota = ceil(cgroup_cores(&cgroup_of_process));
    return quota < cores ? (int)quota : cores;
}

int platform_threads(int wanted) {
    const int limit = environment_count("OMP_THREAD_LIMIT");
    int threads = wanted ? wanted : environment_count("OMP_NUM_THREADS");
    if (!threads) threads = platform_usable_cores();
    return limit && limit < threads ? limit : threads;
}

struct platform_load platform_load(void) {
    static struct platform_load load;
    char text[64];
    int running;
    if (load.cores) return load;
    load.cores = platform_cores();
    load.usable_cores = platform_usable_cores();
    text_find_line("/proc/loadavg", "", text, sizeof text); /* 3.78 2.59 2.04 6/98 18851 */
    load.known = sscanf(text, "%lf %*f %*f %d/", &load.average, &running) == 2;
    if (load.known && running > 1) load.others = running - 1;
    return load;
}

struct platform_text platform_load_text(void) {
    const struct platform_load load = platform_load();
    struct platform_text out = {"load unknown"};
    if (!load.known) return out;
    snprintf(out.text, sizeof out.text, "load %.1f on %d core%s", load.average, load.cores,
             load.cores == 1 ? "" : "s");
    if (load.usable_cores < load.cores)
        text_append(out.text, sizeof out.text, ", %d usable", load.usable_cores);
    if (load.others)
        text_append(out.text, sizeof out.text, ", %d other task%s running", load.others,
                    load.others == 1 ? "" : "s");
    return out;
}

/* --- memory --- */

uint64_t platform_memory(void) {
    const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

/* Lowers *least to `bytes` with this reason. */
static void lower(uint64_t *least, const char **limit, uint64_t bytes, const char *reason) {
    if (bytes >= *least) return;
    *least = bytes;
    *limit = reason;
}

/* Lowers *least to what a resource limit leaves beyond these pages. */
static void lower_to_rest(uint64_t *least, const char **limit, const struct rlimit *most, double pages,
                          const char *reason) {
    const uint64_t used = (uint64_t)(pages * (double)sysconf(_SC_PAGESIZE));
    if (most->rlim_cur == RLIM_INFINITY) return;
    lower(least, limit, most->rlim_cur > used ? most->rlim_cur - used : 0, reason);
}

uint64_t platform_memory_available(const char **limit) {
    char text[128];
    double size = 0, data = 0;
    const struct cgroup_memory group = cgroup_memory(&cgroup_of_process);
    text_find_line("/proc/meminfo", "MemAvailable:", text, sizeof text);
    const unsigned long long kibibytes = strtoull(text, NULL, 10);
    uint64_t least = kibibytes ? kibibytes * 1024 : platform_memory();
    if (!least) least = UINT64_MAX;
    *limit = "";
    lower(&least, limit, group.available, group.limit);
    text_find_line("/proc/self/statm", "", text, sizeof text);
    sscanf(text, "%lf %*f %*f %*f %*f %lf", &size, &data);
    struct rlimit most;
    if (getrlimit(RLIMIT_AS, &most) == 0) lower_to_rest(&least, limit, &most, size, "ulimit -v");
    if (getrlimit(RLIMIT_DATA, &most) == 0) lower_to_rest(&least, limit, &most, data, "ulimit -d");
    return least;
}

/* Reads a property of cache `index` of the first core from /sys; "" if there is none. */
static void read_cache(int index, const char *entry, char *text, size_t size) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, entry);
    text_find_line(path, "", text, size);
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
