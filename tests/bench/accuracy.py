#!/usr/bin/env python3
"""The accuracy table of README.md as Markdown: published results and ours, in images wrong of the 10,000 of MNIST's test set.

    tests/bench/accuracy.py GPU_LOGS CPU_LOGS > docs/figures/accuracy.md

Reads what `figures.sh measure LOGS record ciresan-2010 cpu-evening` wrote; a row whose log is not there is left out.
"""
import json
import math
import os
import sys

IMAGES = 10_000

# what, network, wrong (from, to), training as published
PUBLISHED = {
    "deformed": [
        ("committee of 7 networks (arXiv 1103.4487, 2011)", "7 deep MLPs", (31, 31), "not stated"),
        ("one network (arXiv 1003.0358, 2010)", "841-2500-2000-1500-1000-500-10", (35, 35), "114.5 h, GTX 280"),
    ],
    "as they are": [
        ("ladder network (arXiv 1507.02672, 2015)", "784-1000-500-250-250-250-10", (57, 57), "not stated"),
        ("dropout networks, from several papers", "two or three hidden layers", (95, 125), "not stated"),
    ],
}

# log, name, images; the first of GPU_LOGS or CPU_LOGS that has it
OURS = [
    ("committee-tta", "deformed"),
    ("committee", "deformed"),
    ("record-tta", "deformed"),
    ("record", "deformed"),
    ("ciresan-2010", "deformed"),
    ("cpu-evening", "deformed"),
    ("no-augmentation", "as they are"),
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
    """As a person would say it."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def of_seeds(path):
    """A table of figures.sh: lines of seed, accuracy, '%', seconds of training, seconds of the process."""
    rows = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            fields = line.split()
            if len(fields) == 5 and fields[0].isdigit():
                rows.append((round(IMAGES * (1 - float(fields[1]) / 100)), float(fields[3])))
    wrong = sorted(row[0] for row in rows)
    mean = sum(wrong) / len(wrong)
    spread = math.sqrt(sum((w - mean) ** 2 for w in wrong) / (len(wrong) - 1)) if len(wrong) > 1 else 0
    seconds = sum(row[1] for row in rows) / len(rows)
    text = f"**{mean:.1f}** ± {binomial(mean):.1f}, {len(wrong)} seeds: {wrong[0]} to {wrong[-1]}, sd {spread:.1f}"
    if len(wrong) == 1:
        text = f"**{wrong[0]}** ± {binomial(wrong[0]):.1f}, one seed"
    return mean, text, duration(seconds) if seconds else "as above"


def of_log(path):
    """A log of train: the last line that sums up."""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    last = [line for line in lines if line["type"] in ("ensemble", "summary", "evaluation")][-1]
    wrong = last["test_total"] - last["test_correct"]
    if last["type"] == "ensemble":
        return wrong, f"**{wrong}** ± {binomial(wrong):.1f}", f"{duration(last['seconds'])}, all of them"
    if last["type"] == "evaluation":
        return wrong, f"**{wrong}** ± {binomial(wrong):.1f}", "as above"
    seconds = sum(line["seconds"] for line in lines if line["type"] == "epoch")
    return wrong, f"**{wrong}** ± {binomial(wrong):.1f}, one seed", duration(seconds)


def ours(folders):
    """(images, wrong, row) of every log that is there."""
    for name, images in OURS:
        for folder, machine in zip(folders, ("H100", "two CPU cores")):
            base = os.path.join(folder, name)
            if os.path.exists(base + ".jsonl"):
                wrong, text, time = of_log(base + ".jsonl")
            elif os.path.exists(base + ".txt"):
                wrong, text, time = of_seeds(base + ".txt")
            else:
                continue
            config = name.removesuffix("-tta")
            what = f"`configs/{config}.cfg`" + (" and `eval --tta`" if name.endswith("-tta") else "")
            if config == "committee":
                what += f", {setting(config, 'ensemble')} networks"
            where = time if name.endswith("-tta") else f"{time}, {machine}"
            yield images, wrong, (what, setting(config, "layers").split()[0], text, where)
            break


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    rows = list(ours(sys.argv[1:]))
    print("| images | what | network | wrong of 10,000 | training |")
    print("|---|---|---|---|---|")
    for images, published in PUBLISHED.items():
        table = [row for row in rows if row[0] == images]
        for what, network, (low, high), time in published:
            text = f"{low} ± {binomial(low):.1f}" if low == high else f"{low} to {high}"
            table.append((images, low, (what, network, text, time)))
        for _, _, row in sorted(table, key=lambda row: row[1]):
            print("| " + " | ".join((images, *row)) + " |")


if __name__ == "__main__":
    main()
