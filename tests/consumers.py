#!/usr/bin/env python3
"""tests/consumers.py [PROGRAM]: exports networks and compares the answers of onnxruntime, of the compiled C
files and, where it can be imported, of PyTorch with those of `eval`, on all test images of data/mnist; then
runs the examples of docs/deployment.md. If onnxruntime, NumPy or safetensors is missing, they are installed
with pip into build/consumers. Skips with a reason if that cannot be; exit status 1 if an answer is wrong."""
import ctypes
import gzip
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import venv

import examples

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "consumers"
PYTHON = WORK / "bin" / "python"
PACKAGES = ["onnxruntime", "numpy", "safetensors"]
PROGRAM = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ROOT / "train")

# activation, layers, other flags
EPOCH = ["--epochs", "1"]
NETWORKS = [
    ("relu", "784-128-10", ["--config", "configs/validation.cfg"]),
    ("tanh", "784-64-32-10", [*EPOCH, "--input-range", "-1,1", "--lr", "0.02"]),
    ("scaled-tanh", "784-64-10", [*EPOCH, "--lr", "0.02"]),
    ("sigmoid", "784-64-10", [*EPOCH, "--dtype", "f64"]),
    ("gelu", "784-100-50-10", [*EPOCH, "--dropout", "0.1"]),
    ("relu", "784-10", EPOCH),
]


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(0)


def enter_environment():
    """If a package is missing, runs this script again in the virtual environment, which is made first."""
    if all(importlib.util.find_spec(name) for name in PACKAGES):
        return
    try:
        if not PYTHON.exists():
            venv.create(WORK, with_pip=True, system_site_packages=True)
        install = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
        subprocess.run(install + PACKAGES, check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except (OSError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
        skip(f"cannot install {', '.join(PACKAGES)}: {lines[-1] if lines else error}")
    os.execv(PYTHON, [str(PYTHON), __file__, PROGRAM])


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout


def read_idx(kind, offset):
    import numpy as np

    (path,) = (ROOT / "data" / "mnist").glob(f"t10k-{kind}*")
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    return np.frombuffer(data, np.uint8, offset=offset)


def eval_classes(model, labels):
    """The class of each test image by `eval`, and their mean loss."""
    log = model.with_name("eval.jsonl")
    run("eval", model, "--misclassified", len(labels), "--log", log)
    classes, loss = labels.astype(int), None
    for line in map(json.loads, log.read_text().splitlines()):
        if line["type"] == "mistake":
            classes[line["image"]] = line["predicted"]
        loss = line.get("loss", loss)
    return classes, loss


def by_onnxruntime(path, pixels):
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(["logits"], {"pixels": pixels})[0]


def compiled(path, function, kind):
    """The function of an exported C file: an array of outputs for each image, and the classes."""
    import numpy as np

    library = path.with_suffix(".so")
    subprocess.run([os.environ.get("CC", "cc"), "-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fPIC",
                    "-shared", path, "-o", library, "-lm"], check=True)
    predict = getattr(ctypes.CDLL(str(library)), function)

    def answers(pixels):
        outputs = np.zeros((len(pixels), 10), kind)
        classes = [predict(ctypes.c_void_p(image.ctypes.data), ctypes.c_void_p(output.ctypes.data))
                   for image, output in zip(pixels, outputs)]
        return outputs, np.array(classes)

    return answers


def by_numpy(path, x, activation):
    """The state dict in float64."""
    import math
    import numpy as np
    from safetensors.numpy import load_file

    functions = {
        "relu": lambda z: np.maximum(z, 0),
        "tanh": np.tanh,
        "scaled-tanh": lambda z: 1.7159 * np.tanh(2 / 3 * z),
        "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
        "gelu": lambda z: 0.5 * z * (1 + np.vectorize(math.erf)(z / math.sqrt(2))),
    }
    state = {name: value.astype(float) for name, value in load_file(path).items()}
    for layer in range(0, len(state), 2):
        x = functions[activation](x) if layer else x
        x = x @ state[f"{layer}.weight"].T + state[f"{layer}.bias"]
    return x


def by_torch(path, x):
    """The same by nn.Sequential, as the file's metadata describe it; None without PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    from safetensors import safe_open
    from safetensors.torch import load_file

    class ScaledTanh(torch.nn.Module):
        def forward(self, z):
            return 1.7159 * torch.tanh(2 / 3 * z)

    with safe_open(path, "pt") as file:
        model = eval(file.metadata()["torch"], {"nn": torch.nn, "ScaledTanh": ScaledTanh})
    model.load_state_dict(load_file(path))
    with torch.no_grad():
        return model(torch.from_numpy(x).float()).numpy()


def softmax(logits):
    import numpy as np

    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def check(folder, activation, layers, flags, pixels, labels):
    """One network: a row for each consumer. True if all answers are right."""
    import numpy as np

    model, onnx, source, small, state = (folder / name for name in (
        "model.safetensors", "digits.onnx", "digits.c", "small.c", "state.safetensors"))
    run("--data", "data/mnist", "--layers", layers, "--activation", activation, *flags, "--save", model)
    run("export", model, "--onnx", onnx, "--c", source, "--torch", state)
    run("export", model, "--c", small, "--int8")
    classes, loss = eval_classes(model, labels)
    x = pixels / 127.5 - 1 if "-1,1" in flags else pixels / 255
    reference = by_numpy(state, x, activation)
    correct = (classes == labels).sum()
    all_right = True

    def row(name, by_name, probabilities, right):
        nonlocal all_right
        different = (by_name != classes).sum()
        right &= different < (0.01 * len(labels) if "int8" in name else 2)
        apart = "-" if probabilities is None else f"{np.abs(probabilities - softmax(reference)).max():.1e}"
        print(f"{activation:12}{layers:14}{name:13}{different:9}{(by_name == labels).sum():9,}{correct:9,}   {apart:>8}"
              f"{'' if right else '   WRONG'}")
        all_right &= bool(right)

    for name, logits in ("onnxruntime", by_onnxruntime(onnx, pixels)), ("torch", by_torch(state, x)):
        if logits is not None:
            mean = -np.log(softmax(logits.astype(float))[np.arange(len(labels)), labels]).mean()
            close = np.abs(logits - reference).max() < 1e-5 * np.abs(reference).max()
            row(name, logits.argmax(1), softmax(logits.astype(float)), close and abs(mean - loss) < 1e-5)
    probabilities, by_c = compiled(source, "digits_predict", np.float32)(pixels)
    row("C", by_c, probabilities, np.abs(probabilities - softmax(reference)).max() < 1e-5)
    by_integers = compiled(small, "small_predict", np.int32)(pixels)[1]
    row("C, int8", by_integers, None, f"int8: {(by_integers == labels).sum():,}/{len(labels):,} " in small.read_text())
    return all_right


def versions():
    from importlib import metadata

    found = [f"{name} {metadata.version(name)}" for name in PACKAGES + ["torch"] if importlib.util.find_spec(name)]
    return ", ".join(found)


def main():
    if not list((ROOT / "data" / "mnist").glob("t10k-images*")):
        skip("no MNIST (data/fetch.sh downloads it)")
    enter_environment()
    pixels, labels = read_idx("images", 16).reshape(-1, 784), read_idx("labels", 8)
    print(f"{versions()}\n")
    print(f"{'':39}{'differ':>9}{'correct':>9}{'eval':>9}   probability")
    right = True
    for network in NETWORKS:
        with tempfile.TemporaryDirectory() as name:
            right &= check(pathlib.Path(name), *network, pixels, labels)
    right &= examples.run_document("docs/deployment.md", PROGRAM)
    sys.exit(not right)


if __name__ == "__main__":
    main()
