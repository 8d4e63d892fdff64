#include "src/report/networks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"
#include "src/base/text.h"

void networks_recipe(const struct record *record, char *key, size_t size) {
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(record->header, "config");
    const char *layers = record_text(config, "layers"), *batch = record_text(config, "batch-size");
    snprintf(key, size, "%.160s, batch %.20s, learning rate %.20s", layers[0] ? layers : "unknown network",
             batch[0] ? batch : "unknown", record_text(config, "learning-rate"));
}

double networks_seed(const struct record *record) {
    const double seed =
        record_number(record_has(record->line, "seed") ? record->line : record->header, "seed");
    return isfinite(seed) ? seed : -1;
}

bool networks_same(const struct record *a, const struct record *b) {
    return a->run == b->run && networks_seed(a) == networks_seed(b);
}

/* By run, seed, then position: networks that train at the same time write alternately. */
static int by_network(const void *a, const void *b) {
    const struct record *x = *(const struct record *const *)a, *y = *(const struct record *const *)b;
    if (x->run == y->run && !networks_same(x, y)) return networks_seed(x) < networks_seed(y) ? -1 : 1;
    return (x > y) - (x < y); /* in the order of the files */
}

static const cJSON *config_of(const struct network *network) {
    return cJSON_GetObjectItemCaseSensitive(network->rows[0]->header, "config");
}

/* Does another network have another value of this key? */
static bool differs(const struct networks *all, const char *key, const char *value) {
    for (size_t i = 0; i < all->count; i++) {
        const char *other = record_text(config_of(&all->list[i]), key);
        if (other[0] && strcmp(other, value) != 0) return true;
    }
    return false;
}

/* Is the key part of the heading, or of the label in another form? */
static bool is_named(const char *key) {
    static const char *const names[] = {"layers", "batch-size", "learning-rate", "seed", "dtype"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(key, names[i]) == 0) return true;
    return false;
}

/* "tuned, fused, 2 threads, seed 1, dropout 0.2": the compute, the seed, and each key of the config in which
   the networks differ. */
static void write_label(const struct networks *all, struct network *network) {
    const double seed = networks_seed(network->rows[0]);
    const cJSON *item;
    row_label(network->rows[0]->header, network->label, sizeof network->label);
    if (seed >= 0) text_append(network->label, sizeof network->label, ", seed %.0f", seed);
    cJSON_ArrayForEach(item, config_of(network)) {
        const char *key = item->string, *value = cJSON_GetStringValue(item);
        if (!key || !value || !value[0] || is_named(key)) continue;
        if (differs(all, key, value))
            text_append(network->label, sizeof network->label, ", %.40s %.60s", key, value);
    }
}

/* Networks that nothing tells apart are numbered. */
static void number_labels(struct networks *all) {
    for (size_t i = all->count; i-- > 0;) {
        size_t same = 0;
        for (size_t j = 0; j < i; j++) same += strcmp(all->list[i].label, all->list[j].label) == 0;
        if (same) text_append(all->list[i].label, sizeof all->list[i].label, ", run %zu", same + 1);
    }
}

struct networks networks_of(struct selection *rows) {
    qsort(rows->rows, rows->count, sizeof *rows->rows, by_network);
    struct networks all = {memory_zero(rows->count, sizeof *all.list), 0};
    for (size_t i = 0; all.list && i < rows->count; i++) {
        if (i == 0 || !networks_same(rows->rows[i], rows->rows[i - 1]))
            all.list[all.count++] = (struct network){.rows = &rows->rows[i]};
        all.list[all.count - 1].count++;
    }
    for (size_t i = 0; i < all.count; i++) {
        write_label(&all, &all.list[i]);
        all.list[i].style = chart_style_of(i);
    }
    number_labels(&all);
    return all;
}

/* Does a run of the logs have another value of this key? */
static bool differs_in_logs(const struct records *records, const char *key, const char *value) {
    const struct record *row = NULL;
    while ((row = records_after(records, row, "epoch"))) {
        const cJSON *config = cJSON_GetObjectItemCaseSensitive(row->header, "config");
        const char *other = record_text(config, key);
        if (other[0] && strcmp(other, value) != 0) return true;
    }
    return false;
}

void networks_common(const struct networks *all, const struct records *records, char *text, size_t size) {
    const cJSON *item;
    text[0] = '\0';
    if (!all->count) return;
    cJSON_ArrayForEach(item, config_of(&all->list[0])) {
        const char *key = item->string, *value = cJSON_GetStringValue(item);
        if (!key || !value || !value[0] || is_named(key)) continue;
        if (strcmp(value, "0") == 0 || strcmp(value, "off") == 0 || differs(all, key, value)) continue;
        if (differs_in_logs(records, key, value))
            text_append(text, size, "%s%.40s %.60s", text[0] ? ", " : "", key, value);
    }
}
