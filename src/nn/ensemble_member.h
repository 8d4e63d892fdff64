/* One member of an ensemble: its config and files, and its trainer with a backend. Private to the files
   ensemble*.c. */
#ifndef TESSERA_NN_ENSEMBLE_MEMBER_H
#define TESSERA_NN_ENSEMBLE_MEMBER_H

#include "src/nn/ensemble.h"

/* The members of this process, and the distance from one of them to the next. */
size_t ensemble_own_members(const struct ensemble *ensemble);
size_t ensemble_stride(const struct ensemble *ensemble);

/* The common config with the seed and the files of this member. */
enum status member_config(struct member *member, const struct config *config, size_t index);

/* Opens its trainer, with `first` or, if the ensemble is concurrent and this is not its first member, a
   backend of its own. member_close is right after a failure, too, and for a member that was never opened. */
enum status member_open(struct member *member, struct compute *first);
void member_close(struct member *member);

/* `status`, with the seed of the member in its message if it is a failure. */
enum status member_status(const struct member *member, enum status status);

#endif
