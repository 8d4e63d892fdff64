#!/usr/bin/env python3
"""R of sliding windows by Tessera, NumPy, SciPy, PyTorch and JAX in turn: windows of a standard normal float32 matrix, one
row apart, on the same cores; R only, from rows in memory.

    pip install numpy scipy torch jax threadpoolctl        # what cannot be imported is left out
    tests/bench/qr_peers.py build/gcc/train --threads 2 --repeats 3
    tests/bench/qr_peers.py build/gcc/train --scale 4      # sizes divided by 4, for a quick run

A time is that of all windows, the median of the repeats with the minimum and the maximum. A program that needs more than
--limit seconds for them is timed on fewer windows, and its time is proportional: the number is in parentheses (of those
that move a factor from window to window, the first window counts once). The peers but JAX have --threads threads or one,
whichever is faster. Tessera's time is the median of `train bench qr`, which draws a matrix of its own from the same
distribution, and its nb is the fastest of the first repeat. Error: |R^T R - A^T A| / |A^T A|, Frobenius, in float64, the
largest of the first, the middle and the last of the timed windows."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", default="8192x2048,640x128")
    parser.add_argument("--windows", default="58,64", help="one number for each size")
    parser.add_argument("--scale", type=int, default=1, help="divide rows and columns of the sizes")
    parser.add_argument("--nb", default="16..128", help="of Tessera")
    parser.add_argument("--backends", default="tuned,openblas", help="of Tessera")
    parser.add_argument("--methods", default="common,tree,gram", help="of Tessera")
    parser.add_argument("--limit", type=float, default=20, help="seconds of a program for the windows of one size")
    parser.add_argument("--log", help="append the peers' rows, for `train report` beside those of `train bench qr --log`")
    return parser.parse_args()


options = arguments()
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])  # JAX has no other limit
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = str(options.threads)  # before numpy starts its threads
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from threadpoolctl import threadpool_limits

BATCH = 1 << 24  # elements of a batch of windows


def chunks(count, elements):
    step = max(1, min(count, BATCH // elements))
    return [range(first, min(first + step, count)) for first in range(0, count, step)]


def products(a, m, count, stack, matmul):
    """A^T A of the windows in batches: of the rows that all share, then of those that each has alone."""
    common = a[count - 1 : m].T @ a[count - 1 : m]
    for chunk in chunks(count, a.shape[1] ** 2):
        own = stack([a[[*range(k, count - 1), *range(m, m + k)]] for k in chunk])
        yield chunk, common + matmul(own.swapaxes(1, 2), own)


def moving_products(a, m, count):
    """A^T A of one window after the other: a row enters, a row leaves."""
    gram = a[:m].T @ a[:m]
    for k in range(count):
        if k:
            rows = a[[m + k - 1, k - 1]]
            gram += rows.T @ (rows * np.array([[1], [-1]], a.dtype))
        yield k, gram


# A peer: (name, library, moves a factor, function(a, m, count, visit)); visit(k, R) takes window k.
def numpy_peers():
    def qr(a, m, count, visit):
        for k in range(count):
            visit(k, np.linalg.qr(a[k : k + m], mode="r"))

    def moving(a, m, count, visit):
        for k, gram in moving_products(a, m, count):
            visit(k, np.linalg.cholesky(gram).T)

    def batched(a, m, count, visit):
        for chunk, grams in products(a, m, count, np.stack, np.matmul):
            for k, factor in zip(chunk, np.linalg.cholesky(grams)):
                visit(k, factor.T)

    label = f"NumPy {np.__version__}"
    return [("qr, one by one", label + " (float64 inside)", False, qr), ("Gram, moving, Cholesky", label, True, moving),
            ("Gram, common rows, Cholesky", label, None, batched)]


def scipy_peers():
    import scipy
    from scipy import linalg

    def qr(a, m, count, visit):
        for k in range(count):
            visit(k, linalg.qr(a[k : k + m], mode="r", check_finite=False)[0][: a.shape[1]])

    def slide(a, m, count, visit):
        q, r = linalg.qr(a[:m], mode="economic", check_finite=False)
        visit(0, r)
        for k in range(1, count):
            q, r = linalg.qr_delete(q, r, 0, which="row", check_finite=False)
            q, r = linalg.qr_insert(q, r, a[m + k - 1], m - 1, which="row", check_finite=False)
            visit(k, r)

    label = f"SciPy {scipy.__version__}"
    return [("qr (sgeqrf), one by one", label, False, qr), ("qr_delete, qr_insert", label, True, slide)]


def torch_peers():
    import torch

    torch.set_num_threads(options.threads)

    def geqrf(a, m, count, visit):
        a = torch.from_numpy(a)
        for k in range(count):
            visit(k, torch.geqrf(a[k : k + m])[0][: a.shape[1]])

    def qr(a, m, count, visit):
        windows = torch.from_numpy(a).unfold(0, m, 1).transpose(1, 2)  # [windows][m][n], no copy
        for chunk in chunks(count, m * a.shape[1]):
            for k, r in zip(chunk, torch.linalg.qr(windows[chunk.start : chunk.stop], mode="r")[1]):
                visit(k, r)

    def batched(a, m, count, visit):
        for chunk, grams in products(torch.from_numpy(a), m, count, torch.stack, torch.matmul):
            for k, factor in zip(chunk, torch.linalg.cholesky(grams, upper=True)):
                visit(k, factor)

    label = f"PyTorch {torch.__version__}"
    return [("geqrf, one by one", label, False, geqrf), ("linalg.qr, batched", label, False, qr),
            ("Gram, common rows, Cholesky", label, None, batched)]


def jax_peers():
    import functools

    import jax
    from jax import lax, numpy as jnp

    @functools.partial(jax.jit, static_argnums=2)
    def factor(a, starts, m):
        def one(start):
            return jnp.linalg.qr(lax.dynamic_slice(a, (start, 0), (m, a.shape[1])), mode="r")

        return jax.vmap(one)(starts)

    def qr(a, m, count, visit):
        a = jnp.asarray(a)
        for chunk in chunks(count, m * a.shape[1]):
            for k, r in zip(chunk, np.asarray(factor(a, jnp.arange(chunk.start, chunk.stop), m))):
                visit(k, r)

    return [("vmap(qr)", f"JAX {jax.__version__}", False, qr)]


def find_peers():
    peers = []
    for find in (numpy_peers, scipy_peers, torch_peers, jax_peers):
        try:
            peers += find()
        except ImportError as error:
            print(f"left out: {error}")
    return peers


def set_threads(threads):
    """Of the libraries that are loaded; JAX has all cores of the process."""
    threadpool_limits(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


class Checker:
    """Errors of some windows, whose products are computed once."""

    def __init__(self, a, m):
        self.a, self.m, self.grams = a, m, {}

    def error(self, k, r):
        if k not in self.grams:
            window = self.a[k : k + self.m].astype(np.float64)
            self.grams[k] = window.T @ window
        r = np.triu(np.asarray(r, np.float64))
        return np.linalg.norm(r.T @ r - self.grams[k]) / np.linalg.norm(self.grams[k])


def seconds_of(peer, a, m, timed, count):
    """Seconds of `count` windows, by the time of the first `timed` ones."""
    name, library, moves, function = peer
    marks, total = [], [0.0]

    def visit(k, r):
        total[0] += abs(float(r[-1, -1]))  # depends on every row
        marks.append(time.perf_counter())

    start = time.perf_counter()
    function(a, m, timed, visit)
    assert len(marks) == timed and np.isfinite(total[0]), (name, library)
    whole = marks[-1] - start
    if timed == count:
        return whole
    first = marks[0] - start
    return first + (whole - first) / (timed - 1) * (count - 1) if moves else whole / timed * count


def fit(peer, a, m, count):
    """The faster of one thread and all, and the windows that the limit has time for. Products of common rows are computed
    for all windows."""
    least = min(count, 3 if peer[2] is not False else 1)
    spent = {}
    for threads in {options.threads} if peer[1].startswith("JAX") else sorted({1, options.threads}):
        set_threads(threads)
        for _ in range(3):  # the first one warms up, and compiles
            start = time.perf_counter()
            seconds_of(peer, a, m, least, least)
            spent[threads] = min(spent.get(threads, float("inf")), time.perf_counter() - start)
    threads = min(spent, key=spent.get)
    fits = int(options.limit / options.repeats / spent[threads] * least)
    return threads, count if peer[2] is None else max(least, min(count, fits))


def error_of(peer, a, m, timed, checker):
    wanted, errors = {0, timed // 2, timed - 1}, []
    peer[3](a, m, timed, lambda k, r: errors.append(checker.error(k, r)) if k in wanted else None)
    return max(errors)


def run_tessera(size, windows, nb, methods, backends):
    """The verified rows of a run."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log.jsonl")
        command = [options.train, "bench", "qr", "--sizes", size, "--windows", str(windows), "--nb", str(nb), "--counts", "none",
                   "--methods", methods, "--backends", backends, "--threads", str(options.threads), "--log", log]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in open(log)]
    return [row for row in records if row["type"] == "qr" and row.get("verified")]


def repeat_tessera(size, windows, ours):
    """Appends a row to each list of `ours`, by (method, backend); the first repeat finds the fastest nb."""
    for (method, backend), rows in ours.items():
        rows += run_tessera(size, windows, rows[0]["nb"], method, backend)
    for row in run_tessera(size, windows, options.nb, options.methods, options.backends) if not ours else ():
        rows = ours.setdefault((row["method"], row["backend"]), [row])
        if row["median_seconds"] < rows[0]["median_seconds"]:
            rows[0] = row


def write_log(shape, windows, timed, peer, threads, seconds, error):
    """A line for `train report`, beside those of `train bench qr --log`."""
    median = statistics.median(seconds)
    with open(options.log, "a") as out:
        print(json.dumps({"type": "qr", "run": "qr_peers", "method": peer[0], "backend": peer[1], "device": "host",
                          "dtype": "f32", "rows": shape[0], "columns": shape[1], "stride": 1, "windows": windows, "windows_timed": timed,
                          "condition": 1, "threads": threads, "verified": True, "backward_error": float(error),
                          "repeats": len(seconds), "median_seconds": median, "min_seconds": min(seconds),
                          "max_seconds": max(seconds), "window_seconds": median / windows}), file=out)


def show(name, library, seconds, windows, timed, base, error):
    median = statistics.median(seconds)
    count = f"{windows}" if timed == windows else f"{windows} ({timed})"
    print(f"| {name} | {library} | {count} | {1e3 * median:.4g} ms | {1e3 * min(seconds):.4g} to {1e3 * max(seconds):.4g} "
          f"| {base / median:.3g} | {error:.1e} |", flush=True)


def compare(shape, windows, peers):
    m, n = shape
    a = np.random.default_rng(1).standard_normal((m + windows - 1, n), np.float32)
    checker, size = Checker(a, m), f"{m}x{n}"
    fits = {peer[:2]: fit(peer, a, m, windows) for peer in peers}
    seconds, ours = {peer[:2]: [] for peer in peers}, {}
    for _ in range(options.repeats):  # in turn: a busy moment meets all
        repeat_tessera(size, windows, ours)
        for peer in peers:
            threads, timed = fits[peer[:2]]
            set_threads(threads)
            seconds[peer[:2]].append(seconds_of(peer, a, m, timed, windows))
    base = statistics.median(next((all_seconds for peer, all_seconds in seconds.items() if peer[1].startswith("SciPy")),
                                  seconds[peers[0][:2]]))
    print(f"\n{windows} windows of {m} x {n}, load {os.getloadavg()[0]:.1f}\n\n"
          "| method | program | windows | time | min to max, ms | speed-up over LAPACK one by one | error |\n"
          "|---|---|---:|---:|---:|---:|---:|")
    for (method, backend), rows in ours.items():
        show(method, f"Tessera, {backend}, nb {rows[0]['nb']}", [row["median_seconds"] for row in rows], windows,
             rows[0]["windows_timed"], base, max(row["backward_error"] for row in rows))
    for peer in peers:
        threads, timed = fits[peer[:2]]
        error = error_of(peer, a, m, timed, checker)
        show(peer[0], f"{peer[1]}, {threads} of {options.threads} threads" if threads < options.threads else peer[1],
             seconds[peer[:2]], windows, timed, base, error)
        if options.log:
            write_log(shape, windows, timed, peer, threads, seconds[peer[:2]], error)


def main():
    peers = find_peers()
    sizes, windows = options.sizes.split(","), [int(count) for count in options.windows.split(",")]
    if len(windows) not in (1, len(sizes)):
        raise SystemExit("--windows must be one number, or one for each of --sizes")
    print(f"{options.threads} threads, {options.repeats} repeats, float32")
    for size, count in zip(sizes, windows * len(sizes) if len(windows) == 1 else windows):
        compare([int(number) // options.scale for number in size.split("x")], count, peers)


main()
