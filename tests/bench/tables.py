#!/usr/bin/env python3
"""The short tables and the chart of README.md, and the table of docs/cpu-gemm.md, from the logs of `figures.sh measure`.

    tests/bench/tables.py CPU_LOGS GPU_LOGS OUT

Writes OUT/start.txt (eight lines of a training), OUT/cpu.md, OUT/gpu.md, OUT/accuracy.md, OUT/epochs.svg, OUT/gemm.md and
OUT/error-speed.svg. A row whose log does not exist is left out.
"""
import json
import math
import os
import re
import statistics
import sys

from accuracy import table as accuracy_rows

NETWORK = "784-128-10"
CPU_ROWS = [("serial", "eager"), ("openmp", "eager"), ("openblas", "eager"), ("tuned", "fused")]
GPU_ROWS = [("cuda-naive", "graph"), ("cuda-coalesced", "graph"), ("cuda-shmem", "graph"), ("cublas", "graph"),
            ("cuda-tuned", "graph"), ("cuda-tuned", "fused")]
ACCURACY_ROWS = ["configs/committee.cfg`, 7 networks |", "configs/record.cfg` |", "configs/cpu-evening.cfg` |",
                 "configs/no-augmentation.cfg` |"]


def lines_of(path):
    """The objects of a log; none if it does not exist."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def significant(value):
    """Three significant digits."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def time_text(seconds):
    """With the unit."""
    return f"{significant(seconds)} s" if seconds >= 0.9995 else f"{significant(1e3 * seconds)} ms"


# --- the rows ---

def compared(folder):
    """{(backend, engine): row} of the float32 trainings on configs/validation.cfg; the first of equal rows stays."""
    rows = {}
    names = sorted(name.removesuffix(".jsonl") for name in os.listdir(folder) if re.fullmatch(r"compare-validation.*\.jsonl", name))
    for name in names:
        header, *lines = lines_of(os.path.join(folder, name + ".jsonl"))
        for line in lines:
            plain = line.get("precision") == line.get("dtype") == "f32" and line.get("residency") == "device"
            if line["type"] == "compare" and plain and line.get("agrees") and "median_epoch_seconds" in line:
                rows.setdefault((line["backend"], line["engine"]), {
                    "median": line["median_epoch_seconds"], "low": line["min_epoch_seconds"], "high": line["max_epoch_seconds"],
                    "accuracy": f"{100 * line['test_accuracy']:.2f} %", "threads": line["threads"], "commit": header["commit"],
                    "machine": (header.get("gpu") or header["cpu"]).split(",")[0]})
    return rows


def cpu_peers(folder):
    """The rows of other programs on two threads, as `cpu_peers.py epoch` measured them."""
    rows = {}
    for line in lines_of(os.path.join(folder, "peers-epoch-2.log")):
        if line["type"] == "peer_epoch" and line["layers"] == NETWORK and not line["candidate"].startswith("ours"):
            rows[line["candidate"]] = {
                "median": line["median_seconds"], "low": line["min_seconds"], "high": line["max_seconds"], "threads": line["threads"],
                "accuracy": f"{100 * line['test_accuracy']:.2f} % after {line['epochs']} epochs"}
    return rows


def gpu_peers(folder):
    """The rows of `gpu_peers.py`: each program's median over its processes."""
    samples = {}
    for line in lines_of(os.path.join(folder, "peers-gpu.log")):
        if line["net"] == NETWORK:
            samples.setdefault(line["peer"], []).append(line)
    rows = {}
    for name, lines in samples.items():
        seconds = [line["seconds"] for line in lines]
        rows[name] = {"median": statistics.median(seconds), "low": min(seconds), "high": max(seconds), "accuracy": "-",
                      "commit": lines[0]["version"].removeprefix("commit ")}
    return rows


# --- the tables ---

def median_of(rows, backend):
    """The epoch of a backend with engine eager; 0 if it was not measured."""
    return rows.get((backend, "eager"), {"median": 0})["median"]


def row_text(name, engine, row, baseline):
    speedup = f"{baseline / row['median']:.2f}" if baseline else "-"
    return (f"| {name} | {engine} | {time_text(row['median'])} ({time_text(row['low'])} to {time_text(row['high'])}) |"
            f" {60000 / row['median']:,.0f} | {speedup} | {row['accuracy']} |")


def table_text(first, rows, baseline, notes):
    head = f"| {first} | engine | epoch, median (min to max) | images/s | speed-up | test accuracy |\n|---|---|---:|---:|---:|---:|"
    return "\n".join([head, *(row_text(*row, baseline) for row in rows), "", *notes]) + "\n"


def cpu_table(ours, peers):
    rows = [(f"`{name}`, {ours[name, engine]['threads']} thread{'s' * (ours[name, engine]['threads'] > 1)}", engine, ours[name, engine])
            for name, engine in CPU_ROWS if (name, engine) in ours]
    if "PyTorch" in peers:
        rows.append((f"PyTorch, {peers['PyTorch']['threads']} threads", "eager", peers["PyTorch"]))
    one = ours["tuned", "fused"]
    notes = [f"{one['machine']}, commit {one['commit']}. Speed-up is relative to `openblas`."]
    if "PyTorch" in peers:
        notes.append("PyTorch was measured in another run, alternately with `tuned` "
                     "([results](docs/results.md)).")
    return table_text("backend", rows, median_of(ours, "openblas"), notes)


def gpu_rows(ours, peers):
    """cuda-tuned from the comparison; if that has none of the commit of cuBLAS, from the run with other programs."""
    rows = {key: ours[key] for key in GPU_ROWS if key in ours}
    commit = rows["cublas", "graph"]["commit"]
    for key in GPU_ROWS:
        other = peers.get(f"ours, {key[1]}", {})
        if key[0] == "cuda-tuned" and rows.get(key, {}).get("commit") != commit and other.get("commit") == commit:
            rows[key] = other
    return rows


def gpu_table(rows, on_gpu, peers):
    one = rows["cublas", "graph"]
    notes = [f"{one['machine']}, commit {one['commit']}. Speed-up is relative to `openblas` on "
             f"{on_gpu['openblas', 'eager']['threads']} threads of the same host."]
    notes += [f"`{name}` with engine {engine} was measured in another run, of commit {row['commit']}."
              for (name, engine), row in rows.items() if row["commit"] != one["commit"]]
    others = [f"{name} {time_text(row['median'])}" for name, row in peers.items() if not name.startswith("ours")]
    if others:
        notes.append(f"Other programs on the same GPU model, per epoch: {', '.join(others)}.")
    return table_text("backend", [(f"`{name}`", engine, row) for (name, engine), row in rows.items()], median_of(on_gpu, "openblas"), notes)


def accuracy_table(cpu, gpu):
    head, rule, *rows = accuracy_rows([gpu, cpu])
    return "\n".join([head, rule, *(row for wanted in ACCURACY_ROWS for row in rows if wanted in row)]) + "\n"


# --- products of tuned and of other libraries ---

def products(folder, threads):
    """{(op, m, n, k, dtype): {candidate: line}} of `cpu_peers.py gemm`; of two ways to call OpenBLAS the faster."""
    of = {}
    for line in lines_of(os.path.join(folder, f"peers-gemm-{threads}.log")):
        if line["type"] == "peer_gemm":
            row = of.setdefault(tuple(line[key] for key in ("op", "m", "n", "k", "dtype")), {})
            name = line["candidate"].removeprefix("ours: ").replace("openblas", "OpenBLAS")
            if name not in row or row[name]["gflops"] < line["gflops"]:
                row[name] = line
    return of


def product_name(key):
    op, m, n, k, dtype = key
    shape = str(m) if m == n == k else f"{m}x{n}x{k}"
    return f"{op} {shape}" + (", float64" if dtype == "f64" else "")


def gemm_table(folder):
    names = ("tuned", "OpenBLAS", "BLIS")
    by_threads = [products(folder, threads) for threads in (2, 1)]
    out = ["| product | two threads: tuned | OpenBLAS | BLIS | one thread: tuned | OpenBLAS | BLIS |", "|---|" + 6 * "---:|"]
    for key in by_threads[0]:
        lines = [of[key][name] for of in by_threads for name in names]
        out.append(f"| {product_name(key)} | "
                   + " | ".join(f"{line['gflops']:.0f} ({line['share_of_peak']:.0%})".replace("%", " %") for line in lines) + " |")
    return "\n".join(out) + "\n"


# --- eight lines of a training ---

def excerpt(path):
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    wanted = [r"network ", r"compute ", r"epoch +loss", r" +1 ", r" +2 ", r" +20 ", r"test accuracy ", r"epochs "]
    out = []
    for pattern in wanted:
        first = next(i for i, line in enumerate(lines) if re.match(pattern, line))
        out.append(lines[first])
        for line in lines[first + 1:]:
            if not line.startswith(" " * 10):
                break
            out.append(line)
    return "\n".join(out) + "\n"


# --- the chart ---

LEFT, WIDTH, ROW, BAR = 160, 820, 24, 15
DECADES = range(-3, 1)  # 1 ms to 1 s
STYLE = ("text{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}.h{font-weight:600}"
         ".a{fill:#59636e;font-size:12px}.g{stroke:#d1d9e0}.ours{fill:#0969da}.best{fill:#1a7f37}.other{fill:#8c959f}")


def place(seconds):
    """Where a time stands on the logarithmic axis."""
    share = (math.log10(seconds) - DECADES[0]) / (DECADES[-1] - DECADES[0] + 0.1)
    return LEFT + share * (WIDTH - LEFT - 70)


def chart(groups):
    """Bars of (title, [(name, seconds, class)]), on one logarithmic axis of time."""
    height = 62 + sum(30 + ROW * len(bars) for _, bars in groups)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
           f'aria-label="Time of an epoch by backend"><style>{STYLE}</style><rect width="{WIDTH}" height="{height}" fill="#fff"/>']
    for decade in DECADES:
        x = place(10.0 ** decade)
        out.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{height - 46}"/><text class="a" x="{x:.1f}" '
                   f'y="{height - 30}" text-anchor="middle">{"1 s" if decade == 0 else f"{10 ** (decade + 3)} ms"}</text>')
    y = 8
    for title, bars in groups:
        out.append(f'<text class="h" x="8" y="{y + 16}">{title}</text>')
        y += 26
        for name, seconds, kind in bars:
            x = place(seconds)
            out.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{name}</text><rect class="{kind}" x="{LEFT}" y="{y + 1}" '
                       f'width="{x - LEFT:.1f}" height="{BAR}"/><text x="{x + 6:.1f}" y="{y + 13}">{time_text(seconds)}</text>')
            y += ROW
        y += 4
    out.append(f'<text class="a" x="8" y="{height - 10}">time of an epoch of MNIST, network {NETWORK}, batch 128, float32; '
               f'logarithmic scale, shorter is faster; grey: other programs</text></svg>')
    return "\n".join(out) + "\n"


def bars_of(rows, peers, best):
    bars = [(f"{name}{', ' + engine if name == 'cuda-tuned' else ''}", row["median"], "best" if (name, engine) == best else "ours")
            for (name, engine), row in rows.items()]
    bars += [(name, row["median"], "other") for name, row in peers.items() if not name.startswith("ours")]
    return sorted(bars, key=lambda bar: -bar[1])


# --- error against speed ---

ERROR_WIDTH, ERROR_HEIGHT, ERRORS, RATES = 640, 370, range(-7, -1), (25, 50, 100, 200, 400, 800)  # decades; TFLOP/s
# Published for 8192 x 8192 x 8192 on a GH200, with the accuracy of SGEMM: arXiv 2508.03984.
PUBLISHED = ("GEMMul8, published", 152e3)


def error_chart(rows):
    """Points of (name, GFLOP/s, relative error, class) on two logarithmic axes; an error axis from accurate (top) to coarse."""
    def x_of(tflops):
        return 70 + (ERROR_WIDTH - 100) * math.log2(tflops / RATES[0]) / math.log2(1.2 * RATES[-1] / RATES[0])

    def y_of(error):
        return 30 + (ERROR_HEIGHT - 80) * (math.log10(error) - ERRORS[0]) / (ERRORS[-1] - ERRORS[0])
    right, bottom = x_of(1.2 * RATES[-1]), y_of(10.0 ** ERRORS[-1])
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {ERROR_WIDTH} {ERROR_HEIGHT}" width="{ERROR_WIDTH}" '
           f'height="{ERROR_HEIGHT}" role="img" aria-label="Error of a product against its speed"><style>{STYLE}</style>'
           f'<rect width="{ERROR_WIDTH}" height="{ERROR_HEIGHT}" fill="#fff"/><text class="a" x="8" y="16">relative error</text>']
    for decade in ERRORS:
        y = y_of(10.0 ** decade)
        out.append(f'<line class="g" x1="70" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/><text class="a" x="62" y="{y + 4:.1f}" '
                   f'text-anchor="end">1e{decade}</text>')
    for rate in RATES:
        x = x_of(rate)
        out.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="30" y2="{bottom:.1f}"/><text class="a" x="{x:.1f}" '
                   f'y="{bottom + 18:.1f}" text-anchor="middle">{rate}</text>')
    for name, gflops, error, kind in rows:
        x, y = x_of(gflops / 1e3), y_of(error)
        left = x > right - 120
        out.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="7"/><text x="{x + (-12 if left else 12):.1f}" y="{y + 4:.1f}" '
                   f'text-anchor="{"end" if left else "start"}">{name} {gflops / 1e3:.0f}</text>')
    out.append(f'<text class="a" x="{right:.1f}" y="{bottom + 36:.1f}" text-anchor="end">TFLOP/s, 8192 x 8192 x 8192, operands in '
               f'[-1, 1); further right is faster, further up is more accurate</text></svg>')
    return "\n".join(out) + "\n"


def error_rows(folder):
    """The last line of each name in error-speed.log, and what was published."""
    last = {line["name"]: line for line in lines_of(os.path.join(folder, "error-speed.log"))}
    if not last:
        return []
    rows = [(name, line["gflops"], line["relative_error"], "best" if name == "cuda-tuned" else "ours")
            for name, line in last.items()]
    return rows + [(*PUBLISHED, last["SGEMM"]["relative_error"], "other")]


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    cpu, gpu, out = sys.argv[1:]
    on_cpu, on_gpu = compared(cpu), compared(gpu)
    by_cpu, by_gpu = cpu_peers(cpu), gpu_peers(gpu)
    rows = gpu_rows(on_gpu, by_gpu)
    threads = on_cpu["tuned", "fused"]["threads"]
    groups = [(f"CPU, {threads} cores", bars_of({key: on_cpu[key] for key in CPU_ROWS if key in on_cpu}, by_cpu, CPU_ROWS[-1])),
              (rows["cublas", "graph"]["machine"], bars_of(rows, by_gpu, GPU_ROWS[-1]))]
    files = {"start.txt": excerpt(os.path.join(cpu, "transcript.txt")), "cpu.md": cpu_table(on_cpu, by_cpu),
             "gpu.md": gpu_table(rows, on_gpu, by_gpu), "accuracy.md": accuracy_table(cpu, gpu),
             "epochs.svg": chart(groups), "gemm.md": gemm_table(cpu)}
    if error_rows(gpu):
        files["error-speed.svg"] = error_chart(error_rows(gpu))
    os.makedirs(out, exist_ok=True)
    for name, text in files.items():
        with open(os.path.join(out, name), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
