/* ./train readout: --ridge, --window, --forgetting, --drift. */
#include <string.h>

#include "src/base/text.h"
#include "src/cmd/readout.h"

static enum status read_ridge(struct readout_job *job) {
    double ridge;
    job->stream.ridge = -1;
    if (strcmp(job->config.ridge, "auto") == 0) return STATUS_OK;
    if (!text_parse_real(job->config.ridge, &ridge) || ridge < 0 || ridge > 1e30)
        return status_set(STATUS_USAGE, "ridge must be auto or a number from 0 to 1e30, not '%s'",
                          job->config.ridge);
    job->stream.ridge = ridge;
    return STATUS_OK;
}

static enum status add_memory(struct readout_job *job, size_t window, double forgetting) {
    if (job->stream.count == STREAM_MOST)
        return status_set(STATUS_USAGE, "window and forgetting name more than %d readouts", STREAM_MOST);
    job->stream.memory[job->stream.count++] = (struct stream_memory){window, forgetting};
    return STATUS_OK;
}

static enum status add_window(struct readout_job *job, const char *word) {
    int64_t window;
    if (strcmp(word, "all") == 0) return add_memory(job, 0, 1);
    if (!text_parse_int(word, &window) || window < 1 || window > 1000000000)
        return status_set(
            STATUS_USAGE,
            "window must be numbers of images from 1 to 1000000000, or all, with commas between "
            "them, as in 1000,4000,all; '%s' is none",
            word);
    return add_memory(job, (size_t)window, 1);
}

static enum status add_forgetting(struct readout_job *job, const char *word) {
    double factor;
    if (!text_parse_real(word, &factor) || !(factor > 0) || factor >= 1)
        return status_set(
            STATUS_USAGE,
            "forgetting must be numbers between 0 and 1, with commas between them, as in 0.999; "
            "'%s' is none",
            word);
    return add_memory(job, 0, factor);
}

static enum status for_words(struct readout_job *job, const char *list,
                             enum status (*add)(struct readout_job *job, const char *word)) {
    char copy[CONFIG_TEXT];
    enum status status = STATUS_OK;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *word = copy; word && !status;) {
        char *end = strchr(word, ',');
        if (end) *end = '\0';
        status = add(job, text_trim(word));
        word = end ? end + 1 : NULL;
    }
    return status;
}

static enum status read_stream(struct readout_job *job) {
    const struct config *config = &job->config;
    enum status status =
        for_words(job, config->window[0] ? config->window : "1000,4000,16000,all", add_window);
    if (!status && config->forgetting[0]) status = for_words(job, config->forgetting, add_forgetting);
    if (!status && config->drift[0]) status = drift_parse(config->drift, &job->drift);
    job->stream.stride = (size_t)config->stride;
    if (status) return status;
    const char *unused = config->save[0]                                       ? "save"
                         : config_origin_of(config, "validation") == FROM_FLAG ? "validation"
                                                                               : NULL;
    if (unused)
        return status_set(STATUS_USAGE,
                          "a stream has no --%s: remove it, or --window, --forgetting, --drift and --stride",
                          unused);
    return STATUS_OK;
}

enum status readout_read_options(struct readout_job *job) {
    static const char *const of_stream[] = {"window", "forgetting", "drift", "stride"};
    for (size_t i = 0; i < sizeof of_stream / sizeof *of_stream; i++)
        job->streams = job->streams || config_origin_of(&job->config, of_stream[i]) != FROM_DEFAULT;
    const enum status status = read_ridge(job);
    return status || !job->streams ? status : read_stream(job);
}
