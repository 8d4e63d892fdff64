#!/usr/bin/env python3
"""Times other programs and ours, interleaved, on this CPU. Needs ./train (make).

  cpu_peers.py gemm  [--threads N] [--out LOG.jsonl]    GFLOP/s of OpenBLAS, BLIS and ours, on squares and training shapes
  cpu_peers.py epoch [--threads N] [--out LOG.jsonl]    seconds of an epoch on MNIST: NumPy, PyTorch and ours

In each round every candidate runs once, in its own process; the order rotates from round to round. Medians, minima and maxima are
over rounds. A library may choose a slow core type, so the core type that is fastest on a square product is used, and printed. A
candidate that cannot run is left out, with the reason. Nothing is installed. To install:
  gemm     apt install libopenblas0-openmp libblis4-openmp; pip install scipy-openblas32; or --blas NAME=LIBRARY.so
  epoch    pip install numpy torch (--python names the interpreter that has them); MNIST with data/fetch.sh
On one core: taskset -c 1 tests/bench/cpu_peers.py gemm --threads 1
"""
import argparse, glob, json, os, platform, re, statistics, subprocess, sys, tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CORE_TYPES = {  # the variable that selects a library's core type; None: the library chooses
    'OPENBLAS_CORETYPE': [None, 'SkylakeX', 'Cooperlake', 'SapphireRapids', 'Haswell'],
    'BLIS_ARCH_TYPE': [None, 'skx', 'haswell']}
UNSET = {'OPENBLAS_L2_SIZE', *CORE_TYPES}  # an inherited value can halve the speed of a library
THREAD_COUNTS = ['OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'BLIS_NUM_THREADS', 'MKL_NUM_THREADS']
TRIAL = ('f32', 'NN', 1024, 1024, 1024)
TRAINING_PRODUCTS = [  # op, m, n, k
    ('NN', 128, 512, 784), ('NN', 128, 512, 512), ('NN', 128, 128, 784), ('NN', 128, 10, 512), ('NN', 8192, 10, 2048),
    ('TN', 784, 512, 128), ('TN', 512, 512, 128), ('TN', 784, 128, 128), ('TN', 512, 10, 128), ('TN', 2048, 10, 8192),
    ('NT', 128, 512, 512), ('NT', 128, 512, 10), ('NT', 8192, 2048, 10)]
# Layers, batch, epochs timed, and the largest difference of test accuracies: after 24 large steps it depends on the initial weights.
TRAININGS = [('784-128-10', 128, 5, 0.01), ('784-512-512-10', 128, 3, 0.01), ('784-2048-2048-10', 8192, 2, 0.05)]


class LeftOut(Exception):
    """Why a candidate cannot run."""


def call(command, env):
    """The output of the command."""
    try:
        done = subprocess.run([str(word) for word in command], env=env, cwd=ROOT, capture_output=True, text=True)
    except OSError as error:
        raise LeftOut(str(error))
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise LeftOut(words[-1] if words else f'{command[0]} ended with {done.returncode}')
    return done.stdout


class Candidate:
    """measure(args, env, item) returns {key: seconds} of one process; trial(args, env) returns a rate that chooses the core type."""

    def __init__(self, label, core_type=None, **facts):
        self.label, self.core_type, self.core = label, core_type, None
        self.samples, self.accuracies, self.shares, self.peaks, self.description = {}, {}, {}, [], ''
        self.__dict__.update(facts)

    def environment(self, args, core):
        env = {name: value for name, value in os.environ.items() if name not in UNSET and not name.startswith('TESSERA_')}
        env.update(dict.fromkeys(THREAD_COUNTS, str(args.threads)))
        return {**env, self.core_type: core} if core else env

    def choose_core(self, args):
        rates, failed = {}, None
        for core in 2 * CORE_TYPES.get(self.core_type, []):  # twice, since other processes may disturb one trial
            try:
                rates[core] = max(rates.get(core, 0), self.trial(args, self.environment(args, core)))
            except LeftOut as reason:  # the processor lacks this core type
                failed = reason
        if failed and not rates:
            raise failed
        self.core = max(rates, key=rates.get, default=None)
        self.tried = {core or 'unset': round(rate, 1) for core, rate in rates.items()}

    def sample(self, args, item):
        for key, seconds in self.measure(args, self.environment(args, self.core), item).items():
            self.samples.setdefault(key, []).append(seconds)


# --- gemm ---

class Gemm(Candidate):
    """`backend`: the value of --backends, and the name in the logs."""

    def bench(self, args, env, products, repeat):
        shapes, log = args.folder / 'shapes.jsonl', args.folder / 'log.jsonl'
        # `bench gemm` measures exactly the products of its baseline; 1e9 s, so that none is slower
        shapes.write_text(''.join(json.dumps({
            'type': 'gemm', 'backend': self.backend, 'threads': args.threads, 'precision': dtype, 'dtype': dtype, 'op': op,
            'm': m, 'n': n, 'k': k, 'operands': args.operands, 'median_seconds': 1e9}) + '\n' for dtype, op, m, n, k in products))
        call([args.train, 'bench', 'gemm', '--backends', self.backend, '--threads', args.threads, '--repeat', repeat,
              '--baseline', shapes, '--log', log], env)
        lines = [json.loads(line) for line in open(log)]
        self.peaks += [line for line in lines if line['type'] == 'peak']
        lines = [line for line in lines if line['type'] == 'gemm']
        self.description = lines[0].get('description', '')
        wrong = [line for line in lines if not line.get('verified')]
        if wrong:
            raise LeftOut(wrong[0].get('reason') or wrong[0].get('left_out'))
        return lines

    def measure(self, args, env, products):
        of = {tuple(line[key] for key in ('dtype', 'op', 'm', 'n', 'k')): line
              for line in self.bench(args, env, products, args.repeat)}
        for product, line in of.items():  # of the multiply-add loop, interleaved with the product
            self.shares.setdefault(product, []).append(line['share_of_peak'])
        return {product: line['median_seconds'] for product, line in of.items()}

    def trial(self, args, env):
        return 2e-9 * 1024 ** 3 / self.bench(args, env, [TRIAL], 10)[0]['min_seconds']


def our_gemm(label, backend):
    return Gemm(label, 'OPENBLAS_CORETYPE' if backend == 'openblas' else None, backend=backend)


def find_libraries(args):
    """(label, path or None, how to install it)"""
    first = lambda pattern: next(iter(sorted(glob.glob(pattern))), None)
    wheel = subprocess.run([args.python, '-c', 'import scipy_openblas32; print(scipy_openblas32.get_lib_dir())'],
                           capture_output=True, text=True).stdout.strip()
    yield 'OpenBLAS', first('/usr/lib/*/openblas-openmp/libopenblas.so.0'), 'apt install libopenblas0-openmp'
    yield 'OpenBLAS wheel', wheel and first(wheel + '/libscipy_openblas.so'), 'pip install scipy-openblas32'
    yield 'BLIS', first('/usr/lib/*/blis-openmp/libblis.so.4'), 'apt install libblis4-openmp'


def gemm_candidates(args):
    named = [(label, os.path.abspath(path), '') for label, path in (text.split('=', 1) for text in args.blas)]
    found = [entry for entry in find_libraries(args) if entry[0] not in dict(entry[:2] for entry in named)]
    for label, path, remedy in found + named:
        if path:
            core_type = 'OPENBLAS_CORETYPE' if 'openblas' in path else 'BLIS_ARCH_TYPE' if 'blis' in path else None
            yield Gemm(label, core_type, backend=f'cblas:{path}', library=path)
        else:
            args.leave_out(label, f'not found; {remedy}')
    for backend in dict.fromkeys(name.split('/')[0] for name in args.ours):
        yield our_gemm(f'ours: {backend}', backend)


def gemm(args):
    shapes = [('NN', n, n, n) for n in args.sizes] + TRAINING_PRODUCTS
    products = [(dtype, *shape) for dtype in args.dtypes for shape in shapes]
    candidates = measure_rounds(args, list(gemm_candidates(args)), [products])
    peak = {dtype: statistics.median(line[dtype + '_gflops'] for c in candidates for line in c.peaks) for dtype in args.dtypes}
    args.write('peer_peak', threads=args.threads, **{dtype + '_gflops': rate for dtype, rate in peak.items()})
    print('\nFMA peak at best: ' + ', '.join(f'{rate:.0f} GFLOP/s {dtype}' for dtype, rate in peak.items())
          + "; 'peak' is the share of the peak measured after each sample of the product")
    print(f'\nop type {"m":>6} {"n":>6} {"k":>6}  {"candidate":16} {"GFLOP/s":>8} {"least":>8} {"most":>8} {"peak":>6} {"of best":>8}')
    for product in products:
        dtype, op, m, n, k = product
        rates = {c: [2e-9 * m * n * k / seconds for seconds in c.samples[product]] for c in candidates}
        best = max(statistics.median(rate) for rate in rates.values())
        for c, of_rounds in rates.items():
            rate, least, most = statistics.median(of_rounds), min(of_rounds), max(of_rounds)
            share = statistics.median(c.shares[product])
            print(f'{op} {dtype:4} {m:6} {n:6} {k:6}  {c.label:16} {rate:8.1f} {least:8.1f} {most:8.1f}'
                  f' {share:6.0%} {rate / best:8.0%}')
            args.write('peer_gemm', candidate=c.label, dtype=dtype, op=op, m=m, n=n, k=k, threads=args.threads, gflops=rate,
                       min_gflops=least, max_gflops=most, share_of_peak=share, rounds=of_rounds)


# --- epoch ---

class Training(Candidate):
    """The median of the epochs after the first."""

    def measure(self, args, env, training):
        layers, batch, epochs, _ = training
        seed = 1 + len(self.samples.get(training, []))
        result = self.train(args, env, ['--data', args.data, '--layers', layers, '--batch-size', batch, '--epochs', epochs + 1,
                                        '--threads', args.threads, '--seed', seed, '--learning-rate', 0.1])
        self.accuracies.setdefault(training, []).append(result['test_accuracy'])
        return {training: statistics.median(result['seconds'][1:])}


class Peer(Training):
    def train(self, args, env, flags):
        result = json.loads(call([args.python, HERE / 'epoch_peer.py', self.library, *flags], env))
        self.description = result['version']
        return result

    def trial(self, args, env):
        return json.loads(call([args.python, HERE / 'epoch_peer.py', self.library, '--product', 1024], env))['gflops']


class Ours(Training):
    def train(self, args, env, flags):
        log = args.folder / 'log.jsonl'
        call([args.train, '--config', ROOT / 'configs/validation.cfg', *flags, '--shuffle', 'on', '--dtype', 'f32',
              '--backend', self.backend, '--engine', self.engine, '--log', log], env)
        header, *lines = [json.loads(line) for line in open(log)]
        self.description = f'{header["backend_description"]}, engine {header["engine"]}'
        return {'seconds': [line['seconds'] for line in lines if line['type'] == 'epoch'], 'test_accuracy': lines[-1]['test_accuracy']}

    def trial(self, args, env):
        return our_gemm('', self.backend).trial(args, env)


def epoch_candidates(args):
    for label, library, core_type in (('NumPy', 'numpy', 'OPENBLAS_CORETYPE'), ('PyTorch', 'torch', None)):
        if subprocess.run([args.python, '-c', f'import numpy, {library}'], capture_output=True).returncode == 0:
            yield Peer(label, core_type, library=library)
        else:
            args.leave_out(label, f'{args.python} lacks {" or ".join(dict.fromkeys(["numpy", library]))}; pip install there, or --python another')
    for name in args.ours:
        backend, _, engine = name.partition('/')
        core_type = 'OPENBLAS_CORETYPE' if backend == 'openblas' else None
        yield Ours(f'ours: {name}', core_type, backend=backend, engine=engine or 'auto')


def epoch(args):
    if not glob.glob(glob.escape(args.data) + '/train-images*'):
        raise SystemExit(f'cpu_peers.py: no MNIST in {args.data}: data/fetch.sh downloads it, --data DIR names another folder')
    trainings = [training for training in TRAININGS if not args.layers or training[0] in args.layers]
    candidates = measure_rounds(args, list(epoch_candidates(args)), trainings)
    print(f'\n{"layers":18} {"batch":>6}  {"candidate":20} {"s/epoch":>8} {"least":>8} {"most":>8} {"of best":>8}  test accuracy')
    for training in trainings:
        layers, batch, epochs, spread = training
        best = min(statistics.median(c.samples[training]) for c in candidates)
        usual = statistics.median(statistics.median(c.accuracies[training]) for c in candidates)
        for c in candidates:
            seconds, right = c.samples[training], statistics.median(c.accuracies[training])
            middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
            print(f'{layers:18} {batch:6}  {c.label:20} {middle:8.4f} {least:8.4f} {most:8.4f} {best / middle:8.0%}'
                  f'  {right:.2%} after {epochs + 1} epochs' + ('' if abs(right - usual) <= spread else ': NOT THE SAME TRAINING'))
            args.write('peer_epoch', candidate=c.label, layers=layers, batch_size=batch, threads=args.threads, epochs=epochs + 1,
                       median_seconds=middle, min_seconds=least, max_seconds=most, processes=seconds, test_accuracy=right)


# --- rounds ---

def attempt(args, candidate, work):
    """A candidate that fails once is left out of all further rounds."""
    try:
        work()
        return True
    except LeftOut as reason:
        args.leave_out(candidate.label, str(reason))
        return False


def choose_cores(args, candidates):
    print('choosing core types', file=sys.stderr)
    return [c for c in candidates if attempt(args, c, lambda: c.choose_core(args))]


def measure_rounds(args, candidates, items):
    """The candidates that finished all rounds, each with one sample per round."""
    print(f'{args.threads} thread{"s" * (args.threads > 1)},'
          f' medians of {args.rounds} process{"es" * (args.rounds > 1)} of each')
    running = choose_cores(args, candidates)
    for number in range(args.rounds):
        for item in items:
            print(f'round {number + 1} of {args.rounds}' + (f', {item[0]}' if len(items) > 1 else ''), file=sys.stderr)
            first = number % max(len(running), 1)
            out = [c for c in running[first:] + running[:first] if not attempt(args, c, lambda: c.sample(args, item))]
            running = [c for c in running if c not in out]
    if not running:
        raise SystemExit('cpu_peers.py: no candidate could run')
    for c in running:
        setting = f'{c.core_type}={c.core}' if c.core else f'{c.core_type} unset' if c.core_type else ''
        print(f'{c.label:20} {c.description}{"; fastest with " + setting if setting else ""}')
        args.write('peer', candidate=c.label, description=c.description, core_type=c.core_type, core=c.core, core_types_tried=c.tried,
                   library=getattr(c, 'library', None))
    return running


def header(args):
    cpu = re.search(r'model name\s*: (.*)', Path('/proc/cpuinfo').read_text())
    return {'command': args.part, 'machine': f'{platform.system()} {platform.release()} {platform.machine()}',
            'cpu': cpu.group(1) if cpu else platform.processor(), 'cores': sorted(os.sched_getaffinity(0)), 'threads': args.threads,
            'rounds': args.rounds, **({'operands': args.operands} if args.part == 'gemm' else {}), 'train': call([args.train, '--version'], os.environ).strip(), 'python': platform.python_version(),
            'environment': {k: v for k, v in os.environ.items() if re.match('OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|BLIS_', k)},
            'unset': sorted(UNSET)}


def parse():
    words = lambda text: text.split(',')
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('part', choices=['gemm', 'epoch'])
    parser.add_argument('--threads', type=int, default=len(os.sched_getaffinity(0)), help='threads of each candidate [all cores]')
    parser.add_argument('--rounds', type=int, help='processes of each candidate [gemm 5, epoch 3]')
    parser.add_argument('--ours', type=words, default=['tuned', 'openblas'], help='backends, or BACKEND/ENGINE for epochs [tuned,openblas]')
    parser.add_argument('--out', help='JSON lines')
    parser.add_argument('--python', default=sys.executable, help='interpreter with the packages [the one that runs this]')
    parser.add_argument('--train', default=str(ROOT / 'train'), help='our program [./train]')
    parser.add_argument('--data', default=str(ROOT / 'data/mnist'), help='epoch: folder of MNIST [data/mnist]')
    parser.add_argument('--layers', type=words, help='epoch: only these of ' + ', '.join(t[0] for t in TRAININGS))
    parser.add_argument('--blas', action='append', default=[], metavar='NAME=LIBRARY.so', help='gemm: another CBLAS library')
    parser.add_argument('--sizes', type=lambda text: [int(n) for n in words(text)], default=[1024, 2048, 4096],
                        help='gemm: sides of squares [1024,2048,4096]')
    parser.add_argument('--operands', choices=['cold', 'warm'], default='cold', help='gemm: as in bench gemm [cold]')
    parser.add_argument('--dtypes', type=words, default=['f32', 'f64'], help='gemm [f32,f64]')
    parser.add_argument('--repeat', type=int, default=3, help='gemm: samples per process, of 10 ms and more [3]')
    args = parser.parse_args()
    if not 1 <= args.threads <= len(os.sched_getaffinity(0)):
        parser.error(f'--threads must be from 1 to {len(os.sched_getaffinity(0))}, the cores that may be used')
    if any('=' not in text for text in args.blas):
        parser.error('--blas needs NAME=LIBRARY.so')
    args.data, args.train = os.path.abspath(args.data), os.path.abspath(args.train)
    if not os.access(args.train, os.X_OK):
        parser.error(f'{args.train} does not exist: make builds it, --train names another')
    args.rounds = args.rounds or {'gemm': 5, 'epoch': 3}[args.part]
    return args


def main():
    args = parse()
    out = open(args.out, 'w') if args.out else None

    def write(kind, **facts):
        if out:
            print(json.dumps({'type': kind, **facts}), file=out, flush=True)

    def leave_out(label, reason):
        print(f'{label:20} left out: {reason}')
        write('left_out', candidate=label, reason=reason)

    args.write, args.leave_out = write, leave_out
    with tempfile.TemporaryDirectory() as folder:
        args.folder = Path(folder)
        try:
            write('header', **header(args))
            {'gemm': gemm, 'epoch': epoch}[args.part](args)
        except LeftOut as reason:
            raise SystemExit(f'cpu_peers.py: {reason}')


if __name__ == '__main__':
    main()
