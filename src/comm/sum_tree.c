#include "src/comm/sum_tree.h"

#include <stdbool.h>

/* Ranks r and r ^ 1 each keep half of the elements and add the other's; then r and r ^ 2 half of these,
   and so on; and back, until all have all. Each element is summed as the same tree. `ranks` is a power of
   two; the others do not take part. */
static void sum_powers(const struct sum_channel *channel, int rank, int ranks, char *data, size_t count) {
    const size_t size = channel->element;
    size_t low[16], high[16]; /* sizes of the halves, by level */
    int level = 0;
    for (int bit = 1; bit < ranks; bit *= 2, level++) {
        const bool upper = rank & bit;
        low[level] = count / 2;
        high[level] = count - low[level];
        count = upper ? high[level] : low[level];
        const size_t give = upper ? low[level] : high[level];
        char *given = upper ? data : data + low[level] * size;
        data += upper ? low[level] * size : 0;
        channel->exchange(channel->self, rank ^ bit, given, give * size, channel->received, count * size);
        channel->add(channel->self, data, channel->received, count);
    }
    while (level-- > 0) {
        const int bit = 1 << level;
        const bool upper = rank & bit;
        const size_t other = upper ? low[level] : high[level];
        char *missing = upper ? data - other * size : data + count * size;
        channel->exchange(channel->self, rank ^ bit, data, count * size, missing, other * size);
        data -= upper ? other * size : 0;
        count += other;
    }
}

/* Ranks beyond the largest power of two give their data to one below it, and get the sum back. */
void sum_tree(const struct sum_channel *channel, int rank, int size, void *data, size_t count) {
    const size_t bytes = count * channel->element;
    int ranks = 1;
    while (2 * ranks <= size) ranks *= 2;
    const int partner = rank < ranks ? rank + ranks : rank - ranks;
    const bool extra = rank >= ranks, helps = !extra && partner < size;
    if (extra) channel->exchange(channel->self, partner, data, bytes, NULL, 0);
    if (helps) {
        channel->exchange(channel->self, partner, NULL, 0, channel->received, bytes);
        channel->add(channel->self, data, channel->received, count);
    }
    if (!extra) sum_powers(channel, rank, ranks, data, count);
    if (helps) channel->exchange(channel->self, partner, data, bytes, NULL, 0);
    if (extra) channel->exchange(channel->self, partner, NULL, 0, data, bytes);
}
