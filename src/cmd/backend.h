/* The backend that the user asked for, ready to compute with: how every command opens it. */
#ifndef TESSERA_CMD_BACKEND_H
#define TESSERA_CMD_BACKEND_H

#include "src/bench/sweep.h"
#include "src/nn/config.h"

/* Finds config->backend, opens it on its device with the threads, precision and residency of the config, and
   verifies it if it is a plug-in, before anything else uses it; a line on stderr says so. A plug-in that is
   wrong is STATUS_VERIFY_FAILED with the first wrong case; one without NN, TN or NT in the config's dtype is
   STATUS_UNAVAILABLE. On failure nothing is open. */
enum status backend_open(const struct config *config, struct compute *compute);

/* Verifies each plug-in among the rows, once for each set-up. One that is wrong stays in the sweep with
   row->wrong; one that cannot be used is STATUS_UNAVAILABLE. For a training it must have NN, TN and NT in the
   dtype of the row. */
enum status backend_check_plugins(struct sweep *sweep, bool training);

/* The whole case list of verify.h. Should the backend crash in it, the case is named on stderr before the
   program ends. */
enum status backend_verify(struct compute *compute, size_t *checked, size_t *skipped);

#endif
