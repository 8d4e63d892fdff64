#!/usr/bin/env python3
"""Grades every plug-in of tests/plugins, each with all its kinds, in one command. Does a wrong one get a time?

    tests/bench/grade_plugins.py [--train TRAIN] [--plugins build/gcc/plugins] [-o DIR] [NAME..]

Kinds that are right in each product, and wrong in training steps, are no matter of `grade`: see `compare`
(wrong_backends.py). Exit status 1 if a wrong plug-in has a time, or a right one has none.
"""
import argparse, collections, json, re, subprocess, sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# the shapes that some kinds are wrong for are among them: 42 x 16 of a small network, its evaluation, long sides
IN_STEPS = {'shrinks_weights'}  # changes the B of an earlier call
SHAPES = '48x16x42,40x4x16,1100x24x24,24x24x1100'


def submissions(plugins):
    """Paths with kinds, and whether each is wrong."""
    for path in sorted([*plugins.glob('*.so'), *plugins.glob('hostile/*.so'), *plugins.glob('refused/*.so')]):
        yield str(path), path.stem != 'forward-only'
    for path in sorted(plugins.glob('good/*.so')):
        yield str(path), False
    source = (ROOT / 'tests/plugins/subtle/kinds.c').read_text(encoding='utf-8')
    block = re.search(r'#define KINDS\(X\)(.*?)\n\n', source, re.DOTALL).group(1)
    for kind in re.findall(r'X\((\w+)', block):
        yield f'{plugins}/subtle/kinds.so:kind={kind}', kind not in IN_STEPS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--train', default=str(ROOT / 'train'))
    parser.add_argument('--plugins', default=str(ROOT / 'build/gcc/plugins'))
    parser.add_argument('-o', '--output', default=None)
    parser.add_argument('names', nargs='*', metavar='NAME', help='only those that contain one of these')
    args = parser.parse_args()
    wrong = {name: is_wrong for name, is_wrong in submissions(Path(args.plugins).resolve())
             if not args.names or any(part in name for part in args.names)}
    output = args.output or tempfile.mkdtemp(prefix='grades-')
    command = [args.train, 'grade', *wrong, '-o', output, '--shapes', SHAPES, '--dtypes', 'f32,f64',
               '--repeats', '5', '--threads', '2', '--timeout-seconds', '20']
    subprocess.run(command, cwd=ROOT, check=True)
    grades = json.loads(Path(output, 'grades.json').read_text(encoding='utf-8'))['grades']
    timed = {grade['file']: 'products' in grade for grade in grades}
    counts = collections.Counter((wrong[name], timed[name]) for name in wrong)
    for name in wrong:
        if timed[name] == wrong[name]:
            print(f"{'WRONG, with a time' if wrong[name] else 'right, without one'}: {name}")
    print(f'{counts[True, False]} wrong without a time, {counts[True, True]} wrong with a time, '
          f'{counts[False, True]} right with a time, {counts[False, False]} right without one; {output}')
    return 1 if counts[True, True] or counts[False, False] else 0


if __name__ == '__main__':
    sys.exit(main())
