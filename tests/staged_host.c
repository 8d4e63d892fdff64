#include "tests/staged_host.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

struct device_driver staged_host;
size_t staged_uploads, staged_pinned;

static struct {
    void *to;
    const void *from;
    size_t bytes;
    bool pending, held; /* not copied yet; copied, and may be read */
    void *snapshot;     /* of `from` until a wait: a GPU may still read it; NULL: it may be reused */
} stages[2];

static void copy(unsigned stage) {
    if (stages[stage].pending) memcpy(stages[stage].to, stages[stage].from, stages[stage].bytes);
    stages[stage].pending = false;
}

/* The host may reuse `from` from now on. */
static void forget(unsigned stage) {
    free(stages[stage].snapshot);
    stages[stage].snapshot = NULL;
}

static void upload(struct device *device, unsigned stage, void *to, const void *from, size_t bytes) {
    (void)device;
    if (stages[stage].pending || stages[stage].held) fail_msg("stage %u is in use", stage);
    if (stages[stage].snapshot &&
        memcmp(stages[stage].from, stages[stage].snapshot, stages[stage].bytes) != 0)
        fail_msg("the source of stage %u was written before the wait", stage);
    forget(stage);
    stages[stage].snapshot = malloc(bytes);
    assert_non_null(stages[stage].snapshot);
    memcpy(stages[stage].snapshot, from, bytes);
    memset(to, 0xa5, bytes);
    stages[stage].to = to;
    stages[stage].from = from;
    stages[stage].bytes = bytes;
    stages[stage].pending = true;
    staged_uploads++;
}

static void acquire(struct device *device, unsigned stage) {
    (void)device;
    copy(stage);
    stages[stage].held = true;
}

static void release(struct device *device, unsigned stage) {
    (void)device;
    if (stages[stage].held) memset(stages[stage].to, 0xa5, stages[stage].bytes);
    stages[stage].held = false;
}

static void wait_for(struct device *device, unsigned stage) {
    (void)device;
    copy(stage);
    forget(stage);
}

/* The size stands before the memory. */
static void *alloc_pinned(struct device *device, size_t bytes) {
    (void)device;
    char *memory = aligned_alloc(64, 64 + (bytes + 63) / 64 * 64);
    assert_non_null(memory);
    memcpy(memory, &bytes, sizeof bytes);
    staged_pinned += bytes;
    return memory + 64;
}

static void free_pinned(struct device *device, void *memory) {
    size_t bytes;
    (void)device;
    memcpy(&bytes, (char *)memory - 64, sizeof bytes);
    staged_pinned -= bytes;
    free((char *)memory - 64);
}

void staged_host_open(void) {
    staged_host = device_host;
    staged_host.stage_upload = upload;
    staged_host.stage_acquire = acquire;
    staged_host.stage_release = release;
    staged_host.stage_wait = wait_for;
    staged_host.alloc_pinned = alloc_pinned;
    staged_host.free_pinned = free_pinned;
}
