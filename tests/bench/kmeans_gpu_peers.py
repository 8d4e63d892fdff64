#!/usr/bin/env python3
"""k-means of Tessera, PyTorch and JAX on one GPU, in turn: the same points, initial centres (the first K points) and
number of iterations; no early end.

    tests/bench/kmeans_gpu_peers.py ./train --repeats 3

Microseconds of an iteration. Tessera: its log. PyTorch: an iteration in a CUDA graph, timed with events; the faster of
two updates, index_add and a product with one-hot labels. JAX: all iterations in one compiled loop. Products of the
peers are of float32 or float64, never TF32. Their labels are those of the computed scores; Tessera's are certified.
A figure is the median of the repeats; the inertia of the last labels says that all did the same work."""
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
parser.add_argument("--peer", nargs=4, metavar=("NAME", "POINTS", "CLUSTERS", "ITERATIONS"), help=argparse.SUPPRESS)
options = parser.parse_args()


def read_points(source):
    import gzip

    import numpy as np

    if source.startswith("uniform:"):
        size, features = source[8:].split(",")
        rng = np.random.default_rng(1)
        return rng.random((int(size[:-2]) * 2**20 // 8 // int(features), int(features)))
    raw = gzip.open(os.path.join(source, "train-images-idx3-ubyte.gz")).read()
    return np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 784).astype(np.float32)


def run_torch(points, clusters, iterations):
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    x = torch.from_numpy(points).cuda()
    one = torch.ones(len(x), 1, dtype=x.dtype, device="cuda")

    def fit(onehot):
        c = x[:clusters].clone()
        label = torch.zeros(len(x), dtype=torch.int64, device="cuda")

        def step():
            label.copy_(torch.argmax(torch.addmm(-0.5 * (c * c).sum(1), x, c.T), 1))
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
        inertia = sum(float((x[i : i + 65536] - c[label[i : i + 65536]]).double().square().sum())
                      for i in range(0, len(x), 65536))
        return begin.elapsed_time(end) * 1e3 / iterations, inertia

    times = [fit(False)]
    if len(x) * clusters * x.element_size() * 3 < 100e9:  # labels as one-hot rows, of two types
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


def run_tessera(source, clusters, iterations):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log.jsonl")
        dtype = "f64" if source.startswith("uniform:") else "f32"
        subprocess.run([options.train, "kmeans", "--backend", "cuda-tuned", "--data", source, "--clusters", str(clusters),
                        "--kmeans-init", "first", "--tolerance", "0", "--empty", "keep", "--iterations",
                        str(iterations), "--dtype", dtype, "--log", log], check=True, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in open(log)]
    steps = [r["seconds"] for r in records if r["type"] == "kmeans_iteration"]
    result = next(r for r in records if r["type"] == "kmeans")
    assert result["exact"] and len(steps) == iterations, result
    return 1e6 * sum(steps) / iterations, result["inertia"]


def run_peer(name, source, clusters, iterations):
    if name == "tessera":
        return run_tessera(source, clusters, iterations)
    done = subprocess.run([sys.executable, __file__, options.train, "--peer", name, source, str(clusters), str(iterations)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


if options.peer:
    name, source, clusters, iterations = options.peer
    fit = {"torch": run_torch, "jax": run_jax}[name]
    print(json.dumps(fit(read_points(source), int(clusters), int(iterations))))
    sys.exit()

cases = [("data/mnist", int(k)) for k in options.clusters.split(",") if k]
cases += [(f"uniform:{options.megabytes}MB,{d}", 64) for d in (32, 2) if options.megabytes]
for source, clusters in cases:
    row, first = [], None
    for name in ("tessera", "torch", "jax"):
        runs = [run_peer(name, source, clusters, options.iterations) for _ in range(options.repeats)]
        if None in runs:
            row.append(f"{name} failed")
            continue
        time = statistics.median(r[0] for r in runs)
        first = first or time
        row.append(f"{name} {time:.1f} us ({time / first:.1f}x, inertia {runs[0][1]:.6g})")
    print(f"{source}, K = {clusters}: " + ", ".join(row), flush=True)
