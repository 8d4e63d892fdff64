/* ./train devices: lists every backend, or why it cannot be used here. */
#include <stdio.h>

#include "src/backend/registry.h"
#include "src/base/platform.h"
#include "src/base/text.h"
#include "src/cmd/backend.h"
#include "src/cmd/command.h"
#include "src/cmd/options.h"

static enum status print_verification(struct compute *compute) {
    size_t checked, skipped;
    const enum status status = backend_verify(compute, &checked, &skipped);
    if (status) {
        printf("                  WRONG: %s\n", status_message());
    } else {
        printf("                  verified: %s GEMM cases right, %s not supported\n",
               text_grouped(checked).text, text_grouped(skipped).text);
    }
    return status;
}

static void print_options(const struct gemm_backend *backend) {
    const struct gemm_option *option = backend ? backend->options : NULL;
    for (; option && option->key; option++)
        printf("                  %s=%s: %s [%s]\n", option->key, option->values, option->help,
               option->fallback);
}

static enum status print_backend(const struct registry_entry *entry, const struct compute_options *options,
                                 bool verify) {
    char why[256] = "";
    if (!registry_usable(entry, why, sizeof why)) {
        printf("  %-14s  not usable: %s\n", entry->name, why);
        print_options(entry->backend);
        return STATUS_OK;
    }
    struct compute compute;
    enum status status = compute_open(&compute, entry->backend, options);
    if (status) {
        printf("  %-14s  not usable: %s\n", entry->name, status_message());
        return STATUS_OK;
    }
    printf("  %-14s  %s: %s (%s)\n", entry->name, compute.device.driver->name, entry->backend->summary,
           compute.description);
    if (compute.gpu[0]) printf("                  on %s\n", compute.gpu);
    print_options(entry->backend);
    if (verify) status = print_verification(&compute);
    compute_close(&compute);
    return status;
}

/* Lists one backend, NAME:options or a plug-in. */
static enum status print_one(const char *name, const struct compute_options *options, bool verify) {
    struct registry_entry entry = {.name = name};
    const enum status status = registry_find(name, &entry.backend);
    return status ? status : print_backend(&entry, options, verify);
}

static enum status print_all(const struct compute_options *options, bool verify) {
    enum status worst = STATUS_OK;
    for (size_t i = 0; i < registry_count(); i++) {
        const enum status status = print_backend(registry_at(i), options, verify);
        if (status) worst = status;
    }
    return worst;
}

static bool is_flag_given(const struct config *config, const char *key) {
    return config->origin[config_key_find(key) - config_key_at(0)] == FROM_FLAG;
}

static enum status run_devices(int argc, char **argv) {
    static const char *const keys[] = {"backend", "threads", "device", "precision", "residency", "pin", NULL};
    const char *verify = NULL;
    const struct option_extra extras[] = {
        {"verify", NULL,
         "check every usable backend against a float64 reference; exit with 5 if one is wrong", &verify},
    };
    const struct option_set set = {
        .usage = "devices [--backend NAME] [--verify] [--device N]...",
        .details =
            "Lists every GEMM backend that the program knows: what it is, or why it cannot be used here.\n"
            "With --backend, that one alone; ./my.so is a plug-in (docs/your-own-gemm.md).\n"
            "  ./train devices --backend ./my.so --verify",
        .keys = keys,
        .extras = extras,
        .extra_count = sizeof extras / sizeof *extras,
    };
    struct config config;
    bool help;
    const enum status parsed = options_parse(&set, argc, argv, &config, &help);
    if (parsed || help) return parsed;

    const bool one = is_flag_given(&config, "backend");
    struct compute_options options = config_compute(&config);
    if (!one) options.options = NULL; /* TESSERA_BACKEND may have some */
    printf("machine    %s; %s; %s of memory\n", platform_cpu(), platform_system(),
           text_bytes((double)platform_memory()).text);
    printf("build      Tessera %s, commit %s; %s %s\n", TESSERA_VERSION, platform_commit(),
           platform_compiler(), platform_flags());
    printf("backends\n");
    return one ? print_one(config.backend, &options, verify != NULL) : print_all(&options, verify != NULL);
}

const struct command command_devices = {"devices", "list the GEMM backends, and why one cannot be used here",
                                        run_devices};
