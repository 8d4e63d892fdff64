/* The configuration: one table of keys for the config file, flags, environment, --help and --dump-config.
   Precedence: flag > environment > file > checkpoint (with --resume) > default. */
#ifndef TESSERA_NN_CONFIG_H
#define TESSERA_NN_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/gemm.h"
#include "src/backend/compute.h"
#include "src/base/profile.h"
#include "src/base/status.h"
#include "src/data/dataset.h"

enum init { INIT_HE, INIT_XAVIER, INIT_UNIFORM, INIT_KMEANS };
enum schedule { SCHEDULE_CONSTANT, SCHEDULE_STEP, SCHEDULE_COSINE, SCHEDULE_EXPONENTIAL, SCHEDULE_ONE_CYCLE };
enum kmeans_init { KMEANS_FIRST, KMEANS_RANDOM, KMEANS_PLUS_PLUS, KMEANS_PARALLEL };
enum kmeans_empty { EMPTY_KEEP, EMPTY_FAR, EMPTY_SPLIT };
/* In the order of enum nearest_precision; scores is the old name of f32. */
enum kmeans_precision { KMEANS_EXACT, KMEANS_F32, KMEANS_TF32, KMEANS_BF16, KMEANS_SCORES };
enum kmeans_bounds { BOUNDS_AUTO, BOUNDS_ON, BOUNDS_OFF };
/* Between auto and gemm: the kernels of kernels/kmeans_steps.h, by their names. */
enum step_choice {
    STEP_AUTO,
    STEP_NAIVE,
    STEP_TRANSPOSE,
    STEP_SHARED,
    STEP_ATOMICS,
    STEP_PARTIAL,
    STEP_GEMM,
    STEP_NEAREST
};
enum feature_choice { FEATURES_HIDDEN, FEATURES_RANDOM, FEATURES_KMEANS };
enum engine_choice { ENGINE_AUTO, ENGINE_EAGER, ENGINE_GRAPH, ENGINE_FUSED };

enum { CONFIG_TEXT = 512, CONFIG_MAX_KEYS = 128 };

/* Where a value comes from, in rising precedence. */
enum config_origin { FROM_DEFAULT, FROM_CHECKPOINT, FROM_FILE, FROM_ENVIRONMENT, FROM_FLAG };

struct layer_list {
    size_t count; /* of widths: one more than layers of weights */
    size_t width[PROFILE_MAX_LAYERS + 1];
};

/* A choice that may need a file, as in "kmeans:FILE". */
struct choice_file {
    int choice;
    char file[CONFIG_TEXT]; /* "" with the choices that need none */
};

struct label_set {
    bool has[DATASET_MAX_CLASSES];
};

struct config {
    struct layer_list layers;
    int activation;          /* enum activation */
    struct choice_file init; /* enum init */
    double init_range;       /* of INIT_UNIFORM; 0: 1 / sqrt(in) */
    int64_t epochs, batch_size;
    int optimizer; /* enum update_method */
    double learning_rate, momentum, weight_decay;
    int nesterov; /* 0 off, 1 on */
    double beta1, beta2, epsilon;
    double clip_norm, max_norm; /* 0: none */
    int schedule;               /* enum schedule */
    int64_t warmup_steps, lr_step_epochs;
    double warmup_epochs, lr_gamma, lr_min;
    double pct_start, div_factor, final_div_factor; /* of SCHEDULE_ONE_CYCLE */
    double ema_decay;                               /* 0: no moving average of the weights */
    double dropout, input_dropout;                  /* rates */
    double label_smoothing;
    double adversarial; /* of the range of a pixel; 0: no adversarial training */
    int64_t seed, validation, patience;
    int shuffle;                                          /* 0 off, 1 on */
    int augment;                                          /* 0 off, 1 on */
    double augment_elastic, augment_sigma, augment_shift; /* pixels */
    double augment_rotate, augment_shear;                 /* degrees */
    double augment_scale;                                 /* percent */
    struct label_set augment_gentle;
    int64_t input_size; /* pixels; 0: that of the images */
    int input_range;    /* enum input_range */
    int dtype;          /* enum gemm_dtype */
    char data[CONFIG_TEXT], backend[CONFIG_TEXT];
    int64_t label_offset;
    int transpose;             /* enum transpose */
    int64_t threads;           /* 0: as many as may be used */
    int engine;                /* enum engine_choice */
    int64_t device;            /* which GPU */
    char devices[CONFIG_TEXT]; /* "0,1", "all": a process for each; "": one */
    int residency;             /* enum residency */
    int pin;                   /* 0 off, 1 on */
    int precision;             /* enum gemm_precision */
    int audit;                 /* enum audit_mode */
    int comm;                  /* enum comm_choice */
    double comm_timeout;
    int reduction; /* 0: any, 1: fixed */
    double target_accuracy;
    int64_t ensemble; /* networks; 1: no ensemble */
    char log[CONFIG_TEXT], csv[CONFIG_TEXT];
    int64_t log_steps;
    char save[CONFIG_TEXT], save_init[CONFIG_TEXT], resume[CONFIG_TEXT];
    int64_t save_every;
    int64_t evaluate_every; /* epochs; 0: only after the last */
    int64_t clusters, iterations, restarts;
    int kmeans_init, kmeans_empty, kmeans_precision, kmeans_bounds; /* the enums of these names */
    int step;                                                       /* enum step_choice */
    int64_t block_size;
    double tolerance, change_limit;
    struct choice_file features; /* enum feature_choice; the file of FEATURES_RANDOM is a number */
    char ridge[CONFIG_TEXT], window[CONFIG_TEXT], forgetting[CONFIG_TEXT], drift[CONFIG_TEXT];
    int64_t stride;
    enum config_origin origin[CONFIG_MAX_KEYS]; /* by key */
    char file[CONFIG_TEXT];                     /* the last one that was read; "" if none */
};

struct config_key {
    const char *name;  /* in files and, with --, as a flag */
    const char *alias; /* another name, or NULL */
    enum { KEY_INT, KEY_REAL, KEY_CHOICE, KEY_CHOICE_FILE, KEY_TEXT, KEY_LAYERS, KEY_LABELS } kind;
    bool recipe; /* part of the recipe, which checkpoints store */
    size_t offset;
    double min, max; /* of KEY_INT and KEY_REAL */
    /* Of KEY_CHOICE and KEY_CHOICE_FILE, NULL-terminated, in the order of the enum; "NAME:FILE": with a
       file. */
    const char *const *choices;
    const char *fallback; /* the default, as in a file */
    const char *unit;     /* "epochs", "FILE" ..., for --help */
    const char *help;
};

size_t config_key_count(void);
const struct config_key *config_key_at(size_t index);
/* By name or alias; NULL if unknown. */
const struct config_key *config_key_find(const char *name);
/* For --help: the title of the key's group, and whether it is explained without --help-all. */
const char *config_key_group(const struct config_key *key);
bool config_key_is_common(const struct config_key *key);
/* Is it of k-means alone? */
bool config_key_clusters(const struct config_key *key);
/* Is it of a readout alone? */
bool config_key_reads_out(const struct config_key *key);

void config_defaults(struct config *config);

/* Sets one key, unless its value has an origin of higher precedence, or is FROM_CHECKPOINT and the key is not
   of the recipe: a checkpoint names no library to load and no file to write. If name or value is wrong:
   STATUS_USAGE, with `where` ("configs/a.cfg:7", "--epochs") and the nearest known key in the message. */
enum status config_set(struct config *config, const char *name, const char *value, enum config_origin origin,
                       const char *where);

/* STATUS_USAGE if `name` is a key of earlier versions that is now an option of a backend; the message says
   how to write it. */
enum status config_key_moved(const char *name, const char *value, const char *where);

/* `key = value` lines, # comments. STATUS_USAGE with file and line. */
enum status config_read(struct config *config, const char *path);
/* The same from text in memory, such as that of a checkpoint. */
enum status config_parse(struct config *config, const char *text, enum config_origin origin,
                         const char *where);

/* For files of other keys in the same syntax (src/bench/assignment.h): a value for the field of a key within
   the struct `fields`; all lines of a text, or of a file (`what`: "config file"), each handed to `set`; the
   error for a name that is none of `names`. The same errors. */
typedef enum status config_setter(void *fields, const char *name, const char *value, const char *where);
enum status config_parse_value(void *fields, const struct config_key *key, const char *value,
                               const char *where);
enum status config_parse_lines(const char *text, const char *where, config_setter *set, void *fields);
enum status config_read_lines(const char *what, const char *path, config_setter *set, void *fields);
enum status config_unknown_key(const char *name, const char *const *names, size_t count, const char *where);
/* The index of a comment in a line, or of its end. '#' starts a comment only at the start or after white
   space, so that file names may contain it. */
size_t config_comment(const char *line);

/* Reads TESSERA_BATCH_SIZE for batch-size and so on. */
enum status config_environment(struct config *config);
/* Calls `warn` with a line for each variable TESSERA_X that names no key. */
void config_warn_environment(void (*warn)(const char *line));

/* One key's value, as in a file. */
void config_value(const struct config *config, const struct config_key *key, char *text, size_t size);

/* The origin of the value of a key. */
enum config_origin config_origin_of(const struct config *config, const char *name);

/* Writes all keys (or those of the recipe) as a file that reads back to the same config. `origins` adds the
   origin of each value as a comment. */
void config_dump(const struct config *config, FILE *out, bool recipe_only, bool origins);

/* Rows or columns of an image after resizing; `side`: those in the data set. */
static inline size_t config_input_side(const struct config *config, size_t side) {
    return config->input_size ? (size_t)config->input_size : side;
}

/* STATUS_USAGE if the images are too large for augment or input-size. */
enum status config_check_images(const struct config *config, const struct dataset *set);

/* STATUS_USAGE if keys of the recipe contradict each other. */
enum status config_check_recipe(const struct config *config);

/* The same, and STATUS_USAGE or STATUS_BAD_DATA if the network does not fit the data set, whose training part
   may be empty. */
enum status config_check_data(const struct config *config, const struct dataset_pair *data);

/* The same for a training, which evaluates a test or a validation set in the end: STATUS_USAGE if it has
   neither. */
enum status config_check_training(const struct config *config, const struct dataset_pair *data);

/* Calls `warn` with a line for each key that was set but has no effect because of the value of another key.
   There is no line if the other key has an origin of higher precedence, such as a flag that overrides a
   file. */
void config_warn_unused(const struct config *config, void (*warn)(const char *line));

/* Switches off what only a training uses and checks: validation, patience, adversarial examples. */
void config_for_inference(struct config *config);

/* The compute options of this config. They point into config->backend. */
struct compute_options config_compute(const struct config *config);

/* How dataset_load reads the data set of this config. */
struct dataset_options config_dataset(const struct config *config, enum dataset_parts parts);

/* "relu", "he", ... */
const char *config_choice(const char *key, int value);

#endif
