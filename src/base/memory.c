#include "src/base/memory.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local bool ran_out;

static void *noted(void *memory) {
    if (!memory) ran_out = true;
    return memory;
}

void *memory_resize(void *memory, size_t bytes) {
    return noted(realloc(memory, bytes));
}

void *memory_zero(size_t count, size_t bytes) {
    return noted(calloc(count, bytes));
}

char *memory_copy(const char *text) {
    return noted(strdup(text));
}

static void *allocate(size_t bytes) {
    return noted(malloc(bytes));
}

void memory_watch_json(void) {
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = allocate, .free_fn = free});
}

bool memory_ran_out(void) {
    const bool was = ran_out;
    ran_out = false;
    return was;
}
