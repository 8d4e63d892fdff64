/* Training by several processes: one voice, and no process that outlives another's fault. */
#define _GNU_SOURCE
#include "tests/jobs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/base/profile.h"

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

/* --- what goes wrong --- */

static void refusals_have_a_reason(void **state) {
    (void)state;
    const struct {
        int size;
        const char *arguments, *said;
        int code;
    } cases[] = {
        {2, "--engine fused", "engine fused makes whole steps, without the sums over several processes", 4},
        {3, "--reduction fixed", "sums 4 shards of each batch: on 1, 2 or 4 processes, not on 3", 2},
        {2, "--ensemble 2 --reduction fixed", "each network of --ensemble trains in one", 4},
        {2, "--engine graph", "engine graph cannot be used here: it needs a CUDA backend", 4},
        {2, "--comm mpi", "--comm mpi: ", 4},
        {2, "--devices 0,1", "--devices starts a process for each GPU, and something that set RANK has", 2},
        {2, "--no-such-flag 1", "no-such-flag", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job_start(cases[i].size, job_text("--data %s" JOB_RECIPE " %s", support_data, cases[i].arguments));
        job_end();
        if (job.code[0] != cases[i].code)
            fail_msg("%s: %d, %s", cases[i].arguments, job.code[0], job.said[0]);
        assert_says(job.said[0], cases[i].said);
    }
    assert_int_equal(RUN("--version >/dev/null; RANK=2 WORLD_SIZE=2 %s --epochs 1", getenv("TESSERA")), 2);
    assert_says(output, "RANK must be a number from 0 to WORLD_SIZE - 1, not '2'");
    assert_int_equal(RUN("--version >/dev/null; RANK=0 WORLD_SIZE=2 %s --epochs 1", getenv("TESSERA")), 4);
    assert_says(output, "set MASTER_ADDR to its host and MASTER_PORT to a free port");
}

/* An empty file in place of the library. */
static void nccl_says_why_it_is_not_there(void **state) {
    (void)state;
    char folder[256];
    snprintf(folder, sizeof folder, "%s", support_path("libraries"));
    mkdir(folder, 0777);
    support_write(job_text("%s/libnccl.so.2", folder), "", 0);
    setenv("LD_LIBRARY_PATH", folder, 1);
    job_start(2, job_text("--data %s" JOB_RECIPE " --comm nccl", support_data));
    job_end();
    unsetenv("LD_LIBRARY_PATH");
    job_expect_codes(STATUS_UNAVAILABLE);
    assert_says(job.said[0], "--comm nccl: NCCL cannot be loaded: ");
    assert_says(job.said[0], "libnccl.so.2");
    assert_string_equal(job.said[1], "");
}

/* With the library or without it. */
static void nccl_is_for_gpus(void **state) {
    (void)state;
    job_start(2, job_text("--data %s" JOB_RECIPE " --comm nccl", support_data));
    job_end();
    job_expect_codes(STATUS_UNAVAILABLE);
    assert_true(
        strstr(job.said[0], "--comm nccl sums tensors of a GPU, and those of this backend are in host") ||
        strstr(job.said[0], "NCCL cannot be loaded: "));
}

static void devices_say_what_they_need(void **state) {
    (void)state;
    const char *const lists[] = {"all", "0,1", "none"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        assert_int_equal(RUN("--data %s" JOB_RECIPE " --backend serial --devices %s", support_data, lists[i]),
                         STATUS_USAGE);
        assert_says(output, "--devices is for backends on a GPU, and 'serial' computes on the host");
    }
    assert_int_equal(RUN("--backend opencl --devices 0,0"), STATUS_UNAVAILABLE);
    assert_says(output, "no backend is called 'opencl'");
}

/* Rank 1 has other arguments than rank 0. */
static void other_jobs_are_refused(void **state) {
    (void)state;
    char *other = strdup(support_data_directory("other", 299, 100, 6, 7, 4));
    const char *const cases[][3] = {
        {support_data, "--lr 0.2", "rank 1 differs from rank 0 in the value of --learning-rate"},
        {support_data, "--reduction fixed", "rank 1 differs from rank 0 in the value of --reduction"},
        {support_data, "--seed 2", "rank 1 differs from rank 0 in the value of --seed"},
        {other, "", "rank 1 differs from rank 0 in the images or labels"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job = (struct job){.size = 2, .port = job_port()};
        job_start_rank(0, job_text("--data %s" JOB_RECIPE, support_data));
        job_start_rank(1, job_text("--data %s" JOB_RECIPE " %s", cases[i][0], cases[i][1]));
        job_end();
        assert_int_equal(job.code[0], STATUS_USAGE);
        assert_says(job.said[0], cases[i][2]);
        assert_string_equal(job.said[1], "");
    }
    free(other);
}

/* Its message comes from rank 0, once, with its number. */
static void errors_of_one_end_all(void **state) {
    (void)state;
    job = (struct job){.size = 3, .port = job_port()};
    for (int rank = 0; rank < 3; rank++)
        job_start_rank(rank, job_text("--data %s" JOB_RECIPE "%s", support_data,
                                      rank == 2 ? " --backend opneblas" : ""));
    job_end();
    job_expect_codes(STATUS_UNAVAILABLE);
    assert_says(job.said[0], "rank 2 of 3: no backend is called 'opneblas'");
    assert_string_equal(job.said[1], "");
    assert_string_equal(job.said[2], "");
}

static void who_does_not_come_is_named(void **state) {
    (void)state;
    job = (struct job){.size = 3, .port = job_port()};
    job_start_rank(0, job_text("--data %s" JOB_RECIPE " --comm-timeout 1", support_data));
    job_await(0, JOB_PATIENCE);
    job.size = 1;
    job_end();
    assert_int_equal(job.code[0], 1);
    assert_says(job.said[0], "ranks 1 and 2 of 3 have not come to port");
    job = (struct job){.size = 2, .port = job_port()};
    support_write(job_file(0), "", 0);
    job_start_rank(1, job_text("--data %s" JOB_RECIPE " --comm-timeout 1", support_data));
    job.code[0] = 0;
    job_end();
    assert_int_equal(job.code[1], 1);
    assert_says(job.said[1], "rank 1 of 2: rank 0 does not answer at 127.0.0.1");
}

/* Rank 1, before all have met: whether it had come or not, it is named. */
static void who_ends_before_all_ranks_have_met_is_named(void **state) {
    (void)state;
    job = (struct job){.size = 3, .port = job_port()};
    for (int rank = 0; rank < 2; rank++) job_start_rank(rank, job_text("--data %s" JOB_RECIPE, support_data));
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    kill(job.pid[1], SIGKILL);
    job_start_rank(2, job_text("--data %s" JOB_RECIPE, support_data));
    job_end();
    assert_int_equal(job.code[0], 1);
    assert_says(job.said[0], "rank 1 of 3");
    assert_int_equal(job.code[2], 1);
    assert_string_equal(job.said[2], "");
}

/* A listener that sends back all that it gets, as a connection of a socket to itself does. Returns its port
   on 127.0.0.1, and its process in *echo. */
static int start_echo(pid_t *echo) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    char bytes[256];
    assert_int_equal(bind(listener, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    *echo = fork();
    assert_true(*echo >= 0);
    while (*echo == 0) {
        const int fd = accept(listener, NULL, NULL);
        for (ssize_t got; (got = recv(fd, bytes, sizeof bytes, 0)) > 0;)
            send(fd, bytes, (size_t)got, MSG_NOSIGNAL);
        close(fd);
    }
    close(listener);
    return ntohs(address.sin_port);
}

static void an_echo_is_not_rank_0(void **state) {
    (void)state;
    pid_t echo;
    job = (struct job){.size = 2, .port = start_echo(&echo)};
    support_write(job_file(0), "", 0);
    job_start_rank(1, job_text("--data %s" JOB_RECIPE " --comm-timeout 1", support_data));
    job.code[0] = 0;
    job_end();
    kill(echo, SIGKILL);
    waitpid(echo, NULL, 0);
    assert_int_equal(job.code[1], 1);
    assert_says(job.said[1], "rank 1 of 2: rank 0 does not answer at 127.0.0.1");
}

/* --- faults in the middle --- */

/* Starts an endless training, and waits until rank 0 has finished an epoch. */
static void start_long_job(int size, const char *saved) {
    remove(saved);
    job_start(size, job_text("--data %s" JOB_RECIPE " --epochs 1000000 --comm-timeout 4 --save %s "
                             "--save-every 1",
                             support_data, saved));
    for (const double start = clock_seconds();
         access(saved, R_OK) != 0 && clock_seconds() - start < JOB_PATIENCE;)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    assert_int_equal(access(saved, R_OK), 0);
}

static void expect_whole(const char *saved) {
    assert_int_equal(RUN("eval %s --data %s", saved, support_data), 0);
}

static void the_dead_are_named(void **state) {
    (void)state;
    char *saved = job_path("long.safetensors");
    for (int victim = 0; victim < 2; victim++)
        for (int i = 0; i < 2; i++) {
            const int fault = i ? SIGSTOP : SIGKILL;
            start_long_job(3, saved);
            kill(job.pid[victim], fault);
            for (int rank = 0; rank < 3; rank++)
                if (rank != victim) job_await(rank, JOB_PATIENCE);
            if (i) kill(job.pid[victim], SIGKILL);
            job_end();
            for (int rank = 0; rank < 3; rank++)
                if (rank != victim && job.code[rank] != 1)
                    fail_msg("rank %d ended with %d: %s", rank, job.code[rank], job.said[rank]);
            assert_says(job.said[victim ? 0 : 1],
                        job_text("rank %d of 3: %s", victim,
                                 i ? "no sign of life within --comm-timeout (4 s)"
                                   : "its process has ended: it was killed, or it crashed"));
            if (victim) assert_string_equal(job.said[2], "");
            expect_whole(saved);
        }
    free(saved);
}

/* A signal to one process: all stop after the same step, and go on from there. */
static void interrupts_stop_all(void **state) {
    (void)state;
    char *saved = job_path("interrupted.safetensors");
    start_long_job(2, saved);
    kill(job.pid[1], SIGTERM);
    job_end();
    job_expect_codes(130);
    assert_says(job.said[0], "interrupted by a signal to another process; go on with --resume");
    assert_string_equal(job.said[1], "");
    expect_whole(saved);
    free(saved);
}

/* All are stopped, as by a host that pauses, for longer than one alone may be silent. */
static void a_pause_of_all_is_no_fault(void **state) {
    (void)state;
    char *saved = job_path("paused.safetensors");
    start_long_job(2, saved);
    for (int rank = 0; rank < 2; rank++) kill(job.pid[rank], SIGSTOP);
    nanosleep(&(struct timespec){.tv_sec = 3, .tv_nsec = 400000000}, NULL);
    for (int rank = 0; rank < 2; rank++) kill(job.pid[rank], SIGCONT);
    kill(job.pid[1], SIGTERM);
    job_end();
    job_expect_codes(130);
    free(saved);
}

/* One process leaves before the others are done: --dry-run. */
static void who_leaves_early_ends_all(void **state) {
    (void)state;
    job = (struct job){.size = 2, .port = job_port()};
    job_start_rank(0, job_text("--data %s" JOB_RECIPE, support_data));
    job_start_rank(1, job_text("--data %s" JOB_RECIPE " --dry-run", support_data));
    job_end();
    assert_int_equal(job.code[0], 1);
    assert_says(job.said[0], "the connection to rank 1 is broken, or that rank has ended before");
}

/* --- at the port --- */

/* The stranger has a port of its own before the job has one, or it could connect to itself. */
static void strangers_are_turned_away(void **state) {
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    job = (struct job){.size = 2, .port = job_port()};
    job_start_rank(0, job_text("--data %s" JOB_RECIPE, support_data));
    address.sin_port = htons((uint16_t)job.port);
    for (const double start = clock_seconds();
         connect(fd, (struct sockaddr *)&address, sizeof address) != 0 &&
         clock_seconds() - start < JOB_PATIENCE;)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    assert_int_equal(send(fd, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    job_start_rank(1, job_text("--data %s" JOB_RECIPE, support_data));
    job_end();
    job_expect_codes(0);
    close(fd);
}

/* As by the store of torchrun, which listens at MASTER_PORT. */
static void a_taken_port_is_passed_over(void **state) {
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof address;
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    job = (struct job){.size = 2, .port = ntohs(address.sin_port)};
    for (int rank = 0; rank < 2; rank++) job_start_rank(rank, job_text("--data %s" JOB_RECIPE, support_data));
    job_end();
    job_expect_codes(0);
    close(fd);
}

/* Two hosts: network namespaces with a cable between them. The second one is unplugged in the end. */
static void hosts_meet_over_a_network(void **state) {
    (void)state;
    char script[4096], hosts[256]; /* nothing to free if the test is skipped */
    snprintf(hosts, sizeof hosts, "%s", support_path("hosts"));
    snprintf(
        script, sizeof script,
        "exec 2>/dev/null; a=tessera-a-$$ b=tessera-b-$$; trap 'ip netns del $a; ip netns del $b' EXIT; "
        "ip netns add $a && ip netns add $b && ip -n $a link add one type veth peer name two netns $b && "
        "ip -n $a addr add 10.77.0.1/24 dev one && ip -n $b addr add 10.77.0.2/24 dev two && "
        "ip -n $a link set one up && ip -n $b link set two up && ip -n $a link set lo up || exit 77; "
        "export MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 WORLD_SIZE=2; train() { "
        "RANK=$1 ip netns exec $2 %s --data %s" JOB_RECIPE " --comm-timeout $3 --epochs $4 >%s.$1 2>&1; }; "
        "train 1 $b 20 4 & train 0 $a 20 4 && wait $! || exit 1; "
        "train 1 $b 10 1000000 & one=$!; train 0 $a 10 1000000 & zero=$!; "
        "for i in $(seq 600); do grep -q '^  *2 ' %s.0 && break; sleep 0.1; done; "
        "ip -n $b link set two down; wait $zero; first=$?; wait $one; second=$?; [ $first = 1 ] && [ $second "
        "= 1 ]",
        getenv("TESSERA"), support_data, hosts, hosts);
    const int ended = system(script);
    if (WEXITSTATUS(ended) == 77) {
        print_message("skipped: no right to make network namespaces, or no ip (Debian's package iproute2)\n");
        skip();
    }
    const char *const wanted = "rank 1 of 2: no sign of life within --comm-timeout (10 s)";
    char *said[2];
    for (int rank = 0; rank < 2; rank++) {
        size_t count;
        said[rank] = (char *)support_read(rank ? support_path("hosts.1") : support_path("hosts.0"), &count);
        said[rank][count] = '\0';
    }
    if (ended || !strstr(said[0], wanted)) fail_msg("rank 0: %s\nrank 1: %s", said[0], said[1]);
    free(said[0]);
    free(said[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals_have_a_reason),
        cmocka_unit_test(nccl_says_why_it_is_not_there),
        cmocka_unit_test(nccl_is_for_gpus),
        cmocka_unit_test(devices_say_what_they_need),
        cmocka_unit_test(other_jobs_are_refused),
        cmocka_unit_test(errors_of_one_end_all),
        cmocka_unit_test(who_does_not_come_is_named),
        cmocka_unit_test(who_ends_before_all_ranks_have_met_is_named),
        cmocka_unit_test(an_echo_is_not_rank_0),
        cmocka_unit_test(the_dead_are_named),
        cmocka_unit_test(interrupts_stop_all),
        cmocka_unit_test(a_pause_of_all_is_no_fault),
        cmocka_unit_test(who_leaves_early_ends_all),
        cmocka_unit_test(strangers_are_turned_away),
        cmocka_unit_test(a_taken_port_is_passed_over),
        cmocka_unit_test(hosts_meet_over_a_network),
    };
    return cmocka_run_group_tests_name("process faults", tests, support_make_data, NULL);
}
