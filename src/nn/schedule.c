#include "src/nn/schedule.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

/* Half a cosine from `start` at 0 to `end` at 1. */
static double anneal(double start, double end, double progress) {
    return end + (start - end) * 0.5 * (1 + cos(PI * progress));
}

static double one_cycle(const struct config *config, double step, double total_steps) {
    const double peak = config->learning_rate, start = peak / config->div_factor;
    const double up = config->pct_start * total_steps - 1, last = total_steps - 1;
    if (step <= up) return anneal(start, peak, up > 0 ? step / up : 1);
    return anneal(peak, start / config->final_div_factor, fmin((step - up) / fmax(last - up, 1e-9), 1));
}

static double scheduled_rate(const struct config *config, double epoch, double step, double steps_per_epoch) {
    const double lr = config->learning_rate, total_steps = (double)config->epochs * steps_per_epoch;
    const double warmup =
        config->warmup_epochs > 0 ? config->warmup_epochs * steps_per_epoch : (double)config->warmup_steps;
    if (step < warmup) return lr * fmin((step + 1) / warmup, 1);
    switch ((enum schedule)config->schedule) {
    case SCHEDULE_CONSTANT:
        return lr;
    case SCHEDULE_STEP:
        return lr * pow(config->lr_gamma, floor(epoch / (double)config->lr_step_epochs));
    case SCHEDULE_EXPONENTIAL:
        return lr * pow(config->lr_gamma, epoch);
    case SCHEDULE_COSINE:
        return anneal(lr, config->lr_min, fmin((step - warmup) / fmax(total_steps - warmup, 1), 1));
    case SCHEDULE_ONE_CYCLE:
        return one_cycle(config, step, total_steps);
    }
    return lr;
}

void schedule_epoch(const struct config *config, size_t epoch, size_t steps_per_epoch, uint64_t first,
                    struct step_scalars *scalars) {
    for (size_t s = 0; s < steps_per_epoch; s++) {
        const double rate = scheduled_rate(config, (double)epoch, (double)(epoch * steps_per_epoch + s),
                                           (double)steps_per_epoch);
        const uint64_t number = first + s;
        const double t = (double)number;
        scalars[s] = (struct step_scalars){
            .learning_rate = rate, .average_decay = fmin(config->ema_decay, t / (9 + t)), .number = number};
        if (!uses_second_moment((enum update_method)config->optimizer)) continue;
        scalars[s].adam_rate = rate / (1 - pow(config->beta1, t + 1));
        scalars[s].adam_root = 1 / sqrt(1 - pow(config->beta2, t + 1));
    }
}
