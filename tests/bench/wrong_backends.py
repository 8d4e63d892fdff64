#!/usr/bin/env python3
"""Which wrong plug-ins of tests/plugins get a time from `compare`? A count of docs/trust.md.

    tests/bench/wrong_backends.py [--train TRAIN] [--plugins build/gcc/plugins] [NAME..]

A wrong backend trains each of four recipes until it is found; it gets a time if none of them finds it. A
comparison that is still running after --limit seconds is ended. Run nothing else meanwhile: quiet/ has plug-ins that only
an idle core gives away.
"""
import argparse, os, re, signal, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RECIPES = ('--layers 784-42-16-4-10 --batch-size 33 --epochs 4 --lr 0.05 --momentum 0.9 --weight-decay 1e-3 '
           '--schedule cosine',
           '--layers 784-8-10 --batch-size 1100 --epochs 1 --dropout 0.3',
           '--layers 784-8-10 --batch-size 64 --epochs 2 --adversarial 0.1',
           '--layers 784-8-10 --batch-size 8 --epochs 2 --lr 0.005')
SKIPPED = {'none'}


def plugins(folder):
    """Every wrong plug-in, with each of its kinds."""
    for path in sorted([*folder.glob('*.so'), *folder.glob('hostile/*.so'), *folder.glob('quiet/*.so')]):
        yield path.stem, str(path)
    for path in sorted(folder.glob('subtle/*.so')):
        source = (ROOT / 'tests/plugins/subtle' / f'{path.stem}.c').read_text(encoding='utf-8')
        block = re.search(r'#define KINDS\(X\)(.*?)\n\n', source, re.DOTALL).group(1)
        for kind in re.findall(r'X\((\w+)', block):
            yield kind.lower(), f'{path}:kind={kind.lower()}'


def outcome(train, backend, recipe, limit):
    """"time", "found", or how the program ended."""
    command = [train, 'compare', '--backends', f'tuned,{backend}', '--data', 'synthetic', '--repeat', '1',
               '--timeout-seconds', '20']
    with subprocess.Popen(command + recipe.split(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, start_new_session=True) as process:
        try:
            process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return 'hangs'
    if process.returncode < 0:
        return f'killed by signal {-process.returncode}'
    return {0: 'time', 5: 'found'}.get(process.returncode, f'exit {process.returncode}')


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--train', default=str(ROOT / 'train'))
    parser.add_argument('--plugins', default=str(ROOT / 'build/gcc/plugins'))
    parser.add_argument('--limit', type=float, default=120, help='seconds of a comparison')
    parser.add_argument('names', nargs='*', metavar='NAME')
    args = parser.parse_args()
    counts = {}
    for name, backend in plugins(Path(args.plugins).resolve()):
        if name in SKIPPED or (args.names and name not in args.names):
            continue
        for recipe in RECIPES:
            end = outcome(args.train, backend, recipe, args.limit)
            if end != 'time':
                break
        counts[end] = counts.get(end, 0) + 1
        print(f'{name:24}{end}', flush=True)
    print(', '.join(f'{count} {end}' for end, count in sorted(counts.items())))
    return 1 if counts.get('time') else 0


if __name__ == '__main__':
    sys.exit(main())
