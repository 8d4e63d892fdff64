#include "src/cmd/bench_table.h"

#include <stdio.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/base/platform.h"
#include "src/base/terminal.h"
#include "src/base/text.h"

void bench_print_machine(void) {
    terminal_print(stdout, 2, "Tessera %s, commit %s; %s; %s; %s; %s %s\n", TESSERA_VERSION,
                   platform_commit(), platform_cpu(), platform_system(), platform_load_text().text,
                   platform_compiler(), platform_flags());
}

void bench_print_header(const struct candidates *candidates) {
    bench_print_machine();
    for (size_t i = 0; i < candidates->count; i++) {
        const struct compute *compute = &candidates->list[i].compute;
        const struct rates *rates = &candidates->list[i].rates;
        terminal_print(stdout, BENCH_LABEL + 1,
                       "%-*s %s%s%s; peak at best %.0f GFLOP/s f32, %.0f f64, copies %.1f GB/s\n",
                       BENCH_LABEL, candidates->list[i].label, compute->description,
                       compute->gpu[0] ? ", " : "", compute->gpu, 1e-9 * rates->flops[GEMM_F32],
                       1e-9 * rates->flops[GEMM_F64], 1e-9 * rates->bandwidth);
    }
    for (size_t i = 0; i < candidates->left_out_count; i++)
        terminal_print(stdout, BENCH_LABEL + 1, "%-*s %s: %s\n", BENCH_LABEL, candidates->left_out[i].label,
                       outcome_words(candidates->left_out[i].outcome), candidates->left_out[i].reason);
    printf("\n");
}

void bench_print_row(struct table *table, const cJSON *line) {
    table_row(table, line, NULL);
    table_console_row(stdout, table, table_rows(table) - 1);
}

void bench_print_progress(const struct comparison_row *row, const char *what) {
    terminal_progress("%s: %s", row->sweep->label, what);
}

void bench_tell_most(const struct comparison *comparison, size_t rows) {
    const double most = (double)rows * (double)comparison->repeats * comparison->limit_seconds;
    if (most > BENCH_LONG)
        terminal_tell("%zu trainings of at most %g s: %s at most, and the verification (less: --repeat, "
                      "--limit-seconds)",
                      rows * comparison->repeats, comparison->limit_seconds, text_wait(most).text);
}

enum status bench_print_counters(const struct records *records, const char *type, selection_key *key) {
    static void (*const build[])(struct table *, const struct selection *) = {tables_counters_cpu,
                                                                              tables_counters_gpu};
    struct selections all;
    const enum status status = selections_of(&all, records, type, key);
    for (size_t i = 0; i < 2 * all.count && !status; i++) {
        struct table table;
        build[i % 2](&table, &all.list[i / 2]);
        if (table_rows(&table) || table.reasons.count) {
            printf("\n");
            if (table_rows(&table)) terminal_print(stdout, 0, "%s\n", table.caption);
            table_console(stdout, &table);
        }
        table_close(&table);
    }
    selections_free(&all);
    return status;
}

void bench_print_load(void) {
    printf("at the start: %s\n", platform_load_text().text);
}

/* --- flags --- */

enum status bench_parse_count(const char *flag, const char *text, size_t most, size_t *value) {
    int64_t count;
    if (!text) return STATUS_OK;
    if (!text_parse_int(text, &count) || count < 1 || (uint64_t)count > most)
        return status_set(STATUS_USAGE, "--%s must be a whole number from 1 to %zu, not '%s'", flag, most,
                          text);
    *value = (size_t)count;
    return STATUS_OK;
}

enum status bench_parse_real(const char *flag, const char *text, double *value) {
    if (!text) return STATUS_OK;
    if (text_parse_real(text, value) && *value >= 0) return STATUS_OK;
    return status_set(STATUS_USAGE, "--%s must be a number from 0, not '%s'", flag, text);
}

enum status bench_parse_operands(const char *text, bool *warm) {
    *warm = strcmp(text, "warm") == 0;
    if (*warm || strcmp(text, "cold") == 0) return STATUS_OK;
    return status_set(STATUS_USAGE, "--operands must be cold or warm, not '%s'", text);
}

void bench_next_word(const char **list, char *word, size_t size) {
    const size_t length = strcspn(*list, ",");
    snprintf(word, size, "%.*s", (int)length, *list);
    *list += length + ((*list)[length] == ',');
}

enum status bench_find_backends(const char *list, size_t room, char (*names)[CONFIG_TEXT], size_t *count) {
    const bool chosen = list != NULL;
    if (!chosen) list = "openblas,tuned,cublas,cuda-tuned";
    while (*list) {
        const struct gemm_backend *backend;
        char word[CONFIG_TEXT];
        bench_next_word(&list, word, sizeof word);
        const enum status status = registry_find(word, &backend);
        if (status && chosen) return status;
        if (status) continue;
        if (*count == room) return status_set(STATUS_USAGE, "--backends lists more than %zu", room);
        snprintf(names[(*count)++], CONFIG_TEXT, "%s", word);
    }
    return STATUS_OK;
}

enum status bench_parse_list(const char *flag, const char *text, size_t room, size_t *values, size_t *count) {
    *count = 0;
    while (*text && strcmp(text, "none") != 0) {
        char word[24];
        int64_t value;
        bench_next_word(&text, word, sizeof word);
        if (*count == room || !text_parse_int(word, &value) || value < 1 || value > 1 << 24)
            return status_set(STATUS_USAGE,
                              "--%s must be up to %zu whole numbers from 1, as in 1,2,4, not '%s'", flag,
                              room, word);
        values[(*count)++] = (size_t)value;
    }
    return STATUS_OK;
}
