#include "src/cmd/help.h"

#include <stdio.h>
#include <string.h>

#include "src/backend/registry.h"
#include "src/base/terminal.h"
#include "src/base/text.h"

/* A flag as it is explained. */
struct entry {
    const char *name, *argument, *help, *fallback, *group;
};

typedef void entry_printer(const struct entry *entry);

/* Flags of every command. */
static const struct entry wide = {"wide", NULL,
                                  "lines of any length, with more columns (or set TESSERA_WIDE)", NULL, ""},
                          help = {"help", NULL, "this text", NULL, ""},
                          help_all = {"help-all", NULL, "the same with all flags explained", NULL, ""},
                          config = {"config", "FILE",
                                    "read 'key = value' lines; every key below can stand there; 'fast' is "
                                    "configs/fast.cfg, '-' the standard input",
                                    NULL, ""};

static void print_text(const char *left, const char *text, const char *fallback) {
    enum { TEXT_COLUMN = 26 };
    char all[1024];
    int column = printf("%-*s", TEXT_COLUMN - 1, left);
    if (column >= TEXT_COLUMN)
        column = printf("\n%*s", TEXT_COLUMN - 1, "") - 1; /* too long: the text goes below */
    snprintf(all, sizeof all, fallback && *fallback ? " %s [%s]" : " %s", text, fallback);
    terminal_wrap(stdout, column, TEXT_COLUMN, all);
    printf("\n");
}

static void print_entry(const struct entry *entry) {
    char left[128];
    snprintf(left, sizeof left, "  %s%s%s%s", entry->name[1] ? "--" : "-", entry->name,
             entry->argument ? " " : "", entry->argument ? entry->argument : "");
    print_text(left, entry->help, entry->fallback);
}

static void list_entry(const struct entry *entry) {
    const char *fallback = entry->fallback ? entry->fallback : "";
    printf("%s%s\t%s\t%s%s%s%s\t%s\n", entry->name[1] ? "--" : "-", entry->name,
           entry->argument ? entry->argument : "", entry->help, *fallback ? " [" : "", fallback,
           *fallback ? "]" : "", entry->group);
}

static const char *help_of(const struct option_set *set, const struct config_key *key) {
    for (const struct option_help *own = set->helps; own && own->key; own++)
        if (strcmp(own->key, key->name) == 0) return own->help;
    return key->help;
}

static void for_key(const struct option_set *set, const struct config_key *key, entry_printer *print) {
    char choices[128] = "";
    if (key->choices)
        for (size_t i = 0; key->choices[i]; i++)
            text_append(choices, sizeof choices, "%s%s", i ? "|" : "", key->choices[i]);
    print(&(struct entry){key->name, choices[0] ? choices : key->unit, help_of(set, key), key->fallback,
                          config_key_group(key)});
}

/* The flags of the command alone. */
static void for_extras(const struct option_set *set, entry_printer *print) {
    for (size_t i = 0; i < set->extra_count; i++)
        print(&(struct entry){set->extras[i].name, set->extras[i].argument, set->extras[i].help, NULL, ""});
    if (!set->keys || set->config_files) print(&config);
    print(&wide);
    print(&help);
    if (!set->keys) print(&help_all);
}

/* Prints those of all backends that were built. */
static void print_backend_options(void) {
    terminal_print(stdout, 0,
                   "\nOptions of backends, as in --backend tuned:isa=avx2; several with commas "
                   "between them:\n");
    for (size_t i = 0; i < registry_count(); i++) {
        const struct registry_entry *entry = registry_at(i);
        const struct gemm_option *option = entry->backend ? entry->backend->options : NULL;
        for (; option && option->key; option++) {
            char left[128];
            snprintf(left, sizeof left, "  %s:%s=%s", entry->name, option->key, option->values);
            print_text(left, option->help, option->fallback);
        }
    }
}

static bool takes_backends(const struct option_set *set) {
    for (size_t i = 0; i < set->extra_count; i++)
        if (strcmp(set->extras[i].name, "backends") == 0) return true;
    return options_take_key(set, config_key_find("backend"));
}

/* The keys of a group: those that are not explained are named in one line. */
static void print_group(const struct option_set *set, const char *group, bool all) {
    char others[1024] = "";
    printf("\n%s\n", group);
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        if (config_key_group(key) != group || !options_take_key(set, key)) continue;
        if (all || config_key_is_common(key)) {
            for_key(set, key, print_entry);
        } else {
            text_append(others, sizeof others, "%s --%s", others[0] ? "," : "", key->name);
        }
    }
    if (others[0]) terminal_print(stdout, 8, "  also%s\n", others);
}

/* A line of the details that starts with a space is a command. */
static void print_details(const char *details) {
    for (const char *line = details; *line; line += text_line_length(line))
        terminal_print(stdout, *line == ' ' ? 6 : 0, "%.*s", (int)text_line_length(line), line);
    printf("\n\n");
}

static void print(const struct option_set *set, bool all) {
    const char *group = NULL;
    terminal_print(stdout, 7, "usage: %s %s\n\n", terminal_program(), set->usage);
    print_details(set->details);
    for_extras(set, print_entry);
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        if (!options_take_key(set, key)) continue;
        if (set->keys) {
            for_key(set, key, print_entry);
        } else if (config_key_group(key) != group) {
            group = config_key_group(key);
            print_group(set, group, all);
        }
    }
    if (all && takes_backends(set)) print_backend_options();
    terminal_print(stdout, 0, "\nDefaults are in [brackets].%s\n",
                   set->keys ? ""
                             : " Precedence: flag, environment (TESSERA_BATCH_SIZE for --batch-size), config "
                               "file, default.");
}

void help_print(const struct option_set *set) {
    print(set, false);
}

void help_print_all(const struct option_set *set) {
    print(set, true);
}

void help_list(const struct option_set *set) {
    for_extras(set, list_entry);
    for (size_t i = 0; i < config_key_count(); i++)
        if (options_take_key(set, config_key_at(i))) for_key(set, config_key_at(i), list_entry);
}
