/* The commands of the program: one file each, one line each in train.c. */
#ifndef TESSERA_CMD_COMMAND_H
#define TESSERA_CMD_COMMAND_H

#include "src/base/status.h"

struct command {
    const char *name, *summary;
    /* argv[0] is the command's name. On failure status_message has the reason. */
    enum status (*run)(int argc, char **argv);
};

extern const struct command command_train, command_eval, command_compare, command_bench, command_report,
    command_devices, command_augment, command_data, command_predict, command_export, command_new_backend,
    command_grade, command_kmeans, command_readout;

/* The parts of `train bench`. */
extern const struct command bench_gemm, bench_scaling, bench_shmem, bench_breakeven, bench_call, bench_kmeans,
    bench_qr;

#endif
