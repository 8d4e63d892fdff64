#include "src/cmd/options.h"

#include <getopt.h>
#include <string.h>

#include "src/base/process.h"
#include "src/base/share.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cmd/help.h"

enum {
    FLAG_HELP = 1,
    FLAG_CONFIG,
    FLAG_WIDE,
    FLAG_EXTRA = 300 /* above all letters */,
    FLAG_KEY = 1000,
    MOST_FLAGS = 2 * CONFIG_MAX_KEYS + 32
};

static const struct {
    const char *name;
    help_printer *print;
} helps[] = {{"help", help_print}, {"help-all", help_print_all}, {"list-flags", help_list}};
enum { HELPS = sizeof helps / sizeof *helps };

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

bool options_take_key(const struct option_set *set, const struct config_key *key) {
    for (size_t i = 0; i < set->extra_count; i++)
        if (strcmp(set->extras[i].name, key->name) == 0) return false; /* a flag of the command */
    if (!set->keys) return !config_key_clusters(key) && !config_key_reads_out(key);
    for (size_t i = 0; set->keys[i]; i++)
        if (strcmp(set->keys[i], key->name) == 0) return true;
    return false;
}

static bool takes_files(const struct option_set *set) {
    return !set->keys || set->config_files;
}

static void collect_flags(const struct option_set *set, struct flags *flags) {
    flags->count = 0;
    snprintf(flags->letters, sizeof flags->letters, "h");
    for (size_t i = 0; i < HELPS; i++) add_flag(flags, helps[i].name, false, FLAG_HELP);
    add_flag(flags, "wide", false, FLAG_WIDE);
    if (takes_files(set)) add_flag(flags, "config", true, FLAG_CONFIG);
    for (size_t i = 0; i < set->extra_count; i++) {
        const struct option_extra *extra = &set->extras[i];
        if (is_letter(extra->name))
            text_append(flags->letters, sizeof flags->letters, "%s%s", extra->name,
                        extra->argument ? ":" : "");
        add_flag(flags, extra->name, extra->argument != NULL, FLAG_EXTRA + (int)i);
    }
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        if (!options_take_key(set, key)) continue;
        add_flag(flags, key->name, true, FLAG_KEY + (int)i);
        if (key->alias) add_flag(flags, key->alias, true, FLAG_KEY + (int)i);
    }
    flags->list[flags->count] = (struct option){0};
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
    const char *equals = strchr(word, '='), *value = next && *next != '-' ? next : "VALUE";
    const enum status moved = config_key_moved(name, equals ? equals + 1 : value, word);
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

/* The help that a flag asks for, or NULL. */
static help_printer *wanted_help(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "-h") == 0) return help_print;
        for (size_t h = 0; h < HELPS; h++)
            if (strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, helps[h].name) == 0)
                return helps[h].print;
    }
    return NULL;
}

/* getopt returns a short flag as its letter. */
static int extra_of_letter(const struct option_set *set, int letter) {
    for (size_t i = 0; i < set->extra_count; i++)
        if (is_letter(set->extras[i].name) && set->extras[i].name[0] == letter) return FLAG_EXTRA + (int)i;
    return letter;
}

void options_warn(const char *line) {
    terminal_note("warning: %s", line);
}

enum status options_read_config(struct files *files, struct config *config, const char *name) {
    char path[CONFIG_TEXT];
    share_find_config(name, path, sizeof path);
    if (files) files_add(files, "--config", path, FILE_READ);
    return config_read(config, path);
}

static enum status one_flag(const struct option_set *set, int flag, struct config *config) {
    if (flag < FLAG_EXTRA) flag = extra_of_letter(set, flag);
    if (flag == FLAG_CONFIG) return options_read_config(set->files, config, optarg);
    if (flag == FLAG_WIDE) {
        terminal_set_wide();
        return STATUS_OK;
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

bool options_is_config(const char *word) {
    const size_t length = strlen(word);
    return length > 4 && strcmp(word + length - 4, ".cfg") == 0;
}

static enum status take_positional(const struct option_set *set, int argc, char **argv,
                                   struct config *config) {
    enum status status = STATUS_OK;
    if (set->words) { /* getopt has moved them behind the flags */
        *set->words = (struct option_words){argv + optind, (size_t)(argc - optind)};
        return STATUS_OK;
    }
    while (takes_files(set) && !status && optind < argc && options_is_config(argv[optind]))
        status = options_read_config(set->files, config, argv[optind++]);
    if (status || optind == argc) return status;
    if (set->positional && !*set->positional) *set->positional = argv[optind++];
    return optind == argc
               ? STATUS_OK
               : status_set(STATUS_USAGE, "unexpected argument '%s' (flags start with --; see --help)",
                            argv[optind]);
}

/* "-" is the standard output for a log; the tables then go to standard error. No other file is a stream. */
static enum status take_output(struct config *config) {
    static const char *const files[] = {"save", "save-init", "resume"};
    char *const logs[] = {config->log, config->csv};
    char value[CONFIG_TEXT], path[32] = "";
    for (int i = 0; i < 3; i++) {
        config_value(config, config_key_find(files[i]), value, sizeof value);
        if (strcmp(value, "-") == 0)
            return status_set(STATUS_USAGE, "--%s needs a file, not a stream ('./-' is a file of this name)",
                              files[i]);
    }
    for (int i = 0; i < 2; i++) {
        if (strcmp(logs[i], "-") != 0) continue;
        if (path[0])
            return status_set(STATUS_USAGE, "only one of --log and --csv can be the standard output");
        process_take_output(path, sizeof path);
        snprintf(logs[i], CONFIG_TEXT, "%s", path);
    }
    return STATUS_OK;
}

/* The error for what getopt_long refused; `current` is the argument that it was at. */
static enum status refuse(const struct option_set *set, const struct flags *flags, char **argv, int current) {
    const char *word = argv[optind - 1 < current ? current : optind - 1];
    if (optopt > 0 && optopt < FLAG_EXTRA && extra_of_letter(set, optopt) != optopt)
        return status_set(STATUS_USAGE, "-%c needs a value (see --help)", optopt);
    return wrong_flag(flags, word, argv[optind],
                      strncmp(word, "--", 2) == 0 ? find_flag(flags, word + 2) : NULL);
}

enum status options_parse(const struct option_set *set, int argc, char **argv, struct config *config,
                          bool *help) {
    struct flags flags;
    collect_flags(set, &flags);
    config_defaults(config);
    help_printer *print = wanted_help(argc, argv); /* first: --help works even if other flags are wrong */
    *help = print != NULL;
    if (print) {
        print(set);
        return STATUS_OK;
    }
    config_warn_environment(options_warn);
    enum status status = config_environment(config);
    optind = 0; /* glibc: scan anew */
    opterr = 0;
    while (!status) {
        const int current = optind ? optind : 1;
        const int flag = getopt_long(argc, argv, flags.letters, flags.list, NULL);
        if (flag == -1) break;
        status = flag == '?' ? refuse(set, &flags, argv, current) : one_flag(set, flag, config);
    }
    if (!status) status = take_positional(set, argc, argv, config);
    return status ? status : take_output(config);
}

enum status options_check_files(struct files *files, const struct config *config) {
    const struct dataset_files data = dataset_files(config->data);
    for (size_t i = 0; i < data.count; i++) files_add(files, "--data", data.path[i], FILE_READ);
    files_add(files, "--log", config->log, FILE_WRITTEN);
    return files_check(files);
}
