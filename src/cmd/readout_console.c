/* The output of ./train readout. */
#include <math.h>
#include <stdio.h>

#include "src/base/platform.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cmd/console.h"
#include "src/cmd/readout.h"

enum { INDENT = 10, COLUMN = 19, MOST_COLUMNS = 6 };

/* --- header --- */

static void print_data(const struct readout_job *job) {
    const size_t all = job->data.train.count;
    if (job->streams) {
        terminal_print(stdout, INDENT, "data      %s: a stream of %s training images in blocks of %s%s%s\n",
                       job->data.name, text_grouped(all).text, text_grouped(job->stream.stride).text,
                       job->config.drift[0] ? ", drift " : "", job->config.drift);
        return;
    }
    char part[128] = "";
    if (job->validation)
        snprintf(part, sizeof part, "; the ridge is chosen on the last %s training images, which %s",
                 text_grouped(job->validation).text, job->all_enter ? "then enter, too" : "do not enter");
    terminal_print(stdout, INDENT, "data      %s: %s training and %s test images%s\n", job->data.name,
                   text_grouped(all).text, text_grouped(job->data.test.count).text, part);
}

static void print_features(const struct readout_job *job) {
    const struct config *config = &job->config;
    char layers[CONFIG_TEXT], source[CONFIG_TEXT + 64];
    config_value(config, config_key_find("layers"), layers, sizeof layers);
    if (job->model) {
        snprintf(source, sizeof source, "the last hidden layer of %s", job->model);
    } else if (config->features.choice == FEATURES_KMEANS) {
        snprintf(source, sizeof source, "the centres of %s", config->features.file);
    } else {
        snprintf(source, sizeof source, "random, init %s, seed %lld",
                 config_choice("init", config->init.choice), (long long)config->seed);
    }
    terminal_print(stdout, INDENT, "features  %s; network %s, %s\n", source, layers,
                   config_choice("activation", config->activation));
}

void readout_print_header(const struct readout_job *job) {
    const struct compute *compute = &job->compute;
    const enum gemm_dtype dtype = job->mlp.dtype;
    printf("Tessera %s, commit %s\n", TESSERA_VERSION, platform_commit());
    print_data(job);
    print_features(job);
    terminal_print(stdout, INDENT,
                   "readout   %s x %zu weights by QR of portions of %s rows, ridge %s (none of the bias)\n",
                   text_grouped(job->readout.shape.n).text, job->readout.shape.classes,
                   text_grouped(job->readout.shape.rows).text, job->config.ridge);
    terminal_print(stdout, INDENT, "compute   backend %s (%s), %s\n", compute->name, compute->description,
                   dtype_name(dtype));
    if (compute->gpu[0]) terminal_print(stdout, INDENT, "gpu       %s\n", compute->gpu);
    terminal_print(stdout, INDENT, "machine   %s; %s; %s; %s %s\n\n", platform_cpu(), platform_system(),
                   platform_load_text().text, platform_compiler(), platform_flags());
}

/* --- a fit --- */

void readout_print_ridges(const struct ridges *ridges, const char *part) {
    if (!ridges->score[ridges->best].total) return;
    printf("     ridge  relative  %12s  squared error\n", part);
    for (size_t k = 0; k < ridges->count; k++)
        printf("%10.4g  %8.1e  %12s  %13.5f%s\n", ridges->value[k], ridges->relative[k],
               text_percent(readout_accuracy(&ridges->score[k]), 2).text,
               ridges->score[k].error / (double)ridges->score[k].total,
               k == ridges->best && ridges->count > 1 ? "  chosen" : "");
    if (ridges->count > 1 && (ridges->best == 0 || ridges->best + 1 == ridges->count))
        terminal_print(stdout, 0, "The chosen ridge is at the end of the grid: --ridge takes others.\n");
    printf("\n");
}

static void print_parts(const struct readout_job *job) {
    const double total = profile_total(&job->profile);
    printf("\n%-*s%.3f s\n", COLUMN, "total time", total);
    for (int part = 0; part < PART_COUNT; part++)
        if (job->profile.seconds[part] >= 0.0005)
            printf("  %-24s %9.3f s %6s\n", profile_part_title((enum profile_part)part),
                   job->profile.seconds[part], text_percent(job->profile.seconds[part] / total, 1).text);
}

/* Flops of the factorisation of the rows that entered. */
static double factor_flops(const struct readout_job *job) {
    const size_t rows = job->train.count - (job->all_enter ? 0 : job->validation), n = job->readout.shape.n;
    return qr_append_flops(rows, n, n + job->readout.shape.classes);
}

void readout_print_result(const struct readout_job *job) {
    const struct readout_times *times = &job->times;
    char title[32];
    snprintf(title, sizeof title, "%s accuracy", dataset_reported(&job->data));
    console_evaluation(title, &job->evaluation);
    printf("%-*s%.4g\n", COLUMN, "ridge", job->ridges.value[job->ridges.best]);
    terminal_print(stdout, COLUMN + 1,
                   "%-*s%.3f s: features %.3f, QR %.3f (%.1f GFLOP/s), ridge %.3f, test %.3f\n", COLUMN,
                   "fit", times->features + times->factor + times->ridge + times->test, times->features,
                   times->factor, times->factor > 0 ? 1e-9 * factor_flops(job) / times->factor : 0,
                   times->ridge, times->test);
    print_parts(job);
}

/* --- a stream --- */

struct readout_name readout_memory_name(const struct stream_memory *memory) {
    struct readout_name name;
    if (memory->forgetting < 1) {
        snprintf(name.text, sizeof name.text, "forgetting %.10g", memory->forgetting);
    } else {
        snprintf(name.text, sizeof name.text, "%s",
                 memory->window ? text_grouped(memory->window).text : "all");
    }
    return name;
}

/* In the columns of the table, "forgetting" is in the title. */
static struct readout_name short_name(const struct stream_memory *memory) {
    struct readout_name name = readout_memory_name(memory);
    if (memory->forgetting < 1) snprintf(name.text, sizeof name.text, "x%.10g", memory->forgetting);
    return name;
}

static size_t shown(const struct readout_job *job) {
    return job->stream.count < MOST_COLUMNS || terminal_columns() > 80 ? job->stream.count : MOST_COLUMNS;
}

void readout_print_titles(const struct readout_job *job) {
    terminal_print(stdout, 0,
                   "Accuracy on each block before it enters, of the readouts of the last images, of all so "
                   "far, and with forgetting (x):\n");
    printf("%9s", "images");
    for (size_t k = 0; k < shown(job); k++) printf(" %10s", short_name(&job->stream.memory[k]).text);
    printf("\n");
}

void readout_print_block(const struct readout_job *job, const struct stream_record *record) {
    printf("%9s", text_grouped(record->images).text);
    for (size_t k = 0; k < shown(job); k++)
        printf(" %10s", text_percent(readout_accuracy(&record->score[k]), 2).text);
    printf("\n");
}

size_t readout_best(const struct readout_job *job) {
    size_t best = 0;
    for (size_t k = 1; k < job->stream.count; k++)
        if (job->result.score[k].correct > job->result.score[best].correct) best = k;
    return best;
}

/* The readout of all images; `count` if there is none. */
static size_t index_of_all(const struct readout_job *job) {
    size_t k = 0;
    while (k < job->stream.count && (job->stream.memory[k].window || job->stream.memory[k].forgetting < 1))
        k++;
    return k;
}

static void print_verdict(const struct readout_job *job) {
    const size_t best = readout_best(job), all = index_of_all(job);
    const struct readout_score *score = job->result.score;
    const char *name = readout_memory_name(&job->stream.memory[best]).text;
    const bool window = job->stream.memory[best].window > 0;
    if (all == job->stream.count) {
        terminal_print(stdout, 0, "\nThe best is %s%s; --window with 'all' compares it with all images.\n",
                       window ? "the window of " : "", name);
    } else if (best == all || score[best].correct == score[all].correct) {
        terminal_print(stdout, 0, "\nNone is better than all images.\n");
    } else {
        terminal_print(stdout, 0, "\nThe best is %s%s: %.2f points better than all images%s.\n",
                       window ? "the window of " : "", name,
                       100 * (readout_accuracy(&score[best]) - readout_accuracy(&score[all])),
                       stream_differs(&score[best], &score[all])
                           ? ""
                           : ", which is within two standard errors: no difference is shown");
    }
}

void readout_print_stream(const struct readout_job *job) {
    printf("\n%-24s %20s  standard error  squared error\n", "readout of", "accuracy");
    for (size_t k = 0; k < job->stream.count; k++) {
        const struct readout_score *score = &job->result.score[k];
        const struct evaluation evaluation = {.total = score->total, .correct = score->correct};
        if (!score->total) continue;
        printf("%-24s %20s  %14.2f  %13.5f\n", readout_memory_name(&job->stream.memory[k]).text,
               console_accuracy(score->correct, score->total).text, console_binomial_error(&evaluation),
               score->error / (double)score->total);
    }
    if (job->result.blocks) print_verdict(job);
    print_parts(job);
}
