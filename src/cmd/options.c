#include "src/cmd/options.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/base/text.h"

enum {
    FLAG_HELP = 1,
    FLAG_CONFIG,
    FLAG_EXTRA = 300 /* above all letters */,
    FLAG_KEY = 1000,
    MOST_FLAGS = 2 * CONFIG_MAX_KEYS + 32
};

/* The arguments of getopt_long, and the names for "did you mean". */
struct flags {
    struct option list[MOST_FLAGS];
    size_t count;
    char letters[2 * MOST_FLAGS]; /* short flags in the form of getopt: "ho:" */
};

static void add_flag(struct flags *flags, const char *name, bool argument, int value) {
    flags->list[flags->count++] =
        (struct option){.name = name, .has_arg = argument ? required_argument : no_argument, .val = value};
}

static bool is_letter(const char *name) {
    return name[0] && !name[1];
}

static bool takes_key(const struct option_set *set, const struct config_key *key) {
    for (size_t i = 0; i < set->extra_count; i++)
        if (strcmp(set->extras[i].name, key->name) == 0) return false; /* a flag of the command */
    if (!set->keys) return true;
    for (size_t i = 0; set->keys[i]; i++)
        if (strcmp(set->keys[i], key->name) == 0) return true;
    return false;
}

static void collect_flags(const struct option_set *set, struct flags *flags) {
    flags->count = 0;
    snprintf(flags->letters, sizeof flags->letters, "h");
    add_flag(flags, "help", false, FLAG_HELP);
    if (!set->keys) add_flag(flags, "config", true, FLAG_CONFIG);
    for (size_t i = 0; i < set->extra_count; i++) {
        const struct option_extra *extra = &set->extras[i];
        if (is_letter(extra->name))
            text_append(flags->letters, sizeof flags->letters, "%s%s", extra->name,
                        extra->argument ? ":" : "");
        add_flag(flags, extra->name, extra->argument != NULL, FLAG_EXTRA + (int)i);
    }
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        if (!takes_key(set, key)) continue;
        add_flag(flags, key->name, true, FLAG_KEY + (int)i);
        if (key->alias) add_flag(flags, key->alias, true, FLAG_KEY + (int)i);
    }
    flags->list[flags->count] = (struct option){0};
}

/* --- help --- */

static void print_entry(const char *left, const char *help, const char *fallback) {
    enum { TEXT_COLUMN = 30, WIDTH = 100 };
    int column = printf("%-*s", TEXT_COLUMN - 1, left);
    if (column >= TEXT_COLUMN)
        column = printf("\n%*s", TEXT_COLUMN - 1, "") - 1; /* too long: the text goes below */
    char text[512];
    snprintf(text, sizeof text, "%s%s%s%s", help, fallback && *fallback ? " [" : "", fallback ? fallback : "",
             fallback && *fallback ? "]" : "");
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        if (column + 1 + (int)strlen(word) > WIDTH) column = printf("\n%*s", TEXT_COLUMN - 1, "") - 1;
        column += printf(" %s", word);
    }
    printf("\n");
}

static void print_flag(const char *name, const char *argument, const char *help, const char *fallback) {
    char left[80];
    snprintf(left, sizeof left, "  %s%s%s%s", is_letter(name) ? "-" : "--", name, argument ? " " : "",
             argument ? argument : "");
    print_entry(left, help, fallback);
}

static void print_key(const struct config_key *key) {
    char choices[128] = "";
    if (key->kind == KEY_CHOICE)
        for (size_t i = 0; key->choices[i]; i++)
            text_append(choices, sizeof choices, "%s%s", i ? "|" : "", key->choices[i]);
    print_flag(key->name, choices[0] ? choices : key->unit, key->help, key->fallback);
}

/* Prints those of all backends that were built. */
static void print_backend_options(void) {
    printf("\nOptions of backends, as in --backend tuned:isa=avx2; several with commas between them:\n");
    for (size_t i = 0; i < registry_count(); i++) {
        const struct registry_entry *entry = registry_at(i);
        const struct gemm_option *option = entry->backend ? entry->backend->options : NULL;
        for (; option && option->key; option++) {
            char left[128];
            snprintf(left, sizeof left, "  %s:%s=%s", entry->name, option->key, option->values);
            print_entry(left, option->help, option->fallback);
        }
    }
}

static bool takes_backends(const struct option_set *set) {
    for (size_t i = 0; i < set->extra_count; i++)
        if (strcmp(set->extras[i].name, "backends") == 0) return true;
    return takes_key(set, config_key_find("backend"));
}

static void print_help(const struct option_set *set) {
    printf("usage: train %s\n\n%s\n\n", set->usage, set->details);
    for (size_t i = 0; i < set->extra_count; i++)
        print_flag(set->extras[i].name, set->extras[i].argument, set->extras[i].help, NULL);
    if (!set->keys)
        print_flag("config", "FILE", "read 'key = value' lines; every flag below is also a key", NULL);
    print_flag("help", NULL, "this text", NULL);
    size_t keys = 0;
    for (size_t i = 0; i < config_key_count(); i++)
        if (takes_key(set, config_key_at(i))) {
            print_key(config_key_at(i));
            keys++;
        }
    if (takes_backends(set)) print_backend_options();
    if (!keys) return;
    printf("\nDefaults are in [brackets]. Precedence: flag, environment (TESSERA_BATCH_SIZE for "
           "--batch-size), config file,\ndefault.\n");
}

/* --- parsing --- */

static enum status wrong_flag(const struct flags *flags, const char *word, const char *next,
                              const struct option *known) {
    const char *names[MOST_FLAGS];
    char name[64];
    const char *start = word;
    while (*start == '-') start++;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(start, "="), start);
    for (size_t i = 0; i < flags->count; i++) names[i] = flags->list[i].name;
    if (known)
        return status_set(STATUS_USAGE, "--%s %s (see --help)", name,
                          known->has_arg == required_argument ? "needs a value" : "takes no value");
    const char *equals = strchr(word, '=');
    const enum status moved = config_key_moved(name,
                                               equals                 ? equals + 1
                                               : next && *next != '-' ? next
                                                                      : "VALUE",
                                               word);
    if (moved) return moved;
    const char *near = text_nearest(name, names, flags->count);
    return status_set(STATUS_USAGE, "unknown or ambiguous flag '%s'%s%s%s (--help lists them)", word,
                      near ? "; did you mean '--" : "", near ? near : "", near ? "'?" : "");
}

static const struct option *find_flag(const struct flags *flags, const char *word) {
    const size_t length = strcspn(word, "=");
    for (size_t i = 0; i < flags->count; i++)
        if (strlen(flags->list[i].name) == length && strncmp(flags->list[i].name, word, length) == 0)
            return &flags->list[i];
    return NULL;
}

static bool wants_help(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

/* getopt returns a short flag as its letter. */
static int extra_of_letter(const struct option_set *set, int letter) {
    for (size_t i = 0; i < set->extra_count; i++)
        if (is_letter(set->extras[i].name) && set->extras[i].name[0] == letter) return FLAG_EXTRA + (int)i;
    return letter;
}

static enum status one_flag(const struct option_set *set, int flag, struct config *config) {
    if (flag < FLAG_EXTRA) flag = extra_of_letter(set, flag);
    if (flag == FLAG_CONFIG) {
        if (set->files) files_add(set->files, "--config", optarg, FILE_READ);
        return config_read(config, optarg);
    }
    if (flag < FLAG_KEY) {
        *set->extras[flag - FLAG_EXTRA].value = optarg ? optarg : "";
        return STATUS_OK;
    }
    const struct config_key *key = config_key_at((size_t)(flag - FLAG_KEY));
    char where[64];
    snprintf(where, sizeof where, "--%s", key->name);
    return config_set(config, key->name, optarg, FROM_FLAG, where);
}

static enum status take_positional(const struct option_set *set, int argc, char **argv) {
    if (set->words) { /* getopt has moved them behind the flags */
        *set->words = (struct option_words){argv + optind, (size_t)(argc - optind)};
        return STATUS_OK;
    }
    if (optind == argc) return STATUS_OK;
    if (set->positional && !*set->positional) *set->positional = argv[optind++];
    return optind == argc
               ? STATUS_OK
               : status_set(STATUS_USAGE, "unexpected argument '%s' (flags start with --; see --help)",
                            argv[optind]);
}

enum status options_parse(const struct option_set *set, int argc, char **argv, struct config *config,
                          bool *help) {
    struct flags flags;
    collect_flags(set, &flags);
    config_defaults(config);
    *help = wants_help(argc, argv); /* first: --help works even if other flags are wrong */
    if (*help) {
        print_help(set);
        return STATUS_OK;
    }
    enum status status = config_environment(config);
    optind = 0; /* glibc: scan anew */
    opterr = 0;
    while (!status) {
        const int current = optind ? optind : 1;
        const int flag = getopt_long(argc, argv, flags.letters, flags.list, NULL);
        if (flag == -1) break;
        if (flag == '?') {
            const char *word = argv[optind - 1 < current ? current : optind - 1];
            if (optopt > 0 && optopt < FLAG_EXTRA && extra_of_letter(set, optopt) != optopt) {
                status = status_set(STATUS_USAGE, "-%c needs a value (see --help)", optopt);
            } else {
                status = wrong_flag(&flags, word, argv[optind],
                                    strncmp(word, "--", 2) == 0 ? find_flag(&flags, word + 2) : NULL);
            }
        } else {
            status = one_flag(set, flag, config);
        }
    }
    return status ? status : take_positional(set, argc, argv);
}

enum status options_check_files(struct files *files, const struct config *config) {
    const struct dataset_files data = dataset_files(config->data);
    for (size_t i = 0; i < data.count; i++) files_add(files, "--data", data.path[i], FILE_READ);
    files_add(files, "--log", config->log, FILE_WRITTEN);
    return files_check(files);
}
