#include "tests/lookahead_replay.h"

#include <math.h>
#include <stdlib.h>

#include "tests/lockstep.h"

void lookahead_training_open(struct lookahead_training *training, const char *settings) {
    struct bench *bench = &training->bench;
    struct run_summary summary;
    char all[512];
    snprintf(all, sizeof all, "%s backend=serial threads=1 dtype=f64 engine=eager audit=off log-steps=400",
             settings);
    bench_open(bench, all, NULL);
    training->count = lockstep_state_count(&bench->trainer);
    training->start = lockstep_state(&bench->trainer);
    assert_status(bench_run(bench, &summary), STATUS_OK);
    training->end = lockstep_state(&bench->trainer);
    assert_true(training->start && training->end);
    assert_int_equal(bench->steps, bench->trainer.steps * (size_t)bench->config.epochs);
}

void lookahead_training_close(struct lookahead_training *training) {
    bench_close(&training->bench);
    free(training->start);
    free(training->end);
}

struct lookahead_batch lookahead_batch_of(const struct trainer *trainer, size_t step) {
    return (struct lookahead_batch){.rows = engine_rows(trainer, step),
                                    .index = trainer->feed.order + step * trainer->batch,
                                    .rate = trainer->feed.scalars[step].learning_rate};
}

struct lookahead_apart lookahead_replay(struct lookahead_training *training, struct lookahead *model,
                                        size_t drain_every) {
    struct bench *bench = &training->bench;
    struct trainer *trainer = &bench->trainer;
    struct lookahead_apart apart = {0};
    size_t step = 0;
    for (int64_t epoch = 0; epoch < bench->config.epochs; epoch++) {
        epoch_feed_begin(&trainer->feed, &bench->compute.device, epoch, step);
        for (size_t s = 0; s < trainer->steps; s++, step++) {
            const struct lookahead_batch batch = lookahead_batch_of(trainer, s);
            const double loss = lookahead_step(model, &batch), wanted = bench->losses[step];
            const double off = fabs(loss / wanted - 1);
            if (!(off <= apart.loss)) apart.loss = isnan(off) ? INFINITY : off;
            if ((step + 1) % drain_every == 0) lookahead_drain(model);
        }
    }
    lookahead_drain(model);
    apart.weights = lockstep_distance(model->state, training->end, training->count) /
                    lockstep_distance(training->start, training->end, training->count);
    return apart;
}
