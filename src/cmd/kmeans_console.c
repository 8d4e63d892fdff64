/* The output of ./train kmeans. */
#include <stdio.h>

#include "src/base/platform.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cluster/point_stream.h"
#include "src/cmd/kmeans.h"

enum { INDENT = 10, COLUMN = 19 };

const char *kmeans_end_name(enum kmeans_end end) {
    static const char *const names[] = {"iteration limit",
                                        "no point changed",
                                        "no centre moved",
                                        "few points changed",
                                        "centres moved less than the tolerance",
                                        "interrupted"};
    return names[end];
}

static void print_parts(const struct kmeans_job *job) {
    char text[256] = "";
    for (size_t p = 0; p < KMEANS_PARTS; p++)
        if (job->part[p].points)
            text_append(text, sizeof text, "%s%s %s", p ? ", " : "",
                        text_grouped(job->part[p].points->count).text, job->part[p].name);
    terminal_print(stdout, INDENT, "data      %s: %s points of %zu features, %s\n", job->sets.name, text,
                   job->sets.train.features, job->sets.train.bytes ? "uint8" : "reals");
}

void kmeans_print_header(const struct kmeans_job *job, const char *engine) {
    const struct config *config = &job->config;
    const struct compute *compute = &job->compute;
    const struct kmeans_options *options = &job->options;
    char batch[64] = "Lloyd", init[CONFIG_TEXT + 64];
    if (options->batch)
        snprintf(batch, sizeof batch, "mini-batches of %s", text_grouped(options->batch).text);
    snprintf(init, sizeof init, "init %s", config_choice("kmeans-init", config->kmeans_init));
    if (options->start)
        snprintf(init, sizeof init, "from %s after iteration %zu", config->resume, options->start->iteration);
    printf("Tessera %s, commit %s\n", TESSERA_VERSION, platform_commit());
    print_parts(job);
    terminal_print(stdout, INDENT,
                   "k-means   %zu clusters, %s, %s, at most %zu iterations, tolerance %g, empty %s, %zu "
                   "restart%s, seed %lld\n",
                   options->clusters, init, batch, options->iterations, options->tolerance,
                   config_choice("empty", config->kmeans_empty), options->restarts,
                   options->restarts == 1 ? "" : "s", (long long)config->seed);
    terminal_print(stdout, INDENT, "compute   backend %s (%s), %s, labels %s, %s %s, residency %s\n",
                   compute->name, compute->description, dtype_name(job->sets.train.dtype),
                   options->step ? "of computed distances"
                                 : config_choice("kmeans-precision", config->kmeans_precision),
                   options->step ? "step" : "engine", engine,
                   options->step ? compute_residency(compute) : points_residency(&job->sets.train));
    if (compute->gpu[0]) terminal_print(stdout, INDENT, "gpu       %s\n", compute->gpu);
    terminal_print(stdout, INDENT, "machine   %s; %s; %s; %s %s\n\n", platform_cpu(), platform_system(),
                   platform_load_text().text, platform_compiler(), platform_flags());
}

void kmeans_print_iteration(struct kmeans_job *job, const struct kmeans_record *record) {
    char name[32];
    if (!job->titles) printf("iteration       inertia     changed  ambiguous       shift  empty   seconds\n");
    job->titles = true;
    snprintf(name, sizeof name, job->options.restarts > 1 ? "%zu.%zu" : "%.0zu%zu",
             job->options.restarts > 1 ? record->restart : 0, record->iteration);
    printf("%9s  %12.6g  %10s %10s  %10.4g  %5zu  %8.4f\n", name, record->inertia,
           job->options.batch ? "-" : text_grouped(record->counts.changed).text,
           text_grouped(record->counts.ambiguous).text, record->shift, record->empty,
           profile_total(&record->time));
}

static void print_quality(const struct kmeans_job *job) {
    if (!job->majority) return;
    printf("\n%-12s %12s   purity     NMI     ARI   accuracy by majority, by medoid\n", "part", "inertia");
    for (size_t p = 0; p < KMEANS_PARTS; p++) {
        const struct kmeans_part *part = &job->part[p];
        if (!part->points) continue;
        printf("%-12s %12.6g  %7s  %.4f  %.4f  %21s  %9s\n", part->name, part->inertia,
               text_percent(part->quality.purity, 2).text, part->quality.nmi, part->quality.ari,
               text_percent(part->accuracy, 2).text, text_percent(part->medoid_accuracy, 2).text);
    }
    terminal_print(stdout, 0,
                   "by medoid: the classes of %s training images are known, those nearest to their centres\n",
                   text_grouped(job->options.clusters - job->result.empty).text);
}

static void print_time(const struct kmeans_job *job) {
    const double total = profile_total(&job->profile);
    const char *residency = points_residency(&job->sets.train);
    const struct point_stream *stream = job->sets.train.stream;
    printf("\n%-*s%.3f s\n", COLUMN, "total time", total);
    if (!job->compute.device.driver->host_memory)
        printf("%-*s%.4f (points on the %s%s%s)\n", COLUMN, "transfer/total",
               profile_transfer_ratio(&job->profile), residency, stream ? ", streamed: " : "",
               stream ? text_bytes((double)stream->uploaded).text : "");
    for (int part = 0; part < PART_COUNT; part++)
        if (job->profile.seconds[part] >= 0.0005)
            printf("  %-24s %9.3f s %6s\n", profile_part_title((enum profile_part)part),
                   job->profile.seconds[part], text_percent(job->profile.seconds[part] / total, 1).text);
}

void kmeans_print_result(const struct kmeans_job *job) {
    const struct kmeans_result *result = &job->result;
    printf("\n%-*s%.9g after %zu iteration%s%s: %s\n", COLUMN, "inertia", result->inertia,
           result->state.iteration, result->state.iteration == 1 ? "" : "s",
           job->options.restarts > 1 ? " of the best restart" : "", kmeans_end_name(result->end));
    if (result->empty) printf("%-*s%zu\n", COLUMN, "empty clusters", result->empty);
    printf("%-*s%s\n", COLUMN, "bounds", result->bounds);
    if (kmeans_is_exact(job)) {
        printf("%-*sexact: %s decided in float64, of these %s by exact arithmetic\n", COLUMN, "labels",
               text_grouped(result->counts.ambiguous).text, text_grouped(result->counts.exact).text);
    } else if (job->options.precision == NEAREST_EXACT) {
        printf("%-*snot exact: for %s, products over- or underflow float64\n", COLUMN, "labels",
               text_grouped(result->counts.uncertified).text);
    } else {
        static const char *const rounded[] = {"", "", " of tf32", " of bf16"};
        printf("%-*sof the %s%s, not certified\n", COLUMN, "labels",
               job->options.step ? "smallest computed distance" : "largest computed score",
               rounded[job->options.precision]);
    }
    print_quality(job);
    print_time(job);
}
