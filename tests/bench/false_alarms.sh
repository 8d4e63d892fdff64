#!/bin/sh
# tests/bench/false_alarms.sh TRAIN SEEDS: how often does `compare` call a right backend wrong? For seeds 1 to SEEDS of three
# recipes, checks the backends of BACKENDS (default: tuned,openmp) against float64 from the same states, one process a core.
set -u
train=$1 seeds=$2
export train backends="${BACKENDS:-tuned,openmp}" OMP_WAIT_POLICY=passive
for recipe in '--config configs/validation.cfg' '--config configs/fast.cfg' \
    '--layers 784-70-33-40-10 --batch-size 1100 --lr 0.1'; do
    export recipe
    # shellcheck disable=SC2016 # the inner shell expands them
    wrong=$(seq "$seeds" | xargs -P "$(nproc)" -I{} sh -c '
        $train compare $recipe --data data/mnist --backends "$backends" --threads 1 --seed {} --repeat 1 --limit-seconds 1e-6 \
            >/dev/null 2>&1
        status=$?
        [ $status -eq 0 ] || echo "seed {}: exit $status"')
    echo "$recipe: $(printf '%s' "$wrong" | grep -c .) of $seeds seeds were called wrong"
    printf '%s' "$wrong" | head -n 5
done
