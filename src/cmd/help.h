/* --help of a command, from its flags and the table of keys. */
#ifndef TESSERA_CMD_HELP_H
#define TESSERA_CMD_HELP_H

#include "src/cmd/options.h"

typedef void help_printer(const struct option_set *set);

/* --help explains the flags of the command and the common keys, and names the others by group. */
void help_print(const struct option_set *set);
/* --help-all explains all of them, and the options of the backends. */
void help_print_all(const struct option_set *set);

/* --list-flags, for src/install/: a line for each flag, "--name TAB argument TAB help TAB group". The
   argument is "" for a switch and "a|b" for choices, the group "" for a flag of the command alone. */
void help_list(const struct option_set *set);

#endif
