#define _GNU_SOURCE
#include "src/bench/serve.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "src/backend/backend_options.h"
#include "src/backend/plugin.h"
#include "src/backend/registry.h"
#include "src/backend/surroundings.h"
#include "src/backend/verify.h"
#include "src/base/socket.h"
#include "src/bench/comparison.h"
#include "src/bench/contestant.h"
#include "src/bench/sandbox.h"
#include "src/data/dataset_share.h"

/* --- the tasks --- */

/* Every slot up to this one; NULL if memory ran out. */
static struct serve_slot *slot_at(struct server *server, size_t index) {
    if (index >= server->count) {
        struct serve_slot *grown = realloc(server->slots, (index + 1) * sizeof *grown);
        if (!grown) return NULL;
        memset(grown + server->count, 0, (index + 1 - server->count) * sizeof *grown);
        server->slots = grown;
        server->count = index + 1;
    }
    return &server->slots[index];
}

static void describe_backend(const char *text, const struct gemm_backend *backend,
                             struct contest_backend *to) {
    const char *path = plugin_path(backend);
    backend_options_name(backend, backend_options_in(text), to->name, sizeof to->name);
    snprintf(to->bare, sizeof to->bare, "%s", backend->name);
    snprintf(to->path, sizeof to->path, "%s", path ? path : "");
    snprintf(to->summary, sizeof to->summary, "%s", backend->summary);
    backend_options_list(backend, to->options, sizeof to->options);
    to->device = backend->device;
    to->has_threads = backend->set_threads != NULL;
}

/* Opens the backend unless it is open. */
static enum status open_slot(struct serve_slot *slot, const struct config *config,
                             const struct gemm_backend *backend, struct contest_reply *reply) {
    const struct compute_options options = config_compute(config);
    struct compute *compute = &slot->compute;
    const enum status status = compute->backend ? STATUS_OK : compute_open(compute, backend, &options);
    if (status) return status;
    snprintf(reply->description, sizeof reply->description, "%s", compute->description);
    snprintf(reply->gpu, sizeof reply->gpu, "%s", compute->gpu);
    snprintf(reply->device, sizeof reply->device, "%s", compute->device.driver->name);
    reply->threads = compute->threads;
    reply->precision = compute->precision;
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++)
        for (int op = GEMM_NN; op <= GEMM_NT; op++)
            reply->supports[dtype][op] = backend->supports((enum gemm_dtype)dtype, (enum gemm_op)op);
    return STATUS_OK;
}

static void close_slot(struct serve_slot *slot) {
    compute_close(&slot->compute);
    slot->compute = (struct compute){0};
}

static enum status verify_all(struct serve_slot *slot, const struct contest_request *request,
                              const struct gemm_backend *backend, struct contest_reply *reply) {
    const struct config *config = &request->config;
    const enum gemm_dtype dtype =
        dtype_of_operands((enum gemm_precision)config->precision, (enum gemm_dtype)config->dtype);
    enum status status = open_slot(slot, config, backend, reply);
    if (!status && request->training) status = verify_training_ops(&slot->compute, dtype);
    if (!status) status = verify_backend(&slot->compute, &reply->checked, &reply->skipped);
    if (!status) status = verify_secret(&slot->compute, request->secret, &reply->checked, &reply->skipped);
    close_slot(slot);
    return status;
}

static enum status measure_rates(const struct contest_request *request, struct rates *rates) {
    const struct device_options options = {.threads = request->threads,
                                           .ordinal = (int)request->config.device};
    struct device device = {.driver = registry_device(request->rates_of)};
    enum status status = device.driver->open(&device, &options);
    if (status) return status;
    if (device.driver->peak)
        for (int dtype = GEMM_F32; dtype <= GEMM_F64 && !status; dtype++) {
            status = device.driver->peak(&device, (enum gemm_dtype)dtype, &rates->flops[dtype]);
            progress_beat();
        }
    if (!status && request->bandwidth && device.driver->bandwidth)
        status = device.driver->bandwidth(&device, &rates->bandwidth);
    device.driver->close(&device);
    return status;
}

static enum status open_sampler(struct serve_slot *slot, const struct sampler_plan *plan,
                                struct contest_reply *reply) {
    const enum status status = sampler_open(&slot->sampler, &slot->compute, plan);
    reply->calls = slot->sampler.calls;
    reply->has_peak = slot->sampler.has_peak;
    return status;
}

static enum status serve_slot(struct serve_slot *slot, const struct contest_request *request,
                              struct contest_reply *reply) {
    switch (request->task) {
    case CONTEST_SAMPLER_OPEN:
        return open_sampler(slot, &request->plan, reply);
    case CONTEST_SAMPLE:
        return sampler_take(&slot->sampler, &reply->seconds, &reply->peak);
    case CONTEST_COUNT:
        return sampler_count(&slot->sampler, &reply->counters);
    case CONTEST_SAMPLER_FINISH:
        return sampler_finish(&slot->sampler, &reply->facts);
    default:
        sampler_close(&slot->sampler);
        return STATUS_OK;
    }
}

enum status serve_task(struct server *server, const struct contest_request *request,
                       struct contest_reply *reply) {
    const struct config *config = &request->config;
    const struct dataset_pair *data = &server->data;
    const struct gemm_backend *backend;
    struct serve_slot *slot = slot_at(server, request->slot);
    if (!slot) return status_set(STATUS_FAILED, "out of memory");
    if (request->task == CONTEST_RATES) return measure_rates(request, &reply->rates);
    if (request->task >= CONTEST_SAMPLER_OPEN) return serve_slot(slot, request, reply);
    enum status status = registry_find(config->backend, &backend);
    if (status) return status;
    switch (request->task) {
    case CONTEST_FIND:
        describe_backend(config->backend, backend, &reply->backend);
        return STATUS_OK;
    case CONTEST_OPEN:
        return open_slot(slot, config, backend, reply);
    case CONTEST_CLOSE:
        close_slot(slot);
        return STATUS_OK;
    case CONTEST_VERIFY_ALL:
        return verify_all(slot, request, backend, reply);
    case CONTEST_VERIFY:
        return comparison_verify(config, backend, data, request->inputs, request->last);
    case CONTEST_AGREEMENT:
        return agreement_check(&request->agreement, config, backend, data, &reply->drift);
    case CONTEST_TRACE:
        status = agreement_trace(&request->agreement, config, backend, data, &reply->trace);
        if (!status) snprintf(reply->tensor, sizeof reply->tensor, "%s", reply->trace.tensor);
        return status;
    default:
        return run_training(config, backend, data, &request->limits, &reply->run);
    }
}

void serve_close(struct server *server) {
    for (size_t i = 0; i < server->count; i++) {
        sampler_close(&server->slots[i].sampler);
        compute_close(&server->slots[i].compute);
    }
    free(server->slots);
    *server = (struct server){0};
}

/* --- stack overflow --- */

static struct sigaction previous;
static struct progress *shared_progress;
static char *stack_end; /* the lowest address of the main thread's stack */

/* Runs on a stack of its own. Then the instruction runs again, for the previous handler. */
static void on_fault(int signal, siginfo_t *info, void *context) {
    enum { NEAR = 1 << 20 };
    const char *address = info->si_addr;
    (void)context;
    shared_progress->stack_overflow = address > stack_end - NEAR && address < stack_end + NEAR;
    sigaction(signal, &previous, NULL);
}

static void watch_stack(void) {
    static char alternate[1 << 16];
    pthread_attr_t attributes;
    void *low;
    size_t size;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
    if (pthread_attr_getstack(&attributes, &low, &size) == 0) {
        const struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | (int)SA_ONSTACK};
        stack_end = low;
        sigaltstack(&(stack_t){.ss_sp = alternate, .ss_size = sizeof alternate}, NULL);
        sigaction(SIGSEGV, &action, &previous);
    }
    pthread_attr_destroy(&attributes);
}

/* --- the process --- */

bool serve_requested(int argc, char **argv) {
    return argc == 1 && strcmp(argv[0], CONTESTANT_NAME) == 0;
}

/* Moves the connection to a random descriptor; those of the starting process are closed. */
static int open_connection(struct server *server) {
    uint16_t random = 0;
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(STDERR_FILENO, STDOUT_FILENO); /* standard output has tables */
    close_range(CONTESTANT_DESCRIPTORS, ~0U, 0);
    shared_progress =
        mmap(NULL, sizeof *shared_progress, PROT_READ | PROT_WRITE, MAP_SHARED, CONTESTANT_PROGRESS, 0);
    if (shared_progress == MAP_FAILED) return -1;
    progress_share(shared_progress);
    dataset_map(&server->data, CONTESTANT_DATA); /* if there is one */
    if (getrandom(&random, sizeof random, 0) < 0) return -1;
    const int fd = fcntl(CONTESTANT_SOCKET, F_DUPFD_CLOEXEC, CONTESTANT_DESCRIPTORS + random % 900);
    close_range(CONTESTANT_SOCKET, CONTESTANT_DATA, 0);
    return fd;
}

/* OpenMP binds its threads to cores in the first parallel region if the user asks for it. */
static bool binds_threads(void) {
    const char *llvm = getenv("KMP_AFFINITY");
    return getenv("OMP_PROC_BIND") || getenv("OMP_PLACES") || getenv("GOMP_CPU_AFFINITY") ||
           (llvm && strcmp(llvm, "disabled") != 0); /* which process_confine sets */
}

static void answer(struct server *server, const struct contest_request *request,
                   struct contest_reply *reply) {
    struct surroundings before, after;
    memset(reply, 0, sizeof *reply);
    reply->began = clock_seconds();
    progress_set("%s", "");
    surroundings_observe(&before);
    reply->token = request->token;
    reply->status = serve_task(server, request, reply);
    surroundings_observe(&after);
    if (binds_threads()) after.cpus = before.cpus;
    const char *change = surroundings_changed(&before, &after);
    if (change && !reply->status) reply->status = status_set(STATUS_VERIFY_FAILED, "%s", change);
    snprintf(reply->message, sizeof reply->message, "%s", reply->status ? status_message() : "");
    reply->ended = clock_seconds();
}

void serve_contest(void) {
    static struct server server; /* zero */
    static struct contest_request request;
    static struct contest_reply reply;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* if that process is gone already, there is no request */
    const int fd = open_connection(&server);
    watch_stack();
    sandbox_begin();
    bool confined = false;
    while (fd >= 0 && socket_receive(fd, &request, sizeof request, 0)) {
        if (request.confined && !confined) sandbox_forbid_affinity();
        confined = request.confined;
        answer(&server, &request, &reply);
        const size_t bytes = reply.run.epochs * sizeof *reply.run.epoch_seconds;
        if (!socket_send(fd, &reply, sizeof reply) ||
            (bytes && !socket_send(fd, reply.run.epoch_seconds, bytes))) {
            shared_progress->unconnected = true;
            break;
        }
        run_close(&reply.run);
    }
    _exit(0); /* what a plug-in left to be done at exit is not its user's */
}
