/* ./train bench: several measurements, one file each. */
#include <stdio.h>
#include <string.h>

#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cmd/command.h"

static const struct command *const benches[] = {&bench_gemm,   &bench_scaling, &bench_breakeven, &bench_shmem,
                                                &bench_kmeans, &bench_qr,      &bench_call};
enum { BENCHES = sizeof benches / sizeof *benches };

static void print_benches(void) {
    terminal_print(
        stdout, 0,
        "usage: %s bench NAME [--FLAG VALUE]...\n\nMeasures matrix multiplies, and their effect on "
        "training:\n",
        terminal_program());
    for (size_t i = 0; i < BENCHES; i++) printf("  %-9s  %s\n", benches[i]->name, benches[i]->summary);
    terminal_print(
        stdout, 0,
        "\n'./train bench NAME --help' explains one. './train bench --baseline old.jsonl' is './train bench "
        "gemm --baseline old.jsonl'.\n");
}

static enum status run_bench(int argc, char **argv) {
    const char *names[BENCHES];
    if (argc > 1 && strncmp(argv[1], "--baseline", 10) == 0) return bench_gemm.run(argc, argv);
    if (argc > 1 && strcmp(argv[1], "--list-flags") == 0) {
        for (size_t i = 0; i < BENCHES; i++) printf("%s\t\t%s\t\n", benches[i]->name, benches[i]->summary);
        return STATUS_OK;
    }
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_benches();
        return STATUS_OK;
    }
    for (size_t i = 0; i < BENCHES; i++) {
        names[i] = benches[i]->name;
        if (argc > 1 && strcmp(argv[1], names[i]) == 0) return benches[i]->run(argc - 1, argv + 1);
    }
    if (argc < 2)
        return status_set(
            STATUS_USAGE,
            "bench needs a name: gemm, scaling, breakeven, shmem, kmeans, qr or call (./train bench --help)");
    const char *near = text_nearest(argv[1], names, BENCHES);
    return status_set(STATUS_USAGE, "no bench is called '%s'%s%s%s (./train bench --help lists them)",
                      argv[1], near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

const struct command command_bench = {"bench", "measure: GEMM rates, scaling, break-even, k-means, QR",
                                      run_bench};
