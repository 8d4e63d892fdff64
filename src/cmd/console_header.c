/* The lines before the epochs: all settings of the run. */
#include <string.h>

#include "src/base/platform.h"
#include "src/base/terminal.h"
#include "src/base/text.h"
#include "src/cmd/console.h"
#include "src/comm/comm.h"
#include "src/nn/engine.h"

enum { INDENT = 10, LINE = 2048 };

/* The update rule without its learning rate. */
static void describe_optimizer(const struct config *config, char *text, size_t size) {
    if (uses_second_moment((enum update_method)config->optimizer)) {
        text_append(text, size, "%s betas %g and %g", config_choice("optimizer", config->optimizer),
                    config->beta1, config->beta2);
    } else {
        text_append(text, size, "%smomentum %g", config->nesterov ? "nesterov " : "", config->momentum);
    }
    text_append(text, size, ", weight decay %g", config->weight_decay);
}

/* Prints one line with the optional parts of the recipe that are in use. */
static void print_regularization(const struct config *config) {
    const struct {
        const char *name;
        double value;
    } all[] = {{"clip norm", config->clip_norm},
               {"max norm", config->max_norm},
               {"dropout", config->dropout},
               {"input dropout", config->input_dropout},
               {"label smoothing", config->label_smoothing},
               {"adversarial", config->adversarial},
               {"average of weights", config->ema_decay},
               {"patience", (double)config->patience}};
    char text[LINE] = "";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].value != 0)
            text_append(text, sizeof text, "%s %s %g", text[0] ? "," : "", all[i].name, all[i].value);
    if (text[0]) terminal_print(stdout, INDENT, "%*s%s\n", INDENT - 1, "", text);
}

static void print_recipe(const struct trainer *trainer) {
    const struct config *config = trainer->config;
    const long long seed = (long long)config->seed;
    char warmup[64] = "", optimizer[128] = "", seeds[64] = "";
    if (config->warmup_steps)
        text_append(warmup, sizeof warmup, ", %lld warm-up steps", (long long)config->warmup_steps);
    if (config->warmup_epochs > 0)
        text_append(warmup, sizeof warmup, ", %g warm-up epochs", config->warmup_epochs);
    describe_optimizer(config, optimizer, sizeof optimizer);
    snprintf(seeds, sizeof seeds, config->ensemble > 1 ? "seeds %lld to %lld" : "seed %lld", seed,
             seed + config->ensemble - 1);
    terminal_print(stdout, INDENT,
                   "recipe    %lld epoch%s of %s step%s of %s images, lr %g (%s%s), %s, shuffle %s, %s\n",
                   (long long)config->epochs, config->epochs == 1 ? "" : "s",
                   text_grouped(trainer->steps).text, trainer->steps == 1 ? "" : "s",
                   text_grouped(trainer->batch).text, config->learning_rate,
                   config_choice("schedule", config->schedule), warmup, optimizer,
                   config_choice("shuffle", config->shuffle), seeds);
    print_regularization(config);
}

/* Appends ", rotate or shear 15 degrees", ", rotate 10 or shear 15 degrees" or ", shear 15 degrees". */
static void describe_rotation(const struct config *config, char *text, size_t size) {
    const double rotate = config->augment_rotate, shear = config->augment_shear;
    char gentle[CONFIG_TEXT];
    if (rotate > 0) text_append(text, size, ", rotate");
    if (rotate > 0 && rotate != shear) text_append(text, size, " %g", rotate);
    if (shear > 0) text_append(text, size, "%s shear %g", rotate > 0 ? " or" : ",", shear);
    if (rotate > 0 || shear > 0) text_append(text, size, " degrees");
    config_value(config, config_key_find("augment-gentle"), gentle, sizeof gentle);
    if (gentle[0]) text_append(text, size, " (half for %s)", gentle);
}

static void print_augmentation(const struct config *config) {
    char text[2 * CONFIG_TEXT] = "";
    if (config->augment_elastic > 0)
        text_append(text, sizeof text, ", elastic %g px (sigma %g)", config->augment_elastic,
                    config->augment_sigma);
    describe_rotation(config, text, sizeof text);
    if (config->augment_scale > 0) text_append(text, sizeof text, ", scale %g %%", config->augment_scale);
    if (config->augment_shift > 0) text_append(text, sizeof text, ", shift %g px", config->augment_shift);
    terminal_print(stdout, INDENT, "augment   %s\n", text[0] ? text + 2 : "on, but every amount is 0");
}

static void print_processes(const struct trainer *trainer) {
    const struct comm *comm = trainer->compute->comm;
    if (!comm) return;
    terminal_print(stdout, INDENT, "processes %d%s%s%s%s, reduction %s: %d parts of each batch\n", comm->size,
                   comm->description[0] ? " by " : "", comm->description,
                   comm->device_sums[0] ? ", sums by " : "", comm->device_sums, comm->fixed ? "fixed" : "any",
                   trainer->parallel.parts);
}

void console_header(const struct trainer *trainer, const struct dataset_pair *data) {
    const struct config *config = trainer->config;
    const struct compute *compute = trainer->compute;
    char layers[CONFIG_TEXT], init[CONFIG_TEXT], resized[64] = "";
    const size_t reported = data->test.count ? trainer->test.count : trainer->validation.count;
    config_value(config, config_key_find("layers"), layers, sizeof layers);
    config_value(config, config_key_find("init"), init, sizeof init);
    if (config->input_size)
        snprintf(resized, sizeof resized, ", read as %zux%zu", trainer->train.height, trainer->train.width);
    printf("Tessera %s, commit %s\n", TESSERA_VERSION, platform_commit());
    terminal_print(stdout, INDENT, "network   %s, %s, init %s: %s parameters\n", layers,
                   config_choice("activation", config->activation), init,
                   text_grouped(mlp_parameter_count(&trainer->mlp)).text);
    terminal_print(stdout, INDENT, "data      %s: %s training%s, %s %s images of %zux%zu%s\n", data->name,
                   text_grouped(trainer->train.count).text,
                   trainer->validation.count ? " (after the validation split)" : "",
                   text_grouped(reported).text, dataset_reported(data), data->train.height, data->train.width,
                   resized);
    print_recipe(trainer);
    if (config->augment) print_augmentation(config);
    char engine[160];
    engine_describe(trainer, engine, sizeof engine);
    terminal_print(stdout, INDENT, "compute   backend %s (%s), %s, precision %s, engine %s, residency %s\n",
                   compute->name, compute->description, dtype_name(trainer->mlp.dtype),
                   compute_precision(compute, trainer->mlp.dtype), engine, compute_residency(compute));
    if (compute->gpu[0]) terminal_print(stdout, INDENT, "gpu       %s\n", compute->gpu);
    print_processes(trainer);
    terminal_print(stdout, INDENT, "machine   %s; %s; %s; %s %s\n\n", platform_cpu(), platform_system(),
                   platform_load_text().text, platform_compiler(), platform_flags());
}

void console_plan(const struct trainer *trainer) {
    char text[2048];
    engine_explain(trainer, text, sizeof text);
    const char *title = "plan";
    for (const char *line = text; *line; line += text_line_length(line), title = "")
        terminal_print(stdout, INDENT, "%-9s %.*s\n", title, (int)strcspn(line, "\n"), line);
    printf("\n");
}
