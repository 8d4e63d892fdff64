#include "tests/grades.h"

#include <stdio.h>
#include <stdlib.h>

#include "src/report/records.h"
#include "tests/support.h"

cJSON *grades_read(const char *folder) {
    char path[512];
    size_t length;
    snprintf(path, sizeof path, "%s/grades.json", folder);
    char *text = (char *)support_read(path, &length);
    cJSON *grades = cJSON_ParseWithLength(text, length);
    free(text);
    assert_non_null(grades);
    return grades;
}

const cJSON *grade_of(const cJSON *grades, const char *file) {
    const cJSON *line;
    cJSON_ArrayForEach(line, cJSON_GetObjectItem(grades, "grades")) {
        if (strcmp(record_text(line, "file"), file) == 0) return line;
    }
    char *text = cJSON_Print(grades);
    fail_msg("no row of %s in: %s", file, text);
    return NULL;
}
