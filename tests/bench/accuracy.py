#!/usr/bin/env python3
"""The accuracy table of docs/results.md as Markdown: published results and ours, in wrong images of the 10,000 of MNIST's test set.

    tests/bench/accuracy.py GPU_LOGS CPU_LOGS > docs/figures/tables/accuracy-all.md

Reads the logs of `figures.sh measure LOGS record ciresan-2010 cpu-evening`. A row without a log is left out.
"""
import json
import math
import os
import sys

IMAGES = 10_000

# model, network, wrong (from, to), training time as published
PUBLISHED = {
    "augmented": [
        ("committee of 7 networks (arXiv 1103.4487, 2011)", "7 deep MLPs", (31, 31), "not stated"),
        ("one network (arXiv 1003.0358, 2010)", "841-2500-2000-1500-1000-500-10", (35, 35), "114.5 h, GTX 280"),
    ],
    "original": [
        ("ladder network (arXiv 1507.02672, 2015)", "784-1000-500-250-250-250-10", (57, 57), "not stated"),
        ("dropout networks, from several papers", "two or three hidden layers", (95, 125), "not stated"),
    ],
}

# log, images; the first folder with that log counts
OURS = [
    ("committee-tta", "augmented"),
    ("committee", "augmented"),
    ("record-tta", "augmented"),
    ("record", "augmented"),
    ("ciresan-2010", "augmented"),
    ("cpu-evening", "augmented"),
    ("no-augmentation", "original"),
]


def binomial(wrong):
    """Standard error of a count of IMAGES."""
    return math.sqrt(wrong * (1 - wrong / IMAGES))


def setting(config, key):
    """The value of a key of configs/CONFIG.cfg."""
    with open(f"configs/{config}.cfg", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition("=")
            if name.strip() == key:
                return value.strip()
    raise SystemExit(f"configs/{config}.cfg has no {key}")


def duration(seconds):
    """In seconds or minutes."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def of_seeds(path):
    """A table of figures.sh: lines of seed, accuracy, '%', seconds of training (if measured), seconds of the process."""
    rows, seconds = [], []
    with open(path, encoding="utf-8") as file:
        for line in file:
            fields = line.split()
            if len(fields) >= 4 and fields[0].isdigit():
                rows.append(round(IMAGES * (1 - float(fields[1]) / 100)))
                seconds.append(float(fields[3]))
    wrong = sorted(rows)
    mean = sum(wrong) / len(wrong)
    time = duration(sum(seconds) / len(seconds))
    if len(wrong) == 1:
        return mean, f"**{wrong[0]}** ± {binomial(mean):.1f}, one seed", time
    spread = math.sqrt(sum((w - mean) ** 2 for w in wrong) / (len(wrong) - 1))
    return mean, f"**{mean:.1f}** ± {binomial(mean):.1f}, {len(wrong)} seeds: {wrong[0]} to {wrong[-1]}, sd {spread:.1f}", time


def of_log(path):
    """The last summary line of a log of train or eval."""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    last = [line for line in lines if line["type"] in ("ensemble", "summary", "evaluation")][-1]
    wrong = last["test_total"] - last["test_correct"]
    text = f"**{wrong}** ± {binomial(wrong):.1f}"
    if last["type"] == "ensemble":
        return wrong, text, f"{duration(last['seconds'])} for all, evaluation included"
    return wrong, text + ("" if "members" in last else ", one seed"), duration(sum(line["seconds"] for line in lines if line["type"] == "epoch"))


def read(folder, name):
    """(wrong, text, time) of a log in the folder, or None."""
    base = os.path.join(folder, name)
    if os.path.exists(base + ".jsonl"):
        return of_log(base + ".jsonl")
    return of_seeds(base + ".txt") if os.path.exists(base + ".txt") else None


def ours(folders):
    """(images, wrong, row) of every log that exists."""
    for name, images in OURS:
        for folder, machine in zip(folders, ("H100", "two CPU cores")):
            result = read(folder, name)
            if not result:
                continue
            config = name.removesuffix("-tta")
            wrong, text, time = result
            model = f"`configs/{config}.cfg`"
            if config == "committee":
                model += f", {setting(config, 'ensemble')} networks"
            if name != config:
                model += ", `eval --tta 32`"
                time = read(folder, config)[2]
            layers = setting(config, "layers").split()[0]
            yield images, wrong, (model, layers, text, f"{time}, {machine}")
            break


def table(folders):
    """The lines of the table."""
    rows = list(ours(folders))
    titles = ("training images", "model", "network", f"test errors of {IMAGES:,}", "training time")
    lines = ["| " + " | ".join(titles) + " |", "|" + len(titles) * "---|"]
    for images, published in PUBLISHED.items():
        group = [row for row in rows if row[0] == images]
        for model, network, (low, high), time in published:
            text = f"{low} ± {binomial(low):.1f}" if low == high else f"{low} to {high}"
            group.append((images, low, (model, network, text, time)))
        lines += ["| " + " | ".join((images, *row)) + " |" for _, _, row in sorted(group, key=lambda row: row[1])]
    return lines


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    print("\n".join(table(sys.argv[1:])))
