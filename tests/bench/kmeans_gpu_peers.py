#!/usr/bin/env python3
"""k-means of Tessera, PyTorch, JAX, flash-kmeans and FAISS on one GPU, in turn: the same points, initial centres (the
first K points) and number of iterations; no early end.

    tests/bench/kmeans_gpu_peers.py ./train --repeats 3
    tests/bench/kmeans_gpu_peers.py ./train --clusters '' --megabytes 0 --wide 1024,16384 --repeats 1

Microseconds of an iteration. Tessera: its log. PyTorch: an iteration in a CUDA graph, timed with events; where all
scores fit, the faster of two updates, index_add and a product with one-hot labels. JAX: all iterations in one compiled
loop. flash-kmeans and FAISS: a whole fit by the number of iterations. What each computes:

    tessera exact   certified labels of the points as they are
    tessera f32     the largest score of a float32 product (cuBLAS)
    tessera tf32    the largest score of points and centres rounded to tf32; sums and centres as with exact
    tessera bf16    the same, rounded to bfloat16
    torch, jax      the largest score of a float32 or float64 product, never TF32
    torch bf16      the largest score of a bfloat16 product, which is rounded to bfloat16 as well; the sums are float32
    flash tf32      flash-kmeans of float32 points: its Triton products are TF32
    flash bf16      flash-kmeans of bfloat16 points, sums and centres
    faiss           FAISS on the GPU, float32

A peer that is not installed, or does not fit into memory, says so. A figure is the median of the repeats; the inertia of
the last labels says that all did the same work."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("train")
parser.add_argument("--repeats", type=int, default=3)
parser.add_argument("--iterations", type=int, default=20)
parser.add_argument("--clusters", default="10,64,1000", help="for MNIST")
parser.add_argument("--megabytes", type=int, default=1024, help="of the uniform points; 0: none")
parser.add_argument("--wide", default="", help="numbers of clusters for 1,048,576 uniform float32 points of 128 features")
parser.add_argument("--peer", nargs=4, metavar=("NAME", "POINTS", "CLUSTERS", "ITERATIONS"), help=argparse.SUPPRESS)
options = parser.parse_args()


WIDE = "uniform:512MB,128"


def dtype_of(source):
    import numpy as np

    return np.float64 if source.startswith("uniform:") and source != WIDE else np.float32


def read_points(source):
    import gzip

    import numpy as np

    if source.startswith("uniform:"):
        size, features = source[8:].split(",")
        rng = np.random.default_rng(1)
        dtype = dtype_of(source)
        return rng.random((int(size[:-2]) * 2**20 // dtype().itemsize // int(features), int(features)), dtype)
    raw = gzip.open(os.path.join(source, "train-images-idx3-ubyte.gz")).read()
    return np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 784).astype(np.float32)


def inertia_of(x, c, label):
    return sum(float((x[i : i + 65536] - c[label[i : i + 65536]]).double().square().sum())
               for i in range(0, len(x), 65536))


def run_torch(points, clusters, iterations, brief=False):
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    x = torch.from_numpy(points).cuda()
    one = torch.ones(len(x), 1, dtype=x.dtype, device="cuda")
    factor = x.bfloat16() if brief else x
    chunk = max(1, 2**30 // clusters)  # rows whose scores are stored at a time

    def fit(onehot):
        c = x[:clusters].clone()
        label = torch.zeros(len(x), dtype=torch.int64, device="cuda")

        def step():
            bias, transposed = (-0.5 * (c * c).sum(1)).to(factor.dtype), c.T.to(factor.dtype)
            for i in range(0, len(x), chunk):
                label[i : i + chunk] = torch.argmax(torch.addmm(bias, factor[i : i + chunk], transposed), 1)
            if onehot:
                member = torch.nn.functional.one_hot(label, clusters).to(x.dtype)
                total, count = member.T @ x, member.sum(0)[:, None]
            else:
                total = torch.zeros_like(c).index_add_(0, label, x)
                count = torch.zeros(clusters, 1, dtype=x.dtype, device="cuda").index_add_(0, label, one)
            c.copy_(torch.where(count > 0, total / count.clamp(min=1), c))

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        c.copy_(x[:clusters])
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(iterations):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        inertia = inertia_of(x, c, label)
        return begin.elapsed_time(end) * 1e3 / iterations, inertia

    times = [fit(False)]
    if not brief and len(x) * clusters * x.element_size() * 3 < 50e9:  # labels as one-hot rows, of two types
        times.append(fit(True))
    return min(times)


def run_jax(points, clusters, iterations):
    import time

    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    x = jax.device_put(points)

    def step(_, state):
        c, _ = state
        label = jnp.argmax(x @ c.T - 0.5 * (c * c).sum(1), 1)
        total = jax.ops.segment_sum(x, label, clusters)
        count = jax.ops.segment_sum(jnp.ones(len(x), x.dtype), label, clusters)[:, None]
        return jnp.where(count > 0, total / jnp.maximum(count, 1), c), label

    loop = jax.jit(lambda x, c: jax.lax.fori_loop(0, iterations, step, (c, jnp.zeros(len(x), jnp.int64))))
    loop(x, x[:clusters])[0].block_until_ready()
    start = time.perf_counter()
    c, label = loop(x, x[:clusters])
    c.block_until_ready()
    seconds = time.perf_counter() - start
    inertia = sum(float(jnp.square((x[i : i + 65536] - c[label[i : i + 65536]]).astype(jnp.float64)).sum())
                  for i in range(0, len(x), 65536)) if len(x) < 10**7 else float("nan")
    return seconds * 1e6 / iterations, inertia


def run_flash(points, clusters, iterations, brief=False):
    import torch
    from flash_kmeans import batch_kmeans_Euclid

    x = torch.from_numpy(points).cuda()
    own = (x.bfloat16() if brief else x)[None]

    def fit(count):
        return batch_kmeans_Euclid(own, clusters, max_iters=count, tol=0.0, init_centroids=own[:, :clusters].clone())

    fit(2)  # compiles
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    label, c, done = fit(iterations)
    end.record()
    torch.cuda.synchronize()
    assert done == iterations
    return begin.elapsed_time(end) * 1e3 / iterations, inertia_of(x, c[0].float(), label[0].long())


def run_faiss(points, clusters, iterations):
    import time

    import faiss

    def fit(count):
        run = faiss.Kmeans(points.shape[1], clusters, niter=count, gpu=1, min_points_per_centroid=1,
                           max_points_per_centroid=len(points))
        start = time.perf_counter()
        run.train(points, init_centroids=points[:clusters])
        return time.perf_counter() - start, run

    assert faiss.get_num_gpus() > 0
    fit(1)
    seconds, run = fit(iterations)
    return seconds * 1e6 / iterations, float(run.obj[-1])


def run_tessera(source, clusters, iterations, precision):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log.jsonl")
        dtype = "f64" if dtype_of(source)().itemsize == 8 else "f32"
        subprocess.run([options.train, "kmeans", "--backend", "cuda-tuned", "--data", source, "--clusters", str(clusters),
                        "--kmeans-init", "first", "--tolerance", "0", "--empty", "keep", "--iterations",
                        str(iterations), "--dtype", dtype, "--kmeans-precision", precision, "--log", log], check=True, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in open(log)]
    steps = [r["seconds"] for r in records if r["type"] == "kmeans_iteration"]
    result = next(r for r in records if r["type"] == "kmeans")
    assert result["exact"] == (precision == "exact") and len(steps) == iterations, result
    return 1e6 * sum(steps) / iterations, result["inertia"]


def run_peer(name, source, clusters, iterations):
    if name.startswith("tessera "):
        try:
            return run_tessera(source, clusters, iterations, name.split()[1])
        except subprocess.CalledProcessError as failure:
            return f"exit code {failure.returncode}"
    done = subprocess.run([sys.executable, __file__, options.train, "--peer", name, source, str(clusters), str(iterations)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    return (done.stderr.strip().splitlines() or ["no message"])[-1][:120]


if options.peer:
    name, source, clusters, iterations = options.peer
    fit = {"torch": run_torch, "torch bf16": lambda *all: run_torch(*all, brief=True), "jax": run_jax, "faiss": run_faiss,
           "flash tf32": run_flash, "flash bf16": lambda *all: run_flash(*all, brief=True)}[name]
    print(json.dumps(fit(read_points(source), int(clusters), int(iterations))))
    sys.exit()

cases = [("data/mnist", int(k), ("tessera exact", "torch", "jax")) for k in options.clusters.split(",") if k]
cases += [(f"uniform:{options.megabytes}MB,{d}", 64, ("tessera exact", "torch", "jax")) for d in (32, 2) if options.megabytes]
cases += [(WIDE, int(k), ("tessera exact", "tessera f32", "tessera tf32", "tessera bf16", "torch", "torch bf16", "jax",
                          "flash tf32", "flash bf16", "faiss")) for k in options.wide.split(",") if k]
for source, clusters, names in cases:
    row, first = [], None
    for name in names:
        runs = []
        while len(runs) < options.repeats and not (runs and isinstance(runs[-1], str)):
            runs.append(run_peer(name, source, clusters, options.iterations))
        if isinstance(runs[-1], str):
            row.append(f"{name}: none ({runs[-1]})")
            continue
        time = statistics.median(r[0] for r in runs)
        first = first or time
        row.append(f"{name} {time:.1f} us ({time / first:.2f}x, inertia {runs[0][1]:.6g})")
    print(f"{source}, K = {clusters}: " + ", ".join(row), flush=True)
