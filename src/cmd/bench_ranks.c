#define _GNU_SOURCE
#include "src/cmd/bench_ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/jsonl.h"
#include "src/base/platform.h"
#include "src/base/process.h"
#include "src/base/statistics.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/bench/shapes.h"
#include "src/cmd/bench_table.h"
#include "src/cmd/local_ranks.h"
#include "src/cmd/train_devices.h"
#include "src/comm/launch.h"
#include "src/report/records.h"

enum { MOST_COUNTS = 16, MOST_REPEATS = 100 };

/* Trainings on one number of processes. */
struct measured {
    size_t ranks;
    bool weak;                  /* a batch for each process, not one for all */
    double epoch[MOST_REPEATS]; /* seconds */
    /* Shares of the training: for which all else waits, and which other parts hide. */
    double communication[MOST_REPEATS], hidden[MOST_REPEATS];
};

struct race {
    const struct config *config;
    size_t threads; /* of each process */
    char folder[64], settings[80], log[80], errors[80];
    struct measured *measured;
    size_t count, repeats;
};

/* --- one training --- */

/* Output goes nowhere, messages to a file. */
static pid_t start_rank(const struct race *race, size_t rank, size_t batch, const char *engine) {
    struct config own = *race->config;
    char images[24], threads[24], device[24];
    char *const arguments[] = {(char *)terminal_program(),
                               "--config",
                               (char *)race->settings,
                               "--batch-size",
                               images,
                               "--threads",
                               threads,
                               "--device",
                               device,
                               "--engine",
                               (char *)engine,
                               "--log",
                               rank ? "" : (char *)race->log,
                               NULL};
    posix_spawn_file_actions_t files;
    devices_choose(&own, &(struct launch){.local_rank = (int)rank});
    snprintf(device, sizeof device, "%lld", (long long)own.device);
    snprintf(images, sizeof images, "%zu", batch);
    snprintf(threads, sizeof threads, "%zu", race->threads);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, race->errors, O_WRONLY | O_CREAT | O_APPEND,
                                     0600);
    const pid_t pid = local_ranks_start(rank, arguments, &files);
    posix_spawn_file_actions_destroy(&files);
    return pid;
}

/* The last line of the messages, without "train: " and, if rank 0 tells of another one, "rank 1 of 2: ". */
static enum status explain(const struct race *race, size_t ranks) {
    char line[512] = "", last[512] = "it was ended";
    FILE *file = fopen(race->errors, "r");
    while (file && fgets(line, sizeof line, file)) snprintf(last, sizeof last, "%s", line);
    if (file) fclose(file);
    last[strcspn(last, "\n")] = '\0';
    const char *message = strstr(last, ": ");
    int of_rank = 0;
    message = message ? message + 2 : last;
    sscanf(message, "rank %*d of %*d: %n", &of_rank);
    return status_set(STATUS_FAILED, "a training by %zu processes failed: %s", ranks, message + of_rank);
}

static enum status wait_for_all(const struct race *race, pid_t *pids, size_t ranks) {
    bool failed = false;
    for (size_t r = 0; r < ranks; r++) {
        int how = 1;
        if (pids[r] < 0) {
            failed = true;
            continue;
        }
        while (waitpid(pids[r], &how, 0) < 0 && errno == EINTR)
            if (process_is_interrupted()) kill(pids[r], SIGTERM);
        failed |= how != 0;
    }
    return failed ? explain(race, ranks) : STATUS_OK;
}

/* What one training logged. */
struct logged {
    double epoch, communication, hidden; /* seconds of an epoch: all, and of its communication */
    bool graph;                          /* it shows whole steps, without parts */
};

static enum status read_log(const struct race *race, struct logged *logged) {
    struct records records = {0};
    const enum status status = records_read(&records, race->log);
    const struct record *header = records_after(&records, NULL, "header"),
                        *summary = records_after(&records, NULL, "summary");
    if (!status && header && summary) {
        const cJSON *time = cJSON_GetObjectItem(summary->line, "time");
        const double epochs = (double)race->config->epochs;
        *logged =
            (struct logged){.epoch = record_number(summary->line, "median_epoch_seconds"),
                            .communication = record_number(time, "communication") / epochs,
                            .hidden = record_number(summary->line, "hidden_communication_seconds") / epochs,
                            .graph = strcmp(record_text(header->line, "engine"), "graph") == 0};
    }
    records_free(&records);
    if (status || (header && summary)) return status;
    return status_set(STATUS_FAILED, "a training wrote no summary");
}

static enum status train(const struct race *race, const struct measured *measured, const char *engine,
                         struct logged *logged) {
    const size_t batch = (size_t)race->config->batch_size * (measured->weak ? measured->ranks : 1);
    pid_t pids[LAUNCH_MOST_RANKS];
    remove(race->log);
    remove(race->errors);
    local_ranks_new(measured->ranks);
    for (size_t r = 0; r < measured->ranks; r++) pids[r] = start_rank(race, r, batch, engine);
    const enum status status = wait_for_all(race, pids, measured->ranks);
    return status ? status : read_log(race, logged);
}

/* The communication of engine graph is that of the same training in engine eager. */
static enum status measure(const struct race *race, struct measured *measured, size_t repeat) {
    struct logged timed, parts;
    terminal_progress("%zu processes, %s, %zu of %zu", measured->ranks, measured->weak ? "weak" : "strong",
                      repeat + 1, race->repeats);
    enum status status = train(race, measured, config_choice("engine", (int)race->config->engine), &timed);
    if (status) return status;
    parts = timed;
    if (timed.graph && measured->ranks > 1) status = train(race, measured, "eager", &parts);
    measured->epoch[repeat] = timed.epoch;
    measured->communication[repeat] = parts.communication / parts.epoch;
    measured->hidden[repeat] = parts.hidden / parts.epoch;
    return status;
}

/* --- all of them --- */

/* The threads of each process: as given, or so many that the most processes fill the cores. */
static size_t threads_of(const struct config *config, size_t most_ranks) {
    const size_t cores = (size_t)platform_usable_cores();
    if (config->threads) return (size_t)config->threads;
    return cores > most_ranks ? cores / most_ranks : 1;
}

/* The config as a file, without what only one process may write. */
static enum status write_settings(struct race *race) {
    struct config config = *race->config;
    config.devices[0] = config.log[0] = config.csv[0] = config.save[0] = config.save_init[0] =
        config.resume[0] = '\0';
    config.ensemble = 1;
    config.target_accuracy = 0;
    snprintf(race->folder, sizeof race->folder, "/tmp/ranks-XXXXXX");
    if (!mkdtemp(race->folder))
        return status_set(STATUS_FAILED, "cannot make a folder in /tmp: %s", strerror(errno));
    snprintf(race->settings, sizeof race->settings, "%s/config.cfg", race->folder);
    snprintf(race->log, sizeof race->log, "%s/log.jsonl", race->folder);
    snprintf(race->errors, sizeof race->errors, "%s/errors", race->folder);
    FILE *file = fopen(race->settings, "w");
    if (!file) return status_set(STATUS_FAILED, "cannot write %s: %s", race->settings, strerror(errno));
    config_dump(&config, file, false, false);
    return fclose(file) == 0 ? STATUS_OK : status_set(STATUS_FAILED, "cannot write %s", race->settings);
}

static cJSON *row_of(const struct race *race, struct measured *measured, const struct measured *base) {
    char name[64];
    const struct statistics epoch = statistics_of(measured->epoch, race->repeats),
                            one = statistics_of(((struct measured *)base)->epoch, race->repeats),
                            communication = statistics_of(measured->communication, race->repeats),
                            hidden = statistics_of(measured->hidden, race->repeats);
    cJSON *line = jsonl_new("ranks");
    shapes_config_name(race->config->file, name, sizeof name);
    jsonl_text(line, "config", name);
    jsonl_text(line, "backend", race->config->backend);
    jsonl_text(line, "dtype", config_choice("dtype", race->config->dtype));
    jsonl_text(line, "scaling", measured->weak ? "weak" : "strong");
    jsonl_count(line, "ranks", measured->ranks);
    jsonl_count(line, "threads", race->threads);
    jsonl_count(line, "batch_size",
                (size_t)race->config->batch_size * (measured->weak ? measured->ranks : 1));
    jsonl_count(line, "repeats", race->repeats);
    cJSON_AddNumberToObject(line, "epoch_seconds", epoch.median);
    cJSON_AddNumberToObject(line, "min_epoch_seconds", epoch.min);
    cJSON_AddNumberToObject(line, "max_epoch_seconds", epoch.max);
    cJSON_AddNumberToObject(line, "communication", communication.median);
    cJSON_AddNumberToObject(line, "hidden_communication", hidden.median);
    cJSON_AddNumberToObject(line, "speedup", one.median / epoch.median);
    cJSON_AddNumberToObject(line, "ideal", (double)measured->ranks / (double)base->ranks);
    return line;
}

static void report(const struct race *race, struct logfile *log) {
    struct table table;
    cJSON *header = jsonl_header();
    cJSON_AddStringToObject(header, "command", "bench scaling --ranks");
    jsonl_write(log, header);
    tables_ranks(&table, &(struct selection){0});
    table_console_titles(stdout, &table);
    for (size_t i = 0; i < race->count; i++) {
        const struct measured *base = &race->measured[race->measured[i].weak ? race->count / 2 : 0];
        cJSON *line = row_of(race, &race->measured[i], base);
        bench_print_row(&table, line);
        jsonl_write(log, line);
    }
    table_console_end(stdout, &table);
    terminal_print(
        stdout, 0,
        "strong: one batch for all processes; weak: one for each. %zu thread%s each; median of %zu "
        "repeat%s in turn\n",
        race->threads, race->threads == 1 ? "" : "s", race->repeats, race->repeats == 1 ? "" : "s");
    bench_print_load();
    table_close(&table);
}

static void remove_files(const struct race *race) {
    if (!race->folder[0]) return;
    remove(race->settings);
    remove(race->log);
    remove(race->errors);
    rmdir(race->folder);
}

enum status bench_ranks(const struct config *config, const char *list, size_t repeats, struct logfile *log) {
    struct race race = {.config = config, .repeats = repeats};
    size_t counts[MOST_COUNTS], most = 1;
    enum status status = bench_parse_list("ranks", list, MOST_COUNTS, counts, &race.count);
    if (status) return status;
    for (size_t i = 0; i < race.count; i++) most = counts[i] > most ? counts[i] : most;
    if (!race.count || most > LAUNCH_MOST_RANKS || repeats > MOST_REPEATS)
        return status_set(STATUS_USAGE,
                          "--ranks takes numbers of processes from 1 to %d, and --repeat up to %d",
                          LAUNCH_MOST_RANKS, MOST_REPEATS);
    race.threads = threads_of(config, most);
    race.measured = calloc(2 * race.count, sizeof *race.measured);
    if (!race.measured) return status_set(STATUS_FAILED, "out of memory");
    for (size_t i = 0; i < 2 * race.count; i++)
        race.measured[i] = (struct measured){.ranks = counts[i % race.count], .weak = i >= race.count};
    race.count *= 2;
    status = write_settings(&race);
    for (size_t r = 0; r < repeats && !status; r++)
        for (size_t i = 0; i < race.count && !status; i++) status = measure(&race, &race.measured[i], r);
    terminal_clear_progress();
    if (!status) report(&race, log);
    remove_files(&race);
    free(race.measured);
    return status;
}
