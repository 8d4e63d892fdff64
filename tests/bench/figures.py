#!/usr/bin/env python3
"""Measures the figures of README.md and writes them between its markers, from logs.

  tests/bench/figures.py measure    runs ./train for every figure; logs go to build/figures (about 5 minutes)
  tests/bench/figures.py write      rewrites README.md between <!-- NAME --> and <!-- end --> from those logs

Needs ./train and MNIST in data/mnist. The environment is used as it is: on a processor that OpenBLAS does not know, set
OPENBLAS_CORETYPE (the program says so), and unset it where it forces less than the processor has.
"""
import json, os, re, statistics, subprocess, sys

LOGS = 'build/figures'
BACKENDS, SEEDS = ('serial', 'openmp', 'openblas'), (1, 2, 3)


def train(name, *flags):
    log = f'{LOGS}/{name}.jsonl'
    out = subprocess.run(['./train', *flags, '--log', log], check=True, capture_output=True, text=True).stdout
    with open(f'{LOGS}/{name}.txt', 'w') as file:
        file.write(out)
    print(name, flush=True)


def measure():
    os.makedirs(LOGS, exist_ok=True)
    train('transcript', '--config', 'configs/validation.cfg')
    for seed in SEEDS:  # interleaved: the machine drifts
        for backend in BACKENDS:
            train(f'validation-{backend}-{seed}', '--config', 'configs/validation.cfg', '--backend', backend, '--seed', str(seed))
    for seed in SEEDS:
        for backend in BACKENDS:
            if backend == 'openblas' or seed == 1:  # minutes for the others
                train(f'high-{backend}-{seed}', '--config', 'configs/high-throughput.cfg', '--backend', backend, '--seed', str(seed))


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


def transcript():
    return '```text\n$ ./train --config configs/validation.cfg\n' + open(f'{LOGS}/transcript.txt').read().rstrip() + '\n```'


def write():
    text = open('README.md').read()
    for name, body in (('transcript', transcript()), ('validation', table('validation')), ('high-throughput', table('high'))):
        marked = re.compile(rf'(<!-- {name} -->\n).*?(<!-- end -->)', re.S)
        assert marked.search(text), f'README.md has no marker {name}'
        text = marked.sub(lambda m: m.group(1) + body + '\n' + m.group(2), text)
    with open('README.md', 'w') as file:
        file.write(text)


if __name__ == '__main__':
    {'measure': measure, 'write': write}.get(sys.argv[1] if len(sys.argv) == 2 else '', lambda: sys.exit(__doc__))()
