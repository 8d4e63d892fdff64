#include "src/bench/assignment.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/hash.h"

/* The index plus 1 is a set of enum gemm_dtype: bit 0 is f32, bit 1 is f64. */
static const char *const dtype_choices[] = {"f32", "f64", "f32,f64", NULL};
static const char *const op_choices[] = {"NN", "NN,TN,NT", NULL};

#define AT(field) offsetof(struct assignment, field)
#define MEASURED true
#define RUBRIC false
#define LINE(compiler, flags) compiler " -O3 " flags " -shared -I. \"$SOURCE\" -o \"$OUTPUT\" -lm"
#define HOST_FLAGS "-march=native -fopenmp -fPIC"

static const struct config_key keys[] = {
    {"name", NULL, KEY_TEXT, RUBRIC, AT(name), 0, 0, NULL, "assignment", "TEXT", "title of the page"},
    {"shapes", NULL, KEY_TEXT, MEASURED, AT(shapes), 0, 0, NULL, "512x512x512,128x10x784", "MxNxK,..",
     "products that are timed: op(A) is M x K, op(B) is K x N"},
    {"dtypes", NULL, KEY_CHOICE, MEASURED, AT(dtypes), 0, 0, dtype_choices, "f32", "f32|f64|f32,f64",
     "of the operands"},
    {"ops", NULL, KEY_CHOICE, MEASURED, AT(ops), 0, 0, op_choices, "NN,TN,NT", "NN|NN,TN,NT",
     "of each shape"},
    {"threads", NULL, KEY_INT, MEASURED, AT(threads), 1, 4096, NULL, "1", "N",
     "a submission runs on so many cores, whatever it asks for"},
    {"repeats", NULL, KEY_INT, MEASURED, AT(repeats), 3, 1000, NULL, "7", "N",
     "timings of each product, each on new operands"},
    {"relative", NULL, KEY_TEXT, MEASURED, AT(relative), 0, 0, NULL, "", "BACKEND",
     "speed is relative to this backend, timed in turn; without it, to the peak of the cores"},
    {"points-correct", NULL, KEY_REAL, RUBRIC, AT(points_correct), 0, 1e6, NULL, "50", "X",
     "for right results in all ops and dtypes"},
    {"points-partial", NULL, KEY_REAL, RUBRIC, AT(points_partial), 0, 1e6, NULL, "20", "X",
     "instead, if ops or dtypes are missing: forward only (NN)"},
    {"points-speed", NULL, KEY_REAL, RUBRIC, AT(points_speed), 0, 1e6, NULL, "50", "X",
     "for --full-speed in each product; each earns an equal part, in proportion to its speed"},
    {"full-speed", NULL, KEY_REAL, RUBRIC, AT(full_speed), 1e-9, 1e6, NULL, "0.5", "X",
     "speed that earns all points: a share of the peak, or a multiple of --relative"},
    {"timeout-seconds", NULL, KEY_REAL, MEASURED, AT(timeout_seconds), 0, 1e6, NULL, "20", "S",
     "ends a submission without progress for so long; 0: never"},
    {"total-seconds", NULL, KEY_REAL, MEASURED, AT(total_seconds), 0, 1e6, NULL, "600", "S",
     "for the verification and all timings of a submission; 0: no limit"},
    {"limit-seconds", NULL, KEY_REAL, MEASURED, AT(limit_seconds), 0, 1e6, NULL, "20", "S",
     "a product whose timings would take longer gets no time; 0: no limit"},
    {"memory-mib", NULL, KEY_INT, MEASURED, AT(memory_mib), 64, 1 << 30, NULL, "4096", "MIB",
     "resident memory of a submission, with the operands"},
    {"compile-seconds", NULL, KEY_REAL, MEASURED, AT(compile_seconds), 1, 1e6, NULL, "60", "S",
     "for the compilation of a submission"},
    {"compile-c", NULL, KEY_TEXT, MEASURED, AT(compile_c), 0, 0, NULL, LINE("gcc", HOST_FLAGS), "LINE",
     "compiles a .c file, in the shell, in the current folder"},
    {"compile-cpp", NULL, KEY_TEXT, MEASURED, AT(compile_cpp), 0, 0, NULL, LINE("g++", HOST_FLAGS), "LINE",
     "compiles a .cc or .cpp file"},
    {"compile-cu", NULL, KEY_TEXT, MEASURED, AT(compile_cu), 0, 0, NULL,
     LINE("nvcc", "-arch=native -Xcompiler -fPIC"), "LINE", "compiles a .cu file"},
};
enum { KEYS = sizeof keys / sizeof *keys };

size_t assignment_key_count(void) {
    return KEYS;
}

const struct config_key *assignment_key_at(size_t index) {
    return &keys[index];
}

enum status assignment_set(void *assignment, const char *name, const char *value, const char *where) {
    const char *names[KEYS];
    for (size_t i = 0; i < KEYS; i++) {
        if (strcmp(keys[i].name, name) == 0) return config_parse_value(assignment, &keys[i], value, where);
        names[i] = keys[i].name;
    }
    return config_unknown_key(name, names, KEYS, where);
}

void assignment_defaults(struct assignment *assignment) {
    *assignment = (struct assignment){0};
    for (size_t i = 0; i < KEYS; i++) assignment_set(assignment, keys[i].name, keys[i].fallback, "default");
}

enum status assignment_read(struct assignment *assignment, const char *path) {
    return config_read_lines("assignment", path, assignment_set, assignment);
}

/* Reads "MxNxK" up to a comma or the end; returns what follows, or NULL. */
static const char *parse_shape(const char *text, size_t shape[3]) {
    enum { LARGEST = 1 << 16 };
    for (int side = 0; side < 3; side++) {
        char *end;
        while (*text == ' ') text++;
        const unsigned long value = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
        if (value < 1 || value > LARGEST) return NULL;
        shape[side] = value;
        text = end + strspn(end, " ");
        if (side < 2 && *text++ != 'x') return NULL;
    }
    return !*text ? text : *text == ',' && text[1] ? text + 1 : NULL;
}

enum status assignment_check(struct assignment *assignment) {
    const char *at = assignment->shapes;
    assignment->shape_count = 0;
    do {
        if (assignment->shape_count == ASSIGNMENT_MOST_SHAPES)
            return status_set(STATUS_USAGE, "shapes lists more than %d products", ASSIGNMENT_MOST_SHAPES);
        at = parse_shape(at, assignment->shape[assignment->shape_count++]);
        if (!at)
            return status_set(STATUS_USAGE,
                              "shapes must be MxNxK with commas between them, sides from 1 to 65536, as in "
                              "512x512x512,128x10x784, not '%s'",
                              assignment->shapes);
    } while (*at);
    return STATUS_OK;
}

/* --- products --- */

static size_t op_count(const struct assignment *assignment) {
    return assignment->ops == 0 ? 1 : 3;
}

static size_t dtype_count(const struct assignment *assignment) {
    return assignment->dtypes == 2 ? 2 : 1;
}

size_t assignment_products(const struct assignment *assignment) {
    return assignment->shape_count * op_count(assignment) * dtype_count(assignment);
}

struct gemm_shape assignment_product(const struct assignment *assignment, size_t index,
                                     enum gemm_dtype *dtype) {
    const size_t ops = op_count(assignment), dtypes = dtype_count(assignment);
    const size_t *side = assignment->shape[index / ops / dtypes];
    *dtype = dtypes == 2 ? (enum gemm_dtype)(index / ops % 2) : (enum gemm_dtype)assignment->dtypes;
    return (struct gemm_shape){
        .op = (enum gemm_op)(index % ops), .m = side[0], .n = side[1], .k = side[2], .what = "graded"};
}

uint64_t assignment_hash(const struct assignment *assignment) {
    uint64_t hash = HASH_START;
    for (size_t i = 0; i < KEYS; i++) {
        const void *field = (const char *)assignment + keys[i].offset;
        if (!keys[i].recipe) continue;
        const size_t size = keys[i].kind == KEY_TEXT     ? strlen(field) + 1
                            : keys[i].kind == KEY_CHOICE ? sizeof(int)
                                                         : sizeof(int64_t);
        hash = hash_bytes(hash, field, size);
    }
    return hash;
}
