#include "src/cluster/quality.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES = 256 };

size_t quality_scratch(size_t clusters) {
    return clusters * CLASSES;
}

/* table[cluster][class] */
static void tabulate(const uint32_t *cluster, const uint8_t *class, size_t points, size_t clusters,
                     uint64_t *table) {
    memset(table, 0, clusters * CLASSES * sizeof *table);
    for (size_t i = 0; i < points; i++) table[cluster[i] * CLASSES + class[i]]++;
}

static uint8_t largest_class(const uint64_t *row) {
    size_t best = 0;
    for (size_t c = 1; c < CLASSES; c++)
        if (row[c] > row[best]) best = c;
    return (uint8_t)best;
}

void quality_majority(const uint32_t *cluster, const uint8_t *class, size_t points, size_t clusters,
                      uint64_t *scratch, uint8_t *majority) {
    tabulate(cluster, class, points, clusters, scratch);
    for (size_t j = 0; j < clusters; j++) majority[j] = largest_class(scratch + j * CLASSES);
}

/* n ln n, and the number of pairs */
static double entropy_term(double n) {
    return n > 0 ? n * log(n) : 0;
}

static double pairs(double n) {
    return n * (n - 1) / 2;
}

void quality_medoids(const uint32_t *cluster, const double *squared, size_t points, size_t clusters,
                     uint32_t *medoid) {
    for (size_t j = 0; j < clusters; j++) medoid[j] = QUALITY_NO_POINT;
    for (size_t i = 0; i < points; i++) {
        uint32_t *nearest = &medoid[cluster[i]];
        if (*nearest == QUALITY_NO_POINT || squared[i] < squared[*nearest]) *nearest = (uint32_t)i;
    }
}

double quality_accuracy(const uint32_t *cluster, const uint8_t *class, size_t points, const uint8_t *answer) {
    size_t right = 0;
    for (size_t i = 0; i < points; i++) right += answer[cluster[i]] == class[i];
    return (double)right / (double)points;
}

/* Sums of a function over the table, its rows (clusters) and its columns (classes). */
struct margins {
    double table, rows, columns;
};

static struct margins sum_over(const uint64_t *table, size_t clusters, double (*term)(double n)) {
    struct margins sums = {0};
    uint64_t column[CLASSES] = {0};
    for (size_t j = 0; j < clusters; j++) {
        uint64_t row = 0;
        for (size_t c = 0; c < CLASSES; c++) {
            row += table[j * CLASSES + c];
            column[c] += table[j * CLASSES + c];
            sums.table += term((double)table[j * CLASSES + c]);
        }
        sums.rows += term((double)row);
    }
    for (size_t c = 0; c < CLASSES; c++) sums.columns += term((double)column[c]);
    return sums;
}

enum status quality_measure(const uint32_t *cluster, const uint8_t *class, size_t points, size_t clusters,
                            struct quality *quality) {
    uint64_t *table = malloc(quality_scratch(clusters) * sizeof *table);
    if (!table) return status_set(STATUS_FAILED, "out of memory");
    tabulate(cluster, class, points, clusters, table);
    const double n = (double)points;
    double pure = 0;
    for (size_t j = 0; j < clusters; j++)
        pure += (double)table[j * CLASSES + largest_class(table + j * CLASSES)];
    /* H = ln n - sum n_j ln n_j / n; I = H(rows) + H(columns) - H(table) */
    const struct margins terms = sum_over(table, clusters, entropy_term);
    const double rows = log(n) - terms.rows / n, columns = log(n) - terms.columns / n,
                 both = log(n) - terms.table / n;
    const struct margins pair = sum_over(table, clusters, pairs);
    const double expected = points > 1 ? pair.rows * pair.columns / pairs(n) : 0,
                 most = (pair.rows + pair.columns) / 2;
    *quality = (struct quality){
        .points = points,
        .purity = pure / n,
        .nmi = rows + columns > 0 ? fmax(0, 2 * (rows + columns - both) / (rows + columns)) : 1,
        .ari = most != expected ? (pair.table - expected) / (most - expected) : 1};
    free(table);
    return STATUS_OK;
}
