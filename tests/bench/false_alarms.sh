#!/bin/sh
# tests/bench/false_alarms.sh TRAIN SEEDS: how often is a right backend called wrong? For seeds 1 to SEEDS of three recipes, one
# process a core: `compare` checks the backends of BACKENDS (default: tuned,openmp) against float64 from the same states; then
# `train` audits all steps of engine fused and, if PLUGIN names a right plug-in, that in its two epochs. COMPARE=0 leaves
# the first out.
set -u
train=$1 seeds=$2
export train OMP_WAIT_POLICY=passive

count() { # WHAT COMMAND: runs it with each seed, and counts exit codes other than 0
    what=$1
    shift
    # shellcheck disable=SC2016 # the inner shell expands them
    wrong=$(seq "$seeds" | xargs -P "$(nproc)" -I{} sh -c '
        "$@" --seed {} >/dev/null 2>&1
        status=$?
        [ $status -eq 0 ] || echo "seed {}: exit $status"' sh "$@")
    echo "$what: $(printf '%s' "$wrong" | grep -c .) of $seeds seeds were called wrong"
    printf '%s' "$wrong" | head -n 5
}

for recipe in '--config configs/validation.cfg' '--config configs/fast.cfg' \
    '--layers 784-70-33-40-10 --batch-size 1100 --lr 0.1'; do
    common="$recipe --data data/mnist"
    # shellcheck disable=SC2086 # flags
    if [ "${COMPARE:-1}" = 1 ]; then
        count "compare $recipe" "$train" compare $common --backends "${BACKENDS:-tuned,openmp}" --threads 1 --repeat 1 \
            --limit-seconds 1e-6
    fi
    # shellcheck disable=SC2086
    count "train $recipe, engine fused" "$train" $common --epochs 2 --threads 1 --engine fused --audit all
    # shellcheck disable=SC2086
    if [ -n "${PLUGIN:-}" ]; then
        count "train $recipe, plug-in" "$train" $common --epochs 2 --threads 1 --backend "$PLUGIN"
    fi
done
