#!/usr/bin/env python3
"""Trains a perceptron on MNIST with NumPy or PyTorch, as their users write it; cpu_peers.py times it.

  epoch_peer.py numpy|torch --data DIR [--layers 784-128-10] [--batch-size 128] [--epochs 5] [--threads 1] [--seed 1]

Float32, ReLU, He, softmax cross-entropy, SGD with a learning rate of 0.1, a new order every epoch, the last partial batch included.
Pixels are converted to float before the clock starts; Tessera converts them batch by batch. Prints one line of JSON: version, seconds
of each epoch, test accuracy at the end.
  epoch_peer.py numpy --product 1024      only times a square product: {"gflops": ..}
"""
import argparse, ctypes, glob, gzip, json, os, time
import numpy as np


def read_idx(directory, stem):
    path = os.path.join(directory, stem)
    raw = gzip.open(path + '.gz').read() if os.path.exists(path + '.gz') else open(path, 'rb').read()
    sides = np.frombuffer(raw, '>u4', raw[3], 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(sides)


def load(directory, part):
    images = read_idx(directory, part + '-images-idx3-ubyte')
    return images.reshape(len(images), -1).astype(np.float32) / 255, read_idx(directory, part + '-labels-idx1-ubyte').astype(np.int64)


class NumPy:
    def __init__(self, widths, args):
        self.random = np.random.default_rng(args.seed)
        self.weights = [(self.random.standard_normal((i, o)) * np.sqrt(2 / i)).astype(np.float32) for i, o in zip(widths, widths[1:])]
        self.biases = [np.zeros(o, np.float32) for o in widths[1:]]
        self.rate = np.float32(args.learning_rate)

    def version(self):
        for path in glob.glob(os.path.join(os.path.dirname(np.__file__), '..', 'numpy.libs', 'libscipy_openblas*')):
            core = getattr(ctypes.CDLL(path), 'scipy_openblas_get_corename64_', None)
            if core:
                core.restype = ctypes.c_char_p
                return f'NumPy {np.__version__}, its own OpenBLAS, core {core().decode()}'
        return f'NumPy {np.__version__}'

    def data(self, images, labels):
        return images, labels

    def order(self, count):
        return self.random.permutation(count)

    def forward(self, x):
        outputs = [x]
        for l, (weight, bias) in enumerate(zip(self.weights, self.biases)):
            z = outputs[-1] @ weight
            z += bias
            outputs.append(np.maximum(z, 0, out=z) if l + 1 < len(self.weights) else z)
        return outputs

    def step(self, x, y):
        outputs = self.forward(x)
        delta = outputs.pop()
        delta -= delta.max(axis=1, keepdims=True)
        np.exp(delta, out=delta)
        delta /= delta.sum(axis=1, keepdims=True)
        delta[np.arange(len(y)), y] -= 1
        delta *= self.rate / np.float32(len(y))
        for l in reversed(range(len(self.weights))):
            weight_step, bias_step = outputs[l].T @ delta, delta.sum(axis=0)
            if l:
                delta = delta @ self.weights[l].T
                delta *= outputs[l] > 0
            self.weights[l] -= weight_step
            self.biases[l] -= bias_step

    def right(self, x, y):
        return int((self.forward(x)[-1].argmax(axis=1) == y).sum())


class Torch:
    def __init__(self, widths, args):
        import torch
        self.torch = torch
        torch.set_num_threads(args.threads)
        torch.manual_seed(args.seed)
        layers = [torch.nn.Linear(i, o) for i, o in zip(widths, widths[1:])]
        for layer in layers:
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity='relu')
            torch.nn.init.zeros_(layer.bias)
        self.model = torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.ReLU())][:-1])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.learning_rate)

    def version(self):
        config = self.torch.__config__.show()
        blas = next((word for word in config.replace(',', ' ').split() if word.startswith('BLAS_INFO=')), 'BLAS unknown')
        return f'PyTorch {self.torch.__version__}, {blas}, eager'

    def data(self, images, labels):
        return self.torch.from_numpy(images), self.torch.from_numpy(labels)

    def order(self, count):
        return self.torch.randperm(count)

    def step(self, x, y):
        self.optimizer.zero_grad()
        self.torch.nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def right(self, x, y):
        with self.torch.no_grad():
            return int((self.model(x).argmax(dim=1) == y).sum())


def train(args):
    trainer = {'numpy': NumPy, 'torch': Torch}[args.library]([int(w) for w in args.layers.split('-')], args)
    images, labels = trainer.data(*load(args.data, 'train'))
    seconds = []
    for _ in range(args.epochs):
        start = time.perf_counter()
        order = trainer.order(len(labels))
        for at in range(0, len(labels), args.batch_size):
            chosen = order[at:at + args.batch_size]
            trainer.step(images[chosen], labels[chosen])
        seconds.append(time.perf_counter() - start)
    test = trainer.data(*load(args.data, 't10k'))
    return {'version': trainer.version(), 'seconds': seconds, 'test_accuracy': trainer.right(*test) / len(test[1])}


def product(n):
    a = np.random.default_rng(1).standard_normal((n, n)).astype(np.float32)
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - start)
    return {'gflops': 2e-9 * n ** 3 / min(seconds)}


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('library', choices=['numpy', 'torch'])
    parser.add_argument('--data')
    parser.add_argument('--layers', default='784-128-10')
    for name, value in (('batch-size', 128), ('epochs', 5), ('threads', 1), ('seed', 1), ('product', 0)):
        parser.add_argument('--' + name, type=int, default=value)
    parser.add_argument('--learning-rate', type=float, default=0.1)
    args = parser.parse_args()
    print(json.dumps(product(args.product) if args.product else train(args)))
