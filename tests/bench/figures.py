#!/usr/bin/env python3
"""Measures the figures of README.md and writes them between its markers, from logs that are kept in tests/bench/logs.

  tests/bench/figures.py cpu      runs the program for every figure of the CPU (about 6 minutes)
  tests/bench/figures.py gpu      the same for the GPU of this machine (about 4 minutes)
  tests/bench/figures.py write    rewrites README.md between <!-- NAME --> and <!-- end --> from the logs

TRAIN names the program (default ./train), LOGS the folder of the logs. MNIST must be in data/mnist. The environment is used as it is:
on a processor that OpenBLAS does not know, set OPENBLAS_CORETYPE (the program says so), and unset it where it forces less than
the processor has.
"""
import json, os, re, statistics, subprocess, sys

TRAIN, LOGS = os.environ.get('TRAIN', './train'), os.environ.get('LOGS', 'tests/bench/logs')
BACKENDS, SEEDS = ('serial', 'openmp', 'openblas'), (1, 2, 3)
CUDA = ('cuda-naive', 'cuda-coalesced', 'cuda-shmem', 'cuda-tuned', 'cublas')
VALIDATION, HIGH = ('--config', 'configs/validation.cfg'), ('--config', 'configs/high-throughput.cfg')


def train(name, *flags):
    os.makedirs(LOGS, exist_ok=True)
    out = subprocess.run([TRAIN, *flags, '--log', f'{LOGS}/{name}.jsonl'], check=True, capture_output=True, text=True).stdout
    core = os.environ.get('OPENBLAS_CORETYPE')
    with open(f'{LOGS}/{name}.txt', 'w') as file:
        file.write(f'$ {f"OPENBLAS_CORETYPE={core} " if core else ""}./train {" ".join(flags)}\n' + out)
    print(name, flush=True)


def measure_cpu():
    train('transcript', *VALIDATION)
    for seed in SEEDS:  # interleaved: the machine drifts
        for backend in BACKENDS:
            train(f'validation-{backend}-{seed}', *VALIDATION, '--backend', backend, '--seed', str(seed))
    for seed in SEEDS:
        for backend in BACKENDS:
            if backend == 'openblas' or seed == 1:  # minutes for the others
                train(f'high-{backend}-{seed}', *HIGH, '--backend', backend, '--seed', str(seed))


# name of the row: flags. The first is what the others are compared with.
GPU_VALIDATION = {'openblas': ('--backend', 'openblas'),
                  **{f'{b} {r}': ('--backend', b, '--residency', 'device' if r.startswith('device') else 'host', *e)
                     for b in CUDA for r, e in (('device graph', ()), ('device eager', ('--engine', 'eager')), ('host pageable', ()))},
                  'cublas host pinned': ('--backend', 'cublas', '--residency', 'host', '--pin', 'on'),
                  **{f'{b} device graph f64': ('--backend', b, '--dtype', 'f64') for b in ('cuda-tuned', 'cublas')},
                  'cuda-tuned device graph bf16': ('--backend', 'cuda-tuned', '--precision', 'bf16')}
GPU_HIGH = {'openblas': ('--backend', 'openblas'),
            **{f'{b} device graph': ('--backend', b, '--epochs', '9') for b in CUDA},
            **{f'{b} device graph {p}': ('--backend', b, '--precision', p, '--epochs', '9')
               for p in ('tf32', 'bf16') for b in ('cuda-tuned', 'cublas')},
            **{f'{b} host pageable': ('--backend', b, '--residency', 'host') for b in CUDA},
            'cublas host pinned': ('--backend', 'cublas', '--residency', 'host', '--pin', 'on')}


def log_name(prefix, row):
    return f'{prefix}-{row.replace(" ", "-")}'


def measure_gpu():
    train('gpu-transcript', *VALIDATION, '--backend', 'cublas', '--epochs', '5')
    for row, flags in GPU_VALIDATION.items():
        train(log_name('gpu-validation', row), *VALIDATION, *flags)
    for row, flags in GPU_HIGH.items():
        train(log_name('gpu-high', row), *HIGH, *flags)


def read(name):
    lines = [json.loads(line) for line in open(f'{LOGS}/{name}.jsonl')]
    header = lines[0]
    summary = lines[-1]
    assert header['type'] == 'header' and summary['type'] == 'summary'
    return header, [line for line in lines if line['type'] == 'epoch'], summary


def facts(header):
    return f'Measured on: {header["cpu"]}, {header["compiler"]}, Tessera {header["version"]} commit {header["commit"]}, f32.'


def gemm_share(summary):
    time = summary['time']
    training = sum(v for k, v in time.items() if k not in ('startup', 'evaluation', 'checkpoint'))
    return sum(time[k] for k in ('gemm_nn', 'gemm_tn', 'gemm_nt')) / training


def table(config):
    rows = ['| backend | threads | test accuracy, seeds | mean | epoch, median | images/s | in GEMM | GFLOP/s in GEMM | transfer/total |',
            '|---|---|---|---|---|---|---|---|---|']
    for backend in BACKENDS:
        runs = [read(f'{config}-{backend}-{seed}') for seed in SEEDS if os.path.exists(f'{LOGS}/{config}-{backend}-{seed}.jsonl')]
        header = runs[0][0]
        accuracies = [100 * run[2]['test_accuracy'] for run in runs]
        epochs = [epoch['seconds'] for run in runs for epoch in run[1]]
        flops = sum(g['flops'] for run in runs for g in run[2]['gemm'])
        seconds = sum(g['seconds'] for run in runs for g in run[2]['gemm'])
        median = statistics.median(epochs)
        rows.append(f'| `{backend}` | {header["threads"]} | {" ".join(f"{a:.2f}" for a in accuracies)} % | {statistics.mean(accuracies):.2f} % '
                    f'| {median:.3f} s ({min(epochs):.3f} to {max(epochs):.3f}) | {header["train_images"] / median:,.0f} '
                    f'| {100 * statistics.median(gemm_share(run[2]) for run in runs):.0f} % | {flops / seconds * 1e-9:.0f} '
                    f'| {max(run[2]["transfer_ratio"] for run in runs):.3f} |')
    return facts(read(f'{config}-openblas-1')[0]) + f' OpenBLAS: {read(f"{config}-openblas-1")[0]["backend_description"]}.\n\n' + '\n'.join(rows)


def gpu_table(prefix, rows):
    baseline = read(log_name(prefix, 'openblas'))
    base = statistics.median(e['seconds'] for e in baseline[1])
    card = next(read(log_name(prefix, row))[0]['gpu'] for row in rows if row != 'openblas')
    lines = [f'Measured on: {card}; host {baseline[0]["cpu"]}, {baseline[0]["threads"]} threads; Tessera {baseline[0]["version"]} commit '
             f'{baseline[0]["commit"]}, seed 1. Speed-up is against openblas on that host ({baseline[0]["backend_description"]}).', '',
             '| backend | residency | engine | precision | test accuracy after 1 epoch, at the end | epoch, median | transfer/total | speed-up |',
             '|---|---|---|---|---|---|---|---|']
    for row in rows:
        header, epochs, summary = read(log_name(prefix, row))
        median = statistics.median(e['seconds'] for e in epochs)
        lines.append(f'| `{header["backend"]}` | {header["residency"]} | {header["engine"]} | {header["precision"]} '
                     f'| {100 * epochs[0]["test_accuracy"]:.2f} %, {100 * summary["test_accuracy"]:.2f} % after {len(epochs)} '
                     f'| {1e3 * median:.1f} ms | {summary["transfer_ratio"]:.3f} | {base / median:.2f} |')
    return '\n'.join(lines)


def transcript(name):
    return '```text\n' + open(f'{LOGS}/{name}.txt').read().rstrip() + '\n```'


def write():
    text = open('README.md').read()
    parts = {'transcript': lambda: transcript('transcript'),
             'validation': lambda: table('validation'), 'high-throughput': lambda: table('high'),
             'gpu-transcript': lambda: transcript('gpu-transcript'),
             'gpu-validation': lambda: gpu_table('gpu-validation', GPU_VALIDATION),
             'gpu-high-throughput': lambda: gpu_table('gpu-high', GPU_HIGH)}
    for name, body in parts.items():
        marked = re.compile(rf'(<!-- {name} -->\n).*?(<!-- end -->)', re.S)
        assert marked.search(text), f'README.md has no marker {name}'
        text = marked.sub(lambda m: m.group(1) + body() + '\n' + m.group(2), text)
    with open('README.md', 'w') as file:
        file.write(text)


if __name__ == '__main__':
    commands = {'cpu': measure_cpu, 'gpu': measure_gpu, 'write': write}
    commands.get(sys.argv[1] if len(sys.argv) == 2 else '', lambda: sys.exit(__doc__))()
