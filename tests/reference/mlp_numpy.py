#!/usr/bin/env python3
"""An independent implementation of Tessera's training in NumPy and float64, which shares no code with it.

  mlp_numpy.py builtin                      the loss curves that the tests expect, as C (curves.h)
  mlp_numpy.py run --init INIT.safetensors --data DIR [--steps 50] [--batch 128] [--lr 0.1] [--momentum 0]
                   [--decay 0] [--activation relu] [--input-range 0,1|-1,1] [--compare LOG.jsonl]
                                            the losses of the first steps in file order from saved initial weights;
                                            --compare prints the largest relative difference to a --log of Tessera

To check a build of Tessera against it on real data:
  ./train --backend serial --dtype f64 --shuffle off --epochs 1 --log-steps 50 --log run.jsonl --save-init init.safetensors
  python3 tests/reference/mlp_numpy.py run --init init.safetensors --data data/mnist --compare run.jsonl
"""
import argparse, gzip, json, math, os, struct, textwrap
import numpy as np

erf = np.vectorize(math.erf)
PHI = lambda z: 0.5 * (1 + erf(z / math.sqrt(2)))
ACTIVATIONS = {  # value, derivative
    'relu': (lambda z: np.where(z > 0, z, 0.0), lambda z: (z > 0).astype(float)),
    'tanh': (np.tanh, lambda z: 1 / np.cosh(z) ** 2),
    'scaled-tanh': (lambda z: 1.7159 * np.tanh(2 * z / 3), lambda z: 1.7159 * (2 / 3) / np.cosh(2 * z / 3) ** 2),
    'sigmoid': (lambda z: 1 / (1 + np.exp(-z)), lambda z: np.exp(-z) / (1 + np.exp(-z)) ** 2),
    'gelu': (lambda z: z * PHI(z), lambda z: PHI(z) + z * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)),
}

INPUTS = {'0,1': lambda pixels: pixels / 255, '-1,1': lambda pixels: pixels / 127.5 - 1}


def losses(weights, biases, images, labels, steps, batch, lr, momentum, decay, activation, input_range):
    """Mean cross-entropy of each batch, before its update. weights[l] is [in, out]."""
    act, slope = ACTIVATIONS[activation]
    params = [p for pair in zip(weights, biases) for p in pair]
    velocity = [np.zeros_like(p) for p in params]
    out, at = [], 0
    for _ in range(steps):
        x, y = INPUTS[input_range](images[at:at + batch]), labels[at:at + batch]
        at = at + batch if at + batch < len(images) else 0
        inputs, zs = [x], []
        for l in range(len(weights)):
            zs.append(inputs[-1] @ params[2 * l] + params[2 * l + 1])
            inputs.append(act(zs[-1]))
        logits = zs[-1]
        lse = np.logaddexp.reduce(logits, axis=1)
        out.append(float(np.mean(lse - logits[np.arange(len(y)), y])))
        delta = np.exp(logits - lse[:, None])
        delta[np.arange(len(y)), y] -= 1
        delta /= len(y)
        grads = [None] * len(params)
        for l in reversed(range(len(weights))):
            grads[2 * l], grads[2 * l + 1] = inputs[l].T @ delta, delta.sum(axis=0)
            if l:
                delta = (delta @ params[2 * l].T) * slope(zs[l - 1])
        for p, v, g in zip(params, velocity, grads):
            v *= momentum
            v += g + decay * p
            p -= lr * v
    return out


def builtin_problem():
    """50 images 6x7 of 4 classes and a 42-9-8-4 network, from formulas that both programs contain."""
    n, d, widths = 50, 42, [42, 9, 8, 4]
    images = np.array([[(i * 37 + j * 101 + i * j * 7) % 256 for j in range(d)] for i in range(n)], float)
    labels = np.array([(i * i + i // 3) % 4 for i in range(n)])
    weights, biases = [], []
    for l in range(3):
        k = np.arange(widths[l] * widths[l + 1])
        weights.append((np.sin(1.7 * k + l) / math.sqrt(widths[l])).reshape(widths[l], widths[l + 1]))
        biases.append(0.1 * np.cos(np.arange(widths[l + 1]) + l))
    return weights, biases, images, labels


def print_builtin():
    print('/* Written by tests/reference/mlp_numpy.py builtin: do not edit. */')
    print('static const struct {\n    const char *activation;\n    double momentum, weight_decay;\n    int batch;\n'
          '    const char *input_range;\n    double loss[50];\n} expected_curves[] = {')
    recipes = [(activation, momentum, decay, 16, '0,1') for activation in ACTIVATIONS
               for momentum, decay in ((0, 0), (0.9, 0.001))]
    recipes += [('scaled-tanh', 0, 0, 1, '-1,1'), ('tanh', 0.9, 0.001, 16, '-1,1')]
    for activation, momentum, decay, batch, input_range in recipes:
        weights, biases, images, labels = builtin_problem()
        curve = losses(weights, biases, images, labels, 50, batch, 0.1, momentum, decay, activation, input_range)
        print(f'    {{"{activation}", {momentum}, {decay}, {batch}, "{input_range}",\n     {{', end='')
        text = ', '.join(repr(loss) for loss in curve)
        print(textwrap.fill(text, 110, initial_indent=' ' * 6, subsequent_indent=' ' * 6).lstrip(), end='')
        print('\n     }},')
    print('};')


def read_idx(directory, stem):
    for name in (stem, stem.replace('-idx', '.idx')):
        for path in (os.path.join(directory, name), os.path.join(directory, name + '.gz')):
            if os.path.exists(path):
                raw = open(path, 'rb').read()
                raw = gzip.decompress(raw) if raw[:2] == b'\x1f\x8b' else raw
                dims = struct.unpack(f'>{raw[3]}I', raw[4:4 + 4 * raw[3]])
                return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(dims)
    raise SystemExit(f'{directory}: no {stem}')


def read_safetensors(path):
    raw = open(path, 'rb').read()
    n = struct.unpack('<Q', raw[:8])[0]
    tensors = {}
    for name, entry in json.loads(raw[8:8 + n]).items():
        if name != '__metadata__':
            a, b = entry['data_offsets']
            dtype = {'F32': '<f4', 'F64': '<f8'}[entry['dtype']]
            tensors[name] = np.frombuffer(raw[8 + n + a:8 + n + b], dtype).reshape(entry['shape']).astype(float)
    return tensors


def run(args):
    tensors = read_safetensors(args.init)
    depth = sum(name.endswith('.weight') for name in tensors)
    weights = [tensors[f'layers.{l}.weight'].T.copy() for l in range(depth)]
    biases = [tensors[f'layers.{l}.bias'].copy() for l in range(depth)]
    images = read_idx(args.data, 'train-images-idx3-ubyte')
    images = images.reshape(len(images), -1).astype(float)
    labels = read_idx(args.data, 'train-labels-idx1-ubyte').astype(int)
    curve = losses(weights, biases, images, labels, args.steps, args.batch, args.lr, args.momentum, args.decay,
                   args.activation, args.input_range)
    if not args.compare:
        print('\n'.join(f'{s} {v!r}' for s, v in enumerate(curve, 1)))
        return
    lines = [json.loads(line) for line in open(args.compare)]
    theirs = {line['step']: line['loss'] for line in lines if line['type'] == 'step'}
    worst = max(abs(theirs[s] - v) / abs(v) for s, v in enumerate(curve, 1))
    print(f'{args.steps} steps, largest relative difference {worst:.3g}')


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest='command', required=True)
    commands.add_parser('builtin')
    flags = commands.add_parser('run')
    flags.add_argument('--init', required=True)
    flags.add_argument('--data', required=True)
    flags.add_argument('--steps', type=int, default=50)
    flags.add_argument('--batch', type=int, default=128)
    for name, value in (('lr', 0.1), ('momentum', 0), ('decay', 0)):
        flags.add_argument('--' + name, type=float, default=value)
    flags.add_argument('--activation', default='relu', choices=ACTIVATIONS)
    flags.add_argument('--input-range', default='0,1', choices=INPUTS)
    flags.add_argument('--compare')
    arguments = parser.parse_args()
    print_builtin() if arguments.command == 'builtin' else run(arguments)
