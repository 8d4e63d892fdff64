/* Training by several processes: the same results, one voice, and no process that outlives another's
   fault. */
#define _GNU_SOURCE
#include "tests/support.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/base/profile.h"

static char output[1 << 16];
#define RUN(...) support_run(output, sizeof output, __VA_ARGS__)

enum { MOST = 8, STILL_RUNS = -1 };
static const double PATIENCE = 120; /* seconds: machines may be slow, and a process that hangs is ended */

#define RECIPE \
    " --layers 42-16-4 --batch-size 70 --epochs 4 --lr 0.1 --momentum 0.9 --dropout 0.2 --threads 1"

/* --- a job of several processes that sockets connect --- */

static struct job {
    int size, port;
    pid_t pid[MOST];
    int code[MOST]; /* exit codes, or 128 + the signal */
    char said[MOST][4096];
} job;

static int free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    close(fd);
    return ntohs(address.sin_port);
}

static const char *said_file(int rank) {
    char name[32];
    snprintf(name, sizeof name, "rank-%d.txt", rank);
    return support_path(name);
}

static void start_rank(int rank, const char *arguments) {
    char command[4096], number[16];
    snprintf(command, sizeof command, "exec %s %s >%s 2>&1 </dev/null", getenv("TESSERA"), arguments,
             said_file(rank));
    job.code[rank] = STILL_RUNS;
    job.pid[rank] = fork();
    assert_true(job.pid[rank] >= 0);
    if (job.pid[rank]) return;
    snprintf(number, sizeof number, "%d", rank);
    setenv("RANK", number, 1);
    snprintf(number, sizeof number, "%d", job.size);
    setenv("WORLD_SIZE", number, 1);
    snprintf(number, sizeof number, "%d", job.port);
    setenv("MASTER_PORT", number, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("TESSERA_WIDE", "1", 1);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static void start_job(int size, const char *arguments) {
    job = (struct job){.size = size, .port = free_port()};
    for (int rank = size; rank-- > 0;) start_rank(rank, arguments); /* rank 0 comes last */
}

/* Waits for one process; one that hangs is ended, and keeps STILL_RUNS. */
static void await(int rank, double seconds) {
    int how = 0;
    for (const double start = clock_seconds(); job.pid[rank] && clock_seconds() - start < seconds;) {
        if (waitpid(job.pid[rank], &how, WNOHANG) == job.pid[rank]) {
            job.code[rank] = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
            job.pid[rank] = 0;
        } else {
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        }
    }
    if (!job.pid[rank]) return;
    kill(job.pid[rank], SIGKILL);
    waitpid(job.pid[rank], NULL, 0);
    job.pid[rank] = 0;
}

static void end_job(void) {
    for (int rank = 0; rank < job.size; rank++) {
        size_t count;
        await(rank, PATIENCE);
        char *text = (char *)support_read(said_file(rank), &count);
        snprintf(job.said[rank], sizeof job.said[rank], "%.*s", (int)count, text);
        free(text);
    }
}

static void expect_codes(int wanted) {
    for (int rank = 0; rank < job.size; rank++)
        if (job.code[rank] != wanted)
            fail_msg("rank %d ended with %d: %s", rank, job.code[rank], job.said[rank]);
}

/* A job that is expected to end well; the output of rank 0 in `output`. */
static void run_job(int size, const char *arguments) {
    start_job(size, arguments);
    end_job();
    expect_codes(0);
    snprintf(output, sizeof output, "%s", job.said[0]);
    for (int rank = 1; rank < size; rank++) assert_string_equal(job.said[rank], "");
}

static char *say(const char *format, ...) {
    static char text[2][3000];
    static int next;
    va_list args;
    va_start(args, format);
    next = !next;
    assert_true(vsnprintf(text[next], sizeof text[next], format, args) < (int)sizeof text[next]);
    va_end(args);
    return text[next];
}

/* support_path returns one of a few buffers. */
static char *path_of(const char *name) {
    char *path = strdup(support_path(name));
    assert_non_null(path);
    return path;
}

static void assert_same_files(const char *one, const char *other) {
    size_t count, others;
    unsigned char *a = support_read(one, &count), *b = support_read(other, &others);
    assert_int_equal(count, others);
    assert_memory_equal(a, b, count);
    free(a);
    free(b);
}

static double last_number(const char *log, const char *type, const char *key) {
    cJSON *line;
    assert_true(support_log(log, type, 0, &line) > 0);
    const double value = support_number(line, key);
    cJSON_Delete(line);
    return value;
}

/* --- the same results --- */

/* 300 images in batches of 70, so the last one is smaller; parts are cut at multiples of 8. */
static void fixed_reduction_has_the_same_bits(void **state) {
    (void)state;
    char *alone = path_of("alone.safetensors"), *saved = path_of("together.safetensors");
    assert_int_equal(
        RUN("--data %s" RECIPE " --reduction fixed --validation 40 --save %s", support_data, alone), 0);
    assert_says(output, "processes 1, reduction fixed: 4 parts of each batch");
    for (int size = 2; size <= 4; size += 2) {
        run_job(size,
                say("--data %s" RECIPE " --reduction fixed --validation 40 --save %s", support_data, saved));
        assert_says(output, say("processes %d by sockets", size));
        assert_same_files(alone, saved);
    }
    free(alone);
    free(saved);
}

static void trainings_resume_on_another_number(void **state) {
    (void)state;
    char *whole = path_of("whole.safetensors"), *half = path_of("half.safetensors");
    const char *common = "--reduction fixed --threads 1";
    run_job(2, say("--data %s" RECIPE " --reduction fixed --save %s", support_data, whole));
    run_job(4, say("--data %s" RECIPE " --reduction fixed --epochs 2 --save %s", support_data, half));
    assert_int_equal(RUN("--data %s --resume %s --epochs 3 %s --save %s", support_data, half, common, half),
                     0);
    run_job(2, say("--data %s --resume %s --epochs 4 %s --save %s", support_data, half, common, half));
    assert_same_files(whole, half);
    free(whole);
    free(half);
}

/* Also where some processes have no image of the last batch: 300 images in batches of 99, for 8 processes. */
static void any_number_trains_the_same_network(void **state) {
    (void)state;
    static const char recipe[] = "--data %s" RECIPE " --batch-size 99 --engine eager --log %s";
    char *log = path_of("alone.jsonl"), *others = path_of("together.jsonl");
    assert_int_equal(RUN(recipe, support_data, log), 0);
    for (int size = 2; size <= 8; size += size == 3 ? 5 : 1) {
        run_job(size, say(recipe, support_data, others));
        assert_near(last_number(others, "epoch", "train_loss"), last_number(log, "epoch", "train_loss"),
                    1e-5);
        assert_near(last_number(others, "epoch", "test_loss"), last_number(log, "epoch", "test_loss"), 1e-5);
        assert_true(last_number(others, "header", "processes") == size);
    }
    free(log);
    free(others);
}

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
        {2, "--ensemble 2", "--ensemble is not for several processes", 4},
        {2, "--comm mpi", "--comm mpi: ", 4},
        {2, "--no-such-flag 1", "no-such-flag", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start_job(cases[i].size, say("--data %s" RECIPE " %s", support_data, cases[i].arguments));
        end_job();
        if (job.code[0] != cases[i].code)
            fail_msg("%s: %d, %s", cases[i].arguments, job.code[0], job.said[0]);
        assert_says(job.said[0], cases[i].said);
    }
    assert_int_equal(RUN("--version >/dev/null; RANK=2 WORLD_SIZE=2 %s --epochs 1", getenv("TESSERA")), 2);
    assert_says(output, "RANK must be a number from 0 to WORLD_SIZE - 1, not '2'");
    assert_int_equal(RUN("--version >/dev/null; RANK=0 WORLD_SIZE=2 %s --epochs 1", getenv("TESSERA")), 4);
    assert_says(output, "set MASTER_ADDR to its host and MASTER_PORT to a free port");
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
        job = (struct job){.size = 2, .port = free_port()};
        start_rank(0, say("--data %s" RECIPE, support_data));
        start_rank(1, say("--data %s" RECIPE " %s", cases[i][0], cases[i][1]));
        end_job();
        assert_int_equal(job.code[0], STATUS_USAGE);
        assert_says(job.said[0], cases[i][2]);
        assert_string_equal(job.said[1], "");
    }
    free(other);
}

/* Its message comes from rank 0, once, with its number. */
static void errors_of_one_end_all(void **state) {
    (void)state;
    job = (struct job){.size = 3, .port = free_port()};
    for (int rank = 0; rank < 3; rank++)
        start_rank(rank, say("--data %s" RECIPE "%s", support_data, rank == 2 ? " --backend opneblas" : ""));
    end_job();
    expect_codes(STATUS_UNAVAILABLE);
    assert_says(job.said[0], "rank 2 of 3: no backend is called 'opneblas'");
    assert_string_equal(job.said[1], "");
    assert_string_equal(job.said[2], "");
}

static void who_does_not_come_is_named(void **state) {
    (void)state;
    job = (struct job){.size = 3, .port = free_port()};
    start_rank(0, say("--data %s" RECIPE " --comm-timeout 1", support_data));
    await(0, PATIENCE);
    job.size = 1;
    end_job();
    assert_int_equal(job.code[0], 1);
    assert_says(job.said[0], "ranks 1 and 2 of 3 have not come to port");
    job = (struct job){.size = 2, .port = free_port()};
    support_write(said_file(0), "", 0);
    start_rank(1, say("--data %s" RECIPE " --comm-timeout 1", support_data));
    job.code[0] = 0;
    end_job();
    assert_int_equal(job.code[1], 1);
    assert_says(job.said[1], "rank 1 of 2: rank 0 does not answer at 127.0.0.1");
}

/* --- faults in the middle --- */

/* Starts an endless training, and waits until rank 0 has finished an epoch. */
static void start_long_job(int size, const char *saved) {
    remove(saved);
    start_job(size, say("--data %s" RECIPE " --epochs 1000000 --comm-timeout 4 --save %s "
                        "--save-every 1",
                        support_data, saved));
    for (const double start = clock_seconds();
         access(saved, R_OK) != 0 && clock_seconds() - start < PATIENCE;)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    assert_int_equal(access(saved, R_OK), 0);
}

static void expect_whole(const char *saved) {
    assert_int_equal(RUN("eval %s --data %s", saved, support_data), 0);
}

static void the_dead_are_named(void **state) {
    (void)state;
    char *saved = path_of("long.safetensors");
    for (int victim = 0; victim < 2; victim++)
        for (int i = 0; i < 2; i++) {
            const int fault = i ? SIGSTOP : SIGKILL;
            start_long_job(3, saved);
            kill(job.pid[victim], fault);
            for (int rank = 0; rank < 3; rank++)
                if (rank != victim) await(rank, PATIENCE);
            if (i) kill(job.pid[victim], SIGKILL);
            end_job();
            for (int rank = 0; rank < 3; rank++)
                if (rank != victim && job.code[rank] != 1)
                    fail_msg("rank %d ended with %d: %s", rank, job.code[rank], job.said[rank]);
            assert_says(job.said[victim ? 0 : 1],
                        say("rank %d of 3: %s", victim,
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
    char *saved = path_of("interrupted.safetensors");
    start_long_job(2, saved);
    kill(job.pid[1], SIGTERM);
    end_job();
    expect_codes(130);
    assert_says(job.said[0], "interrupted by a signal to another process; go on with --resume");
    assert_string_equal(job.said[1], "");
    expect_whole(saved);
    free(saved);
}

/* One process leaves before the others are done: --dry-run. */
static void who_leaves_early_ends_all(void **state) {
    (void)state;
    job = (struct job){.size = 2, .port = free_port()};
    start_rank(0, say("--data %s" RECIPE " --comm-timeout 2", support_data));
    start_rank(1, say("--data %s" RECIPE " --comm-timeout 2 --dry-run", support_data));
    end_job();
    assert_int_equal(job.code[0], 1);
    assert_says(job.said[0], "the connection to rank 1 is broken, or that rank has ended before");
}

/* The attacked images diverge first: no process may apply that step. */
static void a_bad_step_changes_nothing(void **state) {
    (void)state;
    assert_int_equal(RUN("--data synthetic --layers 784-64-10 --batch-size 100 --lr 3e4 --adversarial 0.3 "
                         "--threads 1 --reduction fixed"),
                     1);
    assert_says(output, "the loss is not finite");
    assert_null(strstr(output, "weights are not finite"));
}

/* --- at the port --- */

static void strangers_are_turned_away(void **state) {
    (void)state;
    job = (struct job){.size = 2, .port = free_port()};
    start_rank(0, say("--data %s" RECIPE, support_data));
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    address.sin_port = htons((uint16_t)job.port);
    int fd = -1, tries = 0;
    do {
        if (fd >= 0) close(fd);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    } while (connect(fd, (struct sockaddr *)&address, sizeof address) != 0 && ++tries < 1000);
    assert_int_equal(send(fd, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    start_rank(1, say("--data %s" RECIPE, support_data));
    end_job();
    expect_codes(0);
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
    for (int rank = 0; rank < 2; rank++) start_rank(rank, say("--data %s" RECIPE, support_data));
    end_job();
    expect_codes(0);
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
        "RANK=$1 ip netns exec $2 %s --data %s" RECIPE " --comm-timeout $3 --epochs $4 >%s.$1 2>&1; }; "
        "train 1 $b 20 4 & train 0 $a 20 4 && wait $! || exit 1; "
        "train 1 $b 5 1000000 & one=$!; train 0 $a 5 1000000 & zero=$!; "
        "for i in $(seq 600); do grep -q '^  *2 ' %s.0 && break; sleep 0.1; done; "
        "ip -n $b link set two down; wait $zero; first=$?; wait $one; second=$?; [ $first = 1 ] && [ $second "
        "= 1 ]",
        getenv("TESSERA"), support_data, hosts, hosts);
    const int ended = system(script);
    if (WEXITSTATUS(ended) == 77) {
        print_message("skipped: no right to make network namespaces, or no ip (Debian's package iproute2)\n");
        skip();
    }
    assert_int_equal(ended, 0);
    size_t count;
    char *said = (char *)support_read(support_path("hosts.0"), &count);
    said[count] = '\0';
    assert_says(said, "rank 1 of 2: no sign of life within --comm-timeout (5 s)");
    free(said);
}

/* --- MPI --- */

static void mpi_has_the_bits_of_sockets(void **state) {
    (void)state;
#if defined(HAVE_MPI) && !defined(SANITIZED)
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1); /* which containers forbid */
    if (system("timeout 60 mpirun --oversubscribe -n 4 true >/dev/null 2>&1") != 0) {
        print_message("skipped: mpirun does not start processes here\n");
        skip();
    }
    char *saved = path_of("mpi.safetensors"), *sockets = path_of("sockets.safetensors");
    run_job(4, say("--data %s" RECIPE " --reduction fixed --save %s", support_data, sockets));
    for (int size = 2; size <= 4; size += 2) {
        assert_int_equal(
            RUN("--version >/dev/null; timeout 120 mpirun --oversubscribe -n %d %s --data %s" RECIPE
                " --reduction fixed --save %s",
                size, getenv("TESSERA"), support_data, saved),
            0);
        assert_says(output, say("processes %d by ", size));
        assert_same_files(sockets, saved);
    }
    assert_int_equal(RUN("--version >/dev/null; timeout 120 mpirun --oversubscribe -n 3 %s --data %s" RECIPE,
                         getenv("TESSERA"), support_data),
                     0);
    free(saved);
    free(sockets);
#else
    print_message("skipped: built without MPI, or with sanitizers\n");
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_reduction_has_the_same_bits),
        cmocka_unit_test(trainings_resume_on_another_number),
        cmocka_unit_test(any_number_trains_the_same_network),
        cmocka_unit_test(refusals_have_a_reason),
        cmocka_unit_test(other_jobs_are_refused),
        cmocka_unit_test(errors_of_one_end_all),
        cmocka_unit_test(who_does_not_come_is_named),
        cmocka_unit_test(the_dead_are_named),
        cmocka_unit_test(interrupts_stop_all),
        cmocka_unit_test(who_leaves_early_ends_all),
        cmocka_unit_test(a_bad_step_changes_nothing),
        cmocka_unit_test(strangers_are_turned_away),
        cmocka_unit_test(a_taken_port_is_passed_over),
        cmocka_unit_test(hosts_meet_over_a_network),
        cmocka_unit_test(mpi_has_the_bits_of_sockets),
    };
    return cmocka_run_group_tests_name("processes", tests, support_make_data, NULL);
}
