#define _GNU_SOURCE
#include "tests/jobs.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/base/profile.h"

struct job job;

int job_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    close(fd);
    return ntohs(address.sin_port);
}

const char *job_file(int rank) {
    char name[32];
    snprintf(name, sizeof name, "rank-%d.txt", rank);
    return support_path(name);
}

void job_start_rank(int rank, const char *arguments) {
    char command[4096], number[16];
    snprintf(command, sizeof command, "exec %s %s >%s 2>&1 </dev/null", getenv("TESSERA"), arguments,
             job_file(rank));
    job.code[rank] = JOB_STILL_RUNS;
    job.pid[rank] = fork();
    assert_true(job.pid[rank] >= 0);
    if (job.pid[rank]) return;
    snprintf(number, sizeof number, "%d", rank);
    setenv("RANK", number, 1);
    setenv("LOCAL_RANK", number, 1);
    snprintf(number, sizeof number, "%d", job.size);
    setenv("WORLD_SIZE", number, 1);
    snprintf(number, sizeof number, "%d", job.port);
    setenv("MASTER_PORT", number, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    snprintf(number, sizeof number, "%d", getppid()); /* another test program may be given the same port */
    setenv("TORCHELASTIC_RUN_ID", number, 1);
    setenv("TESSERA_WIDE", "1", 1);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

void job_start(int size, const char *arguments) {
    job = (struct job){.size = size, .port = job_port()};
    for (int rank = size; rank-- > 0;) job_start_rank(rank, arguments); /* rank 0 comes last */
}

/* Waits for one process; one that hangs is ended, and keeps JOB_STILL_RUNS. */
void job_await(int rank, double seconds) {
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

void job_end(void) {
    for (int rank = 0; rank < job.size; rank++) {
        size_t count;
        job_await(rank, JOB_PATIENCE);
        char *text = (char *)support_read(job_file(rank), &count);
        snprintf(job.said[rank], sizeof job.said[rank], "%.*s", (int)count, text);
        free(text);
    }
}

void job_expect_codes(int wanted) {
    bool all = true;
    for (int rank = 0; rank < job.size; rank++) all &= job.code[rank] == wanted;
    for (int rank = 0; rank < job.size && !all; rank++)
        print_message("rank %d ended with %d: %s\n", rank, job.code[rank], job.said[rank]);
    assert_true(all);
}

/* A job that is expected to end well; the output of rank 0 in `output`. */
void job_run(int size, const char *arguments) {
    job_start(size, arguments);
    job_end();
    job_expect_codes(0);
    for (int rank = 1; rank < size; rank++) assert_string_equal(job.said[rank], "");
}

char *job_text(const char *format, ...) {
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
char *job_path(const char *name) {
    char *path = strdup(support_path(name));
    assert_non_null(path);
    return path;
}

void job_assert_same_files(const char *one, const char *other) {
    size_t count, others;
    unsigned char *a = support_read(one, &count), *b = support_read(other, &others);
    assert_int_equal(count, others);
    assert_memory_equal(a, b, count);
    free(a);
    free(b);
}

void job_assert_same_members(const char *one, const char *other, int count) {
    for (int seed = 1; seed <= count; seed++) {
        char *a = job_path(job_text("%s-seed%d.safetensors", one, seed));
        char *b = job_path(job_text("%s-seed%d.safetensors", other, seed));
        job_assert_same_files(a, b);
        remove(b); /* so that the next run must write it */
        free(a);
        free(b);
    }
}

double job_last_number(const char *log, const char *type, const char *key) {
    cJSON *line;
    assert_true(support_log(log, type, 0, &line) > 0);
    const double value = support_number(line, key);
    cJSON_Delete(line);
    return value;
}
