#include "src/cmd/console.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/platform.h"
#include "src/base/text.h"
#include "src/nn/engine.h"

static const double PROGRESS_INTERVAL = 0.1; /* seconds */

static double percent(double part, double whole) {
    return whole > 0 ? 100 * part / whole : 0;
}

struct console console_open(const struct trainer *trainer) {
    return (struct console){.trainer = trainer, .terminal = isatty(STDERR_FILENO) != 0};
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
    printf("%-19s %s +- %.2f (binomial standard error), loss %.6f\n", title,
           console_accuracy(evaluation->correct, evaluation->total).text, console_binomial_error(evaluation),
           evaluation->loss);
}

void console_committee(const char *title, const struct statistics *members,
                       const struct evaluation *committee) {
    printf("%-19s mean of %zu %.2f %%, standard deviation %.2f, from %.2f to %.2f %%\n", title,
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

/* --- header --- */

/* The update rule without its learning rate. */
static void print_optimizer(const struct config *config) {
    if (uses_second_moment((enum update_method)config->optimizer)) {
        printf("%s betas %g and %g", config_choice("optimizer", config->optimizer), config->beta1,
               config->beta2);
    } else {
        printf("%smomentum %g", config->nesterov ? "nesterov " : "", config->momentum);
    }
    printf(", weight decay %g", config->weight_decay);
}

/* Prints one line with the optional parts of the recipe that are in use. */
static void print_regularization(const struct config *config) {
    const struct {
        const char *name;
        double value;
    } all[] = {{"clip norm", config->clip_norm},
               {"max norm", config->max_norm},
               {"dropout", config->dropout},
               {"input dropout", config->input_dropout},
               {"label smoothing", config->label_smoothing},
               {"adversarial", config->adversarial},
               {"average of weights", config->ema_decay},
               {"patience", (double)config->patience}};
    const char *between = "          ";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].value == 0) continue;
        printf("%s%s %g", between, all[i].name, all[i].value);
        between = ", ";
    }
    if (between[0] == ',') printf("\n");
}

static void print_recipe(const struct trainer *trainer) {
    const struct config *config = trainer->config;
    printf("recipe    %lld epoch%s of %s step%s of %s images, lr %g (%s", (long long)config->epochs,
           config->epochs == 1 ? "" : "s", text_grouped(trainer->steps).text, trainer->steps == 1 ? "" : "s",
           text_grouped(trainer->batch).text, config->learning_rate,
           config_choice("schedule", config->schedule));
    if (config->warmup_steps) printf(", %lld warm-up steps", (long long)config->warmup_steps);
    if (config->warmup_epochs > 0) printf(", %g warm-up epochs", config->warmup_epochs);
    printf("), ");
    print_optimizer(config);
    printf(", shuffle %s, seed", config_choice("shuffle", config->shuffle));
    if (config->ensemble > 1) {
        printf("s %lld to %lld\n", (long long)config->seed, (long long)(config->seed + config->ensemble - 1));
    } else {
        printf(" %lld\n", (long long)config->seed);
    }
    print_regularization(config);
}

/* Appends ", rotate or shear 15 degrees", ", rotate 10 or shear 15 degrees" or ", shear 15 degrees". */
static void describe_rotation(const struct config *config, char *text, size_t size) {
    const double rotate = config->augment_rotate, shear = config->augment_shear;
    char gentle[CONFIG_TEXT];
    if (rotate > 0) text_append(text, size, ", rotate");
    if (rotate > 0 && rotate != shear) text_append(text, size, " %g", rotate);
    if (shear > 0) text_append(text, size, "%s shear %g", rotate > 0 ? " or" : ",", shear);
    if (rotate > 0 || shear > 0) text_append(text, size, " degrees");
    config_value(config, config_key_find("augment-gentle"), gentle, sizeof gentle);
    if (gentle[0]) text_append(text, size, " (half for %s)", gentle);
}

static void print_augmentation(const struct config *config) {
    char text[2 * CONFIG_TEXT] = "";
    if (config->augment_elastic > 0)
        text_append(text, sizeof text, ", elastic %g px (sigma %g)", config->augment_elastic,
                    config->augment_sigma);
    describe_rotation(config, text, sizeof text);
    if (config->augment_scale > 0) text_append(text, sizeof text, ", scale %g %%", config->augment_scale);
    if (config->augment_shift > 0) text_append(text, sizeof text, ", shift %g px", config->augment_shift);
    printf("augment   %s\n", text[0] ? text + 2 : "on, but every amount is 0");
}

void console_header(const struct trainer *trainer, const struct dataset_pair *data) {
    const struct config *config = trainer->config;
    const struct compute *compute = trainer->compute;
    char layers[CONFIG_TEXT], resized[64] = "";
    const size_t reported = data->test.count ? trainer->test.count : trainer->validation.count;
    config_value(config, config_key_find("layers"), layers, sizeof layers);
    if (config->input_size)
        snprintf(resized, sizeof resized, ", read as %zux%zu", trainer->train.height, trainer->train.width);
    printf("Tessera %s, commit %s\n", TESSERA_VERSION, platform_commit());
    printf("network   %s, %s, init %s: %s parameters\n", layers,
           config_choice("activation", config->activation), config_choice("init", config->init),
           text_grouped(mlp_parameter_count(&trainer->mlp)).text);
    printf("data      %s: %s training%s, %s %s images of %zux%zu%s\n", data->name,
           text_grouped(trainer->train.count).text,
           trainer->validation.count ? " (after the validation split)" : "", text_grouped(reported).text,
           dataset_reported(data), data->train.height, data->train.width, resized);
    print_recipe(trainer);
    if (config->augment) print_augmentation(config);
    char engine[160];
    engine_describe(trainer, engine, sizeof engine);
    printf("compute   backend %s (%s), %s, precision %s, engine %s, residency %s\n", compute->name,
           compute->description, dtype_name(trainer->mlp.dtype),
           compute_precision(compute, trainer->mlp.dtype), engine, compute_residency(compute));
    if (compute->gpu[0]) printf("gpu       %s\n", compute->gpu);
    printf("machine   %s; %s; %s; %s %s\n\n", platform_cpu(), platform_system(), platform_load_text().text,
           platform_compiler(), platform_flags());
}

void console_plan(const struct trainer *trainer) {
    char text[2048];
    engine_explain(trainer, text, sizeof text);
    const char *title = "plan";
    for (const char *line = text; *line; line += text_line_length(line), title = "")
        printf("%-9s %.*s\n", title, (int)strcspn(line, "\n"), line);
    printf("\n");
}

/* --- epochs --- */

void console_clear_progress(const struct console *console) {
    if (console->terminal) fprintf(stderr, "\r\033[K");
}

void console_epoch_titles(const struct console *console) {
    const struct trainer *trainer = console->trainer;
    printf("epoch    loss  %22s  %22s", "train accuracy",
           trainer->validation.count ? "validation accuracy" : "test accuracy");
    if (trainer->optimizer.average) printf("  %22s", "of average weights");
    printf("  seconds   images/s     NN     TN     NT  copies\n");
}

/* Prints "-" for an epoch that --evaluate-every skips. */
static void print_evaluation(const struct evaluation *evaluation) {
    printf("  %22s", evaluation->total ? console_accuracy(evaluation->correct, evaluation->total).text : "-");
}

void console_epoch(struct console *console, const struct epoch_record *record) {
    const double *seconds = record->time.seconds;
    console_clear_progress(console);
    printf("%5zu  %6.4f  %22s", record->epoch, record->train_loss,
           console_accuracy(record->train_correct, record->train_images).text);
    print_evaluation(&record->evaluation);
    if (console->trainer->optimizer.average) print_evaluation(&record->average);
    printf("  %7.4f  %9s", record->seconds, text_grouped((uint64_t)record->images_per_second).text);
    for (int part = PART_GEMM_NN; part <= PART_GEMM_NT; part++) {
        if (seconds[PART_STEPS] > 0) { /* whole steps: no times of single ops */
            printf("      -");
        } else {
            printf("  %3.0f %%", percent(seconds[part], record->seconds));
        }
    }
    printf("  %4.1f %%\n", 100 * profile_transfer_ratio(&record->time));
    fflush(stdout);
}

void console_progress(struct console *console, const char *prefix, size_t epoch, size_t step, size_t steps,
                      double loss) {
    if (!console->terminal) return;
    const double now = clock_seconds();
    if (now - console->last_progress < PROGRESS_INTERVAL) return;
    console->last_progress = now;
    fprintf(stderr, "\r\033[K%sepoch %zu of %lld  step %zu of %zu (%.0f %%)  loss %.4f", prefix, epoch,
            (long long)console->trainer->config->epochs, step, steps, percent((double)step, (double)steps),
            loss);
    fflush(stderr);
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
    }
    printf("  %-28s %9.4f  %5.1f %%\n", "total", profile_total(time), 100.0);
}

static const char *transfers(const struct compute *compute) {
    if (compute->residency == RESIDENCY_HOST)
        return compute->pinned ? "each GEMM copied, page-locked memory" : "each GEMM copied, pageable memory";
    return compute->device.driver->host_memory ? "everything lives in host memory: nothing is copied"
                                               : "tensors live on the GPU, pageable memory";
}

void console_summary(struct console *console, const struct run_summary *summary) {
    const struct trainer *trainer = console->trainer;
    const struct profile *time = &summary->time;
    const double training = profile_training(time);
    double flops = 0, seconds = 0;
    for (int op = 0; op < PROFILE_OPS; op++) {
        seconds += time->seconds[PART_GEMM_NN + op];
        for (size_t l = 0; l < trainer->mlp.depth; l++) flops += time->gemm[op][l].flops;
    }
    console_clear_progress(console);
    char title[32];
    snprintf(title, sizeof title, "%s accuracy", summary->part);
    printf("\n%s%-18s %s +- %.2f (binomial standard error), loss %.4f\n",
           summary->interrupted ? "Interrupted; the numbers are of the steps done.\n" : "", title,
           console_accuracy(summary->test.correct, summary->test.total).text,
           console_binomial_error(&summary->test), summary->test.loss);
    if (summary->average.total)
        printf("of average weights %s +- %.2f, loss %.4f\n",
               console_accuracy(summary->average.correct, summary->average.total).text,
               console_binomial_error(&summary->average), summary->average.loss);
    if (summary->best_epoch)
        printf("early stopping     %s; the weights are those of epoch %lld, the best on the validation set\n",
               summary->stopped_early ? "the patience ran out" : "the patience lasted to the end",
               (long long)summary->best_epoch);
    printf("epochs             %zu in this run, median %.4f s%s, start-up apart %.3f s\n", summary->epochs,
           summary->median_epoch_seconds, summary->noisy ? " (noisy)" : "", time->seconds[PART_STARTUP]);
    if (training > 0 && seconds > 0)
        printf("GEMM               %.1f %% of training, %.1f GFLOP/s while in it\n",
               percent(seconds, training), seconds > 0 ? 1e-9 * flops / seconds : 0);
    printf("transfer/total     %.4f (%s)\n", profile_transfer_ratio(time), transfers(trainer->compute));
    if (summary->audited)
        printf("audit              %s of %s GEMM calls of this run were checked: all right\n",
               text_grouped(summary->audited).text, text_grouped(summary->calls).text);
    if (summary->steps_audited)
        printf("audit              %s steps of engine %s were repeated op by op: all right\n",
               text_grouped(summary->steps_audited).text, trainer->engine->name);
    print_time(trainer, time);
}
