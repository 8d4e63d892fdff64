/* Opens and verifies the backend of --backend: used by every command. */
#ifndef TESSERA_CMD_BACKEND_H
#define TESSERA_CMD_BACKEND_H

#include "src/bench/sweep.h"
#include "src/data/dataset.h"
#include "src/nn/config.h"

/* Finds config->backend, opens it on its device with the threads, precision and residency of the config, and
   verifies it if it is a plug-in; a line on stderr reports this. STATUS_VERIFY_FAILED names the first wrong
   case of a plug-in; STATUS_UNAVAILABLE if it lacks NN, TN or NT in the config's dtype. On failure nothing is
   open. */
enum status backend_open(const struct config *config, struct compute *compute);

/* If `backend` is a plug-in, verifies what this training will run: its products and those of an evaluation,
   and its first steps against float64, with the engine of the config. */
enum status backend_verify_run(const struct config *config, const struct gemm_backend *backend,
                               const struct dataset_pair *data);

/* If the backend is a plug-in, verifies these cases as well. Closes `compute` if one is wrong. */
struct verify_case;
enum status backend_verify_cases(struct compute *compute, const struct verify_case *cases, size_t count);

/* Before the sweep of a command is opened: shares `data` (or NULL) with the contestants. `timeout`: the flag,
   or NULL: ten times `limit_seconds`, at least 600; never, if there is no limit. */
enum status backend_prepare_contest(const struct dataset_pair *data, const char *timeout,
                                    double limit_seconds);
#define BACKEND_TIMEOUT_FLAG(value)                                                                         \
    {                                                                                                       \
        "timeout-seconds", "S",                                                                             \
            "end a backend without progress for so long; 0: never [10 times --limit-seconds, 600 or more]", \
            value                                                                                           \
    }

/* Verifies the plug-in of each row, in its contestant, and warns of rows with too many threads. A wrong one
   stays in the sweep with row->wrong; STATUS_UNAVAILABLE if one cannot be used. For a training it must have
   NN, TN and NT in the dtype of the row. */
enum status backend_check_plugins(struct sweep *sweep, bool training);

#endif
