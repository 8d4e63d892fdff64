/* README.md, docs/ and comments name only files, commands and flags that exist: tests/docs.sh. */
#include "tests/support.h"

#include <stdlib.h>

static void names_exist(void **state) {
    (void)state;
    const int status = system("sh tests/docs.sh >&2");
    if (status != 0 && WEXITSTATUS(status) == 77) {
        print_message("skipped: no git\n");
        skip();
    }
    assert_int_equal(status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_exist)};
    return cmocka_run_group_tests_name("docs", tests, NULL, NULL);
}
