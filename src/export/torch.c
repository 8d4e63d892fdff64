#include <stdlib.h>
#include <string.h>

#include "src/base/memstream.h"
#include "src/base/platform.h"
#include "src/export/activation_forms.h"
#include "src/export/formats.h"

char *torch_sequential(const struct network *network) {
    struct memstream memory;
    enum status status = memstream_open(&memory);
    for (size_t l = 0; l < network->depth && !status; l++) {
        if (l) fprintf(memory.out, ", %s, ", activation_forms[network->activation].torch);
        fprintf(memory.out, "%snn.Linear(%zu, %zu)", l ? "" : "nn.Sequential(", network->layers.width[l],
                network->layers.width[l + 1]);
    }
    if (!status) fprintf(memory.out, ")");
    memstream_close(&memory, status);
    return memory.text;
}

enum status torch_write(const struct network *network, const char *path) {
    char *module = torch_sequential(network);
    char input[512], classes[CLASSES_TEXT + 1];
    struct tensor *tensors = calloc(2 * network->depth, sizeof *tensors);
    network_describe(network, input, sizeof input);
    classes_text(&network->classes, classes);
    const struct metadata metadata[] = {{"format", "pt"},
                                        {"tessera.version", TESSERA_VERSION},
                                        {"tessera.network", input},
                                        {"torch", module},
                                        {"tessera.classes", classes}}; /* the last, if there are names */
    const size_t entries = sizeof metadata / sizeof *metadata - !network->classes.count;
    enum status status = module && tensors ? STATUS_OK : status_set(STATUS_FAILED, "out of memory");
    for (size_t i = 0; i < 2 * network->depth && !status; i++) {
        tensors[i] = *network_tensor(network, i / 2, i % 2);
        /* a Linear and its activation are two modules */
        snprintf(tensors[i].name, sizeof tensors[i].name, "%zu.%s", i / 2 * 2, i % 2 ? "bias" : "weight");
    }
    if (!status) status = safetensors_write(path, tensors, 2 * network->depth, metadata, entries);
    free(tensors);
    free(module);
    return status;
}
