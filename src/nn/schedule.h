/* The scalars of each step: learning rate, Adam's bias corrections, EMA decay. */
#ifndef TESSERA_NN_SCHEDULE_H
#define TESSERA_NN_SCHEDULE_H

#include "kernels/ops.h"
#include "src/nn/config.h"

/* Fills the scalars of one epoch (0 is the first). `first` is the number of updates before it.
   The learning rate at step s of T, counted over the whole training:
     warm-up      lr (s + 1) / W for the first W steps: warmup-steps, or warmup-epochs
     constant     lr
     step         lr gamma^floor(epoch / lr-step-epochs)
     exponential  lr gamma^epoch
     cosine       lr-min + (lr - lr-min) (1 + cos(pi t / T')) / 2, t of the T' steps after the warm-up
                  (Loshchilov and Hutter 2016, arXiv 1608.03983, without restarts)
     one-cycle    from lr / div-factor up to lr over the first pct-start T - 1 steps, then down to lr /
                  div-factor / final-div-factor, both along half a cosine:
                  torch.optim.lr_scheduler.OneCycleLR, two phases (Smith and Topin 2017, arXiv 1708.07120);
                  the momentum is constant.
   The decay of the moving average after t updates is min(ema-decay, t / (9 + t)). The first update copies the
   weights, as torch.optim.swa_utils.AveragedModel does; the share of early updates decays fast, as in
   tf.train.ExponentialMovingAverage with num_updates. */
void schedule_epoch(const struct config *config, size_t epoch, size_t steps_per_epoch, uint64_t first,
                    struct step_scalars *scalars);

#endif
