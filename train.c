/* Tessera: dispatches argv to a command; the only file that calls exit(). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/platform.h"
#include "src/base/text.h"
#include "src/bench/serve.h"
#include "src/cmd/command.h"

static const struct command *const commands[] = {&command_train,  &command_eval,   &command_compare,
                                                 &command_bench,  &command_report, &command_devices,
                                                 &command_augment};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_commands(void) {
    printf("Tessera %s: trains a neural network from scratch with the GEMM of your choice.\n\n"
           "usage: train [COMMAND] [--FLAG VALUE]...\n\ncommands:\n",
           TESSERA_VERSION);
    for (size_t i = 0; i < COMMANDS; i++) printf("  %-9s  %s\n", commands[i]->name, commands[i]->summary);
    printf("\n'train COMMAND --help' explains a command. The default command is 'train'; its flags:\n\n");
}

static const struct command *find_command(const char *name) {
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    const char *names[COMMANDS];
    for (size_t i = 0; i < COMMANDS; i++) names[i] = commands[i]->name;
    const char *near = text_nearest(name, names, COMMANDS);
    status_write("unknown command '%s'%s%s%s (train --help lists them)", name, near ? "; did you mean '" : "",
                 near ? near : "", near ? "'?" : "");
    return NULL;
}

static enum status dispatch(int argc, char **argv) {
    const struct command *command = &command_train;
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        printf("Tessera %s (commit %s, %s %s)\n", TESSERA_VERSION, platform_commit(), platform_compiler(),
               platform_flags());
        return STATUS_OK;
    }
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) print_commands();
    if (argc > 1 && argv[1][0] != '-') {
        command = find_command(argv[1]);
        if (!command) return STATUS_USAGE;
        argc--;
        argv++;
    }
    return command->run(argc, argv);
}

int main(int argc, char **argv) {
    if (serve_requested(argc, argv)) serve_contest();
    const enum status status = dispatch(argc, argv);
    if (status) fprintf(stderr, "train: %s\n", status_message());
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "train: cannot write to standard output\n");
        exit(status ? (int)status : STATUS_FAILED);
    }
    exit((int)status);
}
