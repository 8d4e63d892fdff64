#include "src/comm/nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/profile.h"

/* From nccl.h of NCCL 2.28.9, whose values are those of every NCCL 2 since 2.7. */
enum { SUCCESS = 0, IN_PROGRESS = 7, INT8 = 0, FLOAT32 = 7, FLOAT64 = 8, SUM = 0 };

struct nccl {
    void *library, *comm; /* comm: ncclComm_t; NULL until nccl_connect is done */
    bool ready, aborted;  /* of comm; read by other threads */
    double began, limit;  /* of nccl_connect */
    int first_error;      /* since nccl_check */
    int (*get_version)(int *version);
    int (*get_unique_id)(struct nccl_id *id);
    int (*comm_init_rank)(void **comm, int size, struct nccl_id id, int rank);
    int (*comm_destroy)(void *comm);
    int (*comm_abort)(void *comm);
    int (*comm_get_async_error)(void *comm, int *error);
    const char *(*get_error_string)(int error);
    const char *(*get_last_error)(void *comm); /* may be NULL: since 2.13 */
    int (*all_reduce)(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream);
    int (*send)(const void *from, size_t count, int type, int peer, void *comm, void *stream);
    int (*recv)(void *to, size_t count, int type, int peer, void *comm, void *stream);
    int (*group_start)(void);
    int (*group_end)(void);
};

static bool find_functions(struct nccl *nccl) {
    const struct {
        const char *name;
        void *to; /* a pointer to a function */
    } all[] = {{"ncclGetVersion", &nccl->get_version},
               {"ncclGetUniqueId", &nccl->get_unique_id},
               {"ncclCommInitRank", &nccl->comm_init_rank},
               {"ncclCommDestroy", &nccl->comm_destroy},
               {"ncclCommAbort", &nccl->comm_abort},
               {"ncclCommGetAsyncError", &nccl->comm_get_async_error},
               {"ncclGetErrorString", &nccl->get_error_string},
               {"ncclAllReduce", &nccl->all_reduce},
               {"ncclSend", &nccl->send},
               {"ncclRecv", &nccl->recv},
               {"ncclGroupStart", &nccl->group_start},
               {"ncclGroupEnd", &nccl->group_end}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        *(void **)all[i].to = dlsym(nccl->library, all[i].name);
        if (*(void **)all[i].to) continue;
        status_write("libnccl.so.2 has no %s: NCCL 2.7 or later is needed", all[i].name);
        return false;
    }
    *(void **)&nccl->get_last_error = dlsym(nccl->library, "ncclGetLastError");
    return true;
}

struct nccl *nccl_new(void) {
    struct nccl *nccl = calloc(1, sizeof *nccl);
    if (!nccl) return status_write("out of memory"), NULL;
    setenv("NCCL_NVLS_ENABLE", "0", 0); /* no NVLink multicast, which hosts that are shared do not allow */
    nccl->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (nccl->library && find_functions(nccl)) return nccl;
    if (!nccl->library)
        status_write("NCCL cannot be loaded: %s (install libnccl2, or add its folder to LD_LIBRARY_PATH)",
                     dlerror());
    nccl_free(nccl);
    return NULL;
}

/* The library stays: it leaves threads. */
void nccl_free(struct nccl *nccl) {
    free(nccl);
}

void nccl_describe(const struct nccl *nccl, char *text, size_t size) {
    int version = 0;
    nccl->get_version(&version);
    const int major = version < 10000 ? version / 1000 : version / 10000; /* 2.8 and before: 2 digits less */
    const int minor = version < 10000 ? version / 100 % 10 : version / 100 % 100;
    snprintf(text, size, "NCCL %d.%d.%d", major, minor, version % 100);
}

static enum status check(const struct nccl *nccl, int error, const char *call) {
    if (error == SUCCESS || error == IN_PROGRESS) return STATUS_OK;
    const char *more = nccl->get_last_error ? nccl->get_last_error(nccl->comm) : NULL;
    return status_set(STATUS_FAILED, "%s of NCCL: %s%s%s (NCCL_DEBUG=WARN says more)", call,
                      nccl->get_error_string(error), more && *more ? ": " : "", more ? more : "");
}

enum status nccl_make_id(struct nccl *nccl, struct nccl_id *id) {
    return check(nccl, nccl->get_unique_id(id), "ncclGetUniqueId");
}

enum status nccl_connect(struct nccl *nccl, const struct nccl_id *id, int rank, int size, double limit) {
    nccl->limit = limit;
    nccl->began = clock_seconds();
    const enum status status =
        check(nccl, nccl->comm_init_rank(&nccl->comm, size, *id, rank), "ncclCommInitRank");
    if (status) nccl->comm = NULL;
    __atomic_store_n(&nccl->ready, true, __ATOMIC_RELEASE);
    return status;
}

static void note(struct nccl *nccl, int error) {
    if (nccl->first_error == SUCCESS && error != IN_PROGRESS) nccl->first_error = error;
}

void nccl_begin(struct nccl *nccl) {
    note(nccl, nccl->group_start());
}

void nccl_end(struct nccl *nccl) {
    note(nccl, nccl->group_end());
}

enum status nccl_check(struct nccl *nccl) {
    const int error = nccl->first_error;
    nccl->first_error = SUCCESS;
    return check(nccl, error, "a sum");
}

void nccl_sum(struct nccl *nccl, void *data, size_t count, enum gemm_dtype dtype, void *stream) {
    note(nccl,
         nccl->all_reduce(data, data, count, dtype == GEMM_F64 ? FLOAT64 : FLOAT32, SUM, nccl->comm, stream));
}

void nccl_exchange(struct nccl *nccl, int peer, const void *send, size_t send_bytes, void *receive,
                   size_t receive_bytes, void *stream) {
    note(nccl, nccl->group_start());
    if (send_bytes) note(nccl, nccl->send(send, send_bytes, INT8, peer, nccl->comm, stream));
    if (receive_bytes) note(nccl, nccl->recv(receive, receive_bytes, INT8, peer, nccl->comm, stream));
    note(nccl, nccl->group_end());
}

bool nccl_failed(struct nccl *nccl, char *why, size_t size) {
    int error = SUCCESS;
    if (!__atomic_load_n(&nccl->ready, __ATOMIC_ACQUIRE)) {
        const double waited = nccl->began > 0 ? clock_seconds() - nccl->began : 0;
        snprintf(why, size, "NCCL does not connect the GPUs of all ranks within %g s", nccl->limit);
        return nccl->limit > 0 && waited > nccl->limit;
    }
    if (!nccl->comm || nccl->aborted) return false;
    if (nccl->comm_get_async_error(nccl->comm, &error) == SUCCESS &&
        (error == SUCCESS || error == IN_PROGRESS))
        return false;
    snprintf(why, size, "NCCL has failed: %s", nccl->get_error_string(error));
    return true;
}

void nccl_abort(struct nccl *nccl) {
    if (!__atomic_load_n(&nccl->ready, __ATOMIC_ACQUIRE) || !nccl->comm || nccl->aborted) return;
    nccl->aborted = true;
    nccl->comm_abort(nccl->comm);
}

void nccl_close(struct nccl *nccl) {
    if (!nccl->comm || nccl->aborted) return;
    nccl->comm_destroy(nccl->comm);
    nccl->comm = NULL;
}
