/* ./train devices: lists every backend, or why it cannot be used here. */
#include <stdio.h>
#include <string.h>

#include "src/backend/backend_options.h"
#include "src/backend/registry.h"
#include "src/base/jsonl.h"
#include "src/base/platform.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/bench/serve.h"
#include "src/cmd/backend.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"

enum { TEXT = 18 }; /* the column of the explanations */

/* Where a backend runs: in a contestant if it is a plug-in or is verified, else in this process. */
struct host {
    struct contestant contestant;
    struct server here;
    bool apart;
    struct logfile *log; /* of --log, or NULL */
};

static enum status ask(struct host *host, enum contest_task task, const char *stage,
                       const struct config *config, struct contest_reply *reply) {
    struct contest_request request = {.task = task, .config = *config};
    *reply = (struct contest_reply){0};
    return host->apart ? contestant_ask(&host->contestant, stage, &request, reply)
                       : serve_task(&host->here, &request, reply);
}

/* A "verification" line: what was checked, or why the backend was not. */
static void log_backend(const struct host *host, const char *name, const struct contest_reply *found,
                        const struct contest_reply *reply, enum status status, bool verified) {
    cJSON *line = jsonl_new("verification");
    jsonl_text(line, "backend", found->backend.name[0] ? found->backend.name : name);
    jsonl_text(line, "path", found->backend.path);
    jsonl_text(line, "summary", found->backend.summary);
    jsonl_text(line, "description", reply->description);
    jsonl_text(line, "device", reply->device);
    jsonl_text(line, "gpu", reply->gpu);
    if (status && status != STATUS_VERIFY_FAILED) {
        jsonl_text(line, "left_out", status_message());
    } else if (status || verified) {
        cJSON_AddBoolToObject(line, "verified", !status);
        jsonl_count(line, "checked", reply->checked);
        jsonl_count(line, "skipped", reply->skipped);
        if (status) jsonl_text(line, "reason", status_message());
    }
    jsonl_write(host->log, line);
}

static const char *verdict(enum status status) {
    return status == STATUS_VERIFY_FAILED ? "WRONG" : "not usable";
}

static enum status print_verification(enum status status, const struct contest_reply *reply) {
    if (status) {
        terminal_print(stdout, TEXT, "%*s%s: %s\n", TEXT, "", verdict(status), status_message());
    } else {
        terminal_print(stdout, TEXT, "%*sverified: %s GEMM cases right, %s not supported\n", TEXT, "",
                       text_grouped(reply->checked).text, text_grouped(reply->skipped).text);
    }
    return status;
}

static void print_options(const char *options) {
    for (size_t length; *options; options += length + (options[length] == '\n')) {
        length = strcspn(options, "\n");
        terminal_print(stdout, TEXT + 2, "%*s%.*s\n", TEXT, "", (int)length, options);
    }
}

/* A backend that was not opened; the status message says why. */
static void print_failure(const struct host *host, const char *name, const struct contest_reply *found,
                          enum status status) {
    log_backend(host, name, found, &(struct contest_reply){0}, status, false);
    terminal_print(stdout, TEXT, "  %-14s  %s: %s\n", name, verdict(status), status_message());
    print_options(found->backend.options);
}

/* `name`: that of the registry, or NAME:options or a plug-in. One that does not start is no error, unless
   it is to be verified. */
static enum status print_backend(struct host *host, const char *name, const struct config *config,
                                 bool verify) {
    struct contest_reply found, reply = {0};
    enum status status = ask(host, CONTEST_FIND, "loading", config, &found);
    if (status && status != STATUS_VERIFY_FAILED) return status;
    if (!status) status = ask(host, CONTEST_OPEN, "opening", config, &reply);
    if (status) {
        print_failure(host, name, &found, status);
        return verify || status == STATUS_VERIFY_FAILED ? status : STATUS_OK;
    }
    terminal_print(stdout, TEXT, "  %-14s  %s: %s (%s)\n", name, reply.device, found.backend.summary,
                   reply.description);
    if (reply.gpu[0]) terminal_print(stdout, TEXT, "%*son %s\n", TEXT, "", reply.gpu);
    print_options(found.backend.options);
    if (verify) status = ask(host, CONTEST_VERIFY_ALL, "verification", config, &reply);
    log_backend(host, name, &found, &reply, status, verify);
    if (!verify) return STATUS_OK;
    return print_verification(status, &reply);
}

static enum status print_in_process(const char *name, struct config *config, struct logfile *log, bool apart,
                                    bool verify) {
    struct host host = {.apart = apart, .log = log};
    snprintf(config->backend, sizeof config->backend, "%s", name);
    const enum status status = print_backend(&host, name, config, verify);
    contestant_end(&host.contestant);
    serve_close(&host.here);
    fflush(stdout);
    return status;
}

static enum status print_all(struct config *config, struct logfile *log, bool verify) {
    enum status worst = STATUS_OK;
    char why[256];
    for (size_t i = 0; i < registry_count(); i++) {
        const struct registry_entry *entry = registry_at(i);
        if (registry_usable(entry, why, sizeof why)) {
            const enum status status = print_in_process(entry->name, config, log, verify, verify);
            if (status && status != STATUS_UNAVAILABLE) worst = status;
        } else {
            struct contest_reply found = {0};
            if (entry->backend)
                backend_options_list(entry->backend, found.backend.options, sizeof found.backend.options);
            print_failure(&(struct host){.log = log}, entry->name, &found,
                          status_set(STATUS_UNAVAILABLE, "%s", why));
        }
    }
    return worst;
}

static bool is_flag_given(const struct config *config, const char *key) {
    return config->origin[config_key_find(key) - config_key_at(0)] == FROM_FLAG;
}

static enum status run_devices(int argc, char **argv) {
    static const char *const keys[] = {"backend",   "threads", "device", "precision",
                                       "residency", "pin",     "log",    NULL};
    const char *verify = NULL, *timeout = NULL;
    const struct option_extra extras[] = {
        {"verify", NULL,
         "check every usable backend against a float64 reference; exit with 5 if one is wrong", &verify},
        {"timeout-seconds", "S", "end a backend without progress for so long; 0: never [600]", &timeout},
    };
    const struct option_set set = {
        .usage = "devices [--backend NAME] [--verify] [--device N]...",
        .details =
            "Lists every GEMM backend that the program knows: what it is, or why it cannot be used here.\n"
            "With --backend, that one alone; ./my.so is a plug-in (docs/your-own-gemm.md).\n"
            "Verified backends and plug-ins run in a process of their own: a crash is a line of this list.\n"
            "  ./train devices --backend ./my.so --verify",
        .keys = keys,
        OPTION_EXTRAS(extras),
    };
    struct config config;
    bool help;
    enum status status = options_parse(&set, argc, argv, &config, &help);
    if (status || help) return status;
    status = backend_prepare_contest(NULL, timeout, 1);
    struct logfile *log = NULL;
    if (!status) status = logfile_open(&log, config.log, false);
    if (status) return status;
    if (log) {
        cJSON *header = jsonl_header();
        jsonl_text(header, "command", "devices");
        jsonl_write(log, header);
    }

    terminal_print(stdout, 11, "machine    %s; %s; %s of memory\n", platform_cpu(), platform_system(),
                   text_bytes((double)platform_memory()).text);
    terminal_print(stdout, 11, "build      Tessera %s, commit %s; %s %s\n", TESSERA_VERSION,
                   platform_commit(), platform_compiler(), platform_flags());
    printf("backends\n");
    if (!is_flag_given(&config, "backend"))
        return logfile_close(log, print_all(&config, log, verify != NULL));
    char name[CONFIG_TEXT];
    memcpy(name, config.backend, sizeof name);
    status = print_in_process(name, &config, log, verify || backend_options_of_plugin(name), verify != NULL);
    return logfile_close(log, status);
}

const struct command command_devices = {"devices", "list the GEMM backends, and why one cannot be used here",
                                        run_devices};
