#!/usr/bin/env python3
"""Mutation testing of the numeric core (CPU): does a test fail when one token of the source is wrong?

tests/mutate.py --count 160 --seed 1 --out mutants.md       a sample; the same seed takes the same mutants
tests/mutate.py --again mutants.md --stride 1 --out more.md the survivors of an earlier run
tests/mutate.py --files 'src/nn/schedule.c' --count 20      of one file

A mutant is one token or statement changed in one file. The objects that depend on the file are compiled anew
(build/mutants holds the others), linked with one test program after the other, and these are run until a test
fails:
  killed          a test failed, crashed or exceeded its time limit (10 s + 10 times the usual)
  equivalent      the compiler makes the same objects of it
  survived        all tests passed: a test is missing, or the change does not matter
JOBS or --jobs mutants are tested side by side, each on two cores."""

import argparse
import bisect
import collections
import concurrent.futures
import difflib
import fnmatch
import glob
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

FILES = '''kernels/activation.h kernels/augment.h kernels/bf16.h kernels/dropout.h kernels/f16.h
    kernels/host/*.c kernels/host/gemm/loops.h kernels/host/gemm/open*.c kernels/host/gemm/serial.c
    kernels/host/ops/* kernels/host/tuned/* src/base/philox.h src/base/rng.c src/base/statistics.c
    src/backend/audit.c src/backend/oracle.c src/backend/verify*.c src/nn/augmenter.c src/nn/committee.c
    src/nn/early_stopping.c src/nn/engine_*.c src/nn/ensemble.c src/nn/epoch_feed.c src/nn/evaluate.c
    src/nn/mlp*.c src/nn/optimizer.c src/nn/samples.c src/nn/schedule.c src/nn/step_audit.c
    src/nn/train_state.c src/nn/trainer.c'''.split()

# the test programs by likelihood of detection; those of the first pattern that matches come before the others
FIRST = [
    ('kernels/host/gemm/*', 'gemm mlp'),
    ('kernels/host/tuned/fused*', 'fused online recipe'),
    ('kernels/host/tuned/*', 'tuned gemm fused bits'),
    ('kernels/host/team.c', 'team fused'),
    ('*augment*', 'augment augmented'),
    ('kernels/host/ops/update.h', 'optimizer online ops fused'),
    ('kernels/host/ops/*', 'ops optimizer regularize'),
    ('kernels/bf16.h', 'tuned gemm ops'),
    ('kernels/f16.h', 'fp16 fp16_checks oracle gemm ops'),
    ('kernels/dropout.h', 'regularize'),
    ('kernels/*', 'ops mlp gemm'),
    ('src/base/*', 'base augment regularize'),
    ('src/backend/verify*', 'oracle plugin bench'),
    ('src/backend/*', 'audit oracle plugin'),
    ('src/nn/ensemble.c', 'ensemble'),
    ('src/nn/committee.c', 'ensemble ensemble_command'),
    ('src/nn/schedule.c', 'optimizer online'),
]
TESTS = '''ops fp16 fp16_checks optimizer mlp oracle augment augmented regularize online ensemble adversarial
    team base config data tuned checkpoint recipe eval_command ensemble_command cli_files training cli mnist
    bits fused gemm audit bench'''.split()
LAST = [('src/backend/*', 'plugin measure')]
# then these, with more cases
LONG = [('kernels/host/[gt]*', 'tuned bits fused gemm'), ('kernels/bf16.h', 'tuned gemm'),
        ('kernels/f16.h', 'gemm'), ('kernels/activation.h', 'gemm fused')]
LONG_STRIDE = 5

OPERATORS = {'+': '-', '-': '+', '*': '/', '/': '*', '%': '/', '<': '<=', '<=': '<', '>': '>=',
             '>=': '>', '==': '!=', '!=': '==', '&&': '||', '||': '&&', '<<': '>>', '>>': '<<', '&': '|',
             '|': '&', '^': '|', '+=': '-=', '-=': '+=', '*=': '/=', '/=': '*=', '&=': '|=', '|=': '&=',
             '!': ''}
SWAPS = [pair.split() for pair in '''alpha beta|lda ldb|row col|rows cols|m n|n k|first last|beta1 beta2
    |moment1 moment2|fmin fmax|true false|sin cos|floor ceil|c0 c1|k0 k1|a b|x y|width height'''.split('|')]
NAMES = {**{a: b for a, b in SWAPS}, **{b: a for a, b in reversed(SWAPS)}}
# calls whose removal changes no number
KEPT = re.compile(r'((profile|progress|status)_\w+|\w*(free|_destroy|prefetch\w*)|fclose|munmap|va_\w+)$')
NO_STATEMENT = set('''return break continue goto case default if for while do else switch const static struct
    enum union typedef extern'''.split())
TOKEN = re.compile(r'''(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<space>(?:\s|\\\n)+)|(?P<name>[A-Za-z_]\w*)
    |(?P<number>(?:0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?|\d*\.?\d+\.?(?:[eE][+-]?\d+)?)[uUlLfF]*)
    |(?P<sign><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)''', re.S | re.X)

Mutant = collections.namedtuple('Mutant', 'file start end new kind')
Result = collections.namedtuple('Result', 'mutant state by seconds')


# --- the mutants of a file ---

def tokens_of(source):
    """(kind, text, offset) of all code: no comments, and of preprocessor lines only the bodies of #define."""
    for line in re.finditer(r'^[ \t]*#(?:\\\n|[^\n])*', source, re.M):
        define = re.match(r'[ \t]*#\s*define\s+\w+(\([^)]*\))?', line.group())
        blank = define.end() if define else len(line.group())
        blanks = re.sub(r'[^\n]', ' ', line.group()[:blank])
        source = source[:line.start()] + blanks + source[line.start() + blank:]
    return [(t.lastgroup, t.group(), t.start()) for t in TOKEN.finditer(source)
            if t.lastgroup not in ('comment', 'space')]


def number_mutants(text):
    whole_hex = text[:2] in ('0x', '0X') and 'p' not in text
    value, suffix = re.match(r'(.*?)([uUlL]*)$' if whole_hex else r'(.*?)([uUlLfF]*)$', text).groups()
    if re.fullmatch(r'\d+', value):
        yield str(int(value) + 1) + suffix
        if value == '1': yield '0' + suffix
    elif whole_hex:
        yield hex(int(value, 16) + 1) + suffix
    else:
        number = float.fromhex(value) if value[:2] in ('0x', '0X') else float(value)
        yield repr(number * 1.01 if number else 1.0) + suffix


def statements(tokens):
    """(first, last) token of each statement that is an assignment or a call."""
    depth, begins, opened = 0, False, []
    for i, (kind, text, _) in enumerate(tokens):
        after = tokens[i + 1][0] if i + 1 < len(tokens) else ''
        if depth == 0 and begins and kind == 'name' and text not in NO_STATEMENT and after != 'name':
            end, level = i, 0
            while end < len(tokens) - 1 and not (tokens[end][1] == ';' and level == 0):
                level += {'(': 1, '{': 1, '[': 1, ')': -1, '}': -1, ']': -1}.get(tokens[end][1], 0)
                if level < 0: break
                end += 1
            words = [t[1] for t in tokens[i:end]]
            changes = words[-1:] == [')'] or any(re.fullmatch(r'[-+*/|&^]?=|\+\+|--', w) for w in words)
            declares = words[1:2] == ['*'] and words[3:4] in (['='], [',']) or words[1:3] == ['*', 'restrict']
            if level == 0 and changes and not declares and not KEPT.match(text) and end - i > 1:
                yield i, end
        if text in '([':
            opened.append(tokens[i - 1][1])
            depth += 1
        control = False
        if text in ')]' and opened:
            control = opened.pop() in ('if', 'for', 'while')
            depth -= 1
        begins = text in ';{}' or text == 'else' or (control and depth == 0)


def mutants_of(file):
    with open(file) as stream: source = stream.read()
    tokens = tokens_of(source)
    for i, (kind, text, at) in enumerate(tokens):
        before, end = tokens[i - 1] if i else ('', '', 0), at + len(text)
        binary = source[at - 1:at] == ' ' and source[end:end + 1] in (' ', '\n')
        if kind == 'number':
            for new in number_mutants(text): yield Mutant(file, at, end, new, 'constant')
        elif text == '!' or (kind == 'sign' and text in OPERATORS and binary):
            yield Mutant(file, at, end, OPERATORS[text], text)
        elif kind == 'name' and text in NAMES and before[0] != 'name' and source[at - 1] != '*':
            yield Mutant(file, at, end, NAMES[text], 'name')
        elif text == 'if' and i + 1 < len(tokens):
            level, close = 0, i + 1
            while close < len(tokens):
                level += {'(': 1, ')': -1}.get(tokens[close][1], 0)
                if level == 0: break
                close += 1
            start, end = tokens[i + 1][2], tokens[close][2] + 1
            yield Mutant(file, start, end, '(!' + source[start:end] + ')', 'if')
    for first, last in statements(tokens):
        start, end = tokens[first][2], tokens[last][2]
        if '\n#' not in source[start:end]: yield Mutant(file, start, end, '', 'statement')


def sample(files, count, seed):
    """Files by the square root of their number of mutants, then kinds of mutants evenly."""
    kinds = {}
    for file in files:
        for mutant in sorted(set(mutants_of(file))):
            kinds.setdefault(file, collections.defaultdict(list))[mutant.kind].append(mutant)
    choice, taken = random.Random(seed), []
    while kinds and len(taken) < count:
        names = sorted(kinds)
        file = choice.choices(names, [sum(map(len, kinds[f].values()))**0.5 for f in names])[0]
        kind = choice.choice(sorted(kinds[file]))
        mutants = kinds[file][kind]
        taken.append(mutants.pop(choice.randrange(len(mutants))))
        if not mutants: del kinds[file][kind]
        if not kinds[file]: del kinds[file]
    return taken


def key(mutant):
    return f'{mutant.file}@{mutant.start}-{mutant.end} {mutant.kind} `{mutant.new}`'


def mutated(mutant):
    with open(mutant.file) as stream: source = stream.read()
    return source, source[:mutant.start] + mutant.new + source[mutant.end:]


# --- the program: what make would do ---

class Build:
    def __init__(self, folder, jobs, settings):
        self.folder = folder
        optimize = [] if any('SAN=' in setting for setting in settings) else ['CFLAGS=-O2']
        make = ['make', 'CUDA=0', f'B={folder}', *optimize, *settings]
        if subprocess.run([*make, f'-j{jobs}', 'tests'], stdout=subprocess.DEVNULL).returncode != 0:
            sys.exit(f'{" ".join(make)} tests failed')
        commands = subprocess.check_output([*make, '-n', '-B', 'V=1', 'tests'], text=True)
        self.compile, self.link = {}, {}
        for line in commands.splitlines():
            if f'-o {folder}/' not in line or '-shared' in line or line.startswith('cd '): continue
            words = shlex.split(line)
            output = words[words.index('-o') + 1]
            if '-c' in words:
                self.compile[output] = [w for w in words if not re.match('-MMD|-MP|-W', w)] + ['-w']
            else:
                self.link[output] = words
        self.users = collections.defaultdict(list)  # file: the objects that depend on it
        for name in glob.glob(f'{folder}/**/*.d', recursive=True):
            with open(name) as stream: rule = stream.read().replace('\\\n', ' ').split('\n')[0]
            target, _, files = rule.partition(':')
            if target in self.compile:
                for file in files.split(): self.users[file].append(target)

    def program(self, test):
        return f'{self.folder}/tests/test_{test}' if test else f'{self.folder}/train'


def call(words, limit, log, environment=None, stop_at=None):
    """The exit status, or None after `limit` seconds. A line that `stop_at` matches ends the program."""
    limited = ['sh', '-c', 'ulimit -c 0; ulimit -f 4000000; exec "$@"', 'sh', *words]
    process = subprocess.Popen(limited, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, env=environment, start_new_session=True)
    late = threading.Event()

    def end():
        try: os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError: pass

    def too_late():
        late.set()
        end()

    timer = threading.Timer(max(limit, 0.1), too_late)
    timer.start()
    for line in process.stdout:
        line = line.decode(errors='replace')
        log.append(line)
        if stop_at and stop_at.match(line): end()
    status = process.wait()
    timer.cancel()
    end()
    return None if late.is_set() else status


# --- one mutant ---

class Campaign:
    def __init__(self, arguments):
        self.arguments, self.results, self.lock = arguments, [], threading.Lock()
        self.deadline = time.time() + 60 * arguments.minutes if arguments.minutes else float('inf')
        self.folder = tempfile.mkdtemp(prefix='mutate-')
        self.build = Build(arguments.build, arguments.jobs, arguments.make)
        self.seconds, self.broken = {}, []

    def environment(self, folder, stride):
        return {**os.environ, 'TESSERA': f'{folder}/train', 'TESSERA_TEST_STRIDE': str(stride),
                'TMPDIR': f'{folder}/tmp', 'OMP_WAIT_POLICY': 'passive',
                'MALLOC_TRIM_THRESHOLD_': '1000000000', 'MALLOC_MMAP_THRESHOLD_': '1000000000'}

    def prepare(self, folder):
        for name in ('tmp', 'tests'): os.makedirs(f'{folder}/{name}')
        for name in ('plugins', 'tutorial'):
            os.symlink(os.path.abspath(f'{self.build.folder}/{name}'), f'{folder}/{name}')

    def objects(self, folder, mutant, wanted):
        """Compiles `wanted`: {object: new object} of those that differ; None if one does not compile."""
        differ = {}
        for target in wanted:
            new = os.path.join(folder, os.path.relpath(target, self.build.folder))
            os.makedirs(os.path.dirname(new), exist_ok=True)
            words = [new if w == target else w for w in self.build.compile[target]]
            words = [f'{folder}/source/{w}' if w == mutant.file else w for w in words]
            words.insert(words.index('-I.'), f'-I{folder}/source')
            if time.time() > self.deadline: raise TimeoutError
            if call(words, 300, []) != 0: return None
            with open(new, 'rb') as a, open(target, 'rb') as b:
                if a.read() != b.read(): differ[target] = new
        return differ

    def run_test(self, folder, differ, test, stride):
        """None if `test` passes, else which case fails and how."""
        for name in ('', test):
            linked = f'{folder}/tests/test_{name}' if name else f'{folder}/train'
            target = self.build.program(name)
            if not os.path.exists(linked):
                words = [linked if w == target else differ.get(w, w) for w in self.build.link[target]]
                log = []
                if call(words, 300, log) != 0: return 'does not link: ' + ''.join(log)[-200:]
        known, log = self.seconds.get((test, stride)), []
        limit = 10 + 10 * known if known else 600
        left = self.deadline - time.time()
        status = call([f'{folder}/tests/test_{test}'], min(limit, left), log,
                      self.environment(folder, stride), re.compile(r'\[  FAILED  \] \w'))
        if status is None and left < limit: raise TimeoutError
        for line in log:
            case = re.match(r'\[  FAILED  \] (\w+)\s*$', line)
            if case and not case.group(1).isdigit(): return case.group(1)
        return None if status == 0 else 'it hangs' if status is None else f'exit status {status}'

    def plan(self, file):
        """The likely (test, stride), and all in the order in which they are run."""
        def named(table): return next((tests.split() for p, tests in table if fnmatch.fnmatch(file, p)), [])

        stride = self.arguments.stride
        first = [(t, stride) for t in named(FIRST)]
        plan = first + [(t, stride) for t in TESTS + named(LAST)]
        if stride > LONG_STRIDE: plan += [(t, LONG_STRIDE) for t in named(LONG)]
        return first, [step for step in dict.fromkeys(plan) if step not in self.broken]

    def measure(self, step):
        """The right program must pass."""
        test, stride = step
        folder = os.path.join(self.folder, f'right-{test}-{stride}')
        self.prepare(folder)
        begin = time.time()
        try: failure = self.run_test(folder, {}, test, stride)
        except TimeoutError: failure = 'out of time'
        self.seconds[step] = time.time() - begin
        if failure:
            self.broken.append(step)
            print(f'left out: test_{test} fails without a mutant: {failure}', flush=True)
        shutil.rmtree(folder, ignore_errors=True)

    def judge(self, folder, mutant):
        os.makedirs(os.path.dirname(f'{folder}/source/{mutant.file}'))
        with open(f'{folder}/source/{mutant.file}', 'w') as stream: stream.write(mutated(mutant)[1])
        self.prepare(folder)
        users, slow, differ = self.build.users[mutant.file], re.compile('.*(avx512|emulated)').match, {}
        is_test = re.compile(re.escape(self.build.folder) + r'/tests/test_').match
        first, plan = self.plan(mutant.file)
        stages = [([o for o in users if not is_test(o) and not slow(o)], first),
                  ([o for o in users if not is_test(o) and slow(o)], plan)]
        if not stages[1][0]: stages = [(stages[0][0], plan)]
        for objects, tests in stages:  # what compiles slowly only if the rest tells nothing
            more = self.objects(folder, mutant, objects)
            if more is None: return 'does not compile', ''
            differ.update(more)
            for test, stride in tests if differ else []:
                own = f'{self.build.program(test)}.o'
                if own in users and own not in differ:
                    more = self.objects(folder, mutant, [own])
                    if more is None: return 'does not compile', f'test_{test}'
                    differ.update(more)
                failure = self.run_test(folder, differ, test, stride)
                if failure: return 'killed', f'test_{test}: {failure}'
            for program in [f'{folder}/train', *glob.glob(f'{folder}/tests/test_*')]:
                if os.path.exists(program) and not program.endswith('.o'): os.remove(program)
        return ('survived' if differ else 'equivalent'), ''

    def test(self, numbered):
        number, mutant = numbered
        begin = time.time()
        if begin > self.deadline: return
        folder = os.path.join(self.folder, str(number))
        try:
            state, by = self.judge(folder, mutant)
        except TimeoutError:
            state, by = 'out of time', ''
        except Exception as error:  # a mutant must not end the campaign
            state, by = 'not judged', repr(error)
        shutil.rmtree(folder, ignore_errors=True)
        with self.lock:
            self.results.append(Result(mutant, state, by, time.time() - begin))
            print(f'{len(self.results)}/{self.arguments.count} {line_of(self.results[-1])}', flush=True)
            write(self.arguments, self.results)

    def run(self, mutants):
        cores = sorted(os.sched_getaffinity(0))
        numbers = iter(range(10**6))

        def pin():
            worker = next(numbers)
            os.sched_setaffinity(0, {cores[2 * worker % len(cores)], cores[(2 * worker + 1) % len(cores)]})

        steps = dict.fromkeys(step for m in mutants for step in self.plan(m.file)[1])
        slow_first = sorted(steps, key=lambda s: s[0] not in ('gemm', 'plugin', 'measure', 'fused', 'audit'))
        with concurrent.futures.ThreadPoolExecutor(self.arguments.jobs, initializer=pin) as pool:
            list(pool.map(self.measure, slow_first))
            list(pool.map(self.test, enumerate(mutants)))
        shutil.rmtree(self.folder, ignore_errors=True)


# --- the results ---

def place(mutant):
    source = mutated(mutant)[0]
    newlines = [i for i, c in enumerate(source) if c == '\n']
    return f'{mutant.file}:{bisect.bisect_left(newlines, mutant.start) + 1}'


def describe(mutant):
    old = ' '.join(mutated(mutant)[0][mutant.start:mutant.end].split())
    return f'`{old}` -> `{" ".join(mutant.new.split())}`'


def line_of(result):
    mutant, state, by, seconds = result
    return f'{place(mutant)}: {describe(mutant)}: {state}{" by " * bool(by)}{by} ({seconds:.0f} s)'


def difference(mutant):
    old, new = (text.splitlines() for text in mutated(mutant))
    lines = list(difflib.unified_diff(old, new, n=0, lineterm=''))
    return '\n'.join(line for line in lines if line[:3] not in ('---', '+++') and line[:2] != '@@')


def write(arguments, results):
    states = collections.Counter(r.state for r in results)
    files = collections.defaultdict(collections.Counter)
    for r in results: files[r.mutant.file][r.state] += 1
    order = ['killed', 'survived', 'equivalent', 'does not compile', 'out of time', 'not judged']
    shown = [state for state in order if states[state]]
    total = ', '.join(f'{states[s]} {s}' for s in shown)
    lines = [f'{len(results)} mutants, seed {arguments.seed}: {total}', '',
             '| file | ' + ' | '.join(shown) + ' |', '|---|' + '---:|' * len(shown)]
    for file in sorted(files):
        lines.append(f'| {file} | ' + ' | '.join(str(files[file][s] or '') for s in shown) + ' |')
    lines += ['', '# Survivors', '']
    results = sorted(results, key=lambda r: r.mutant)
    for r in results:
        if r.state in ('survived', 'out of time', 'not judged'):
            lines += [f'{place(r.mutant)}: {r.state} {r.by}', '', f'    {key(r.mutant)}', '',
                      '```diff', difference(r.mutant), '```', '']
    lines += ['# All', '', *(f'- {line_of(r)}' for r in results)]
    with open(arguments.out + '.new', 'w') as stream: stream.write('\n'.join(lines) + '\n')
    os.replace(arguments.out + '.new', arguments.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--count', type=int, default=100, help='mutants to test (100)')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--jobs', type=int, default=int(os.environ.get('JOBS', 0)) or os.cpu_count())
    parser.add_argument('--minutes', type=float, help='stops then, with the results until then')
    parser.add_argument('--files', nargs='+', default=FILES, help='patterns; default: the numeric core')
    parser.add_argument('--again', help='tests the survivors of this result instead of a sample')
    parser.add_argument('--stride', type=int, default=25, help='one case in so many of the long lists (25)')
    parser.add_argument('--make', nargs='*', default=[], help='settings, such as SAN=address')
    parser.add_argument('--build', default='build/mutants', help='where the right program is built')
    parser.add_argument('--list', action='store_true', help='prints the sample and tests nothing')
    parser.add_argument('--out', default='build/mutants.md', help='written anew after each mutant')
    arguments = parser.parse_args()
    arguments.out = os.path.abspath(arguments.out)
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
    names = {name for pattern in arguments.files for name in glob.glob(pattern)}
    files = sorted(name for name in names if name.endswith(('.c', '.h')))
    mutants = sample(files, arguments.count, arguments.seed)
    if arguments.again:
        with open(arguments.again) as stream:
            wanted = set(re.findall(r'^    (\S+@\d+-\d+ \S+ `.*`)$', stream.read(), re.M))
        mutants = [m for file in files for m in sorted(set(mutants_of(file))) if key(m) in wanted]
        arguments.count = len(mutants)
    if arguments.list:
        for mutant in mutants: print(f'{place(mutant)}: {describe(mutant)}')
        return
    write(arguments, [])
    Campaign(arguments).run(mutants)
    with open(arguments.out) as stream: print(stream.read().split('# Survivors')[0])


if __name__ == '__main__':
    main()
