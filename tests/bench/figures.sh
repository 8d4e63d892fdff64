#!/usr/bin/env bash
# Measures every figure of README.md and docs/ and writes their tables: called by `make figures`.
#
#   tests/bench/figures.sh measure LOGS [NAME..]   writes the logs (JSON lines, and transcripts as text) to the folder LOGS;
#                                                  with names, only those, and leaves the others unchanged
#   tests/bench/figures.sh write LOGS TAG          writes LOGS/report.html, docs/figures/tables, and README.md and docs/ between
#                                                  their markers <!-- NAME TAG -->
#
# TRAIN names the program (default ./train). MNIST must be in data/mnist (data/fetch.sh). Backends that cannot run here are left
# out, and the page says so. Run nothing else meanwhile: about ten minutes on two cores, 13 on a GPU.
# The environment is used as it is: if the program says that OpenBLAS chose a slow core, set OPENBLAS_CORETYPE.
set -euo pipefail

train=${TRAIN:-./train}
validation="--config configs/validation.cfg"
high="--config configs/high-throughput.cfg"
[ $# -ge 2 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2; }
logs=$2
seeds=${SEEDS:-1 2 3 4 5}

names=("${@:3}")
wanted() { [ ${#names[@]} -eq 0 ] || [[ " ${names[*]} " == *" $1 "* ]]; }

# transcript NAME FLAGS...: what the program prints, with the command above it
transcript() {
    local name=$1; shift
    wanted "$name" || return 0
    { echo "\$ ${OPENBLAS_CORETYPE:+OPENBLAS_CORETYPE=$OPENBLAS_CORETYPE }./train $*"; "$train" "$@"; } >"$logs/$name.txt"
}

# run NAME FLAGS...: the same without the command, and a log of that name
run() {
    local name=$1; shift
    wanted "$name" || return 0
    echo "  $name"
    "$train" "$@" --log "$logs/$name.jsonl" >"$logs/$name.txt"
}

# spread NAME COMMAND: the table of lines "seed accuracy start end [seconds-of-training]" on standard input, with mean and standard deviation
spread() {
    awk -v command="for seed in $seeds; do time $2; done" '
        function line(name, unit, n, sum, squares) {
            printf "%s: mean %.3f %s", name, sum / n, unit
            if (n > 1) printf ", standard deviation %.3f", sqrt((squares - sum * sum / n) / (n - 1))
            print ""
        }
        /^of / { origin = $0; next }
        !n { print "$ " command; print "seed  test accuracy" (NF > 4 ? "  seconds of training" : "") "  of the whole process" }
        {
            t = $4 - $3; n++; a += $2; aa += $2 * $2; s += t; ss += t * t; e += $5; ee += $5 * $5
            printf "%4d  %11.2f %%  ", $1, $2
            if (NF > 4) printf "%19.4f  ", $5
            printf "%20.2f\n", t
        }
        END {
            line("test accuracy", "%", n, a, aa)
            if (e) line("training", "s", n, e, ee)
            line("process", "s", n, s, ss)
            print origin
        }' >"$logs/$1.txt"
}

# value LOG KEY: the value in the log's header, without quotes
value() {
    sed -n "1s/.*\"$2\":\"*\([^\"]*[^\",]\)\"*[,}].*/\1/p" "$1" | sed 's/,.*//'
}

# origin LOG: commit, machine and data set of a table
origin() {
    local gpu images
    gpu=$(value "$1" gpu) images=$(value "$1" train_images)
    echo "of commit $(value "$1" commit), ${gpu:-$(value "$1" cpu), $(value "$1" threads) threads}${images:+, $images training images}"
}

# fast NAME CONFIG [FLAGS..]: seconds of the whole process and of its training for each of SEEDS (default 1 to 5); SEED in the flags
# is replaced by the seed
fast() {
    wanted "$1" || return 0
    echo "  $1"
    local seed start accuracy log more=("${@:3}")
    log=$(mktemp)
    for seed in $seeds; do
        start=$(date +%s.%N)
        accuracy=$("$train" --config "$2" --seed "$seed" --log "$log" "${more[@]//SEED/$seed}" | awk '/^test accuracy/ { print $4 }')
        echo "$seed ${accuracy:?} $start $(date +%s.%N) $(sed -n '/"type":"epoch"/s/.*"seconds":\([^,]*\),.*/\1/p' "$log" | awk '{ s += $1 } END { print s }')"
        origin "$log"
    done | spread "$1" "./train --config $2 --seed \$seed"
    rm "$log"
}

# views NAME FOLDER: evaluates the checkpoint of each seed in a folder with 32 deformations of each image
views() {
    echo "  $1"
    local seed start accuracy log
    log=$(mktemp)
    for seed in $seeds; do
        start=$(date +%s.%N)
        accuracy=$("$train" eval "$2/$seed.safetensors" --backend cuda-tuned --tta 32 --log "$log" | awk '/^test accuracy/ { print $4 }')
        echo "$seed ${accuracy:?} $start $(date +%s.%N)"
        origin "$log"
    done | spread "$1" "./train eval \$seed.safetensors --backend cuda-tuned --tta 32"
    rm "$log"
}

# cores: 2 (if the machine has two) and 1
cores() {
    [ "$(nproc)" -lt 2 ] || echo 2
    echo 1
}

# The functions from here to measure run only if named.
# peers: NumPy, PyTorch and ours, interleaved: 15 minutes; needs Python packages (PYTHON names the interpreter)
peers() {
    [[ " ${names[*]} " == *" peers-epoch "* ]] || return 0
    local threads
    echo "  peers-epoch"
    for threads in $(cores); do
        tests/bench/cpu_peers.py epoch --train "$train" --threads $threads --rounds "${ROUNDS:-2}" --ours tuned,openblas ${PYTHON:+--python "$PYTHON"} \
            --out "$logs/peers-epoch-$threads.log"
    done >"$logs/peers-epoch.txt"
}

# gemm_peers: CBLAS libraries and ours, interleaved: eight minutes. Operands are warm, as in those libraries' own benchmarks.
gemm_peers() {
    [[ " ${names[*]} " == *" peers-gemm "* ]] || return 0
    local threads
    echo "  peers-gemm"
    for threads in $(cores); do
        tests/bench/cpu_peers.py gemm --train "$train" --operands warm --threads $threads --rounds "${ROUNDS:-2}" --sizes 1024,2048 --out "$logs/peers-gemm-$threads.log"
    done >"$logs/peers-gemm.txt"
}

# gpu_peers: PyTorch, JAX and ours, interleaved: four minutes
gpu_peers() {
    [[ " ${names[*]} " == *" peers-gpu "* ]] || return 0
    echo "  peers-gpu"
    rm -f "$logs/peers-gpu.log"
    "${PYTHON:-python3}" tests/bench/gpu_peers.py --train "$train" --rounds "${ROUNDS:-2}" --epochs 7 --out "$logs/peers-gpu.log" >"$logs/peers-gpu.txt"
}

# gpu_peers_large: the same for networks of large products: five minutes
gpu_peers_large() {
    [[ " ${names[*]} " == *" peers-gpu-large "* ]] || return 0
    echo "  peers-gpu-large"
    rm -f "$logs/peers-gpu-large.log"
    "${PYTHON:-python3}" tests/bench/gpu_peers.py --train "$train" --rounds "${ROUNDS:-2}" --epochs 7 --nets large \
        --peers 'PyTorch graph' 'JAX scan' 'ours, graph' --out "$logs/peers-gpu-large.log" >"$logs/peers-gpu-large.txt"
}

# error_speed: error and rate of one large product, in float32, TF32 and bf16: half a minute
error_speed() {
    [[ " ${names[*]} " == *" error-speed "* ]] || return 0
    echo "  error-speed"
    rm -f "$logs/error-speed.log"
    "${PYTHON:-python3}" tests/bench/error_speed.py --train "$train" --out "$logs/error-speed.log" >"$logs/error-speed.txt"
}

# ensembles: concurrent networks on a GPU
ensembles() {
    [[ " ${names[*]} " == *" ensembles "* ]] || return 0
    local count
    for count in 1 2 4 8; do
        names+=("ensemble-$count")
        transcript "ensemble-$count" --epochs 10 --backend cuda-tuned --ensemble $count --verbose
    done
}

# record: accuracy, five minutes on a GPU. Each network is evaluated on the test set after its last epoch; then the committee is, and
# test-time augmentation.
record() {
    [[ " ${names[*]} " == *" record "* ]] || return 0
    local saved
    saved=$(mktemp -d)
    names+=(committee committee-tta no-augmentation)
    fast record configs/record.cfg --save "$saved/SEED.safetensors"
    views record-tta "$saved"
    run committee --config configs/committee.cfg --save "$saved/committee.safetensors"
    sed -i "/\"type\":\"epoch\"/d" "$logs/committee.jsonl" # 4,200 lines
    run committee-tta eval "$saved"/committee-seed*.safetensors --backend cuda-tuned --tta 32 --picture "$logs/mistakes.png"
    rm -r "$saved"
    fast no-augmentation configs/no-augmentation.cfg
}

# evening: accuracy on two CPU cores, twelve minutes per seed
evening() {
    [[ " ${names[*]} " == *" cpu-evening "* ]] || return 0
    fast cpu-evening configs/cpu-evening.cfg
}

# ciresan: the recipe of 2010, eight minutes on a GPU
ciresan() {
    [[ " ${names[*]} " == *" ciresan-2010 "* ]] || return 0
    run ciresan-2010 --config configs/ciresan-2010.cfg
}

measure() {
    mkdir -p "$logs"
    [ ${#names[@]} -gt 0 ] || find "$logs" \( -name '*.jsonl' -o -name '*.txt' \) ! -name 'peers-*' ! -name 'ensemble-*' ! -name 'record*' ! -name 'committee*' ! -name 'no-augmentation.*' \
        ! -name 'ciresan-2010.*' ! -name 'cpu-evening.*' -delete
    models="" gpu=""
    models=$(mktemp -d)
    trap 'rm -r "$models"' EXIT
    if "$train" devices --backend cublas >/dev/null 2>&1; then gpu=1; fi

    echo "measuring into $logs:"
    transcript transcript $validation ${gpu:+--backend cublas}
    if wanted training; then
        run training $validation ${gpu:+--backend cuda-tuned} --save "$models/validation.safetensors"
        [ ${#names[@]} -eq 0 ] || names+=(evaluation) # it needs this training's checkpoint
        run evaluation eval "$models/validation.safetensors" --misclassified 12
    fi
    fast fast configs/fast.cfg
    [ -z "$gpu" ] || fast fast-gpu configs/fast-gpu.cfg
    peers
    gemm_peers
    gpu_peers
    gpu_peers_large
    error_speed
    ensembles
    record
    ciresan
    evening
    run compare-validation compare $validation --backends all ${gpu:+--limit-seconds 5}
    if [ -n "$gpu" ]; then
        run compare-validation-host compare $validation --backends cuda-naive,cuda-coalesced,cuda-shmem,cuda-tuned,cublas,openblas \
            --residency host --pin off,on --repeat 1
        run compare-validation-engines compare $validation --backends cuda-tuned,cublas,openblas --engine eager,graph --repeat 3
        run compare-validation-f64 compare $validation --backends cuda-tuned,cublas,openblas --dtype f64
        run compare-validation-bf16 compare $validation --backends cuda-tuned,cublas --precision bf16,tf32
        run compare-high compare $high --backends cuda-naive,cuda-coalesced,cuda-shmem,cuda-order,cuda-tuned,cublas,tuned,openblas,openmp \
            --limit-seconds 20
        run compare-high-rounded compare $high --backends cuda-tuned,cublas --precision tf32,bf16 --repeat 7
        run compare-high-host compare $high --backends cuda-naive,cuda-coalesced,cuda-shmem,cuda-tuned,cublas,openblas \
            --residency host --pin off,on --repeat 1
        run gemm bench gemm $validation --sizes 256,512,1024,2048,4096 --limit-seconds 3 \
            --backends openblas,tuned,cuda-naive,cuda-coalesced,cuda-shmem,cuda-tuned,cublas
        run gemm-8192 bench gemm --sizes 8192 --dtype f32 --limit-seconds 0 --backends cuda-naive,cuda-coalesced,cuda-shmem,cuda-tuned,cublas
        run gemm-high bench gemm $high --sizes none --dtype f32 --backends openblas,tuned,cuda-shmem,cuda-tuned,cublas
        run shmem bench shmem
        run breakeven bench breakeven --backends tuned,cuda-tuned,cublas --batches 16,128,1024,8192 --hidden 16,128,1024,4096 \
            --repeat 1
        run kmeans-steps bench kmeans --iterations 3 --backends tuned,cublas,cuda-tuned
    else
        run compare-high compare $high --backends openmp,openblas,tuned --limit-seconds 5 --repeat 1
        run gemm bench gemm $validation --sizes 512,1024,2048 --dtype f32 --limit-seconds 1
        run gemm-high bench gemm $high --sizes none --dtype f32 --backends openblas,tuned
        run breakeven bench breakeven --batches 16,128,1024 --hidden 32,128,512
        run kmeans-steps bench kmeans --size 64MB --iterations 3
        run qr-small bench qr --sizes 640x128,1280x128,2560x256 --windows 64 --nb 16..128
        run qr-condition bench qr --sizes 640x128 --windows 64 --nb 32 --counts none --condition 1,10,100,1e3,1e4,1e5,1e6 --backends tuned
        run qr-large bench qr --nb 16..128 --sizes 8192x2048 --windows 58
        run readout readout --features random:2048
        run readout-still readout --features random:512 --window 1000,4000,16000,all --forgetting 0.999,0.9998
        run readout-drift readout --features random:512 --drift rotate:0..45 --window 1000,4000,16000,all \
            --forgetting 0.999,0.9998
    fi
    run scaling bench scaling $validation --epochs 3
}

write() {
    local tag=$1
    [ -e "$logs/peers-epoch.txt" ] || echo 'not measured here: tests/bench/figures.sh measure LOGS peers-epoch' >"$logs/peers-epoch.txt"
    # sorted without .jsonl, so that a comparison precedes its variants
    mapfile -t files < <(cd "$logs" && ls -- *.jsonl | sed 's/\.jsonl$//' | LC_ALL=C sort)
    files=("${files[@]/#/$logs/}")
    "$train" report "${files[@]/%/.jsonl}" -o "$logs/report.html"
    tests/bench/accuracy.py docs/figures/h100 docs/figures/cpu >docs/figures/tables/accuracy-all.md
    tests/bench/tables.py docs/figures/cpu docs/figures/h100 docs/figures/tables
    "$train" report "${files[@]/%/.jsonl}" --tables docs/results.md --tag "$tag"
    "$train" report "${files[@]/%/.jsonl}" --tables docs/kmeans.md --tag "$tag"
    "$train" report "${files[@]/%/.jsonl}" --tables docs/windows.md --tag "$tag"
    local page
    for page in README.md docs/results.md docs/cpu-gemm.md docs/deployment.md docs/windows.md; do
        "$train" report "${files[@]/%/.jsonl}" --tables "$page" --tag tables
    done
}

case $1 in
measure) measure ;;
write) write "${3:?TAG}" ;;
*) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
