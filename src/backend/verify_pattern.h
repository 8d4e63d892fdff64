/* What have the cases that a wrong backend fails in common? For the message of a failed verification. */
#ifndef TESSERA_BACKEND_VERIFY_PATTERN_H
#define TESSERA_BACKEND_VERIFY_PATTERN_H

#include "src/backend/verify.h"

/* After `failed` has failed: runs a sample of the small cases of the same dtype, and appends to the status
   message what the wrong ones have in common: "; 96 of 270 small cases are wrong, all with op TN". */
void verify_pattern(struct compute *compute, const struct verify_case *failed);

#endif
