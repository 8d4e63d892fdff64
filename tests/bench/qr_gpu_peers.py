#!/usr/bin/env python3
"""R of sliding windows by Tessera, PyTorch, CuPy and JAX on one GPU, in turn: windows of a standard normal float32 matrix,
one row apart; R only, from rows in memory of the GPU.

    tests/bench/qr_gpu_peers.py ./train --repeats 5
    tests/bench/qr_gpu_peers.py ./train --sizes 640x128 --windows 64

A time is that of all windows, the median of the repeats, with the minimum and the maximum. A method that factors windows one
by one is timed on --timed of them, and its time is proportional: the number is in parentheses. Tessera's time is the median
of `train bench qr`, which draws a matrix of its own from the same distribution and checks it before and after it is timed.
Error: |R^T R - A^T A| / |A^T A|, Frobenius, in float64, of the last window."""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("train")
parser.add_argument("--repeats", type=int, default=5)
parser.add_argument("--timed", type=int, default=4, help="windows of a method that factors them one by one")
parser.add_argument("--sizes", default="8192x2048,8192x2048,640x128,8192x512")
parser.add_argument("--windows", default="58,1,64,1024", help="one number for each size")
parser.add_argument("--backend", default="cuda-tuned", help="of Tessera")
options = parser.parse_args()


def common_rows_gram(a, m, count, stack, transpose):
    """A^T A of the windows: of the rows that all share, once, and of those that each has alone, in batches."""
    common = a[count - 1 : m].T @ a[count - 1 : m]
    if count == 1:
        yield common[None]
    for first in range(0, count if count > 1 else 0, 64):
        some = range(first, min(first + 64, count))
        own = stack([a[[*range(k, count - 1), *range(m, m + k)]] for k in some])
        yield common + transpose(own) @ own


def torch_peers():
    import torch

    def geqrf(a, m, count):
        for k in range(count):
            last = torch.geqrf(a[k : k + m])[0][: a.shape[1]]
        return last

    def batched(a, m, count):
        return torch.linalg.qr(a.unfold(0, m, 1)[:count].transpose(1, 2), mode="r")[1][-1]

    def gram(a, m, count):
        for products in common_rows_gram(a, m, count, torch.stack, lambda x: x.mT):
            last = torch.linalg.cholesky(products, upper=True)
        return last[-1]

    label = f"PyTorch {torch.__version__}"
    put = lambda a: torch.from_numpy(a).cuda()
    get = lambda r: r.cpu().numpy()
    peers = [("geqrf, one by one", label, True, geqrf), ("linalg.qr, batched", label, True, batched),
             ("Gram, common rows, Cholesky", label, False, gram)]
    return put, get, torch.cuda.synchronize, peers


def cupy_peers():
    import cupy

    def qr(a, m, count):
        for k in range(count):
            last = cupy.linalg.qr(a[k : k + m], mode="r")
        return last

    return cupy.asarray, cupy.asnumpy, cupy.cuda.Device().synchronize, [("qr, one by one", f"CuPy {cupy.__version__}", True, qr)]


def jax_peers():
    import functools
    import jax
    import numpy
    from jax import lax, numpy as jnp

    @functools.partial(jax.jit, static_argnums=(1, 2))
    def factor(a, m, count):
        one = lambda start: jnp.linalg.qr(lax.dynamic_slice(a, (start, 0), (m, a.shape[1])), mode="r")
        return jax.vmap(one)(jnp.arange(count))

    qr = lambda a, m, count: factor(a, m, count)[-1].block_until_ready()
    return jnp.asarray, numpy.asarray, lambda: None, [("vmap(qr)", f"JAX {jax.__version__}", True, qr)]


def show(name, program, windows, timed, seconds, error, base):
    median, count = statistics.median(seconds), f"{windows}" if timed == windows else f"{windows} ({timed})"
    print(f"| {name} | {program} | {count} | {1e3 * median:.4g} ms | {1e3 * min(seconds):.4g} to {1e3 * max(seconds):.4g} "
          f"| {median / base:.3g} | {error:.1e} |", flush=True)


def tessera(size, windows):
    """The verified rows: of each method the fastest nb."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log.jsonl")
        subprocess.run([options.train, "bench", "qr", "--sizes", size, "--windows", str(windows), "--nb", "64,128", "--counts", "none",
                        "--methods", "naive" if windows == 1 else "common,tree,gram", "--backends", options.backend, "--log", log],
                       check=True, stdout=subprocess.DEVNULL)
        rows = [row for row in map(json.loads, open(log)) if row["type"] == "qr" and row.get("verified")]
    best = {}
    for row in sorted(rows, key=lambda row: -row["median_seconds"]):
        best[row["method"]] = row
    return best


def compare(size, windows):
    import numpy

    m, n = map(int, size.split("x"))
    a = numpy.random.default_rng(1).standard_normal((m + windows - 1, n), numpy.float32)
    ours = tessera(size, windows)
    if not ours:
        raise SystemExit(f"train bench qr has no result for {size}")
    base = min(row["median_seconds"] for row in ours.values())
    print(f"\n{windows} windows of {m} x {n}\n\n| method | program | windows | time | min to max, ms | relative to the fastest of "
          "Tessera | error |\n|---|---|---:|---:|---:|---:|---:|")
    for name, row in ours.items():
        show(name, f"Tessera, {options.backend}, nb {row['nb']}", windows, row["windows_timed"],
             [row["min_seconds"], row["median_seconds"], row["max_seconds"]], row["backward_error"], base)
    for find in (torch_peers, cupy_peers, jax_peers):
        try:
            put, get, wait, peers = find()
        except ImportError as error:
            print(f"left out: {error}")
            continue
        on_gpu = put(a)
        for name, program, one_by_one, function in peers:
            timed = min(windows, 64 if m * n < 1 << 20 else options.timed) if one_by_one else windows
            seconds = []
            try:
                for repeat in range(options.repeats + 2):  # the first ones warm up, and compile
                    wait()
                    start = time.perf_counter()
                    r = function(on_gpu, m, timed)
                    wait()
                    seconds.append((time.perf_counter() - start) * windows / timed)
            except Exception as error:  # out of memory, or not there
                print(f"| {name} | {program} | {windows} | {type(error).__name__}: {str(error).splitlines()[0][:80]} | | | |")
                continue
            r = numpy.triu(get(r)[:n].astype(numpy.float64))
            window = a[timed - 1 : timed - 1 + m].astype(numpy.float64)
            product = window.T @ window
            show(name, program, windows, timed, seconds[2:], numpy.linalg.norm(r.T @ r - product) / numpy.linalg.norm(product), base)


for size, count in zip(options.sizes.split(","), map(int, options.windows.split(","))):
    compare(size, count)
