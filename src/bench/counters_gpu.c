/* Counters of a GPU: ncu runs `bench call` of this program and profiles the kernels of one NVTX range. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/text.h"
#include "src/bench/counters.h"

/* The first weights the others. The names are those of Nsight Compute for compute capability 7.5 and
   later. */
static const struct {
    const char *key, *metric;
} metrics[] = {
    {"seconds", "gpu__time_duration.sum"},
    {"cycles", "sm__cycles_elapsed.max"},
    {"dram_bytes", "dram__bytes.sum"},
    {"l2_bytes", "lts__t_bytes.sum"},
    {"achieved_occupancy", "sm__warps_active.avg.pct_of_peak_sustained_active"},
    {"tensor_pipe", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"},
    {"fma_pipe", "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"},
    {"fp64_pipe", "sm__pipe_fp64_cycles_active.avg.pct_of_peak_sustained_active"},
    {"compute_throughput", "sm__throughput.avg.pct_of_peak_sustained_elapsed"},
    {"memory_throughput", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"},
    {"l1_throughput", "l1tex__throughput.avg.pct_of_peak_sustained_active"},
    {"l2_throughput", "lts__throughput.avg.pct_of_peak_sustained_elapsed"},
    {"dram_throughput", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"},
    {"shared_wavefronts", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"},
    {"bank_conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"},
};
enum { METRICS = sizeof metrics / sizeof *metrics, SECONDS = 0 };

const char *gpu_counters_key(size_t index) {
    return index < METRICS ? metrics[index].key : NULL;
}

/* --- what ncu prints --- */

/* The next field of a line of CSV, unquoted in place; NULL at the end. */
static char *take_field(char **at) {
    char *const field = *at, *to = field, *from = field;
    bool quoted = false;
    if (!*from) return NULL;
    for (; *from && (quoted || *from != ','); from++) {
        if (*from != '"') {
            *to++ = *from;
        } else if (quoted && from[1] == '"') {
            *to++ = *from++;
        } else {
            quoted = !quoted;
        }
    }
    *at = from + (*from == ',');
    *to = '\0';
    return field;
}

/* The factor from a unit of --print-units base to seconds, bytes or a share. */
static double unit_factor(const char *unit) {
    if (strcmp(unit, "%") == 0) return 0.01;
    return strcmp(unit, "nsecond") == 0 || strcmp(unit, "ns") == 0 ? 1e-9 : 1;
}

/* "1,048,576"; NaN for "n/a" and the like. */
static double parse_number(char *text) {
    double value;
    char *to = text;
    for (const char *from = text; *from; from++)
        if (*from != ',') *to++ = *from;
    *to = '\0';
    return text_parse_real(text, &value) ? value : (double)NAN;
}

/* Three kinds of lines in this order: names, units, and one for each kernel. */
struct ncu_table {
    size_t column[METRICS]; /* of each metric, among hundreds */
    double factor[METRICS], sum[METRICS];
    size_t lines;
};

static void read_line(struct ncu_table *table, char *line) {
    double value[METRICS];
    char *field;
    for (size_t i = 0; i < METRICS; i++) value[i] = (double)NAN;
    for (size_t c = 0; (field = take_field(&line)); c++) {
        for (size_t i = 0; i < METRICS; i++) {
            if (table->lines == 0 && strcmp(field, metrics[i].metric) == 0) table->column[i] = c;
            if (table->lines == 0 || table->column[i] != c) continue;
            if (table->lines == 1) table->factor[i] = unit_factor(field);
            if (table->lines > 1) value[i] = table->factor[i] * parse_number(field);
        }
    }
    for (size_t i = 0; i < METRICS && table->lines > 1; i++)
        table->sum[i] += value[i] * (strstr(metrics[i].metric, ".pct_") ? value[SECONDS] : 1);
    table->lines++;
}

/* The first error of ncu, or that it profiled nothing. */
static void explain(struct counters *to, const char *output) {
    static const char mark[] = "==ERROR== ";
    const char *error = strstr(output, mark);
    if (error && strstr(error, "ERR_NVGPUCTRPERM")) {
        snprintf(to->why, sizeof to->why,
                 "only root may read the counters of this GPU (ERR_NVGPUCTRPERM): run as root, or load the "
                 "driver with NVreg_RestrictProfilingToAdminUsers=0");
        to->nowhere = true;
    } else if (error) {
        error += sizeof mark - 1;
        snprintf(to->why, sizeof to->why, "ncu: %.*s", (int)strcspn(error, "\r\n"), error);
    } else {
        snprintf(to->why, sizeof to->why,
                 "ncu profiled no kernel; './train bench call --help' says how to run it by hand");
    }
}

void gpu_counters_parse(struct counters *to, char *output) {
    static const char start[] = "\"ID\",";
    struct ncu_table table = {.lines = 0};
    char *at = strstr(output, start);
    for (size_t i = 0; i < METRICS; i++) {
        table.column[i] = SIZE_MAX;
        table.factor[i] = 1;
    }
    *to = (struct counters){.of = COUNTERS_GPU, .share = 1};
    explain(to, output);
    while (at && *at) {
        const size_t length = text_line_length(at);
        char *const next = at + length;
        if (*at == '"') {
            char end = *next; /* the line is changed in place */
            *next = '\0';
            at[strcspn(at, "\r\n")] = '\0';
            read_line(&table, at);
            *next = end;
        }
        at = next;
    }
    if (table.lines < 3) return;
    to->why[0] = '\0';
    to->nowhere = false;
    for (size_t i = 0; i < COUNTERS_MOST; i++)
        to->value[i] = i >= METRICS                         ? (double)NAN
                       : strstr(metrics[i].metric, ".pct_") ? table.sum[i] / table.sum[SECONDS]
                                                            : table.sum[i];
}

/* --- the run --- */

/* What the command writes to both outputs goes to `fd`. Returns errno if it did not start. *how: as of
   waitpid. */
static int run(char *const *command, int fd, int *how) {
    posix_spawn_file_actions_t files;
    pid_t pid;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, fd, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, fd, STDERR_FILENO);
    const int error = posix_spawnp(&pid, command[0], &files, NULL, command, environ);
    posix_spawn_file_actions_destroy(&files);
    while (!error && waitpid(pid, how, 0) < 0 && errno == EINTR) continue;
    return error;
}

/* The whole file as text; the caller frees it. */
static char *read_all(int fd) {
    const off_t size = lseek(fd, 0, SEEK_END);
    char *text = size < 0 ? NULL : calloc(1, (size_t)size + 1);
    if (text && pread(fd, text, (size_t)size, 0) != size) text[0] = '\0';
    return text;
}

static void run_ncu(struct counters *to, char *const *command) {
    int how = 0;
    const int fd = memfd_create("ncu", MFD_CLOEXEC), error = fd < 0 ? errno : run(command, fd, &how);
    char *output = error ? NULL : read_all(fd);
    *to = (struct counters){.of = COUNTERS_GPU, .nowhere = !output};
    if (output) {
        gpu_counters_parse(to, output);
        if (how && !to->why[0]) /* numbers of a failure are no numbers of a call */
            snprintf(to->why, sizeof to->why,
                     "ncu ended with exit code %d; run 'ncu ./train bench call' to see why",
                     WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how));
    } else if (error == ENOENT) {
        snprintf(to->why, sizeof to->why,
                 "ncu (Nsight Compute) is not on the PATH: install it with the CUDA toolkit, or run with "
                 "PATH=/usr/local/cuda/bin:$PATH");
    } else {
        snprintf(to->why, sizeof to->why, "cannot run ncu: %s", strerror(error ? error : ENOMEM));
    }
    free(output);
    if (fd >= 0) close(fd);
}

/* Appends the words of the text, which it changes. */
static size_t add_words(const char **command, size_t count, char *text) {
    for (char *rest, *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        command[count++] = word;
    return count;
}

void gpu_counters_take(struct counters *to, const char *program, const struct config *config,
                       enum gemm_dtype dtype, const struct gemm_shape *shape, bool warm) {
    char tool[2048], call[512];
    const char *command[64];
    char *const self = program ? NULL : realpath("/proc/self/exe", NULL);
    snprintf(tool, sizeof tool,
             "ncu --csv --page raw --print-units base --clock-control none --cache-control %s --nvtx "
             "--nvtx-include " COUNTERS_RANGE "/ --metrics ",
             warm ? "none" : "all");
    for (size_t i = 0; i < METRICS; i++)
        text_append(tool, sizeof tool, "%s%s", i ? "," : "", metrics[i].metric);
    snprintf(call, sizeof call,
             "bench call --device %lld --precision %s --dtype %s --op %s --size %zu,%zu,%zu --operands %s "
             "--backend",
             (long long)config->device, config_choice("precision", config->precision), dtype_name(dtype),
             gemm_op_name(shape->op), shape->m, shape->n, shape->k, warm ? "warm" : "cold");
    size_t count = add_words(command, 0, tool);
    command[count++] = self ? self : program; /* these two may have spaces */
    count = add_words(command, count, call);
    command[count++] = config->backend;
    command[count] = NULL;
    run_ncu(to, (char *const *)command);
    free(self);
}
