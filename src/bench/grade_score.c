/* Points and ranks, from the measurements and the rubric: a rerun with other points measures nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/bench/grade.h"
#include "src/report/records.h"

/* The sum over the products of one op (NULL: of all) of seconds, and of what they are compared with. */
struct total {
    double flops, seconds, at_peak, relative;
};

static struct total total_of(const cJSON *line, const char *op) {
    struct total total = {0};
    const cJSON *product;
    cJSON_ArrayForEach(product, cJSON_GetObjectItemCaseSensitive(line, "products")) {
        const double seconds = record_number(product, "median_seconds");
        const double flops = 1e9 * record_number(product, "gflops") * seconds;
        if (!(seconds > 0) || (op && strcmp(record_text(product, "op"), op) != 0)) continue;
        total.seconds += seconds;
        total.flops += flops;
        total.at_peak += record_number(product, "share_of_peak") * seconds;
        total.relative += record_number(product, "relative") * seconds;
    }
    return total;
}

static void set_number(cJSON *line, const char *key, double value) {
    cJSON_DeleteItemFromObjectCaseSensitive(line, key);
    if (isfinite(value)) cJSON_AddNumberToObject(line, key, value);
}

/* Rates over all products together: what they compute, by the time that they take. */
static void add_rates(cJSON *line) {
    static const char *const ops[] = {"NN", "TN", "NT"};
    static const char *const keys[] = {"nn_gflops", "tn_gflops", "nt_gflops"};
    const struct total all = total_of(line, NULL);
    for (int i = 0; i < 3; i++) {
        const struct total one = total_of(line, ops[i]);
        set_number(line, keys[i], 1e-9 * one.flops / one.seconds);
    }
    set_number(line, "gflops", 1e-9 * all.flops / all.seconds);
    set_number(line, "share_of_peak", all.at_peak / all.seconds);
    set_number(line, "relative", all.relative / all.seconds);
}

/* The mean over all products of the assignment of the speed, as a part of full speed. */
static double speed_of(const cJSON *line, const struct assignment *assignment) {
    const char *key = assignment->relative[0] ? "relative" : "share_of_peak";
    double sum = 0;
    const cJSON *product;
    cJSON_ArrayForEach(product, cJSON_GetObjectItemCaseSensitive(line, "products")) {
        const double speed = record_number(product, key);
        if (speed > 0) sum += fmin(1, speed / assignment->full_speed);
    }
    return sum / (double)assignment_products(assignment);
}

static void add_points(cJSON *line, const struct assignment *assignment) {
    const bool right = strcmp(record_text(line, "outcome"), "right") == 0;
    const double correct = right                          ? assignment->points_correct
                           : record_has(line, "products") ? assignment->points_partial
                                                          : 0;
    const double speed = assignment->points_speed * speed_of(line, assignment);
    set_number(line, "points_correct", correct);
    set_number(line, "points_speed", speed);
    set_number(line, "points", correct + speed);
}

static int compare_key(const cJSON *a, const cJSON *b, const char *key) {
    const double x = record_number(a, key), y = record_number(b, key);
    return (y > x || (isnan(x) && !isnan(y))) - (x > y || (isnan(y) && !isnan(x)));
}

static int by_rank(const void *a, const void *b) {
    const cJSON *x = *(cJSON *const *)a, *y = *(cJSON *const *)b;
    int order = compare_key(x, y, "points");
    if (!order) order = compare_key(x, y, "share_of_peak");
    return order ? order : strcmp(record_text(x, "file"), record_text(y, "file"));
}

void grade_rank(cJSON **lines, size_t count, const struct assignment *assignment) {
    for (size_t i = 0; i < count; i++) {
        add_rates(lines[i]);
        add_points(lines[i], assignment);
    }
    qsort(lines, count, sizeof *lines, by_rank);
    for (size_t i = 0; i < count; i++) {
        const bool tied = i && compare_key(lines[i - 1], lines[i], "points") == 0 &&
                          compare_key(lines[i - 1], lines[i], "share_of_peak") == 0;
        set_number(lines[i], "rank", tied ? record_number(lines[i - 1], "rank") : (double)i + 1);
        cJSON_DeleteItemFromObjectCaseSensitive(lines[i], "assignment");
        jsonl_text(lines[i], "assignment", assignment->name);
    }
}
