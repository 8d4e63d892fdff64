/* What the process may use: limits of cgroups, threads, memory, instructions of the CPU, its caches. */
#include "tests/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/cgroup.h"
#include "src/base/cpu.h"
#include "src/base/pages.h"
#include "src/base/platform.h"

/* If Linux describes the caches, the last one is at least as large as the first. */
static void last_cache(void **state) {
    (void)state;
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index0/size", "r");
    unsigned long first = 0;
    if (!file) {
        assert_int_equal(platform_last_cache(), 0);
        skip();
    }
    assert_int_equal(fscanf(file, "%luK", &first), 1);
    fclose(file);
    assert_true(first > 0 && platform_last_cache() >= (size_t)first << 10);
    assert_true(platform_last_cache() <= (size_t)64 << 30);
}

static void write_group(const char *folder, const char *file, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "mkdir -p %s", folder);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/%s", folder, file);
    support_write(path, text, strlen(text));
}

/* The folder of a group in a copy of /sys/fs/cgroup. */
static const char *group_at(const char *root, const char *path) {
    static char folder[4][512];
    static size_t next;
    char *text = folder[next++ % 4];
    snprintf(text, sizeof folder[0], "%s%s", root, path);
    return text;
}

static void cgroup_limits_version_2(void **state) {
    (void)state;
    const char *root = support_path("cgroup2"), *membership = support_path("membership2");
    const struct cgroup_files files = {membership, root};
    support_write(membership, "0::/slice/job\n", 14);
    assert_true(isinf(cgroup_cores(&files)) && cgroup_memory(&files).available == UINT64_MAX);
    write_group(group_at(root, "/slice/job"), "cpu.max", "max 100000\n");
    write_group(group_at(root, "/slice/job"), "memory.max", "max\n");
    write_group(group_at(root, "/slice/job"), "memory.current", "1000000\n");
    assert_true(isinf(cgroup_cores(&files)) && cgroup_memory(&files).available == UINT64_MAX);
    write_group(group_at(root, "/slice"), "cpu.max", "250000 100000\n"); /* that of the group above */
    assert_true(cgroup_cores(&files) == 2.5);
    write_group(group_at(root, "/slice/job"), "cpu.max", "50000 100000\n");
    assert_true(cgroup_cores(&files) == 0.5);
    write_group(group_at(root, "/slice/job"), "memory.max", "3000000\n");
    assert_int_equal(cgroup_memory(&files).available, 2000000);
    assert_string_equal(cgroup_memory(&files).limit, "memory.max");
    write_group(group_at(root, "/slice/job"), "memory.stat",
                "anon 1\ninactive_file 300000\nactive_file 40000\n");
    assert_int_equal(cgroup_memory(&files).available, 2340000); /* page cache counts as free */
    write_group(group_at(root, "/slice/job"), "memory.high", "2000000\n");
    assert_int_equal(cgroup_memory(&files).available, 1340000);
    assert_string_equal(cgroup_memory(&files).limit, "memory.high");
    write_group(group_at(root, "/slice"), "memory.max", "5000000\n");
    write_group(group_at(root, "/slice"), "memory.current", "5100000\n");
    assert_int_equal(cgroup_memory(&files).available, 0); /* beyond the limit */
}

static void cgroup_limits_version_1(void **state) {
    (void)state;
    const char *root = support_path("cgroup1"), *membership = support_path("membership1");
    const char *lines =
        "9:name=systemd:/\n5:cpuset:/\n4:memory:/docker/abc\n2:cpuacct,cpu:/docker/abc\n0::/\n";
    const struct cgroup_files files = {membership, root};
    support_write(membership, lines, strlen(lines));
    write_group(group_at(root, "/cpu"), "cpu.cfs_quota_us", "-1\n");
    write_group(group_at(root, "/cpu"), "cpu.cfs_period_us", "100000\n");
    assert_true(isinf(cgroup_cores(&files)) && cgroup_memory(&files).available == UINT64_MAX);
    /* in a container, the mount is the group, and the path is that of the host */
    write_group(group_at(root, "/cpu"), "cpu.cfs_quota_us", "150000\n");
    assert_true(cgroup_cores(&files) == 1.5);
    write_group(group_at(root, "/memory"), "memory.limit_in_bytes", "9223372036854771712\n");
    write_group(group_at(root, "/memory"), "memory.usage_in_bytes", "7000000\n");
    write_group(group_at(root, "/memory/docker/abc"), "memory.limit_in_bytes", "4000000\n");
    write_group(group_at(root, "/memory/docker/abc"), "memory.usage_in_bytes", "3000000\n");
    write_group(group_at(root, "/memory/docker/abc"), "memory.stat",
                "inactive_file 1\nactive_file 1\ntotal_inactive_file 500000\ntotal_active_file 1000\n");
    assert_int_equal(cgroup_memory(&files).available, 1501000);
    assert_string_equal(cgroup_memory(&files).limit, "memory.limit_in_bytes");
}

static void threads_of_the_process(void **state) {
    (void)state;
    unsetenv("OMP_NUM_THREADS");
    unsetenv("OMP_THREAD_LIMIT");
    const int usable = platform_usable_cores();
    assert_true(usable >= 1 && usable <= platform_cores());
    assert_int_equal(platform_threads(0), usable);
    assert_int_equal(platform_threads(7), 7);
    setenv("OMP_NUM_THREADS", "5,2", 1);
    assert_int_equal(platform_threads(0), 5);
    setenv("OMP_THREAD_LIMIT", "3", 1);
    assert_int_equal(platform_threads(0), 3);
    assert_int_equal(platform_threads(7), 3);
    assert_int_equal(platform_threads(2), 2);
    unsetenv("OMP_NUM_THREADS");
    unsetenv("OMP_THREAD_LIMIT");
}

static void memory_that_is_not_there(void **state) {
    (void)state;
    const char *limit;
    assert_true(platform_memory_available(&limit) > 0);
    assert_null(pages_alloc(SIZE_MAX / 4));
    assert_says(status_message(), "out of memory: 4.0 EiB needed, ");
    assert_null(pages_alloc(SIZE_MAX));
    void *memory = pages_alloc(0);
    assert_non_null(memory);
    free(memory);
}

/* The check that runs before main. */
static void missing_cpu_features(void **state) {
    (void)state;
    static const char *const names[] = {
#define NAME(macro, name, word, bit, registers) name,
        CPU_FEATURES(NAME)};
    bool needed[CPU_FEATURE_COUNT] = {false};
    uint32_t registers[CPU_WORDS];
    char text[512];
    memset(registers, 0, sizeof registers);
    cpu_missing(needed, registers, text, sizeof text);
    assert_string_equal(text, "");
    for (int i = 0; i < CPU_FEATURE_COUNT; i++) { /* one at a time, on a CPU that has nothing */
        memset(needed, 0, sizeof needed);
        needed[i] = true;
        cpu_missing(needed, registers, text, sizeof text);
        assert_string_equal(text, names[i]);
    }
    memset(needed, true, sizeof needed);
    memset(registers, 0xff, sizeof registers);
    cpu_missing(needed, registers, text, sizeof text);
    assert_string_equal(text, "");
    registers[CPU_1_ECX] &= ~(1u << 12);
    registers[CPU_7_EBX] &= ~(1u << 5);
    cpu_missing(needed, registers, text, sizeof text);
    assert_string_equal(text, "fma, avx2");
    registers[CPU_XCR0] = CPU_YMM; /* an operating system that does not save ZMM */
    memset(needed, 0, sizeof needed);
    for (int i = 0; i < CPU_FEATURE_COUNT; i++) needed[i] = strcmp(names[i], "avx512f") == 0;
    cpu_missing(needed, registers, text, sizeof text);
    assert_string_equal(text, "avx512f");
    for (int i = 0; i < CPU_FEATURE_COUNT; i++) {
#ifdef __AVX2__
        if (strcmp(names[i], "avx2") == 0) assert_true(cpu_needed[i]);
#else
        if (strcmp(names[i], "avx2") == 0) assert_false(cpu_needed[i]);
#endif
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cgroup_limits_version_2), cmocka_unit_test(cgroup_limits_version_1),
        cmocka_unit_test(threads_of_the_process),  cmocka_unit_test(memory_that_is_not_there),
        cmocka_unit_test(missing_cpu_features),    cmocka_unit_test(last_cache),
    };
    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
