/* An ensemble of several processes: each trains its members, and tells rank 0 of them. */
#ifndef TESSERA_NN_ENSEMBLE_RANKS_H
#define TESSERA_NN_ENSEMBLE_RANKS_H

#include "src/nn/ensemble.h"

/* The observer of the other ranks: events are kept for rank 0. A member's last warning is kept. */
extern const struct ensemble_observer ensemble_history;

/* All that rank 0 needs of a trained member: results, events, summary and status. */
void ensemble_send_member(const struct ensemble *ensemble, struct member *member);

/* Receives it, and calls the observer of this ensemble for each event. */
enum status ensemble_receive_member(struct ensemble *ensemble, struct member *member);

void ensemble_free_history(struct member *member);

#endif
