#include "src/nn/engine.h"

#include <stdio.h>

#include "src/base/text.h"
#include "src/comm/comm.h"

static enum status graph_unavailable(const char *why) {
    return status_set(STATUS_UNAVAILABLE, "engine graph cannot be used here: %s; use --engine eager", why);
}

/* The gradients of all parts are summed between the passes and the update: no engine fused. */
static enum status select_for_parts(struct trainer *trainer) {
    const enum engine_choice choice = (enum engine_choice)trainer->config->engine;
    const struct comm *comm = trainer->compute->comm;
    char why[256] = "";
    const bool graph =
        engine_graph_available(trainer, why, sizeof why) && comm_captures(comm, why, sizeof why);
    trainer->engine = graph && choice != ENGINE_EAGER ? &engine_graph : &engine_eager;
    if (choice == ENGINE_FUSED)
        return status_set(STATUS_UNAVAILABLE,
                          "engine fused makes whole steps, without the sums %s: use --engine auto",
                          comm_size(comm) > 1 ? "over several processes" : "of --reduction fixed");
    return choice == ENGINE_GRAPH && !graph ? graph_unavailable(why) : STATUS_OK;
}

enum status engine_select(struct trainer *trainer) {
    const enum engine_choice choice = (enum engine_choice)trainer->config->engine;
    char why[256] = "";
    if (trainer->parallel.parts > 1) return select_for_parts(trainer);
    trainer->engine = &engine_fused;
    if ((choice == ENGINE_AUTO || choice == ENGINE_FUSED) && engine_fused.open(trainer, why, sizeof why))
        return STATUS_OK;
    if (choice == ENGINE_FUSED)
        snprintf(trainer->notice, sizeof trainer->notice,
                 "engine fused cannot be used here: %s; eager instead", why);
    trainer->engine = &engine_graph;
    if ((choice == ENGINE_AUTO || choice == ENGINE_GRAPH) && engine_graph.open(trainer, why, sizeof why))
        return STATUS_OK;
    trainer->engine = &engine_eager;
    if (choice != ENGINE_GRAPH) return STATUS_OK;
    return graph_unavailable(why);
}

void engine_describe(const struct trainer *trainer, char *text, size_t size) {
    const struct config *config = trainer->config;
    const char *unsupported = engine_fused_unsupported(config);
    char how[128] = "";
    if (trainer->engine == &engine_fused) {
        engine_fused_describe(trainer, how, sizeof how);
    } else if (trainer->compute->backend->fused && config->engine == ENGINE_AUTO && unsupported) {
        snprintf(how, sizeof how, "fused does not support %s", unsupported);
    }
    snprintf(text, size, "%s%s%s%s", trainer->engine->name, how[0] ? " (" : "", how, how[0] ? ")" : "");
}

void engine_explain(const struct trainer *trainer, char *text, size_t size) {
    char why[256] = "";
    engine_fused_explain(trainer, text, size);
    const bool graph = engine_graph_available(trainer, why, sizeof why);
    text_append(text, size, "graph: %s%s\neager: yes\n", graph ? "yes" : "no, ", graph ? "" : why);
    text_append(text, size, "--engine %s takes %s\n", config_choice("engine", trainer->config->engine),
                trainer->engine->name);
}
