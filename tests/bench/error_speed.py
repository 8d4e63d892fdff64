#!/usr/bin/env python3
"""Rate and error of one large product on this GPU, for the chart of docs/tensor-cores.md: cuBLAS (through PyTorch) in float32, TF32
and bf16, and cuda-tuned in float32.

  error_speed.py [--train ./train] [--size 8192] [--out LOG.jsonl]

C = A B of size x size matrices, uniform in [-1, 1), float32. The error is ||C - C64|| / ||C64|| (Frobenius norms) over a sample of
rows, beside the float64 product of the float32 operands: with bf16 it includes the rounding of the operands.
"""
import argparse, json, statistics, subprocess, sys, tempfile

REPEATS, ROWS = 9, 32


def library(size):
    """Lines of cuBLAS."""
    import torch
    torch.manual_seed(1)
    a, b = (2 * torch.rand(size, size, device='cuda') - 1 for _ in range(2))
    exact = a[:ROWS].double() @ b.double()
    for name, dtype, tf32 in (('SGEMM', torch.float32, False), ('TF32', torch.float32, True), ('bf16', torch.bfloat16, False)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        x, y, seconds = a.to(dtype), b.to(dtype), []
        for _ in range(REPEATS + 2):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            c = x @ y
            end.record()
            end.synchronize()
            seconds.append(start.elapsed_time(end) / 1e3)
        error = ((c[:ROWS].double() - exact).norm() / exact.norm()).item()
        yield name, 2e-9 * size ** 3 / statistics.median(seconds[2:]), error


def ours(train, size):
    with tempfile.NamedTemporaryFile(suffix='.jsonl') as log:
        subprocess.run([train, 'bench', 'gemm', '--sizes', str(size), '--dtype', 'f32', '--backends', 'cuda-tuned', '--ops', 'NN', '--operands', 'warm', '--limit-seconds', '0', '--log', log.name],
                       check=True, stdout=sys.stderr)
        line = next(row for row in map(json.loads, open(log.name)) if row['type'] == 'gemm' and row['op'] == 'NN')
    return 'cuda-tuned', line['gflops'], line['relative_error']


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--train', default='./train')
    parser.add_argument('--size', type=int, default=8192)
    parser.add_argument('--out')
    args = parser.parse_args()
    rows = [*library(args.size), ours(args.train, args.size)]
    gpu = subprocess.run(['nvidia-smi', '--query-gpu=name', '--format=csv,noheader'], capture_output=True, text=True).stdout
    for name, gflops, error in rows:
        print(f'{name:12} {gflops / 1e3:7.1f} TFLOP/s  relative error {error:.2e}')
        if args.out:
            with open(args.out, 'a') as out:
                out.write(json.dumps({'type': 'error_speed', 'name': name, 'size': args.size, 'gflops': gflops, 'relative_error': error,
                                      'gpu': gpu.splitlines()[0]}) + '\n')


if __name__ == '__main__':
    main()
