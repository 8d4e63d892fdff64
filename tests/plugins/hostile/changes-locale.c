/* Changes the locale. */
#include "tests/plugins/hostile/hostile.h"

#include <locale.h>

static void attack(void) {
    setlocale(LC_ALL, "C.UTF-8");
}

HOSTILE("changes-locale");
