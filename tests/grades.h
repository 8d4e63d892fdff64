/* What the command grade wrote. */
#ifndef TESSERA_TESTS_GRADES_H
#define TESSERA_TESTS_GRADES_H

#include <cjson/cJSON.h>

/* Reads grades.json of the folder. The caller deletes it. */
cJSON *grades_read(const char *folder);

/* The row of a file; fails the test if there is none. */
const cJSON *grade_of(const cJSON *grades, const char *file);

#endif
