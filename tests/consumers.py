#!/usr/bin/env python3
"""tests/consumers.py [PROGRAM]: exports networks and compares the answers of onnxruntime, of the compiled C
file and of the state dict (in NumPy and, where it can be imported, in PyTorch) with those of `eval`, on all
test images of data/mnist. Installs onnxruntime, NumPy and safetensors from PyPI into a virtual environment in
build/consumers. Skips with a reason if that cannot be; exit status 1 if an answer is wrong."""
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "consumers"
PYTHON = WORK / "bin" / "python"
PACKAGES = ["onnxruntime", "numpy", "safetensors"]
PROGRAM = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ROOT / "train")

# activation, layers, other flags
NETWORKS = [
    ("relu", "784-128-10", []),
    ("tanh", "784-64-32-10", ["--input-range", "-1,1", "--lr", "0.02"]),
    ("scaled-tanh", "784-64-10", ["--lr", "0.02"]),
    ("sigmoid", "784-64-10", ["--dtype", "f64"]),
    ("gelu", "784-100-50-10", ["--dropout", "0.1"]),
    ("relu", "784-10", []),
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
    """One network; returns the names of consumers with wrong answers."""
    import numpy as np

    model, onnx, source, small, state = (pathlib.Path(folder) / name for name in (
        "model.safetensors", "digits.onnx", "digits.c", "small.c", "state.safetensors"))
    run("--data", "data/mnist", "--layers", layers, "--activation", activation, "--epochs", 1, *flags, "--save", model)
    run("export", model, "--onnx", onnx, "--c", source, "--torch", state)
    run("export", model, "--c", small, "--int8")
    classes, loss = eval_classes(model, labels)
    x = pixels / 127.5 - 1 if "-1,1" in flags else pixels / 255
    reference = by_numpy(state, x, activation)
    logits = {"onnxruntime": by_onnxruntime(onnx, pixels), "torch": by_torch(state, x)}
    errors = []

    def report(name, text, right):
        print(f"{activation} {layers}: {name}: {text}")
        if not right:
            errors.append(f"{activation} {layers}: {name}")

    for name, got in logits.items():
        if got is None:
            report(name, "skipped, it cannot be imported", True)
            continue
        different, apart = (got.argmax(1) != classes).sum(), np.abs(got - reference).max()
        mean = -np.log(softmax(got.astype(float))[np.arange(len(labels)), labels]).mean()
        report(name, f"{different} classes are not those of eval; logits, up to {np.abs(reference).max():.0f}, at most "
                     f"{apart:.1e} from float64; loss {mean:.7f}, eval {loss:.7f}",
               different <= 1 and apart < 1e-5 * np.abs(reference).max() and abs(mean - loss) < 1e-5)
    probabilities, by_c = compiled(source, "digits_predict", np.float32)(pixels)
    different, apart = (by_c != classes).sum(), np.abs(probabilities - softmax(reference)).max()
    report("C", f"{different} classes are not those of eval; probabilities at most {apart:.1e} from float64",
           different <= 1 and apart < 1e-5)
    by_integers = compiled(small, "small_predict", np.int32)(pixels)[1]
    right, different = (by_integers == labels).sum(), (by_integers != classes).sum()
    report("C, int8", f"{different} classes are not those of eval; {right:,} right, eval {(classes == labels).sum():,}",
           f"int8: {right:,}/{len(labels):,} " in small.read_text() and different < 0.01 * len(labels))
    return errors


def main():
    if not list((ROOT / "data" / "mnist").glob("t10k-images*")):
        skip("no MNIST (data/fetch.sh downloads it)")
    enter_environment()
    pixels, labels = read_idx("images", 16).reshape(-1, 784), read_idx("labels", 8)
    errors = []
    for network in NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            errors += check(folder, *network, pixels, labels)
    print("\n".join(f"wrong: {error}" for error in errors) or "all answers agree")
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()
