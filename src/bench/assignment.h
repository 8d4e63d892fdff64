/* An assignment: which products the submissions of a course are graded on, within which limits, and how many
   points they earn. A file of `key = value` lines in the syntax of the configs. */
#ifndef TESSERA_BENCH_ASSIGNMENT_H
#define TESSERA_BENCH_ASSIGNMENT_H

#include "src/bench/problem.h"
#include "src/nn/config.h"

enum { ASSIGNMENT_MOST_SHAPES = 32 };

struct assignment {
    char name[CONFIG_TEXT];
    char shapes[CONFIG_TEXT];
    int dtypes, ops; /* indices of the choices of their keys */
    int64_t threads, repeats;
    char relative[CONFIG_TEXT]; /* a backend; "": speed is the share of the peak */
    double points_correct, points_partial, points_speed, full_speed;
    double timeout_seconds, total_seconds, limit_seconds, compile_seconds;
    int64_t memory_mib;
    char compile_c[CONFIG_TEXT], compile_cpp[CONFIG_TEXT], compile_cu[CONFIG_TEXT];

    size_t shape[ASSIGNMENT_MOST_SHAPES][3]; /* m, n, k: `shapes`, read by assignment_check */
    size_t shape_count;
};

/* The keys. `recipe` is true if the measurements, not just the points, depend on the key. */
size_t assignment_key_count(void);
const struct config_key *assignment_key_at(size_t index);

void assignment_defaults(struct assignment *assignment);

/* A config_setter. STATUS_USAGE as config_set. */
enum status assignment_set(void *assignment, const char *name, const char *value, const char *where);
enum status assignment_read(struct assignment *assignment, const char *path);

/* Call it after the last key was set. STATUS_USAGE if the shapes cannot be read. */
enum status assignment_check(struct assignment *assignment);

/* The products: each shape in each dtype and op. */
size_t assignment_products(const struct assignment *assignment);
struct gemm_shape assignment_product(const struct assignment *assignment, size_t index,
                                     enum gemm_dtype *dtype);

/* Changes if a key changes that the measurements depend on. */
uint64_t assignment_hash(const struct assignment *assignment);

#endif
