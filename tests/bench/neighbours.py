#!/usr/bin/env python3
"""Times epochs beside busy processes: the table "Neighbours" of docs/trust.md. Needs ./train and MNIST.

    tests/bench/neighbours.py [--before TRAIN] [--rounds N] [--out TABLE.md] [NAME..]

In each round every training runs quietly, then beside one and beside two busy processes; with --before, both
programs run in turn. A cell is the median of the epochs of all rounds, each as in the log: training alone. A
run that takes longer than --limit is ended and counts as that long ("over"). A run beside which other
processes used more than --foreign of a core is repeated, for --patience seconds; then it counts, and the last
line says so.
"""
import argparse, json, os, signal, statistics, subprocess, sys, tempfile, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NETWORK = '--layers 784-128-10 --batch-size 128'
TRAININGS = {  # name: (flags, epochs, thread counts)
    'tuned, engine fused': (f'--backend tuned {NETWORK}', 3, (1, 2, 64)),
    'tuned, engine eager': (f'--backend tuned --engine eager {NETWORK}', 3, (1, 2)),
    'openblas': (f'--backend openblas {NETWORK}', 3, (1, 2)),
    'openmp': (f'--backend openmp {NETWORK}', 1, (1, 2)),
    'fast.cfg, all epochs': ('--backend tuned --config configs/fast.cfg', 6, (1, 2)),
}
BUSY = (0, 1, 2)
OPENMP_SETTINGS = ('OMP_', 'GOMP_', 'KMP_')  # those of the program are measured, not the user's


def processor():
    """Model name, and family and model, which the name of a virtual processor may hide."""
    facts = {}
    with open('/proc/cpuinfo', encoding='utf-8') as file:
        for key, _, value in (line.partition(':') for line in file):
            facts.setdefault(key.strip(), value.strip())
    name = facts.get('model name', 'unknown processor')
    return f'{name} (family {facts["cpu family"]}, model {facts["model"]})' if 'cpu family' in facts else name


def core_seconds():
    """Of all processes since the machine started."""
    with open('/proc/stat', encoding='utf-8') as file:
        user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf('SC_CLK_TCK')


class Neighbours:
    """`count` processes that compute for as long as the block runs."""

    def __init__(self, count):
        self.count = count

    def __enter__(self):
        self.busy = [subprocess.Popen(['sh', '-c', 'while :; do :; done']) for _ in range(self.count)]
        return self

    def core_seconds(self):
        """Of these processes and of the runs that have ended."""
        ended = os.times()
        total = ended.user + ended.system + ended.children_user + ended.children_system
        for process in self.busy:
            with open(f'/proc/{process.pid}/stat', encoding='utf-8') as file:
                fields = file.read().rsplit(')', 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')
        return total

    def __exit__(self, *_):
        for process in self.busy:
            process.kill()
            process.wait()


def epochs_of(args, train, name, threads, log):
    """Seconds of each epoch of one run; of the whole training where the name says so."""
    flags, epochs, _ = TRAININGS[name]
    env = {name: value for name, value in os.environ.items() if not name.startswith(OPENMP_SETTINGS)}
    command = [train, *flags.split(), '--data', args.data, '--epochs', epochs, '--threads', threads,
               '--evaluate-every', 0, '--log', log]
    try:
        done = subprocess.run([str(word) for word in command], env=env, cwd=ROOT, capture_output=True,
                              text=True, timeout=args.limit)
    except subprocess.TimeoutExpired:
        return [args.limit if 'all epochs' in name else args.limit / epochs]
    if done.returncode:
        raise SystemExit(f'neighbours.py: {" ".join(map(str, command))}\n{done.stderr}')
    with open(log, encoding='utf-8') as file:
        seconds = [line['seconds'] for line in map(json.loads, file) if line['type'] == 'epoch']
    return [sum(seconds)] if 'all epochs' in name else seconds


def undisturbed(args, neighbours, run):
    """The result of `run` without other processes beside it."""
    give_up = time.monotonic() + args.patience
    args.runs += 1
    while True:
        start, others = time.monotonic(), core_seconds() - neighbours.core_seconds()
        result = run()
        share = (core_seconds() - neighbours.core_seconds() - others) / (time.monotonic() - start)
        if share <= args.foreign:
            return result
        if time.monotonic() > give_up:
            args.disturbed += 1
            return result
        time.sleep(0.2)


def measure(args, programs, names):
    """{(program, name, threads, busy): [seconds]}"""
    samples = {}
    with tempfile.TemporaryDirectory() as folder:
        for r in range(args.rounds):
            for busy in BUSY:
                with Neighbours(busy) as neighbours:
                    for name in names:
                        for threads in TRAININGS[name][2]:
                            for program in programs[::-1] if r % 2 else programs:
                                key = (program, name, threads, busy)
                                run = lambda: epochs_of(args, *key[:3], f'{folder}/log.jsonl')
                                samples.setdefault(key, []).extend(undisturbed(args, neighbours, run))
                print(f'round {r + 1} of {args.rounds}, beside {busy}', file=sys.stderr)
    return samples


def cell(args, name, seconds):
    middle = statistics.median(seconds)
    most = args.limit if 'all epochs' in name else args.limit / TRAININGS[name][1]
    return ('over ' if middle >= most else '') + f'{middle:.3g}'


def table(args, programs, names, samples):
    states = [f'beside {busy}' if busy else 'quiet' for busy in BUSY]
    labels = ['before', 'now'] if len(programs) > 1 else ['']
    columns = [f'{state} {label}'.strip() for state in states for label in labels]
    yield '| seconds an epoch | threads | ' + ' | '.join(columns) + ' |'
    yield '|---|---:|' + '---:|' * len(columns)
    for name in names:
        for threads in TRAININGS[name][2]:
            cells = [cell(args, name, samples[program, name, threads, busy])
                     for busy in BUSY for program in programs]
            yield f'| {name} | {threads} | ' + ' | '.join(cells) + ' |'


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument('--train', default=str(ROOT / 'train'), help='the program (default ./train)')
    parser.add_argument('--before', help='an older program, measured in turn')
    parser.add_argument('--data', default=str(ROOT / 'data/mnist'))
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--limit', type=float, default=30, help='seconds of a run')
    parser.add_argument('--foreign', type=float, default=0.1, help='cores that other processes may use')
    parser.add_argument('--patience', type=float, default=60, help='seconds of repetitions of a run')
    parser.add_argument('--out', help='the table, as Markdown')
    parser.add_argument('names', nargs='*', metavar='NAME', help=f'of: {"; ".join(TRAININGS)} (default all)')
    args = parser.parse_args()
    names = args.names or list(TRAININGS)
    unknown = [name for name in names if name not in TRAININGS]
    if unknown:
        parser.error(f'no training {unknown[0]!r}; there are: {"; ".join(TRAININGS)}')
    programs = [os.path.abspath(path) for path in (args.before, args.train) if path]
    args.disturbed = args.runs = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the busy processes end
    samples = measure(args, programs, names)
    lines = [*table(args, programs, names, samples), '',
             f'{processor()}, {len(os.sched_getaffinity(0))} cores; medians of {args.rounds} rounds; other '
             f'processes used more than {args.foreign:g} cores in {args.disturbed} of {args.runs} runs.']
    print('\n'.join(lines))
    if args.out:
        Path(args.out).write_text('\n'.join(lines) + '\n', encoding='utf-8')


if __name__ == '__main__':
    main()
