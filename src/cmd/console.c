#include "src/cmd/console.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/process.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/nn/engine.h"

enum { INDENT = 19 };                        /* of the further lines of an entry */
static const double PROGRESS_INTERVAL = 0.1; /* seconds */

static bool is_wide(void) {
    return terminal_columns() > 80;
}

static double percent(double part, double whole) {
    return whole > 0 ? 100 * part / whole : 0;
}

struct console console_open(const struct trainer *trainer) {
    return (struct console){.trainer = trainer, .terminal = terminal_is_watched()};
}

struct console_text console_accuracy(uint64_t correct, uint64_t total) {
    struct console_text out;
    snprintf(out.text, sizeof out.text, "%s/%s %5.2f %%", text_grouped(correct).text,
             text_grouped(total).text, percent((double)correct, (double)total));
    return out;
}

double console_binomial_error(const struct evaluation *evaluation) {
    if (!evaluation->total) return 0;
    const double p = (double)evaluation->correct / (double)evaluation->total;
    return 100 * sqrt(p * (1 - p) / (double)evaluation->total);
}

void console_evaluation(const char *title, const struct evaluation *evaluation) {
    terminal_print(stdout, INDENT + 1, "%-19s %s +- %.2f (standard error), loss %.4f\n", title,
                   console_accuracy(evaluation->correct, evaluation->total).text,
                   console_binomial_error(evaluation), evaluation->loss);
}

void console_committee(const char *title, const struct statistics *members,
                       const struct evaluation *committee) {
    terminal_print(stdout, INDENT + 1,
                   "%-19s mean of %zu %.2f %%, standard deviation %.2f, from %.2f to %.2f %%\n", title,
                   members->count, 100 * members->mean, 100 * members->deviation, 100 * members->min,
                   100 * members->max);
    console_evaluation("  committee", committee);
}

enum status console_check_target(const struct config *config, const char *part,
                                 const struct evaluation *evaluation) {
    const double target =
        config->target_accuracy > 1 ? config->target_accuracy / 100 : config->target_accuracy;
    if ((double)evaluation->correct >= target * (double)evaluation->total) return STATUS_OK;
    return status_set(STATUS_TARGET_MISSED, "%s accuracy %s is below the target of %.2f %%", part,
                      console_accuracy(evaluation->correct, evaluation->total).text, 100 * target);
}

/* --- epochs --- */

/* Of a column of accuracies. */
enum { NARROW_WIDTH = 7, WIDE_WIDTH = 22 };

void console_title(const char *title, const char *narrow) {
    printf("  %*s", is_wide() ? WIDE_WIDTH : NARROW_WIDTH, is_wide() ? title : narrow);
}

void console_cell(uint64_t correct, uint64_t total) {
    char text[16] = "-";
    if (total) snprintf(text, sizeof text, "%.2f %%", percent((double)correct, (double)total));
    if (is_wide()) {
        printf("  %*s", WIDE_WIDTH, total ? console_accuracy(correct, total).text : text);
    } else {
        printf("  %*s", NARROW_WIDTH, text);
    }
}

/* The column of the copies has no room beside that of the average. */
static bool shows_copies(const struct trainer *trainer) {
    return is_wide() || !trainer->optimizer.average;
}

void console_epoch_titles(const struct console *console) {
    const struct trainer *trainer = console->trainer;
    const bool validates = trainer->validation.count > 0;
    printf("epoch    loss");
    console_title("train accuracy", "train");
    console_title(validates ? "validation accuracy" : "test accuracy", validates ? "held-out" : "test");
    if (trainer->optimizer.average) console_title("of average weights", "average");
    printf("  seconds    images/s    NN    TN    NT%s\n", shows_copies(trainer) ? "  copies" : "");
}

void console_epoch(struct console *console, const struct epoch_record *record) {
    const double *seconds = record->time.seconds;
    terminal_clear_progress();
    printf("%5zu  %6.*f", record->epoch, record->train_loss < 100 ? 4 : 1, record->train_loss);
    console_cell(record->train_correct, record->train_images);
    console_cell(record->evaluation.correct, record->evaluation.total);
    if (console->trainer->optimizer.average) console_cell(record->average.correct, record->average.total);
    printf("  %7.*f  %10s", record->seconds < 100 ? 4 : 1, record->seconds,
           text_grouped((uint64_t)record->images_per_second).text);
    for (int part = PART_GEMM_NN; part <= PART_GEMM_NT; part++) {
        if (seconds[PART_STEPS] > 0) { /* whole steps: no times of single ops */
            printf("     -");
        } else {
            printf(" %3.0f %%", percent(seconds[part], record->seconds));
        }
    }
    if (shows_copies(console->trainer)) printf("  %4.1f %%", 100 * profile_transfer_ratio(&record->time));
    printf("\n");
    fflush(stdout);
}

/* Images per second since the first line, and what that leaves. */
static void describe_pace(struct console *console, double now, size_t done, char *text, size_t size) {
    const struct trainer *trainer = console->trainer;
    const size_t all = (size_t)trainer->config->epochs * trainer->steps;
    if (console->first_time == 0 || done < console->first_step) { /* or the next network of an ensemble */
        console->first_time = now;
        console->first_step = done;
    }
    const double pace =
        (double)(done - console->first_step) / (now - console->first_time); /* steps a second */
    text[0] = '\0';
    if (pace > 0 && isfinite(pace))
        snprintf(text, size, "  %s images/s  %s left",
                 text_grouped((uint64_t)(pace * (double)trainer->batch)).text,
                 text_wait((double)(all - done) / pace).text);
}

void console_progress(struct console *console, const char *prefix, size_t epoch, size_t step, size_t steps,
                      double loss) {
    char pace[128];
    if (!console->terminal || process_is_interrupted()) return; /* its answer is the last line */
    const double now = clock_seconds();
    if (now - console->last_progress < PROGRESS_INTERVAL) return;
    console->last_progress = now;
    describe_pace(console, now, (epoch - 1) * steps + step, pace, sizeof pace);
    terminal_progress("%sepoch %zu of %lld  %.0f %%  loss %.4f%s", prefix, epoch,
                      (long long)console->trainer->config->epochs, percent((double)step, (double)steps), loss,
                      pace);
}

/* --- summary --- */

static void print_part(const struct profile *time, enum profile_part part) {
    printf("  %-28s %9.4f  %5.1f %%", profile_part_title(part), time->seconds[part],
           percent(time->seconds[part], profile_total(time)));
}

/* The total of a GEMM op, then each layer. */
static void print_gemm(const struct trainer *trainer, const struct profile *time, enum profile_part part) {
    const struct profile_gemm *layers = time->gemm[part - PART_GEMM_NN];
    double flops = 0;
    for (size_t l = 0; l < trainer->mlp.depth; l++) flops += layers[l].flops;
    print_part(time, part);
    if (time->seconds[part] > 0) printf("  %9.1f GFLOP/s", 1e-9 * flops / time->seconds[part]);
    printf("\n");
    for (size_t l = 0; l < trainer->mlp.depth; l++) {
        if (!layers[l].calls) continue;
        char name[48];
        snprintf(name, sizeof name, "layer %zu, %zu to %zu", l + 1, trainer->mlp.layer[l].in,
                 trainer->mlp.layer[l].out);
        printf("    %-26s %9.4f  %5.1f %%  %9.1f GFLOP/s  %s calls\n", name, layers[l].seconds,
               percent(layers[l].seconds, profile_total(time)), 1e-9 * layers[l].flops / layers[l].seconds,
               text_grouped(layers[l].calls).text);
    }
}

static void print_time(const struct trainer *trainer, const struct profile *time) {
    printf("\nwhere the time went              seconds    share\n");
    for (int part = 0; part < PART_COUNT; part++) {
        const bool copies = part == PART_H2D || part == PART_D2H; /* shown even if 0 */
        if (time->seconds[part] == 0 && !copies) continue;
        if (part >= PART_GEMM_NN && part <= PART_GEMM_NT) {
            print_gemm(trainer, time, (enum profile_part)part);
        } else {
            print_part(time, (enum profile_part)part);
            printf("\n");
        }
        if (part == PART_COMMUNICATION && profile_hidden_communication(time) > 0)
            printf("    %-26s %9.4f\n", "hidden by other parts", profile_hidden_communication(time));
    }
    printf("  %-28s %9.4f  %5.1f %%\n", "total", profile_total(time), 100.0);
}

static const char *transfers(const struct compute *compute) {
    if (compute->residency == RESIDENCY_HOST)
        return compute->pinned ? "each GEMM copied, page-locked memory" : "each GEMM copied, pageable memory";
    return compute->device.driver->host_memory ? "everything lives in host memory: nothing is copied"
                                               : "tensors live on the GPU, pageable memory";
}

/* The accuracy of the run, and that of the average of the weights. */
static void print_result(const struct run_summary *summary) {
    char title[32];
    snprintf(title, sizeof title, "%s accuracy", summary->part);
    terminal_print(stdout, INDENT, "\n%s%-18s %s +- %.2f (standard error), loss %.4f\n",
                   summary->interrupted ? "Interrupted; the numbers are of the steps done.\n" : "", title,
                   console_accuracy(summary->test.correct, summary->test.total).text,
                   console_binomial_error(&summary->test), summary->test.loss);
    if (summary->average.total)
        printf("of average weights %s +- %.2f, loss %.4f\n",
               console_accuracy(summary->average.correct, summary->average.total).text,
               console_binomial_error(&summary->average), summary->average.loss);
    if (summary->best_epoch)
        terminal_print(
            stdout, INDENT,
            "early stopping     %s; the weights are those of epoch %lld, the best on the validation set\n",
            summary->stopped_early ? "the patience ran out" : "the patience lasted to the end",
            (long long)summary->best_epoch);
}

/* The share of all products in the training, and their rate. */
static void print_products(const struct trainer *trainer, const struct profile *time) {
    const double training = profile_training(time);
    double flops = 0, seconds = 0;
    for (int op = 0; op < PROFILE_OPS; op++) {
        seconds += time->seconds[PART_GEMM_NN + op];
        for (size_t l = 0; l < trainer->mlp.depth; l++) flops += time->gemm[op][l].flops;
    }
    if (training > 0 && seconds > 0)
        printf("GEMM               %.1f %% of training, %.1f GFLOP/s while in it\n",
               percent(seconds, training), 1e-9 * flops / seconds);
}

void console_summary(const struct console *console, const struct run_summary *summary) {
    const struct trainer *trainer = console->trainer;
    const struct profile *time = &summary->time;
    terminal_clear_progress();
    print_result(summary);
    terminal_print(stdout, INDENT,
                   "epochs             %zu in this run, median %.4f s%s, start-up apart %.2f s\n",
                   summary->epochs, summary->median_epoch_seconds, summary->noisy ? " (noisy)" : "",
                   time->seconds[PART_STARTUP]);
    print_products(trainer, time);
    terminal_print(stdout, INDENT, "transfer/total     %.4f (%s)\n", profile_transfer_ratio(time),
                   transfers(trainer->compute));
    if (summary->audited)
        printf("audit              %s of %s GEMM calls of this run were checked: all right\n",
               text_grouped(summary->audited).text, text_grouped(summary->calls).text);
    if (summary->steps_audited)
        printf("audit              %s steps of engine %s were repeated op by op: all right\n",
               text_grouped(summary->steps_audited).text, trainer->engine->name);
    print_time(trainer, time);
}
