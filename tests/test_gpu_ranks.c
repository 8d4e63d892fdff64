/* Several processes on GPUs: the same results as one, and no process that outlives another's fault. With one
   GPU they share it, and sums go through the host; with two or more, by NCCL. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/base/profile.h"
#include "src/comm/nccl.h"
#include "tests/jobs.h"
#include "tests/mirror.h"

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* "0,0" or "0,1": as many as there are, with the last one shared. */
static const char *devices(int ranks, bool shared) {
    static char list[64];
    const int count = registry_device(GEMM_ON_CUDA)->count();
    list[0] = '\0';
    for (int r = 0; r < ranks; r++) {
        char one[16];
        snprintf(one, sizeof one, "%s%d", r ? "," : "", shared ? 0 : r < count ? r : count - 1);
        strcat(list, one);
    }
    return list;
}

static void several_gpus_needed(int count) {
    gpu_needed();
    const int here = registry_device(GEMM_ON_CUDA)->count();
    if (here >= count) return;
    print_message("skipped: %d GPUs needed, and here %s %d\n", count, here == 1 ? "is" : "are", here);
    skip();
}

/* NULL, after a reason, if the library is not there. */
static struct nccl *nccl_or_reason(void) {
    struct nccl *nccl = nccl_new();
    if (!nccl) print_message("skipped: %s\n", status_message());
    return nccl;
}

/* --- ops --- */

static void ops_of_parts(void **state) {
    (void)state;
    struct device_pair pair;
    for (int dtype = GEMM_F32; dtype < DTYPES; dtype++) {
        pair_open(&pair, (enum gemm_dtype)dtype);
        void *host = pair.host.device.ops_context, *gpu = pair.gpu.device.ops_context;
        struct device *device = &pair.gpu.device;
        struct mirror from = mirror_parameters(&pair, 100003, 1, 1),
                      into = mirror_parameters(&pair, 100003, 1, 2);
        pair.host_ops->add(host, 100003, from.host, into.host);
        pair.gpu_ops->add(gpu, 100003, from.gpu, into.gpu);
        mirror_compare(&pair, pair.parameter_dtype, into, 0);
        struct mirror part = mirror_alloc(&pair, sizeof(struct tally)),
                      whole = mirror_alloc(&pair, sizeof(struct tally)),
                      stop = mirror_alloc(&pair, sizeof(double)), loss = mirror_alloc(&pair, sizeof(double)),
                      values = mirror_alloc(&pair, sizeof(struct batch_values));
        for (int bad = 0; bad < 3; bad++) {
            struct tally got, *want = whole.host;
            double got_loss;
            *(struct tally *)part.host = (struct tally){
                .loss_sum = 3.25, .images = 13, .correct = 7, .batches = 1, .bad_step = bad == 1};
            *(double *)stop.host = bad == 2;
            mirror_upload(&pair, part);
            mirror_upload(&pair, stop);
            pair.host_ops->part_values(host, part.host, stop.host, values.host);
            pair.gpu_ops->part_values(gpu, part.gpu, stop.gpu, values.gpu);
            pair.host_ops->count_batch(host, values.host, loss.host, whole.host);
            pair.gpu_ops->count_batch(gpu, values.gpu, loss.gpu, whole.gpu);
            device->driver->download(device, &got, whole.gpu, sizeof got);
            device->driver->download(device, &got_loss, loss.gpu, sizeof got_loss);
            assert_memory_equal(&got, want, sizeof got);
            assert_true(got_loss == 3.25 / 13 && got_loss == *(double *)loss.host);
            assert_int_equal(want->bad_step, bad ? 2 : 0);
            assert_true(((struct batch_values *)values.host)->stops == (bad == 2));
        }
        const struct mirror all[] = {from, into, part, whole, stop, loss, values};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) mirror_free(&pair, all[i]);
        pair_close(&pair);
    }
}

/* --- NCCL with one rank: each of its functions that is called --- */

static void check_sums(struct nccl *nccl, struct device *device) {
    enum { COUNT = 1000 };
    double values[COUNT], got[COUNT];
    void *graph = NULL, *stream = device->driver->aside_stream(device);
    double *data = device->driver->alloc(device, sizeof values),
           *copy = device->driver->alloc(device, sizeof values);
    for (int i = 0; i < COUNT; i++) values[i] = i + 0.5;
    device->driver->upload(device, data, values, sizeof values);
    for (int time = 0; time < 2; time++) { /* the second time it is captured */
        if (time) assert_status(device->driver->begin_capture(device), STATUS_OK);
        device->driver->aside_begin(device);
        nccl_begin(nccl);
        nccl_sum(nccl, data, COUNT, GEMM_F64, stream);
        nccl_sum(nccl, copy, COUNT, GEMM_F32, stream);
        nccl_end(nccl);
        nccl_exchange(nccl, 0, data, sizeof values, copy, sizeof values, stream);
        device->driver->aside_join(device);
        assert_status(nccl_check(nccl), STATUS_OK);
        if (time) assert_status(device->driver->end_capture(device, &graph), STATUS_OK);
        if (time) assert_status(device->driver->replay(device, graph), STATUS_OK);
        assert_status(device->driver->synchronize(device), STATUS_OK);
        device->driver->download(device, got, copy, sizeof got);
        assert_memory_equal(got, values, sizeof got);
        device->driver->zero(device, copy, sizeof values);
    }
    device->driver->free_graph(device, graph);
    device->driver->free(device, data);
    device->driver->free(device, copy);
}

static void nccl_with_one_rank(void **state) {
    (void)state;
    struct compute compute;
    struct nccl_id id;
    char text[64], why[256];
    gpu_needed();
    for (int aborts = 0; aborts < 2; aborts++) {
        struct nccl *nccl = nccl_or_reason();
        if (!nccl) skip();
        gpu_open(&compute, "cublas", &(struct compute_options){.threads = 1});
        nccl_describe(nccl, text, sizeof text);
        if (!aborts) print_message("%s\n", text);
        assert_false(nccl_failed(nccl, why, sizeof why)); /* not begun */
        assert_status(nccl_make_id(nccl, &id), STATUS_OK);
        assert_status(nccl_connect(nccl, &id, 0, 1, 60), STATUS_OK);
        check_sums(nccl, &compute.device);
        assert_false(nccl_failed(nccl, why, sizeof why));
        if (aborts) nccl_abort(nccl);
        assert_false(nccl_failed(nccl, why, sizeof why));
        nccl_close(nccl);
        nccl_free(nccl);
        compute_close(&compute);
    }
}

/* --- the same results --- */

#define FIXED "--data %s" JOB_RECIPE " --reduction fixed --validation 40 %s"

/* With layers of more than 1 MB, which are summed before the backward pass ends, and with small ones. */
static const char *const ways[] = {
    "--backend cublas",
    "--backend cuda-tuned",
    "--backend cublas --dtype f64 --layers 42-600-600-4",
    "--backend cuda-tuned --precision bf16 --layers 42-600-600-4 --batch-size 99",
    "--backend cuda-shmem",
    "--backend cuda-tuned --precision fp16 --layers 42-600-600-4 --batch-size 99"};
enum { WAYS = sizeof ways / sizeof *ways };

/* One process in engines eager and graph, and 2 and 4: on one GPU, or each on its own if there are enough. */
static void check_fixed(size_t way, bool shared) {
    char *alone = job_path("alone.safetensors"), *other = job_path("other.safetensors");
    assert_int_equal(RUN(FIXED " --engine eager --save %s", support_data, ways[way], alone), 0);
    assert_int_equal(RUN(FIXED " --engine graph --save %s", support_data, ways[way], other), 0);
    job_assert_same_files(alone, other);
    const int most = shared ? 4 : registry_device(GEMM_ON_CUDA)->count();
    for (int ranks = 2; ranks <= 4 && ranks <= most; ranks += 2) {
        remove(other);
        if (RUN(FIXED " --devices %s --save %s", support_data, ways[way], devices(ranks, shared), other))
            fail_msg("%s, %d ranks: %s", ways[way], ranks, output);
        assert_says(output, job_text("processes %d by sockets", ranks));
        job_assert_same_files(alone, other);
    }
    free(alone);
    free(other);
}

static void fixed_reduction_has_the_same_bits(void **state) {
    (void)state;
    gpu_needed();
    for (size_t way = 0; way < WAYS; way += support_every(3)) check_fixed(way, true);
    assert_says(output, "sums by the host: ");
}

/* Also with images for some ranks only: 300 in batches of 99. */
static void check_losses(const char *recipe, const char *how, int ranks, bool shared, const char *sums,
                         double tolerance) {
    char *log = job_path("alone.jsonl"), *others = job_path("together.jsonl");
    assert_int_equal(RUN("--data %s %s --engine eager --log %s", support_data, recipe, log), 0);
    remove(others);
    if (RUN("--data %s %s %s --devices %s --log %s", support_data, recipe, how, devices(ranks, shared),
            others))
        fail_msg("%s %s, %d ranks: %s", recipe, how, ranks, output);
    assert_says(output, sums);
    assert_near(job_last_number(others, "epoch", "train_loss"), job_last_number(log, "epoch", "train_loss"),
                tolerance);
    assert_near(job_last_number(others, "epoch", "test_loss"), job_last_number(log, "epoch", "test_loss"),
                tolerance);
    assert_true(job_last_number(others, "header", "processes") == ranks);
    free(log);
    free(others);
}

static void any_number_trains_the_same_network(void **state) {
    (void)state;
    static const char recipe[] =
        "--backend cublas --dtype f64" JOB_RECIPE " --batch-size 99 --adversarial 0.1";
    gpu_needed();
    for (int ranks = 2; ranks <= 4; ranks++) check_losses(recipe, "", ranks, true, "engine eager", 1e-10);
    check_losses("--backend cublas --dtype f64" JOB_RECIPE " --layers 42-600-600-4", "", 2, true,
                 "engine eager", 1e-10);
    check_losses("--backend cuda-tuned" JOB_RECIPE, "", 3, true,
                 "sums by the host: ranks 0 and 1 share a GPU", 1e-4);
    check_losses("--backend cublas --residency host" JOB_RECIPE, "", 2, true, "residency host", 1e-4);
}

static void trainings_resume_on_another_number(void **state) {
    (void)state;
    gpu_needed();
    char *whole = job_path("whole.safetensors"), *half = job_path("half.safetensors");
    const char *common = "--backend cublas --reduction fixed --threads 1";
    assert_int_equal(RUN("--data %s %s" JOB_RECIPE " --save %s", support_data, common, whole), 0);
    assert_int_equal(RUN("--data %s %s" JOB_RECIPE " --epochs 2 --devices %s --save %s", support_data, common,
                         devices(4, true), half),
                     0);
    assert_int_equal(RUN("--data %s %s --resume %s --epochs 3 --save %s", support_data, common, half, half),
                     0);
    assert_int_equal(RUN("--data %s %s --resume %s --epochs 4 --devices %s --save %s", support_data, common,
                         half, devices(2, true), half),
                     0);
    job_assert_same_files(whole, half);
    free(whole);
    free(half);
}

static void members_are_shared_out(void **state) {
    (void)state;
    gpu_needed();
    static const char recipe[] =
        "--data %s --backend cublas --engine graph" JOB_RECIPE " --ensemble 3 --devices %s --save %s";
    char *one = job_path("one.safetensors"), *two = job_path("two.safetensors");
    assert_int_equal(RUN(recipe, support_data, "0", one), 0);
    assert_int_equal(RUN(recipe, support_data, devices(2, false), two), 0);
    assert_says(output, "3 networks, shared out to 2 processes by sockets");
    job_assert_same_members("one", "two", 3);
    free(one);
    free(two);
}

/* --- what goes wrong --- */

static void refusals_have_a_reason(void **state) {
    (void)state;
    const struct {
        const char *arguments, *said;
        int code;
    } cases[] = {
        {"--devices 0,0 --engine graph",
         "engine graph cannot be used here: the sums over several processes go "
         "through the host: ",
         4},
        {"--devices 0,0 --engine fused", "engine fused makes whole steps, without the sums over several", 4},
        {"--devices 0,0 --comm nccl", "--comm nccl: ", 4},
        {"--devices 0,999", "--devices takes 'all' or up to", 2},
        {"--devices 0,", "--devices takes 'all' or up to", 2},
        {"--devices 0,0,0 --reduction fixed", "on 1, 2 or 4 processes, not on 3", 2},
    };
    gpu_needed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int code = RUN("--data %s --backend cublas" JOB_RECIPE " %s", support_data, cases[i].arguments);
        if (code != cases[i].code) fail_msg("%s: %d, %s", cases[i].arguments, code, output);
        assert_says(output, cases[i].said);
    }
}

static void wait_for(const char *path) {
    for (const double start = clock_seconds();
         access(path, R_OK) != 0 && clock_seconds() - start < JOB_PATIENCE;)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    assert_int_equal(access(path, R_OK), 0);
}

#define ENDLESS \
    "--data %s --backend cublas" JOB_RECIPE " --epochs 1000000 --comm-timeout 4 --save %s --save-every 1"

/* Each process takes the GPU of its number on this host. */
static void check_faults(const char *sums) {
    char *saved = job_path("long.safetensors");
    for (int i = 0; i < 4; i++) {
        const int fault = i % 2 ? SIGSTOP : SIGKILL, victim = i / 2;
        remove(saved);
        job_start(2, job_text(ENDLESS, support_data, saved));
        wait_for(saved);
        kill(job.pid[victim], fault);
        const double start = clock_seconds();
        job_await(!victim, JOB_PATIENCE);
        const double seconds = clock_seconds() - start;
        kill(job.pid[victim], SIGKILL);
        job_end();
        print_message("rank %d %s: rank %d ended after %.1f s\n", victim, i % 2 ? "stopped" : "killed",
                      !victim, seconds);
        assert_int_equal(job.code[!victim], 1);
        assert_true(seconds < 10);
        assert_says(job.said[!victim], job_text("rank %d of 2: %s", victim,
                                                i % 2 ? "no sign of life" : "its process has ended: it was"));
        if (victim) assert_says(job.said[0], sums);
        assert_int_equal(RUN("eval %s --data %s", saved, support_data), 0);
    }
    free(saved);
}

static void the_dead_are_named(void **state) {
    (void)state;
    gpu_needed();
    if (registry_device(GEMM_ON_CUDA)->count() > 1) setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    check_faults("sums by the host: ");
    unsetenv("CUDA_VISIBLE_DEVICES");
}

/* A signal to the one process that the user started. */
static void the_first_process_is_that_of_the_user(void **state) {
    (void)state;
    gpu_needed();
    char *saved = job_path("long.safetensors");
    for (int i = 0; i < 2; i++) {
        const int signals[] = {SIGINT, SIGKILL};
        char command[4096];
        int how;
        remove(saved);
        snprintf(command, sizeof command, "exec %s " ENDLESS " --devices 0,0 >%s 2>&1", getenv("TESSERA"),
                 support_data, saved, job_file(0));
        const pid_t pid = fork();
        if (!pid) {
            setenv("TESSERA_WIDE", "1", 1);
            execl("/bin/sh", "sh", "-c", command, (char *)NULL);
            _exit(127);
        }
        wait_for(saved);
        kill(pid, signals[i]);
        assert_int_equal(waitpid(pid, &how, 0), pid);
        if (i) assert_true(WIFSIGNALED(how));
        if (!i) assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 130);
        for (double start = clock_seconds(); i && clock_seconds() - start < 10;) { /* rank 1 says so */
            size_t count;
            char *said = (char *)support_read(job_file(0), &count);
            said[count] = '\0';
            const bool ended = strstr(said, "rank 0 of 2: its process has ended") != NULL;
            free(said);
            if (ended) break;
            nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
            assert_true(clock_seconds() - start < 9);
        }
    }
    free(saved);
}

/* --- two GPUs and more --- */

static void nccl_has_the_same_bits_and_losses(void **state) {
    (void)state;
    several_gpus_needed(2);
    for (size_t way = 0; way < WAYS; way += support_every(3)) check_fixed(way, false);
    check_losses("--backend cublas --dtype f64" JOB_RECIPE, "--engine eager", 2, false, "sums by NCCL",
                 1e-10);
    check_losses("--backend cublas --dtype f64" JOB_RECIPE, "--engine graph", 2, false, "engine graph",
                 1e-10);
    check_losses("--backend cublas --dtype f64" JOB_RECIPE " --layers 42-600-600-4", "", 2, false,
                 "engine graph", 1e-10);
    check_losses("--backend cuda-tuned" JOB_RECIPE, "--comm nccl", 2, false, "sums by NCCL", 1e-4);
    check_losses("--backend cuda-tuned" JOB_RECIPE, "--comm tcp", 2, false, "sums by the host: --comm", 1e-4);
}

static void nccl_does_not_wait_for_the_dead(void **state) {
    (void)state;
    several_gpus_needed(2);
    check_faults("sums by NCCL");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_of_parts),
        cmocka_unit_test(nccl_with_one_rank),
        cmocka_unit_test(fixed_reduction_has_the_same_bits),
        cmocka_unit_test(any_number_trains_the_same_network),
        cmocka_unit_test(trainings_resume_on_another_number),
        cmocka_unit_test(members_are_shared_out),
        cmocka_unit_test(refusals_have_a_reason),
        cmocka_unit_test(the_dead_are_named),
        cmocka_unit_test(the_first_process_is_that_of_the_user),
        cmocka_unit_test(nccl_has_the_same_bits_and_losses),
        cmocka_unit_test(nccl_does_not_wait_for_the_dead),
    };
    return cmocka_run_group_tests_name("gpu ranks", tests, support_make_data, NULL);
}
