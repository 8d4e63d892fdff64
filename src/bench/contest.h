/* What a contestant can be asked, and what it answers. A contestant is a process of its own that runs one
   backend (contestant.h); requests and replies are plain memory, for both processes run the same program. */
#ifndef TESSERA_BENCH_CONTEST_H
#define TESSERA_BENCH_CONTEST_H

#include "src/bench/agreement.h"
#include "src/bench/problem.h"
#include "src/bench/sampler.h"

/* The measured peak rates of a device. */
struct rates {
    double flops[2];  /* a second, of f32 and f64 (enum gemm_dtype); 0 if unknown */
    double bandwidth; /* bytes read plus bytes written a second */
};

enum contest_task {
    CONTEST_RATES,      /* of the device `rates_of` with `threads` */
    CONTEST_FIND,       /* is there a usable backend config.backend? */
    CONTEST_OPEN,       /* opens it in `slot` */
    CONTEST_CLOSE,      /* closes what is open in `slot` */
    CONTEST_VERIFY_ALL, /* the whole case list of verify.h, and `secret` cases */
    CONTEST_VERIFY,     /* the products of a training step */
    CONTEST_AGREEMENT,
    CONTEST_TRACE,
    CONTEST_TRAIN,
    CONTEST_SAMPLER_OPEN,
    CONTEST_SAMPLE,
    CONTEST_COUNT, /* the hardware counters of a call */
    CONTEST_SAMPLER_FINISH,
    CONTEST_SAMPLER_CLOSE,
};

struct contest_request {
    enum contest_task task;
    uint64_t token; /* random; the reply repeats it */
    struct config config;
    bool confined; /* from now on it may not change which cores it runs on */
    enum gemm_device rates_of;
    int threads;
    bool bandwidth;             /* CONTEST_RATES: of copies, too */
    size_t secret;              /* CONTEST_VERIFY_ALL: cases that are not in the list */
    bool training;              /* CONTEST_VERIFY_ALL: NN, TN and NT are needed */
    enum problem_inputs inputs; /* CONTEST_VERIFY, as in comparison_verify */
    bool last;
    struct agreement agreement; /* CONTEST_AGREEMENT, CONTEST_TRACE */
    struct run_limits limits;   /* CONTEST_TRAIN; `losses` is NULL */
    size_t slot;                /* of CONTEST_OPEN and of all tasks that need an open backend */
    struct sampler_plan plan;   /* CONTEST_SAMPLER_OPEN */
};

/* A backend in words. */
struct contest_backend {
    char name[256];    /* with its options */
    char bare[256];    /* without */
    char path[512];    /* of a plug-in; "" if it is built in */
    char summary[256]; /* one line */
    char options[2048];
    enum gemm_device device;
    bool has_threads; /* it takes a number of threads */
};

struct contest_reply {
    uint64_t token;      /* comes first */
    double began, ended; /* by the contestant's clock: it had the request; it was done with it */
    enum status status;
    char message[2048];             /* of the status */
    struct contest_backend backend; /* CONTEST_FIND */
    char description[256], gpu[256], device[16];
    enum gemm_precision precision;
    int threads;
    bool supports[DTYPES][3]; /* [dtype][op]; these: CONTEST_OPEN */
    size_t checked, skipped;
    struct drift drift;
    struct trace trace;
    char tensor[32];       /* of the trace */
    struct run_result run; /* its epoch_seconds follow the reply */
    struct rates rates;
    size_t calls; /* of a sample; CONTEST_SAMPLER_OPEN */
    bool has_peak;
    double seconds, peak; /* CONTEST_SAMPLE */
    struct sampler_facts facts;
    struct counters counters; /* CONTEST_COUNT */
};

#endif
