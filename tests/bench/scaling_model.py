#!/usr/bin/env python3
"""The model of docs/scaling.md: seconds of an epoch on N GPUs that sum their gradients after the backward pass.

tests/bench/scaling_model.py prints its tables: beside what was measured on 2 and 4 H200 (PyTorch, the better of DDP and of
a flat all-reduce inside one CUDA graph), then for more GPUs and hosts. Times are in ms, sizes in MB."""

STEPS = 8  # of 60,000 images in batches of 8192
LATENCY = {1: 0, 2: 0.036, 4: 0.046, 8: 0.060}  # of an all-reduce of 4 KB; measured for 2 and 4
BUS = {1: 1, 2: 333, 4: 357, 8: 357}  # MB/ms of a large one: from those of 23 MB in 0.106 and 0.144 ms
NODE_LATENCY = {'100 GbE': 0.1, 'InfiniBand': 0.05}  # assumed, of all hosts
NODE_BUS = {'100 GbE': 11, 'InfiniBand': 45}  # MB/ms of one network card: 90 % of 100 and 400 Gbit/s

# ms on 1 GPU, then on 2 and 4 with one batch of 8192 for all (strong) and one for each (weak)
MEASURED = {
    2048: {'f32': (41.7, 22.6, 12.3, 21.3, 10.7), 'tf32': (9.7, 6.3, 4.3, 5.3, 2.72), 'bf16': (5.28, 4.09, 3.36, 3.05, 1.59)},
    4096: {'f32': (140, 74, 38.6, 71, 35.7), 'tf32': (27.6, 16.5, 11.1, 15.3, 7.7), 'bf16': (13.4, 10.3, 8.2, 7.9, 4.1)},
}


def megabytes(width):
    return 4e-6 * (784 * width + width * width + 10 * width + 2 * width + 10)


def all_reduce(gpus, size):
    return LATENCY[gpus] + 2 * (gpus - 1) / gpus * size / BUS[gpus] if gpus > 1 else 0


def between(nodes, size, network, cards):
    """The all-reduce between hosts, of which each GPU of a host has its part."""
    if nodes == 1:
        return 0
    return NODE_LATENCY[network] + 2 * (nodes - 1) / nodes * size / (NODE_BUS[network] * cards)


def fixed(size):
    """Of a step, whatever its batch: the update, launches, the last wave of each kernel."""
    return 0.1 + 0.002 * size


def strong(one, ranks, size, summing):
    return STEPS * fixed(size) * (1 - 1 / ranks) + one / ranks + STEPS * summing


def weak(one, ranks, summing):
    return one / ranks + STEPS / ranks * summing


def main():
    print('| width, precision | 2 strong | 4 strong | 2 weak | 4 weak |\n|---|---|---|---|---|')
    errors = []
    for width, precisions in MEASURED.items():
        size = megabytes(width)
        for name, (one, *measured) in precisions.items():
            model = [strong(one, n, size, all_reduce(n, size)) for n in (2, 4)]
            model += [weak(one, n, all_reduce(n, size)) for n in (2, 4)]
            errors += [abs(a / b - 1) for a, b in zip(model, measured)]
            print(f'| {width}, {name} | ' + ' | '.join(f'{a:.3g} ({b:g})' for a, b in zip(model, measured)) + ' |')
    print(f'\nerror: mean {100 * sum(errors) / len(errors):.1f} %, largest {100 * max(errors):.1f} %\n')
    print('| width, precision | 8 GPUs | 16 hosts, 100 GbE | 16 hosts, InfiniBand |\n|---|---|---|---|')
    for width, precisions in MEASURED.items():
        size = megabytes(width)
        for name, (one, *_) in precisions.items():
            cells = []
            for nodes, network, cards in ((1, '', 0), (16, '100 GbE', 1), (16, 'InfiniBand', 8)):
                ranks, summing = 8 * nodes, all_reduce(8, size) + between(nodes, size, network, cards)
                cells.append(f'{100 * one / ranks / strong(one, ranks, size, summing):.0f} %, '
                             f'{100 * one / ranks / weak(one, ranks, summing):.0f} %')
            print(f'| {width}, {name} | ' + ' | '.join(cells) + ' |')
    print('\n| precision | 2 GPUs | 4 | 8 | 16 hosts, 100 GbE | 16 hosts, InfiniBand |\n|---|---|---|---|---|---|')
    for name, (one, *_) in MEASURED[4096].items():
        size, cells = megabytes(4096), []
        for gpus, nodes, network, cards in ((2, 1, '', 0), (4, 1, '', 0), (8, 1, '', 0), (8, 16, '100 GbE', 1),
                                            (8, 16, 'InfiniBand', 8)):
            summing = all_reduce(gpus, size) + between(nodes, size, network, cards)
            cells.append(f'{round(9 * summing / (one / 60000), -2):,.0f}')
        print(f'| {name} | ' + ' | '.join(cells) + ' |')


if __name__ == '__main__':
    main()
