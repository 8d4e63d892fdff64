#!/usr/bin/env python3
"""Times other programs and ours, interleaved, on this GPU: seconds of an epoch on MNIST, SGD.

  gpu_peers.py [--data DIR] [--train ./train] [--rounds 3] [--nets NET,..] [--peers NAME ..] [--out LOG.jsonl]

NET is WIDTHS[@BATCH][:f32|tf32|bf16|fp16]: 784-128-10 (batch 128, float32), 784-2048-2048-10@8192:bf16. Default: 784-128-10,784-512-512-10.
--nets large: the networks whose products are large, in each precision.

  PyTorch eager     a step as its users write it, with the fused optimiser kernel; bf16, fp16: torch.autocast
  PyTorch graph     the same steps of a whole epoch, captured as one CUDA graph
  JAX scan          a whole epoch in one compiled lax.scan, without the last partial batch: its time is scaled to all images;
                    float32: highest precision; bf16, fp16: weights are float32, operands of products have 16 bits
  ours              ./train --backend cuda-tuned --engine fused, and --engine graph

All programs have the data on the GPU. Only ours shuffles; PyTorch and JAX take the batches in file order, which is fastest for them.
Each candidate runs in its own process; rounds are interleaved; a process reports the median of its epochs. Medians, minima and maxima
are over rounds. A candidate that cannot run is left out, with the reason. What the log already has is not measured again: a run that was
interrupted goes on. Nothing is installed. In fp16 PyTorch and JAX multiply the loss by 1024.
"""
import argparse, gzip, json, os, statistics, subprocess, sys, tempfile, time

RATE = 0.1
LARGE = [f'{net}:{precision}' for net in ('784-2048-2048-10@8192', '784-4096-4096-10@8192', '784-2500-2000-1500-1000-500-10@128')
         for precision in ('f32', 'tf32', 'bf16', 'fp16')] + ['784-1024-1024-1024-10@128:f32']


def parse(net):
    """(widths, batch, precision) of NET."""
    rest, _, precision = net.partition(':')
    widths, _, batch = rest.partition('@')
    if precision not in ('', 'f32', 'tf32', 'bf16', 'fp16'):
        raise SystemExit(f"{net}: '{precision}' is not f32, tf32, bf16 or fp16")
    return [int(width) for width in widths.split('-')], int(batch or 128), precision or 'f32'


def loss_scale(precision):
    """What PyTorch and JAX multiply the mean loss by, and divide gradients by: half precision underflows otherwise. Their weight
    gradients are half precision, too: with 1024 times the batch, as ours, they overflow."""
    return 1024 if precision == 'fp16' else 1


def load(directory, part):
    import numpy as np

    def idx(stem):
        path = os.path.join(directory, stem)
        raw = gzip.open(path + '.gz').read() if os.path.exists(path + '.gz') else open(path, 'rb').read()
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(np.frombuffer(raw, '>u4', raw[3], 4))
    images = idx(part + '-images-idx3-ubyte')
    return images.reshape(len(images), -1).astype(np.float32) / 255, idx(part + '-labels-idx1-ubyte').astype(np.int64)


def timed(epoch, finish, epochs):
    epoch()
    finish()  # compile and load before the clock starts
    seconds = []
    for _ in range(epochs):
        start = time.perf_counter()
        epoch()
        finish()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def torch_peer(args, graph):
    import torch
    torch.manual_seed(1)
    widths, size, precision = parse(args.net)
    torch.backends.cuda.matmul.allow_tf32 = precision == 'tf32'
    parts = [part for i, o in zip(widths, widths[1:]) for part in (torch.nn.Linear(i, o), torch.nn.ReLU())][:-1]
    model = torch.nn.Sequential(*parts).cuda()
    scale = loss_scale(precision)
    operand = torch.float16 if precision == 'fp16' else torch.bfloat16
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE / scale, fused=True)
    images, labels = (torch.from_numpy(array).cuda() for array in load(args.data, 'train'))
    batches = [(images[at:at + size], labels[at:at + size]) for at in range(0, len(labels), size)]

    def step(x, y):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast('cuda', operand, enabled=precision in ('bf16', 'fp16'), cache_enabled=False):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        (loss if scale == 1 else loss * scale).backward()
        optimizer.step()

    def eager():
        for x, y in batches:
            step(x, y)
    epoch = eager
    if graph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for x, y in batches[:3] + batches[-1:]:
                step(x, y)
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            eager()
        epoch = captured.replay
    seconds = timed(epoch, torch.cuda.synchronize, args.epochs)
    x, y = (torch.from_numpy(array).cuda() for array in load(args.data, 't10k'))
    with torch.no_grad():
        right = (model(x).argmax(1) == y).sum().item()
    return {'version': f'PyTorch {torch.__version__}', 'seconds': seconds, 'test_accuracy': right / len(y)}


def jax_peer(args):
    os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
    import functools, jax, jax.numpy as jnp
    widths, size, precision = parse(args.net)
    scale = loss_scale(precision)
    operand = {'bf16': jnp.bfloat16, 'fp16': jnp.float16}.get(precision, jnp.float32)
    images, labels = (jnp.array(array) for array in load(args.data, 'train'))
    steps = len(labels) // size  # whole batches: a scan has one shape
    x, y = images[:steps * size].reshape(steps, size, -1), labels[:steps * size].reshape(steps, size)
    keys = jax.random.split(jax.random.PRNGKey(1), len(widths))
    state = [(jax.random.normal(k, (i, o)) * (2 / i) ** .5, jnp.zeros(o)) for k, i, o in zip(keys, widths, widths[1:])]

    def product(h, weight):
        return jnp.matmul(h.astype(operand), weight.astype(operand), preferred_element_type=operand)

    def forward(layers, h):
        for weight, bias in layers[:-1]:
            h = jax.nn.relu(product(h, weight) + bias.astype(operand))
        return product(h, layers[-1][0]).astype(jnp.float32) + layers[-1][1]

    def loss(layers, h, of):
        return -scale * jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(forward(layers, h)), of[:, None], 1))

    def step(layers, batch):
        return jax.tree.map(lambda p, g: p - RATE / scale * g, layers, jax.grad(loss)(layers, *batch)), None

    @functools.partial(jax.jit, donate_argnums=0)
    def epoch(layers):
        return jax.lax.scan(step, layers, (x, y))[0]

    def run():
        nonlocal state
        state = epoch(state)
    with jax.default_matmul_precision('highest' if precision == 'f32' else 'tensorfloat32'):
        seconds = timed(run, lambda: jax.block_until_ready(state), args.epochs)
        test, of = load(args.data, 't10k')
        right = int((forward(state, jnp.array(test)).argmax(1) == jnp.array(of)).sum())
    return {'version': f'JAX {jax.__version__}', 'seconds': seconds * len(labels) / (steps * size), 'test_accuracy': right / len(of)}


def ours(args, engine):
    widths, size, precision = parse(args.net)
    with tempfile.NamedTemporaryFile(suffix='.jsonl') as log:
        command = [args.train, '--data', args.data, '--layers', '-'.join(map(str, widths)), '--batch-size', str(size), '--learning-rate',
                   str(RATE), '--epochs', str(args.epochs + 1), '--backend', 'cuda-tuned', '--precision', precision, '--engine', engine,
                   '--evaluate-every', '0', '--log', log.name]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError((done.stderr or done.stdout).strip().splitlines()[-1])
        lines = [json.loads(line) for line in open(log.name)]
    header = next(line for line in lines if line['type'] == 'header')
    if header['engine'] != engine:
        raise RuntimeError(f'engine {header["engine"]} instead of {engine}')
    epochs = [line['seconds'] for line in lines if line['type'] == 'epoch'][1:]
    summary = next(line for line in lines if line['type'] == 'summary')
    return {'version': f'commit {header.get("commit", "?")}', 'seconds': statistics.median(epochs),
            'test_accuracy': summary['test_accuracy']}


PEERS = {'PyTorch eager': lambda args: torch_peer(args, False), 'PyTorch graph': lambda args: torch_peer(args, True), 'JAX scan': jax_peer,
         'ours, fused': lambda args: ours(args, 'fused'), 'ours, graph': lambda args: ours(args, 'graph')}


def measured(path):
    """What a run that was interrupted has written: lists of results by (network, peer)."""
    results = {}
    if path and os.path.exists(path):
        with open(path) as log:
            for row in map(json.loads, log):
                results.setdefault((row['net'], row['peer']), []).append(row)
    return results


def table(args):
    results, left_out = measured(args.out), {}
    for round_ in range(args.rounds):
        for net in LARGE if args.nets == 'large' else args.nets.split(','):
            for name in args.peers:
                if (net, name) in left_out or len(results.get((net, name), [])) > round_:
                    continue
                done = subprocess.run([sys.executable, __file__, '--peer', name, '--net', net, '--data', args.data, '--train', args.train,
                                       '--epochs', str(args.epochs)], capture_output=True, text=True)
                if done.returncode:
                    left_out[net, name] = (done.stderr.strip().splitlines() or ['no reason given'])[-1]
                    continue
                result = {'type': 'peer', 'net': net, 'batch': parse(net)[1], 'peer': name, 'round': round_ + 1, **json.loads(done.stdout.splitlines()[-1])}
                results.setdefault((net, name), []).append(result)
                if args.out:
                    with open(args.out, 'a') as out:  # after each result, since a run may be interrupted
                        out.write(json.dumps(result) + '\n')
    gpu = subprocess.run(['nvidia-smi', '--query-gpu=name', '--format=csv,noheader'], capture_output=True, text=True).stdout.strip()
    print(f'{gpu}: an epoch of MNIST, ms; median of {args.rounds} processes, each the median of {args.epochs} epochs; '
          f'network[@batch][:precision], default @128:f32')
    wide = max(18, *(len(net) for net, _ in results))
    print(f'{"network":<{wide}} {"peer":<15} {"median":>8} {"least":>8} {"most":>8} {"to ours":>8}  accuracy  version')
    for (net, name), rows in results.items():
        seconds = [row['seconds'] for row in rows]
        ours_ = [row['seconds'] for row in results.get((net, 'ours, fused'), []) or results.get((net, 'ours, graph'), [])]
        ratio = f'{statistics.median(seconds) / statistics.median(ours_):.1f}x' if ours_ else '-'
        print(f'{net:<{wide}} {name:<15} {1e3 * statistics.median(seconds):8.2f} {1e3 * min(seconds):8.2f} {1e3 * max(seconds):8.2f} '
              f'{ratio:>8}  {100 * rows[-1]["test_accuracy"]:6.2f} %  {rows[-1]["version"]}')
    for (net, name), why in left_out.items():
        print(f'left out: {net}, {name}: {why}')


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data', default='data/mnist')
    parser.add_argument('--train', default='./train')
    parser.add_argument('--nets', default='784-128-10,784-512-512-10')
    parser.add_argument('--peers', nargs='+', choices=PEERS, default=PEERS)
    parser.add_argument('--out')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--epochs', type=int, default=9)
    parser.add_argument('--peer', choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument('--net', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        print(json.dumps(PEERS[arguments.peer](arguments)))
    else:
        table(arguments)
