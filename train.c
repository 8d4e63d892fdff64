/* Tessera: dispatches argv to a command; the only file that calls exit(). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef HAVE_OPENMP
#    include <omp.h>
#endif

#include "src/base/platform.h"
#include "src/base/process.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/bench/serve.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"

static const struct command *const commands[] = {
    &command_train,  &command_eval,   &command_predict, &command_compare,    &command_bench,
    &command_grade,  &command_report, &command_data,    &command_devices,    &command_augment,
    &command_export, &command_kmeans, &command_readout, &command_new_backend};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_commands(void) {
    terminal_print(stdout, 0,
                   "Tessera %s: trains a neural network from scratch with the GEMM of your choice.\n\n"
                   "usage: %s [COMMAND] [--FLAG VALUE]...\n\ncommands:\n",
                   TESSERA_VERSION, terminal_program());
    for (size_t i = 0; i < COMMANDS; i++) printf("  %-11s  %s\n", commands[i]->name, commands[i]->summary);
    terminal_print(stdout, 0,
                   "\n'./train COMMAND --help' explains a command. Without one, the command is "
                   "'train':\n\n");
}

static void list_commands(void) {
    for (size_t i = 0; i < COMMANDS; i++) printf("%s\t\t%s\t\n", commands[i]->name, commands[i]->summary);
}

/* "help eval" is "eval --help". */
static void turn_help(int argc, char **argv) {
    static char help[] = "--help";
    for (int i = 1; i + 1 < argc; i++) argv[i] = argv[i + 1];
    argv[argc - 1] = help;
}

static const struct command *find_command(const char *name) {
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    const char *names[COMMANDS];
    for (size_t i = 0; i < COMMANDS; i++) names[i] = commands[i]->name;
    const char *near = text_nearest(name, names, COMMANDS);
    status_write("unknown command '%s'%s%s%s (./train --help lists them)", name,
                 near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    return NULL;
}

static enum status dispatch(int argc, char **argv) {
    const struct command *command = &command_train;
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        printf("Tessera %s (commit %s, %s %s)\n", TESSERA_VERSION, platform_commit(), platform_compiler(),
               platform_flags());
        return STATUS_OK;
    }
    if (argc > 1 && strcmp(argv[1], "help") == 0) turn_help(argc, argv);
    if (argc > 1 && (strncmp(argv[1], "--help", 6) == 0 || strcmp(argv[1], "-h") == 0)) print_commands();
    if (argc > 1 && strcmp(argv[1], "--list-flags") == 0) list_commands();
    if (argc > 1 && argv[1][0] != '-' && !options_is_config(argv[1])) {
        command = find_command(argv[1]);
        if (!command) return STATUS_USAGE;
        argc--;
        argv++;
    }
    return command->run(argc, argv);
}

/* Skips exit handlers and destructors of libraries and plug-ins: one that hangs or crashes would take the
   exit code with it. They run only for a tool that reports in one: a profiler named by the environment, or
   one that is compiled in (NORMAL_EXIT, see the Makefile). */
static _Noreturn void leave(int code) {
#ifndef NORMAL_EXIT
    if (!getenv("LD_PRELOAD") && !getenv("CUDA_INJECTION64_PATH")) {
#    ifdef HAVE_OPENMP
        omp_pause_resource_all(omp_pause_hard); /* LLVM's runtime removes its file in /dev/shm */
#    endif
        _exit(code);
    }
#endif
    exit(code);
}

int main(int argc, char **argv) {
    process_limit_spinning(argv);
    process_open();
    if (serve_requested(argc, argv)) serve_contest();
    platform_load(); /* read once, before the program's own threads run */
    const enum status status = dispatch(argc, argv);
    if (status && status_message()[0]) terminal_note("%s", status_message());
    leave(process_flush(status));
}
