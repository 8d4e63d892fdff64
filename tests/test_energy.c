/* The energy of an epoch: both kinds of counter, from doubles of NVML and of RAPL's files; idle power. */
#include "tests/support.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/profile.h"
#include "src/bench/energy_use.h"
#include "src/bench/run.h"

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* --- a folder like /sys/class/powercap --- */

static char powercap[256];

static void write_number(const char *zone, const char *name, unsigned long long value) {
    char path[512], text[32];
    snprintf(path, sizeof path, "%s/%s/%s", powercap, zone, name);
    snprintf(text, sizeof text, "%llu\n", value);
    support_write(path, text, strlen(text));
}

static void add_zone(const char *zone, const char *name, unsigned long long energy) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", powercap, zone);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/%s/name", powercap, zone);
    support_write(path, name, strlen(name));
    write_number(zone, "energy_uj", energy);
    write_number(zone, "max_energy_range_uj", 10000000);
}

/* Two packages; cores, a package again and the whole system, which are not added to them. */
static int make_powercap(void **state) {
    (void)state;
    snprintf(powercap, sizeof powercap, "%s", support_path("powercap"));
    assert_int_equal(mkdir(powercap, 0700), 0);
    add_zone("intel-rapl:0", "package-0\n", 5000000);
    add_zone("intel-rapl:1", "package-1\n", 9000000);
    add_zone("intel-rapl:0:0", "core\n", 100);
    add_zone("intel-rapl:2", "psys\n", 100);
    add_zone("intel-rapl-mmio:0", "package-0\n", 100);
    return 0;
}

static double joules_of(struct energy_meter *meter) {
    double joules = -1;
    assert_true(energy_read(meter, &joules));
    return joules;
}

static void packages_add_up_and_wrap(void **state) {
    (void)state;
    struct energy_meter *meter = energy_open_cpu(powercap);
    assert_non_null(meter);
    assert_string_equal(energy_counter(meter), "RAPL");
    assert_near(joules_of(meter), 0, 1e-9);
    write_number("intel-rapl:0", "energy_uj", 5250000);
    write_number("intel-rapl:0:0", "energy_uj", 777777);
    write_number("intel-rapl:2", "energy_uj", 777777);
    assert_near(joules_of(meter), 0.25, 1e-9);
    write_number("intel-rapl:1", "energy_uj", 500000); /* from 9 J over 10 J */
    assert_near(joules_of(meter), 1.75, 1e-9);
    assert_near(joules_of(meter), 1.75, 1e-9);
    support_write(support_path("powercap/intel-rapl:1/energy_uj"), "?", 1);
    double joules;
    assert_false(energy_read(meter, &joules));
    assert_non_null(strstr(status_message(), "intel-rapl:1/energy_uj: not a number"));
    write_number("intel-rapl:0", "energy_uj", 5000000);
    write_number("intel-rapl:1", "energy_uj", 9000000);
    energy_close(meter);
}

static void a_missing_counter_has_a_reason(void **state) {
    (void)state;
    assert_null(energy_open_cpu(support_path("no-powercap")));
    assert_non_null(strstr(status_message(), "has no energy counter (RAPL)"));
    assert_null(energy_open_gpu("libno-such-nvml.so.1", "0000:19:00.0"));
    assert_non_null(strstr(status_message(), "NVML cannot be loaded: libno-such-nvml.so.1"));
    assert_null(energy_open_gpu(support_plugin("plugins/cached.so"), "0000:19:00.0"));
    assert_non_null(strstr(status_message(), "NVML has no nvmlInit_v2"));
    assert_null(energy_open_gpu(support_plugin("plugins/loaded/nvml.so"), "0000:99:00.0"));
    assert_non_null(strstr(status_message(), "NVML does not find the GPU 0000:99:00.0: Not Found"));
    assert_null(energy_open_gpu(support_plugin("plugins/loaded/nvml.so"), "0000:1A:00.0"));
    assert_non_null(strstr(status_message(), "the GPU's energy counter cannot be read: Not Supported"));
}

static void the_gpu_counts_millijoules(void **state) {
    (void)state;
    struct energy_meter *meter =
        energy_open_gpu(support_plugin("plugins/loaded/nvml.so"), "0000:19:00.0"); /* reads once */
    assert_non_null(meter);
    assert_string_equal(energy_counter(meter), "NVML");
    assert_near(joules_of(meter), 1.507, 1e-9);
    assert_near(joules_of(meter), 3.007, 1e-9);
    energy_close(meter);
}

/* --- the measurement --- */

static void idle_power_is_subtracted(void **state) {
    (void)state;
    const struct energy_use use = {
        .seconds = 10, .joules = 4000, .idle_seconds = 4, .idle_joules = 300, .epochs = 50};
    assert_near(energy_idle_watts(&use), 75, 1e-9);
    assert_near(energy_watts(&use), 400, 1e-9);
    assert_near(energy_of_epoch(&use), (4000 - 750) / 50.0, 1e-9);
    assert_near(energy_of_epoch_gross(&use), 80, 1e-9);
}

static const struct energy_plan plan = {.settle = 0.01, .pause = 0.1, .warm_up = 0.05, .least = 0.2};

/* The pause uses nothing, the warm-up is not counted, and then each of the epochs uses 0.1 J. */
static void epochs_are_measured_after_the_warm_up(void **state) {
    (void)state;
    struct energy_watch watch;
    struct energy_use use;
    size_t counted = 0;
    unsigned long long energy = 5000000;
    assert_status(energy_watch_open(&watch, energy_open_cpu(powercap), &plan, &use), STATUS_OK);
    assert_true(use.idle_seconds >= plan.pause);
    assert_near(use.idle_joules, 0, 1e-9);
    const double start = clock_seconds();
    bool done = false;
    while (!done) {
        usleep(10000);
        write_number("intel-rapl:0", "energy_uj", energy += 100000);
        counted += watch.start > 0;
        const double called = clock_seconds();
        done = energy_watch_epoch(&watch);
        const double ready = watch.ready, returned = clock_seconds();
        assert_true(watch.start > 0 ? returned - ready >= plan.warm_up : called - ready < plan.warm_up);
    }
    assert_true(clock_seconds() - start >= plan.warm_up + plan.least);
    assert_int_equal(use.epochs, counted);
    assert_true(use.seconds >= plan.least);
    assert_near(use.joules, 0.1 * (double)counted, 1e-9);
    assert_near(energy_of_epoch(&use), 0.1, 1e-9);
    assert_string_equal(use.counter, "RAPL");
    energy_watch_close(&watch);
    write_number("intel-rapl:0", "energy_uj", 5000000);
}

static void a_counter_that_fails_ends_the_run(void **state) {
    (void)state;
    const struct energy_plan at_once = {.least = 1e-9};
    struct energy_watch watch;
    struct energy_use use;
    assert_status(energy_watch_open(&watch, NULL, &plan, &use), STATUS_UNAVAILABLE);
    assert_true(watch.failed);
    assert_status(energy_watch_open(&watch, energy_open_cpu(powercap), &at_once, &use), STATUS_OK);
    support_write(support_path("powercap/intel-rapl:0/energy_uj"), "", 0);
    assert_true(energy_watch_epoch(&watch));
    assert_true(watch.failed);
    assert_string_equal(use.counter, "");
    energy_watch_close(&watch);
    write_number("intel-rapl:0", "energy_uj", 5000000);
}

/* --- the command: a machine may have a counter or none --- */

static void compare_shows_energy_or_why_not(void **state) {
    (void)state;
    const char *log = support_path("energy.jsonl");
    cJSON *row;
    assert_int_equal(RUN("compare --data %s --layers 42-8-4 --epochs 1 --batch-size 16 --repeat 1 --backends "
                         "serial --threads 1 --energy on --log %s",
                         support_data, log),
                     0);
    assert_int_equal(support_log(log, "compare", 0, &row), 1);
    const cJSON *energy = cJSON_GetObjectItem(row, "energy");
    assert_non_null(energy);
    if (cJSON_GetObjectItem(energy, "reason")) {
        assert_non_null(strstr(output, "Energy not available: serial, because "));
        assert_null(cJSON_GetObjectItem(energy, "joules_per_epoch"));
    } else {
        assert_non_null(strstr(output, "J an epoch"));
        assert_true(support_number(energy, "seconds") >= 10 && support_number(energy, "epochs") > 0);
        assert_true(support_number(energy, "gross_joules_per_epoch") >
                    support_number(energy, "joules_per_epoch"));
    }
    cJSON_Delete(row);
    assert_int_equal(RUN("compare --energy perhaps"), 2);
    assert_non_null(strstr(output, "--energy must be on or off, not 'perhaps'"));
}

int main(void) {
    const struct CMUnitTest counters[] = {
        cmocka_unit_test(packages_add_up_and_wrap),
        cmocka_unit_test(a_missing_counter_has_a_reason),
        cmocka_unit_test(the_gpu_counts_millijoules),
        cmocka_unit_test(idle_power_is_subtracted),
        cmocka_unit_test(epochs_are_measured_after_the_warm_up),
        cmocka_unit_test(a_counter_that_fails_ends_the_run),
    };
    const struct CMUnitTest command[] = {cmocka_unit_test(compare_shows_energy_or_why_not)};
    return cmocka_run_group_tests(counters, make_powercap, NULL) +
           cmocka_run_group_tests(command, support_make_data, NULL);
}
