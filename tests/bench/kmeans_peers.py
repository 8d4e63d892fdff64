#!/usr/bin/env python3
"""k-means of Tessera, scikit-learn and FAISS in turn: the same points, initial centres (the first K points), number
of iterations and threads; no sampling, no early end.

    pip install numpy scikit-learn faiss-cpu safetensors
    tests/bench/kmeans_peers.py build/gcc/train --threads 2 --repeats 5

Seconds are those of a whole fit without loading the points: all iterations, the final labels and the inertia
(FAISS: without final labels). A figure is the median of the repeats, with the minimum and the maximum. The
inertia of each program is printed: they agree but for ties and rounding."""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--data", default="data/mnist", help="a folder with MNIST's training images")
    parser.add_argument("--clusters", default="10,64,1000", help="for MNIST; none: no MNIST")
    parser.add_argument("--megabytes", type=int, default=128, help="of the uniform points; 0: none")
    parser.add_argument("--wide", default="", help="numbers of clusters for 1,048,576 uniform float32 points of 128 features")
    parser.add_argument("--log", help="append scikit-learn's seconds of an iteration on the uniform points, for `train "
                        "report` beside those of `train bench kmeans --log`")
    return parser.parse_args()


options = arguments()
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(options.threads)  # before numpy starts its threads

import faiss
import numpy as np
import sklearn
from safetensors.numpy import save_file
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits


def read_mnist(folder):
    import gzip

    for name in ("train-images-idx3-ubyte.gz", "train-images-idx3-ubyte", "train-images.idx3-ubyte"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            raw = open(path, "rb").read()
            raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
            return np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 784)
    raise SystemExit(f"no MNIST in {folder}: run data/fetch.sh")


def run_tessera(points, clusters, source, scale):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log.jsonl")
        dtype = "f64" if points.dtype == np.float64 else "f32"
        command = [options.train, "kmeans", "--data", source, "--clusters", str(clusters), "--kmeans-init", "first",
                   "--tolerance", "0", "--empty", "keep", "--iterations", str(options.iterations), "--threads",
                   str(options.threads), "--dtype", dtype, "--log", log]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in open(log)]
    result = next(r for r in records if r["type"] == "kmeans")
    assert result["exact"] and result["iterations"] == options.iterations, result
    parts = result["time"]
    seconds = result["total_seconds"] - sum(parts[p] for p in ("startup", "evaluation", "checkpoint"))
    return seconds, result["inertia"] / scale**2


def run_sklearn(points, clusters):
    with threadpool_limits(options.threads):
        start = time.perf_counter()
        fit = KMeans(clusters, init=points[:clusters], n_init=1, max_iter=options.iterations, tol=0).fit(points)
        return time.perf_counter() - start, fit.inertia_


def run_faiss(points, clusters):
    if points.dtype != np.float32:
        return None
    faiss.omp_set_num_threads(options.threads)
    start = time.perf_counter()
    fit = faiss.Kmeans(points.shape[1], clusters, niter=options.iterations, min_points_per_centroid=1,
                       max_points_per_centroid=len(points))
    fit.train(points, init_centroids=points[:clusters].copy())
    return time.perf_counter() - start, fit.obj[-1]


def compare(name, points, clusters, source, scale):
    programs = {"tessera": lambda: run_tessera(points, clusters, source, scale),
                "scikit-learn": lambda: run_sklearn(points, clusters),
                "faiss": lambda: run_faiss(points, clusters)}
    seconds, inertia = {}, {}
    for _ in range(options.repeats):
        for program, run in programs.items():  # in turn: a busy moment meets all
            measured = run()
            if measured:
                seconds.setdefault(program, []).append(measured[0] / options.iterations)
                inertia[program] = measured[1]
    own = statistics.median(seconds["tessera"])
    for program, all_seconds in seconds.items():
        median = statistics.median(all_seconds)
        print(f"{name:24} K={clusters:<6} {program:13} {1e3 * median:9.2f} ms an iteration "
              f"({1e3 * min(all_seconds):.2f} to {1e3 * max(all_seconds):.2f})  {median / own:6.2f} x tessera  "
              f"inertia {inertia[program]:.8g}", flush=True)
    if options.log and points.dtype == np.float64:
        assert abs(inertia["scikit-learn"] - inertia["tessera"]) <= 1e-3 * inertia["tessera"], inertia
        write_log(points, clusters, seconds["scikit-learn"], inertia["scikit-learn"])


def write_log(points, clusters, seconds, inertia):
    """A line for `train report`, beside those of `train bench kmeans --log`."""
    with open(options.log, "a") as out:
        print(json.dumps({"type": "kmeans_step", "run": "kmeans_peers", "step": "scikit-learn", "backend": "scikit-learn",
                          "kernel": f"scikit-learn {sklearn.__version__}", "device": "host", "threads": options.threads,
                          "dtype": "f64", "points": len(points), "features": points.shape[1], "clusters": clusters,
                          "loops": options.iterations, "verified": True, "mean_seconds": statistics.mean(seconds),
                          "median_seconds": statistics.median(seconds), "min_seconds": min(seconds),
                          "max_seconds": max(seconds), "inertia": inertia,
                          "time": {"gpu": 0, "cpu": statistics.mean(seconds), "transfers": 0}}), file=out)


def main():
    print(f"scikit-learn {sklearn.__version__}, faiss {faiss.__version__}, {options.threads} threads, "
          f"{options.iterations} iterations, {options.repeats} repeats, load {os.getloadavg()[0]:.1f}")
    numbers = [int(k) for k in options.clusters.split(",") if k and k != "none"]
    mnist = read_mnist(options.data).astype(np.float32) if numbers else None
    for clusters in numbers:
        compare("MNIST f32", mnist, clusters, options.data, 1 / 255)
    with tempfile.TemporaryDirectory() as folder:
        for features in (32, 2) if options.megabytes else ():
            points = np.random.default_rng(1).random((options.megabytes * 2**20 // 8 // features, features))
            path = os.path.join(folder, "points.safetensors")
            save_file({"points": points}, path)
            compare(f"uniform f64 d={features} {options.megabytes} MB", points, 64, path, 1)
        for clusters in [int(k) for k in options.wide.split(",") if k]:
            points = np.random.default_rng(1).random((2**20, 128), np.float32)
            path = os.path.join(folder, "wide.safetensors")
            save_file({"points": points}, path)
            compare("uniform f32 1M x 128", points, clusters, path, 1)


main()
