/* The macros of the compiler as data. Compiled with the flags of all other files; holds no code. */
#include "src/base/cpu.h"

/* The text of a macro is "1" if it is defined, else its own name. */
#define TEXT(macro) #macro
#define IS_DEFINED(macro, name, word, bit, state) sizeof TEXT(macro) == sizeof "1",

const bool cpu_needed[CPU_FEATURE_COUNT] = {CPU_FEATURES(IS_DEFINED)};
