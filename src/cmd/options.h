/* Flags of a command: the keys of struct config that it takes, and flags of the command alone. */
#ifndef TESSERA_CMD_OPTIONS_H
#define TESSERA_CMD_OPTIONS_H

#include "src/base/files.h"
#include "src/nn/config.h"

/* For --help of commands that take all keys: those that only `train` uses. */
#define OPTIONS_OF_TRAIN                                                                                \
    "--ensemble, --devices, --target-accuracy, --log-steps, --csv, --save, --save-every, --save-init, " \
    "--resume"

struct option_extra {
    const char *name;     /* a single letter is a short flag, too: -o */
    const char *argument; /* its name in --help, or NULL: a switch */
    const char *help;
    const char **value; /* receives the argument, "" for a switch; stays NULL if the flag is not given */
};

/* What a key means to the command, if --help of the key describes a training. */
struct option_help {
    const char *key, *help;
};

/* The positional arguments; they point into argv. */
struct option_words {
    char **list;
    size_t count;
};

struct option_set {
    const char *usage;       /* after the name of the program in the usage line */
    const char *details;     /* a paragraph or two for --help */
    const char *const *keys; /* the config keys taken, NULL-terminated; NULL: all of training, and --config */
    bool config_files;       /* takes --config with `keys`, too */
    const struct option_extra *extras;
    size_t extra_count;
    const struct option_help *helps; /* (optional) ends with a NULL key */
    const char **positional;         /* receives the one positional argument */
    struct option_words *words;      /* receives all positional arguments; both NULL: there are none */
    struct files *files;             /* (optional) receives each --config file, for options_check_files */
};

/* Initialises `extras` and `extra_count`. */
#define OPTION_EXTRAS(array) .extras = (array), .extra_count = sizeof(array) / sizeof *(array)

/* Reads defaults, environment, --config file and flags into `config`. With --help, prints the help and sets
   *help instead. A command that takes all keys also takes "fast.cfg" for --config fast.cfg. STATUS_USAGE
   names the flag and the nearest known one. */
enum status options_parse(const struct option_set *set, int argc, char **argv, struct config *config,
                          bool *help);

/* Reads the config file that share_find_config finds. `files` may be NULL. */
enum status options_read_config(struct files *files, struct config *config, const char *name);

/* Does this argument name a config file: does it end with ".cfg"? */
bool options_is_config(const char *word);

bool options_take_key(const struct option_set *set, const struct config_key *key);

/* terminal_note("warning: LINE"). */
void options_warn(const char *line);

/* Adds the files of the data set and --log to those of a command, and checks all (files_check). Called before
   the first output is opened. */
enum status options_check_files(struct files *files, const struct config *config);

#endif
