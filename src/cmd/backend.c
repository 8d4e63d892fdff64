#include "src/cmd/backend.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/backend/plugin.h"
#include "src/backend/registry.h"
#include "src/backend/verify.h"
#include "src/base/platform.h"
#include "src/base/progress.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/bench/comparison.h"

/* --- if a kernel crashes or hangs while it is verified: the name of the case --- */

static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};
enum { CAUGHT = sizeof caught / sizeof *caught, QUIET_SECONDS = 5 };

static struct sigaction previous[CAUGHT];
static uint64_t beats; /* of progress.h, a second ago */
static int quiet;      /* seconds without a beat */

static void write_error(const char *before, const char *after) {
    const char *const parts[] = {terminal_program(), before, progress_text(), after};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (write(STDERR_FILENO, parts[i], strlen(parts[i])) < 0)
            return; /* there is no other way to report it */
}

static void watch_end(void) {
    alarm(0);
    for (int i = 0; i < CAUGHT; i++) sigaction(caught[i], &previous[i], NULL);
}

/* After it returns from a crash, the instruction runs again, and the previous handler receives the signal. */
static void on_signal(int signal) {
    if (signal == SIGALRM) {
        quiet = progress_beats() == beats ? quiet + 1 : 0;
        if (quiet == QUIET_SECONDS)
            write_error(": the backend has not returned for 5 seconds from ", " (Ctrl-C ends the program)\n");
        beats = progress_beats();
        alarm(1);
    } else {
        write_error(": the backend crashed in ", "\n");
        watch_end();
    }
}

static void watch_begin(void) {
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    for (int i = 0; i < CAUGHT; i++) sigaction(caught[i], &action, &previous[i]);
    beats = progress_beats();
    quiet = 0;
    alarm(1);
}

/* --- plug-ins --- */

/* On a terminal, says that the verification runs. */
static void announce(const char *path) {
    terminal_progress("verifying %s ...", path);
}

/* Reports the result of the verification. */
static enum status report(enum status status, const char *path, size_t checked, size_t skipped,
                          double start) {
    terminal_clear_progress();
    if (status == STATUS_VERIFY_FAILED) return status_context(status, "%s is not used", path);
    if (status) return status;
    terminal_note("verified %s: %s GEMM cases right, %s not supported (%.1f s)", path,
                  text_grouped(checked).text, text_grouped(skipped).text, clock_seconds() - start);
    return STATUS_OK;
}

/* `compute` is open; closes it if the check fails. */
static enum status check_plugin(const struct config *config, struct compute *compute, const char *path) {
    const enum gemm_dtype dtype =
        dtype_of_operands((enum gemm_precision)config->precision, (enum gemm_dtype)config->dtype);
    const double start = clock_seconds();
    size_t checked = 0, skipped = 0;
    announce(path);
    enum status status = verify_training_ops(compute, dtype);
    watch_begin();
    if (!status) status = verify_backend(compute, &checked, &skipped);
    watch_end();
    status = report(status, path, checked, skipped, start);
    if (!status) return STATUS_OK;
    compute_close(compute);
    *compute = (struct compute){0};
    return status;
}

/* Warns on stderr, once, if there are more threads on the host than the process may use cores. */
static void warn_threads(int threads) {
    static bool warned;
    const int cores = platform_usable_cores();
    if (warned || threads <= cores) return;
    warned = true;
    terminal_note("warning: %d threads on %d core%s: each step waits for threads that have no core, which "
                  "can take many "
                  "times as long; use --threads %d",
                  threads, cores, cores == 1 ? "" : "s", cores);
}

enum status backend_open(const struct config *config, struct compute *compute) {
    const struct gemm_backend *backend;
    const struct compute_options options = config_compute(config);
    enum status status = registry_find(config->backend, &backend);
    if (!status) status = compute_open(compute, backend, &options);
    if (!status && backend->device == GEMM_ON_HOST && backend->set_threads) warn_threads(compute->threads);
    const char *path = status ? NULL : plugin_path(backend);
    return path ? check_plugin(config, compute, path) : status;
}

enum status backend_verify_run(const struct config *config, const struct gemm_backend *backend,
                               const struct dataset_pair *data) {
    enum { STEPS = 4 }; /* fewer than `compare` takes: a training waits for them */
    const char *path = plugin_path(backend);
    struct agreement agreement;
    struct drift drift;
    if (!path) return STATUS_OK;
    agreement_plan(&agreement, config, data);
    if (agreement.steps > STEPS) agreement.steps = STEPS;
    watch_begin();
    enum status status = comparison_verify(config, backend, data, PROBLEM_REALS, true);
    progress_set("the first steps of this training");
    if (!status) status = agreement_check(&agreement, config, backend, data, &drift);
    watch_end();
    return status == STATUS_VERIFY_FAILED ? status_context(status, "%s is not used", path) : status;
}

enum status backend_verify_cases(struct compute *compute, const struct verify_case *cases, size_t count) {
    const char *path = plugin_path(compute->backend);
    enum status status = STATUS_OK;
    watch_begin();
    for (size_t i = 0; path && i < count && !status; i++) status = verify_gemm(compute, &cases[i], NULL);
    watch_end();
    if (!status) return STATUS_OK;
    compute_close(compute);
    return status == STATUS_VERIFY_FAILED ? status_context(status, "%s is not used", path) : status;
}

enum status backend_check_plugins(struct sweep *sweep, bool training) {
    for (size_t i = 0; i < sweep->count; i++) {
        struct sweep_row *row = &sweep->rows[i];
        const double start = clock_seconds();
        struct contest_request request = {
            .task = CONTEST_VERIFY_ALL, .config = row->config, .training = training};
        struct contest_reply reply;
        if (row->backend && row->backend->has_threads && row->backend->device == GEMM_ON_HOST)
            warn_threads(config_compute(&row->config).threads);
        if (!row->backend || !row->backend->path[0] || row->wrong[0]) continue;
        announce(row->backend->path);
        enum status status = contestant_ask(row->contestant, "verification", &request, &reply);
        status = report(status, row->backend->path, reply.checked, reply.skipped, start);
        if (status && status != STATUS_VERIFY_FAILED) return status;
        if (status) snprintf(row->wrong, sizeof row->wrong, "%s", status_message());
    }
    return STATUS_OK;
}

enum status backend_prepare_contest(const struct dataset_pair *data, const char *timeout,
                                    double limit_seconds) {
    double seconds = limit_seconds > 0 ? fmax(600, 10 * limit_seconds) : 0;
    if (timeout && (!text_parse_real(timeout, &seconds) || seconds < 0))
        return status_set(STATUS_USAGE, "--timeout-seconds must be a number from 0, not '%s'", timeout);
    return contestants_prepare(data, &(struct contest_limits){.timeout_seconds = seconds});
}
