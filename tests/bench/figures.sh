#!/usr/bin/env bash
# Measures every figure of README.md and of a report for this machine: called by `make figures`.
#
#   tests/bench/figures.sh measure LOGS [NAME..]   writes the logs (JSON lines, and the transcripts as text) to the folder LOGS;
#                                                  with names, those alone, and leaves the others as they are
#   tests/bench/figures.sh write LOGS TAG          writes LOGS/report.html, and README.md between its markers <!-- NAME TAG -->
#
# TRAIN names the program (default ./train). MNIST must be in data/mnist (data/fetch.sh). Backends that cannot be used here are
# left out, and the page says so. Leave the machine alone meanwhile: about ten minutes on two cores, 13 on a GPU.
# The environment is used as it is: where the program says that OpenBLAS chose a slow core, set OPENBLAS_CORETYPE.
set -euo pipefail

train=${TRAIN:-./train}
validation="--config configs/validation.cfg"
high="--config configs/high-throughput.cfg"
[ $# -ge 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
logs=$2

names=("${@:3}")
wanted() { [ ${#names[@]} -eq 0 ] || [[ " ${names[*]} " == *" $1 "* ]]; }

# transcript NAME FLAGS...: what the program prints, with the command above it
transcript() {
    local name=$1; shift
    wanted "$name" || return 0
    { echo "\$ ${OPENBLAS_CORETYPE:+OPENBLAS_CORETYPE=$OPENBLAS_CORETYPE }./train $*"; "$train" "$@"; } >"$logs/$name.txt"
}

# run NAME FLAGS...: the same with a log of that name
run() {
    local name=$1; shift
    wanted "$name" || return 0
    echo "  $name"
    "$train" "$@" --log "$logs/$name.jsonl" >"$logs/$name.txt"
}

# fast NAME CONFIG [FLAGS..]: the whole process, from start to end, and training in it, on five seeds; SEED in the flags is the seed
fast() {
    wanted "$1" || return 0
    echo "  $1"
    local seed start accuracy log more=("${@:3}")
    log=$(mktemp)
    for seed in 1 2 3 4 5; do
        start=$(date +%s.%N)
        accuracy=$("$train" --config "$2" --seed "$seed" --log "$log" "${more[@]//SEED/$seed}" | awk '/^test accuracy/ { print $4 }')
        echo "$seed ${accuracy:?} $start $(date +%s.%N) $(sed -n '/"type":"epoch"/s/.*"seconds":\([^,]*\),.*/\1/p' "$log" | awk '{ s += $1 } END { print s }')"
    done | awk -v config="$2" '
        function spread(name, unit, n, sum, squares) {
            printf "%s: mean %.3f %s, standard deviation %.3f\n", name, sum / n, unit, sqrt((squares - sum * sum / n) / (n - 1))
        }
        NR == 1 { print "$ time ./train --config " config " --seed 1..5"; print "seed  test accuracy  seconds of training  of the whole process" }
        { t = $4 - $3; printf "%4d  %11.2f %%  %19.4f  %20.2f\n", $1, $2, $5, t; n++; a += $2; aa += $2 * $2; s += t; ss += t * t; e += $5; ee += $5 * $5 }
        END { spread("test accuracy", "%", n, a, aa); spread("training", "s", n, e, ee); spread("process", "s", n, s, ss) }' >"$logs/$1.txt"
    rm "$log"
}

# peers: NumPy and PyTorch beside ours, only where it is asked for by name: six minutes, and Python packages (PYTHON names the interpreter)
peers() {
    [[ " ${names[*]} " == *" peers-epoch "* ]] || return 0
    echo "  peers-epoch"
    tests/bench/cpu_peers.py epoch --rounds 2 --ours tuned,openblas ${PYTHON:+--python "$PYTHON"} --out "$logs/peers-epoch.log" >"$logs/peers-epoch.txt"
}

# gpu_peers: PyTorch and JAX beside ours, by name too: four minutes
gpu_peers() {
    [[ " ${names[*]} " == *" peers-gpu "* ]] || return 0
    echo "  peers-gpu"
    "${PYTHON:-python3}" tests/bench/gpu_peers.py --train "$train" --rounds "${ROUNDS:-2}" --epochs 7 --out "$logs/peers-gpu.log" >"$logs/peers-gpu.txt"
}

# ensembles: networks at once on a GPU, by name too
ensembles() {
    [[ " ${names[*]} " == *" ensembles "* ]] || return 0
    local count
    for count in 1 2 4 8; do
        names+=("ensemble-$count")
        transcript "ensemble-$count" --epochs 10 --backend cuda-tuned --ensemble $count --verbose
    done
}

# record: accuracy and not speed, by name too: three minutes on a GPU
record() {
    [[ " ${names[*]} " == *" record "* ]] || return 0
    local saved
    saved=$(mktemp -d)
    fast record configs/record.cfg --save "$saved/SEED.safetensors"
    echo "  committee"
    "$train" eval "$saved"/[1-5].safetensors --misclassified 12 --log "$logs/committee.jsonl" >"$logs/committee.txt"
    "$train" eval "$saved"/[1-5].safetensors --picture "$logs/mistakes.png" >/dev/null
    rm -r "$saved"
    names+=(no-augmentation)
    fast no-augmentation configs/no-augmentation.cfg
}

measure() {
    mkdir -p "$logs"
    [ ${#names[@]} -gt 0 ] || find "$logs" \( -name '*.jsonl' -o -name '*.txt' \) ! -name 'peers-*' ! -name 'ensemble-*' ! -name 'record.*' ! -name 'committee.*' ! -name 'no-augmentation.*' -delete
    model="" gpu=""
    model=$(mktemp --suffix .safetensors)
    trap 'rm -f "$model"' EXIT
    if "$train" devices --backend cublas >/dev/null 2>&1; then gpu=1; fi

    echo "measuring into $logs:"
    transcript transcript $validation ${gpu:+--backend cublas}
    if wanted training; then
        run training $validation ${gpu:+--backend cuda-tuned} --save "$model"
        [ ${#names[@]} -eq 0 ] || names+=(evaluation) # goes with it
        run evaluation eval "$model" --misclassified 12
    fi
    fast fast configs/fast.cfg
    [ -z "$gpu" ] || fast fast-gpu configs/fast-gpu.cfg
    peers
    gpu_peers
    ensembles
    record
    run compare-validation compare $validation --backends all
    if [ -n "$gpu" ]; then
        run compare-validation-host compare $validation --backends cuda-naive,cuda-coalesced,cuda-shmem,cuda-tuned,cublas,openblas \
            --residency host --pin off,on --repeat 1
        run compare-validation-eager compare $validation --backends cuda-tuned,cublas,openblas --engine eager --repeat 3
        run compare-validation-f64 compare $validation --backends cuda-tuned,cublas,openblas --dtype f64
        run compare-validation-bf16 compare $validation --backends cuda-tuned,cublas --precision bf16,tf32
        run compare-high compare $high --backends cuda-naive,cuda-coalesced,cuda-shmem,cuda-order,cuda-tuned,cublas,tuned,openblas,openmp \
            --limit-seconds 20
        run compare-high-rounded compare $high --backends cuda-tuned,cublas --precision tf32,bf16 --repeat 7
        run compare-high-host compare $high --backends cuda-naive,cuda-coalesced,cuda-shmem,cuda-tuned,cublas,openblas \
            --residency host --pin off,on --repeat 1
        run gemm bench gemm $validation --sizes 256,512,1024,2048,4096 --limit-seconds 3 \
            --backends openblas,tuned,cuda-naive,cuda-coalesced,cuda-shmem,cuda-tuned,cublas
        run gemm-8192 bench gemm --sizes 8192 --dtype f32 --backends cuda-naive,cuda-coalesced,cuda-shmem,cuda-tuned,cublas
        run gemm-high bench gemm $high --sizes none --dtype f32 --backends openblas,tuned,cuda-shmem,cuda-tuned,cublas
        run shmem bench shmem
        run breakeven bench breakeven --backends tuned,cuda-tuned,cublas --batches 16,128,1024,8192 --hidden 16,128,1024,4096 \
            --repeat 1
    else
        run compare-high compare $high --backends openmp,openblas,tuned --limit-seconds 5 --repeat 1
        run gemm bench gemm $validation --sizes 512,1024,2048 --dtype f32 --limit-seconds 1
        run gemm-high bench gemm $high --sizes none --dtype f32 --backends openblas,tuned
        run breakeven bench breakeven --batches 16,128,1024 --hidden 32,128,512
    fi
    run scaling bench scaling $validation --epochs 3
}

write() {
    local tag=$1
    [ -e "$logs/peers-epoch.txt" ] || echo 'not measured here: tests/bench/figures.sh measure LOGS peers-epoch' >"$logs/peers-epoch.txt"
    # without .jsonl, so that a comparison comes before its variants
    mapfile -t files < <(cd "$logs" && ls -- *.jsonl | sed 's/\.jsonl$//' | LC_ALL=C sort)
    files=("${files[@]/#/$logs/}")
    "$train" report "${files[@]/%/.jsonl}" -o "$logs/report.html"
    "$train" report "${files[@]/%/.jsonl}" --tables README.md --tag "$tag"
}

case $1 in
measure) measure ;;
write) write "${3:?TAG}" ;;
*) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
