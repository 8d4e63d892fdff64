#include "src/cmd/backend.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/backend/plugin.h"
#include "src/backend/registry.h"
#include "src/backend/verify.h"
#include "src/base/platform.h"
#include "src/base/text.h"
#include "src/bench/comparison.h"

/* --- if a kernel crashes: the name of the case --- */

static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
enum { CRASHES = sizeof crashes / sizeof *crashes };

static struct sigaction previous[CRASHES];

static void write_error(const char *text) {
    if (write(STDERR_FILENO, text, strlen(text)) < 0) return; /* a handler has no other way to report it */
}

static void restore_handlers(void) {
    for (int i = 0; i < CRASHES; i++) sigaction(crashes[i], &previous[i], NULL);
}

/* After it returns, the instruction runs again, and the previous handler receives the signal. */
static void on_crash(int signal) {
    (void)signal;
    write_error("train: the backend crashed in ");
    write_error(verify_running());
    write_error("\n");
    restore_handlers();
}

enum status backend_verify(struct compute *compute, size_t *checked, size_t *skipped) {
    const struct sigaction action = {.sa_handler = on_crash};
    for (int i = 0; i < CRASHES; i++) sigaction(crashes[i], &action, &previous[i]);
    const enum status status = verify_backend(compute, checked, skipped);
    restore_handlers();
    return status;
}

/* --- plug-ins --- */

static enum status check_ops(const struct compute *compute, enum gemm_dtype dtype) {
    const struct gemm_backend *backend = compute->backend;
    for (int op = GEMM_NN; op <= GEMM_NT; op++)
        if (!backend->supports(dtype, (enum gemm_op)op))
            return status_set(STATUS_UNAVAILABLE,
                              "%s: backend '%s' does not support %s %s, which training needs: let its slot "
                              "`supports` name the --dtype that it has, and train with that one",
                              plugin_path(backend), backend->name, dtype_name(dtype),
                              gemm_op_name((enum gemm_op)op));
    return STATUS_OK;
}

static enum status verify_plugin(struct compute *compute, const char *path) {
    size_t checked, skipped;
    const double start = clock_seconds();
    const bool terminal = isatty(STDERR_FILENO);
    if (terminal) fprintf(stderr, "verifying %s ...", path);
    const enum status status = backend_verify(compute, &checked, &skipped);
    if (terminal) fprintf(stderr, "\r\033[K");
    if (status == STATUS_VERIFY_FAILED) return status_context(status, "%s is not used", path);
    if (status) return status;
    fprintf(stderr, "train: verified %s: %s GEMM cases right, %s not supported (%.1f s)\n", path,
            text_grouped(checked).text, text_grouped(skipped).text, clock_seconds() - start);
    return STATUS_OK;
}

/* `compute` is open; closes it if the check fails. */
static enum status check_plugin(const struct config *config, struct compute *compute, const char *path,
                                bool training) {
    const enum gemm_dtype dtype =
        config->precision == GEMM_MIXED_BF16 ? GEMM_BF16 : (enum gemm_dtype)config->dtype;
    enum status status = training ? check_ops(compute, dtype) : STATUS_OK;
    if (!status) status = verify_plugin(compute, path);
    if (!status) return STATUS_OK;
    compute_close(compute);
    *compute = (struct compute){0};
    return status;
}

/* Warns on stderr, once, if a host backend has more threads than the process may use cores. */
static void warn_threads(const struct gemm_backend *backend, int threads) {
    static bool warned;
    const int cores = platform_usable_cores();
    if (warned || backend->device != GEMM_ON_HOST || !backend->set_threads || threads <= cores) return;
    warned = true;
    fprintf(
        stderr,
        "train: warning: %d threads on %d core%s: each step waits for threads that have no core, which can "
        "take many times as long; use --threads %d\n",
        threads, cores, cores == 1 ? "" : "s", cores);
}

enum status backend_open(const struct config *config, struct compute *compute) {
    const struct gemm_backend *backend;
    const struct compute_options options = config_compute(config);
    enum status status = registry_find(config->backend, &backend);
    if (!status) status = compute_open(compute, backend, &options);
    if (!status) warn_threads(backend, compute->threads);
    const char *path = status ? NULL : plugin_path(backend);
    return path ? check_plugin(config, compute, path, true) : status;
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
    enum status status = comparison_verify(config, backend, data, PROBLEM_REALS, true);
    if (!status) status = agreement_check(&agreement, config, backend, data, &drift);
    return status == STATUS_VERIFY_FAILED ? status_context(status, "%s is not used", path) : status;
}

enum status backend_check_plugins(struct sweep *sweep, bool training) {
    for (size_t i = 0; i < sweep->count; i++) {
        struct sweep_row *row = &sweep->rows[i];
        const char *path = row->backend ? plugin_path(row->backend) : NULL;
        const struct compute_options options = config_compute(&row->config);
        struct compute compute;
        if (row->backend) warn_threads(row->backend, options.threads);
        if (!path) continue;
        enum status status = compute_open(&compute, row->backend, &options);
        if (!status) status = check_plugin(&row->config, &compute, path, training);
        if (status && status != STATUS_VERIFY_FAILED) return status;
        if (status) {
            snprintf(row->wrong, sizeof row->wrong, "%s", status_message());
        } else {
            compute_close(&compute);
        }
    }
    return STATUS_OK;
}
