#include "tests/onnx_run.h"

#include <math.h>
#include <stdlib.h>

#include "tests/support.h"

/* --- the wire format --- */

struct field {
    uint64_t number, integer;
    const unsigned char *bytes; /* of a length-delimited field; NULL: an integer */
    size_t length;
};

static uint64_t read_varint(const unsigned char **at, const unsigned char *end) {
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
        assert_true(*at < end && shift < 64);
        const unsigned char byte = *(*at)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
}

/* The next field; false at the end. */
static bool next(const unsigned char **at, const unsigned char *end, struct field *field) {
    if (*at == end) return false;
    const uint64_t key = read_varint(at, end);
    *field = (struct field){.number = key >> 3};
    assert_true((key & 7) == 0 || (key & 7) == 2);
    field->integer = read_varint(at, end);
    if ((key & 7) == 0) return true;
    assert_true(field->integer <= (uint64_t)(end - *at));
    field->bytes = *at;
    field->length = (size_t)field->integer;
    *at += field->length;
    return true;
}

#define FOR_FIELDS(field, of, size) \
    for (const unsigned char *at_ = (of), *end_ = at_ + (size); next(&at_, end_, &(field));)

static void take_text(const struct field *field, char *to, size_t size) {
    assert_non_null(field->bytes);
    assert_true(field->length < size);
    memcpy(to, field->bytes, field->length);
    to[field->length] = '\0';
}

/* --- reading --- */

static struct onnx_value *new_value(struct onnx_model *model) {
    assert_true(model->values < ONNX_VALUES);
    struct onnx_value *value = &model->value[model->values++];
    *value = (struct onnx_value){.count = 1};
    return value;
}

static void read_initializer(struct onnx_model *model, const struct field *message) {
    struct field field;
    struct onnx_value *value = new_value(model);
    uint64_t type = 0;
    FOR_FIELDS(field, message->bytes, message->length) {
        if (field.number == 1) {
            assert_true(value->rank < ONNX_DIMS);
            value->dims[value->rank++] = field.integer;
            value->count *= (size_t)field.integer;
        }
        if (field.number == 2) type = field.integer;
        if (field.number == 8) take_text(&field, value->name, sizeof value->name);
        if (field.number != 9) continue;
        assert_int_equal(field.length, value->count * sizeof(float));
        value->values = malloc(value->count * sizeof *value->values);
        for (size_t i = 0; i < value->count; i++) {
            float single;
            memcpy(&single, field.bytes + i * sizeof single, sizeof single);
            value->values[i] = (double)single;
        }
    }
    assert_int_equal(type, 1);
    assert_non_null(value->values);
    model->initializers = model->values;
}

/* Follows the path of field numbers to one field. */
static struct field descend(const struct field *message, const int *path, size_t skip) {
    struct field field, inner = {0};
    FOR_FIELDS(field, message->bytes, message->length) {
        if (field.number != (uint64_t)path[0] || (!path[1] && skip-- > 0)) continue;
        inner = path[1] ? descend(&field, path + 1, skip) : field;
        break;
    }
    assert_true(inner.number);
    return inner;
}

static void read_info(struct onnx_info *info, const struct field *message) {
    struct field field = descend(message, (int[]){1, 0}, 0);
    take_text(&field, info->name, sizeof info->name);
    info->type = descend(message, (int[]){2, 1, 1, 0}, 0).integer;
    const struct field first = descend(message, (int[]){2, 1, 2, 1, 0}, 0),
                       second = descend(message, (int[]){2, 1, 2, 1, 0}, 1);
    field = descend(&first, (int[]){2, 0}, 0);
    take_text(&field, info->batch, sizeof info->batch);
    info->width = descend(&second, (int[]){1, 0}, 0).integer;
}

static void read_graph(struct onnx_model *model, const struct field *graph) {
    struct field field;
    FOR_FIELDS(field, graph->bytes, graph->length) {
        if (field.number == 1) {
            assert_true(model->nodes < ONNX_VALUES);
            model->node[model->nodes] = field.bytes;
            model->node_length[model->nodes++] = field.length;
        }
        if (field.number == 5) read_initializer(model, &field);
        if (field.number == 11) read_info(&model->input, &field);
        if (field.number != 12) continue;
        assert_true(model->outputs < 2);
        read_info(&model->output[model->outputs++], &field);
    }
}

static void read_metadata(struct onnx_model *model, const struct field *entry) {
    const struct field key = descend(entry, (int[]){1, 0}, 0), value = descend(entry, (int[]){2, 0}, 0);
    assert_int_equal(key.length, strlen("tessera.config"));
    assert_memory_equal(key.bytes, "tessera.config", key.length);
    model->recipe = strndup((const char *)value.bytes, value.length);
}

void onnx_read(struct onnx_model *model, const char *path) {
    struct field field;
    size_t size;
    *model = (struct onnx_model){.bytes = support_read(path, &size)};
    FOR_FIELDS(field, model->bytes, size) {
        switch (field.number) {
        case 1:
            model->ir_version = field.integer;
            break;
        case 2:
            take_text(&field, model->producer, sizeof model->producer);
            break;
        case 6:
            take_text(&field, model->description, sizeof model->description);
            break;
        case 7:
            read_graph(model, &field);
            break;
        case 8:
            model->opset = descend(&field, (int[]){2, 0}, 0).integer;
            break;
        case 14:
            read_metadata(model, &field);
            break;
        default:
            assert_int_equal(field.number, 3);
        }
    }
}

static void drop_values(struct onnx_model *model, size_t from) {
    for (size_t i = from; i < model->values; i++) free(model->value[i].values);
    model->values = from;
}

void onnx_free(struct onnx_model *model) {
    drop_values(model, 0);
    free(model->bytes);
    free(model->recipe);
}

/* --- execution --- */

const struct onnx_value *onnx_find(const struct onnx_model *model, const char *name) {
    for (size_t i = 0; i < model->values; i++)
        if (strcmp(model->value[i].name, name) == 0) return &model->value[i];
    fail_msg("no value %s", name);
    return NULL;
}

static double apply(const char *op, double a, double b) {
    if (strcmp(op, "Cast") == 0 || strcmp(op, "Identity") == 0) return a;
    if (strcmp(op, "Sub") == 0) return a - b;
    if (strcmp(op, "Mul") == 0) return a * b;
    if (strcmp(op, "Add") == 0) return a + b;
    if (strcmp(op, "Relu") == 0) return fmax(a, 0);
    if (strcmp(op, "Tanh") == 0) return tanh(a);
    if (strcmp(op, "Sigmoid") == 0) return 1 / (1 + exp(-a));
    if (strcmp(op, "Erf") == 0) return erf(a);
    fail_msg("unknown operator %s", op);
    return 0;
}

/* y = W x + b, W [out][in]: Gemm with transB. */
static void gemm(struct onnx_value *y, const struct onnx_value *x, const struct onnx_value *weight,
                 const struct onnx_value *bias) {
    assert_true(weight->rank == 2 && bias->rank == 1 && weight->dims[1] == x->count);
    assert_true(bias->dims[0] == weight->dims[0]);
    y->count = bias->count;
    y->values = malloc(y->count * sizeof *y->values);
    for (size_t o = 0; o < y->count; o++) {
        y->values[o] = bias->values[o];
        for (size_t i = 0; i < x->count; i++) y->values[o] += weight->values[o * x->count + i] * x->values[i];
    }
}

static void softmax(struct onnx_value *y, const struct onnx_value *x) {
    double sum = 0;
    for (size_t i = 0; i < x->count; i++) sum += exp(x->values[i] - x->values[0]);
    for (size_t i = 0; i < x->count; i++) y->values[i] = exp(x->values[i] - x->values[0]) / sum;
}

static void run_node(struct onnx_model *model, const unsigned char *bytes, size_t length) {
    struct field field;
    char op[ONNX_NAME] = "", name[ONNX_NAME] = "";
    const struct onnx_value *input[3] = {0};
    size_t inputs = 0;
    uint64_t attribute = 0;
    FOR_FIELDS(field, bytes, length) {
        if (field.number == 4) take_text(&field, op, sizeof op);
        if (field.number == 5) attribute = descend(&field, (int[]){3, 0}, 0).integer;
        if (field.number > 2) continue;
        take_text(&field, name, sizeof name); /* an input or the output */
        if (field.number == 1) input[inputs++] = onnx_find(model, name);
    }
    struct onnx_value *y = new_value(model);
    snprintf(y->name, sizeof y->name, "%s", name);
    if (strcmp(op, "Gemm") == 0) {
        assert_true(inputs == 3 && attribute == 1);
        gemm(y, input[0], input[1], input[2]);
        return;
    }
    const struct onnx_value *a = input[0], *b = inputs > 1 ? input[1] : a;
    y->count = a->count;
    y->values = malloc(y->count * sizeof *y->values);
    assert_true(b->count == 1 || b->count == a->count);
    if (strcmp(op, "Softmax") == 0) {
        softmax(y, a);
        return;
    }
    for (size_t i = 0; i < y->count; i++)
        y->values[i] = apply(op, a->values[i], b->values[b->count == 1 ? 0 : i]);
}

void onnx_run(struct onnx_model *model, const uint8_t *pixels, size_t count) {
    drop_values(model, model->initializers);
    struct onnx_value *input = new_value(model);
    snprintf(input->name, sizeof input->name, "%s", model->input.name);
    input->count = count;
    input->values = malloc(count * sizeof *input->values);
    for (size_t i = 0; i < count; i++) input->values[i] = pixels[i];
    for (size_t i = 0; i < model->nodes; i++) run_node(model, model->node[i], model->node_length[i]);
}
