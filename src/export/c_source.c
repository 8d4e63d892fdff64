/* Writes the network as C99: arrays of constants, then code that is the same for every network. */
#include "src/base/platform.h"
#include "src/base/replace.h"
#include "src/base/text.h"
#include "src/export/activation_forms.h"
#include "src/export/c_text.h"
#include "src/export/formats.h"

/* @ is NAME. The loop over `o` has no sum to carry from one to the next, so that compilers vectorise it. */
static const char float_code[] =
    "static float @_activation(float z)\n"
    "{\n"
    "    return $;\n"
    "}\n"
    "\n"
    "/* y = W x + b; w is [in][out] */\n"
    "static void @_multiply(const float *x, int in, const float *w, const float *b, int out, float *y)\n"
    "{\n"
    "    for (int o = 0; o < out; o++) y[o] = b[o];\n"
    "    for (int i = 0; i < in; i++, w += out)\n"
    "        for (int o = 0; o < out; o++) y[o] += x[i] * w[o];\n"
    "}\n"
    "\n"
    "int @_predict(const unsigned char *pixels, float *probabilities)\n"
    "{\n"
    "    float buffer[2][@_WIDEST], *x = buffer[0], *y = buffer[1], sum = 0.0f;\n"
    "    int best = 0;\n"
    "    for (int i = 0; i < @_PIXELS; i++) x[i] = ((float)pixels[i] - @_offset) * @_scale;\n"
    "    for (int l = 0; l < @_LAYERS; l++) {\n"
    "        float *next = x;\n"
    "        @_multiply(x, @_layer[l].in, @_layer[l].weight, @_layer[l].bias, @_layer[l].out, y);\n"
    "        for (int o = 0; l + 1 < @_LAYERS && o < @_layer[l].out; o++) y[o] = @_activation(y[o]);\n"
    "        x = y;\n"
    "        y = next;\n"
    "    }\n"
    "    for (int c = 1; c < @_CLASSES; c++)\n"
    "        if (x[c] > x[best]) best = c;\n"
    "    if (!probabilities) return best;\n"
    "    for (int c = 0; c < @_CLASSES; c++) sum += probabilities[c] = expf(x[c] - x[best]);\n"
    "    for (int c = 0; c < @_CLASSES; c++) probabilities[c] /= sum;\n"
    "    return best;\n"
    "}\n";

static const char integer_code[] =
    "/* Output o of hidden layer l: sum * multiplier / 2^shift, rounded, then the activation */\n"
    "static uint8_t @_activation(int l, int o, int32_t sum)\n"
    "{\n"
    "    const int64_t half = (int64_t)1 << (@_layer[l].shift - 1);\n"
    "    const int64_t product = (int64_t)sum * @_layer[l].multiplier[o] + half;\n"
    "    const int64_t shifted = product < 0 ? 0 : product >> @_layer[l].shift;\n"
    "    const int index = shifted < @_layer[l].levels ? (int)shifted : @_layer[l].levels - 1;\n"
    "    return @_layer[l].table ? @_layer[l].table[index] : (uint8_t)index;\n"
    "}\n"
    "\n"
    "int @_predict(const unsigned char *pixels, int32_t *scores)\n"
    "{\n"
    "    uint8_t buffer[2][@_WIDEST];\n"
    "    const uint8_t *x = pixels;\n"
    "    int32_t most = 0;\n"
    "    int best = 0;\n"
    "    for (int l = 0; l < @_LAYERS; l++) {\n"
    "        const int8_t *weight = @_layer[l].weight;\n"
    "        for (int o = 0; o < @_layer[l].out; o++) {\n"
    "            int32_t sum = @_layer[l].bias[o];\n"
    "            for (int i = 0; i < @_layer[l].in; i++) sum += *weight++ * x[i];\n"
    "            if (@_layer[l].multiplier) {\n"
    "                buffer[l % 2][o] = @_activation(l, o, sum);\n"
    "                continue;\n"
    "            }\n"
    "            if (scores) scores[o] = sum;\n"
    "            if (o == 0 || sum > most) {\n"
    "                most = sum;\n"
    "                best = o;\n"
    "            }\n"
    "        }\n"
    "        x = buffer[l % 2];\n"
    "    }\n"
    "    return best;\n"
    "}\n";

static const char float_interface[] = "int @_predict(const unsigned char *pixels, float *probabilities);\n";
static const char integer_interface[] = "int @_predict(const unsigned char *pixels, int32_t *scores);\n";

static const char names_interface[] = "extern const char *const @_class[@_CLASSES];\n";

static const char about_interface[] =
    "   Returns the class, from 0 to @_CLASSES - 1. $ (or NULL): receives @_CLASSES values.\n"
    "   pixels: @_PIXELS, row by row, from 0 to 255, as in the training images.\n"
    "   No allocation, no global state: several threads may call it at once.\n";

/* --- the file --- */

struct c_memory c_memory(const struct network *network, const struct quantized *quantized) {
    const size_t depth = network->depth;
    if (!quantized)
        return (struct c_memory){network_parameters(network) * sizeof(float),
                                 2 * network_widest(network, 0, depth + 1) * sizeof(float)};
    struct c_memory memory = {0, 2 * network_widest(network, 1, depth)};
    for (size_t l = 0; l < depth; l++) {
        const struct quantized_layer *layer = &quantized->layer[l];
        memory.constants += layer->out * (layer->in + sizeof *layer->bias);
        if (layer->multiplier) memory.constants += layer->out * sizeof *layer->multiplier;
        if (layer->table) memory.constants += (size_t)layer->levels;
    }
    return memory;
}

static void write_comment(FILE *out, const struct network *network, const struct quantized *quantized,
                          const char *accuracy, const char *name) {
    const struct c_memory memory = c_memory(network, quantized);
    char description[512];
    network_describe(network, description, sizeof description);
    fprintf(out, "/* The network %s, written by Tessera %s.\n\n     ", description, TESSERA_VERSION);
    c_code(out, quantized ? integer_interface : float_interface, name, "");
    if (network->classes.count) fputs("     ", out);
    if (network->classes.count) c_code(out, names_interface, name, "");
    fputs("\n", out);
    c_code(out, about_interface, name, quantized ? "scores" : "probabilities");
    if (network->classes.count) fprintf(out, "   %s_class has the names of the classes.\n", name);
    if (quantized)
        fprintf(out, "   Integer arithmetic alone. A score times %.9g is a logit.\n", quantized->logit_scale);
    else
        fputs("   Link with -lm.\n", out);
    fprintf(out, "   Memory: %s bytes of constants, %s bytes of stack.\n",
            text_grouped(memory.constants).text, text_grouped(memory.stack).text);
    if (accuracy) fputs("   ", out);
    if (accuracy) c_comment(out, accuracy);
    fputs(accuracy ? " */\n" : "   */\n", out);
}

/* Includes, sizes and the prototype. */
static void write_sizes(FILE *out, const struct network *network, const struct quantized *quantized,
                        const char *name) {
    const size_t *width = network->layers.width, depth = network->depth;
    fprintf(out, quantized ? "#include <stddef.h>\n#include <stdint.h>\n\n" : "#include <math.h>\n\n");
    fprintf(out, "enum { %s_PIXELS = %zu, %s_CLASSES = %zu, %s_LAYERS = %zu, %s_WIDEST = %zu };\n", name,
            width[0], name, width[depth], name, depth, name,
            quantized ? network_widest(network, 1, depth) : network_widest(network, 0, depth + 1));
    c_code(out, quantized ? integer_interface : float_interface, name, "");
    if (network->classes.count) c_code(out, names_interface, name, "");
    fputs("\n", out);
}

static void write_classes(FILE *out, const struct network *network, const char *name) {
    fprintf(out, "const char *const %s_class[%s_CLASSES] = {", name, name);
    for (size_t c = 0; c < network->layers.width[network->depth]; c++) {
        fputs(c ? ",\n    " : "\n    ", out);
        c_string(out, classes_label(&network->classes, c).text);
    }
    fputs("};\n\n", out);
}

static void write_float(FILE *out, const struct network *network, const char *name) {
    for (size_t l = 0; l < network->depth; l++) {
        const size_t in = network->layers.width[l], count = network->layers.width[l + 1];
        c_array(out, name, l,
                &(struct c_array){"float", "weight", c_print_float, network->weight[l], in * count, count});
        c_array(out, name, l, &(struct c_array){"float", "bias", c_print_float, network->bias[l], count, 1});
    }
    c_code(
        out,
        "static const struct {\n    int in, out;\n    const float *weight, *bias;\n} @_layer[@_LAYERS] = {\n",
        name, "");
    for (size_t l = 0; l < network->depth; l++)
        fprintf(out, "    {%zu, %zu, %s_weight_%zu, %s_bias_%zu},\n", network->layers.width[l],
                network->layers.width[l + 1], name, l, name, l);
    fprintf(
        out,
        "};\n\n/* x = (pixel - offset) scale */\nstatic const float %s_offset = %.1ff, %s_scale = %.9gf;\n\n",
        name, input_offset(network->range), name, input_scale(network->range));
    c_code(out, float_code, name, activation_forms[network->activation].c);
}

/* The array, or NULL if it has no values. */
static void write_optional(FILE *out, const void *values, const char *name, const char *part, size_t l) {
    if (values)
        fprintf(out, ", %s_%s_%zu", name, part, l);
    else
        fputs(", NULL", out);
}

static void write_integer(FILE *out, const struct quantized *quantized, const char *name) {
    for (size_t l = 0; l < quantized->depth; l++) {
        const struct quantized_layer *layer = &quantized->layer[l];
        const size_t weights = layer->in * layer->out, levels = (size_t)layer->levels;
        c_array(out, name, l, &(struct c_array){"int8_t", "weight", c_print_int8, layer->weight, weights, 1});
        c_array(out, name, l,
                &(struct c_array){"int32_t", "bias", c_print_int32, layer->bias, layer->out, 1});
        c_array(out, name, l,
                &(struct c_array){"int32_t", "multiplier", c_print_int32, layer->multiplier, layer->out, 1});
        c_array(out, name, l, &(struct c_array){"uint8_t", "table", c_print_uint8, layer->table, levels, 1});
    }
    c_code(out,
           "static const struct {\n    int in, out, shift, levels;\n    const int8_t *weight;\n"
           "    const int32_t *bias, *multiplier;\n    const uint8_t *table;\n} @_layer[@_LAYERS] = {\n",
           name, "");
    for (size_t l = 0; l < quantized->depth; l++) {
        const struct quantized_layer *layer = &quantized->layer[l];
        fprintf(out, "    {%zu, %zu, %d, %d, %s_weight_%zu, %s_bias_%zu", layer->in, layer->out, layer->shift,
                layer->levels, name, l, name, l);
        write_optional(out, layer->multiplier, name, "multiplier", l);
        write_optional(out, layer->table, name, "table", l);
        fputs("},\n", out);
    }
    fputs("};\n\n", out);
    c_code(out, integer_code, name, "");
}

enum status c_write(const struct network *network, const struct quantized *quantized, const char *accuracy,
                    const char *path) {
    struct replacement file;
    char name[C_NAME];
    enum status status = replace_open(&file, "", path);
    if (status) return status;
    c_name(path, name);
    write_comment(file.out, network, quantized, accuracy, name);
    write_sizes(file.out, network, quantized, name);
    if (network->classes.count) write_classes(file.out, network, name);
    if (quantized)
        write_integer(file.out, quantized, name);
    else
        write_float(file.out, network, name);
    return replace_close(&file, STATUS_OK); /* sees an earlier failure, too */
}
