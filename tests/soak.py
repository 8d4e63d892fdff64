#!/usr/bin/env python3
"""Kills, interrupts and obstructs trainings at random moments (make soak), and checks what they leave behind.

    KILLS=1000 INTERRUPTS=100 JOBS=20 SOAK_SEED=1 tests/soak.py TRAIN

One line for each check, then "N passed, N failed"; exit status 1 if one failed. Needs no MNIST: the data are
random bytes. Checks that need a small file system are skipped without the right to mount one.
"""
import json, os, random, resource, signal, socket, struct, subprocess, sys, tempfile, time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAIN = str(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / 'train').resolve())
KILLS, INTERRUPTS, JOBS = (int(os.environ.get(*pair))
                           for pair in (('KILLS', '1000'), ('INTERRUPTS', '100'), ('JOBS', '20')))
SEED = int(os.environ.get('SOAK_SEED', random.randrange(10**6)))
PATIENCE = 100  # seconds until a run counts as hanging
IMAGES, BATCH = 320, 16
SMALL = '--layers 784-24-10 --batch-size 16 --threads 1 --backend tuned'
RECIPES = {  # beside the configs
    'momentum': '--momentum 0.9 --nesterov on --weight-decay 0.001',
    'adam': '--optimizer adam --lr 0.001 --clip-norm 1',
    'adamw': '--optimizer adamw --lr 0.001 --weight-decay 0.1 --schedule cosine --warmup-steps 9',
    'dropout': '--dropout 0.3 --input-dropout 0.1',
    'augmentation': '--augment on --augment-gentle 1,7',
    'moving average': '--ema-decay 0.95 --label-smoothing 0.1',
    'schedule one-cycle': '--schedule one-cycle --momentum 0.9 --max-norm 2',
    'schedule step': '--schedule step --lr-step-epochs 2 --activation tanh --init xavier',
    'early stopping': '--validation 40 --patience 50 --optimizer adam --lr 0.001',
    'adversarial': '--adversarial 0.05 --activation gelu',
    'float64': '--dtype f64 --engine eager --activation sigmoid',
    'bf16': '--precision bf16 --shuffle off',
    'fp16': '--backend serial --precision fp16 --shuffle off',
    'serial': '--backend serial --activation scaled-tanh --input-range -1,1',
    'two threads': '--threads 2 --momentum 0.9',
}
results, children = [], []


def report(name, failures, done, what):
    """One line; `failures` are texts, of which the first is shown."""
    results.append(not failures)
    tail = f'; {len(failures)} wrong: {failures[0]}' if failures else ''
    print(f'{"FAIL" if failures else "pass"}  {name}: {done} {what}{tail}', flush=True)


# --- runs ---

def default_signals():
    """A background job inherits ignored ones, which a program leaves ignored."""
    for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)


def start(arguments, before=None, launcher=(), variables=None):
    # the program would execute itself again to set its own spinning limit
    environment = {**os.environ, 'OMP_WAIT_POLICY': 'passive', 'TESSERA_DATA': 'data', **(variables or {})}
    child = subprocess.Popen([*launcher, TRAIN, *arguments.split()], env=environment, text=True,
                             preexec_fn=lambda: (default_signals(), before and before()),
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    children[:] = [other for other in children if other.poll() is None] + [child]
    return child


def end(process):
    """(exit code, what it wrote to stderr); None for the code if it hung."""
    try:
        errors = process.communicate(timeout=PATIENCE)[1]
        return process.returncode, (errors or '').strip()
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, f'no end within {PATIENCE} s'


def run(arguments, before=None):
    return end(start(arguments, before))


def unreadable(model):
    """Why this checkpoint, checksum included, cannot be read; '' if it can."""
    code, errors = run(f'eval {model} --data data --threads 1')
    return '' if code == 0 else f'{model}: exit code {code}: {errors}'


def temporaries(model):
    return [path.name for path in Path(model).parent.glob(Path(model).name + '.*.tmp')]


def epoch_of(model):
    raw = Path(model).read_bytes()
    header = json.loads(raw[8:8 + struct.unpack('<Q', raw[:8])[0]])
    return int(header['__metadata__'].get('tessera.epoch', -1))


def wait_for(log, kind='epoch'):
    """Until the log has a line of this kind."""
    for _ in range(100 * PATIENCE):
        if Path(log).exists() and f'"type":"{kind}"' in Path(log).read_text(encoding='utf-8'):
            return
        time.sleep(0.01)


def write_data():
    Path('data').mkdir()
    dice = random.Random(1)
    for part, count in (('train', IMAGES), ('t10k', 40)):
        images = struct.pack('>4I', 0x803, count, 28, 28) + dice.randbytes(count * 784)
        Path(f'data/{part}-images-idx3-ubyte').write_bytes(images)
        Path(f'data/{part}-labels-idx1-ubyte').write_bytes(struct.pack('>2I', 0x801, count)
                                                           + bytes(i % 10 for i in range(count)))


# --- the checks ---

def kills(dice):
    """SIGKILL while every epoch is saved: the file is whole, and not older than before."""
    model, failures, last, stale = 'kills.safetensors', [], 0, []
    for _ in range(KILLS):
        resume = f'--resume {model}' if Path(model).exists() else SMALL
        process = start(f'{resume} --epochs 1000000 --save {model} --save-every 1')
        time.sleep(dice.uniform(0.01, 0.1))
        process.kill()
        end(process)
        stale.append(len(temporaries(model)))
        if not Path(model).exists():
            continue
        why = unreadable(model)
        epoch = -1 if why else epoch_of(model)
        if why or epoch < last:
            failures.append(why or f'epoch {epoch} after {last}')
        last = max(epoch, last)
    if max(stale, default=0) > 1:
        failures.append(f'{max(stale)} temporary files at once')
    code, errors = run(f'--resume {model} --epochs {last + 1} --save {model}') if last else (0, '')
    if code or temporaries(model):
        failures.append(errors or f'left behind: {temporaries(model)}')
    report('kills', failures, KILLS, f'while saving, to epoch {last}; {sum(stale)} left a temporary file')


def config_recipes():
    """Every config as it is, but for its size and its GPU."""
    for path in sorted((ROOT / 'configs').glob('*.cfg')):
        keys = dict(line.split('#')[0].split('=') for line in path.read_text(encoding='utf-8').splitlines()
                    if '=' in line.split('#')[0])
        keys = {key.strip(): value.strip() for key, value in keys.items()}
        widths = keys['layers'].split('-')
        flags = (f'--config {path} --layers {widths[0]}-24-{widths[-1]} --backend tuned --engine auto '
                 '--threads 1')
        if int(keys.get('batch-size', 128)) > BATCH:
            flags += f' --batch-size {BATCH}'
        if 'validation' in keys:
            flags += ' --validation 40'
        if 'ensemble' in keys:
            flags += ' --ensemble 2'
        if 'warmup-epochs' in keys:
            flags += ' --warmup-epochs 1'
        yield path.name, flags


def files_of(model, recipe):
    if '--ensemble' not in recipe:
        return [Path(model)]
    return [Path(model.replace('.', f'-seed{seed}.')) for seed in (1, 2)]


def interrupted(name, recipe, dice, wanted, seconds):
    """Trains, interrupts at a random moment, resumes. Returns 'early' or 'late' if that missed the training,
    else what is wrong, or ''."""
    model = 'interrupted.safetensors'
    for path in files_of(model, recipe):
        path.unlink(missing_ok=True)
    process = start(f'{recipe} --save {model}')
    time.sleep(dice.uniform(0.01, seconds))
    process.send_signal(dice.choice((signal.SIGINT, signal.SIGTERM)))
    code, errors = end(process)
    if code == 0:
        return 'late'
    if code in (-signal.SIGINT, -signal.SIGTERM):
        return 'early'  # before the training has begun
    if code != 130:
        return f'{name}: exit code {code}: {errors}'
    if not all(path.exists() for path in files_of(model, recipe)):  # of an ensemble, one by one
        return 'early'
    code, errors = run(f'{recipe} --resume {model} --save {model}')
    if code:
        return f'{name}: --resume: exit code {code}: {errors}'
    got = [path.read_bytes() for path in files_of(model, recipe)]
    return '' if got == wanted else f'{name}: other weights than those of the uninterrupted run'


def interrupts(dice):
    """SIGINT or SIGTERM, then --resume: the file of the uninterrupted run, byte for byte."""
    recipes = {**dict(config_recipes()), **{name: f'{SMALL} {flags}' for name, flags in RECIPES.items()}}
    names, model = dice.sample(list(recipes), len(recipes)), 'whole.safetensors'
    for index, name in enumerate(names):
        count = INTERRUPTS // len(names) + (index < INTERRUPTS % len(names))
        if not count:
            continue
        recipe, failures, done = f'{recipes[name]} --epochs 30', [], 0
        began = time.monotonic()
        code, errors = run(f'{recipe} --save {model}')
        seconds = time.monotonic() - began
        wanted = [path.read_bytes() for path in files_of(model, recipe) if code == 0]
        if code:
            report(f'interrupts, {name}', [f'exit code {code}: {errors}'], 0, 'interrupts')
            continue
        for _ in range(50 * count):
            if done == count:
                break
            what = interrupted(name, recipe, dice, wanted, seconds)
            seconds *= 0.95 if what == 'late' else 1  # a slow run was measured
            done += what not in ('early', 'late')
            failures += [what] if what not in ('', 'early', 'late') else []
        if done < count:
            failures.append(f'only {done} of {count} hit the training of {seconds:.1f} s')
        report(f'interrupts, {name}', failures, done, 'resumed, equal byte for byte')


ENDS = {signal.SIGINT: 130, signal.SIGTERM: 130, signal.SIGHUP: 129, signal.SIGPIPE: 141, signal.SIGXCPU: 152}
GOES_ON = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGXFSZ}
STOPS = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}


def signal_effect(number, model, log):
    """What is wrong when a training gets this signal; '' if nothing is."""
    for path in (model, log):
        Path(path).unlink(missing_ok=True)
    process = start(f'{SMALL} --epochs 1000000 --save {model} --save-every 1 --log {log}',
                    before=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
    wait_for(log)
    process.send_signal(number)
    if number in GOES_ON | STOPS:
        time.sleep(0.1)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.1)
        if process.poll() is not None:
            return f'it ended the training: {end(process)}'
        process.send_signal(signal.SIGTERM)
    code, errors = end(process)
    wanted = 130 if number in GOES_ON | STOPS else ENDS.get(number, -number)
    if code != wanted:
        return f'exit code {code}, not {wanted}: {errors}'
    if wanted > 0 and 'interrupted by' not in errors:
        return f'it does not say that it was interrupted: {errors}'
    return unreadable(model) if Path(model).exists() or wanted > 0 else ''


def signals():
    for number in sorted(set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}):
        why = signal_effect(number, 'signal.safetensors', 'signal.jsonl')
        what = ('saves and ends with ' + str(ENDS[number]) if number in ENDS else
                'changes nothing' if number in GOES_ON else 'stops until SIGCONT' if number in STOPS else
                'ends it; the checkpoint before is whole')
        report(signal.Signals(number).name, [why] if why else [], 'the signal', what)


def full(name, arguments, folder, reason, limit=None):
    """A run that cannot write all: exit code 1 with this reason, old checkpoint as it was, whole lines, no
    temporary files."""
    old = Path(f'{folder}/old.safetensors')
    before, failures = old.read_bytes(), []
    code, errors = run(arguments, before=limit)
    if code != 1 or reason not in errors:
        failures.append(f'exit code {code}: {errors}')
    if old.read_bytes() != before or temporaries(old):
        failures.append(f'the old checkpoint changed, or a temporary file is left: {temporaries(old)}')
    for path in Path(folder).glob('full.*'):
        text = path.read_text(encoding='utf-8')
        if text and not text.endswith('\n'):
            failures.append(f'{path.name} ends within a line')
        path.unlink()
    report(f'full disk, {name}', failures, f'"{reason}";', 'nothing damaged')


def full_disk():
    folder = Path('small')
    folder.mkdir()
    mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=200k', 'none', folder], check=False,
                             stderr=subprocess.DEVNULL).returncode == 0
    try:
        run(f'{SMALL} --layers 784-4-10 --epochs 1 --save small/old.safetensors')
        one, wide = f'{SMALL} --epochs 1', f'{SMALL} --layers 784-200-10 --epochs 1'
        many = f'{SMALL} --layers 784-4-10 --epochs 2000 --log-steps 40000'

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))
        full('--save, ulimit -f', f'{one} --save small/old.safetensors', folder, 'File too large', limit)
        full('--log, ulimit -f', f'{many} --log small/full.jsonl', folder, 'File too large', limit)
        full('--csv, ulimit -f', f'{many} --csv small/full.csv', folder, 'File too large', limit)
        full('--log /dev/full', f'{one} --log /dev/full', folder, 'No space left on device')
        full('--csv /dev/full', f'{one} --csv /dev/full', folder, 'No space left on device')
        if not mounted:
            print('skipped: a full file system (no right to mount a tmpfs)')
            return
        full('--save', f'{wide} --save small/old.safetensors', folder, 'No space left on device')
        full('--log', f'{many} --log small/full.jsonl', folder, 'No space left on device')
        Path('small/ballast').write_bytes(bytes(150000))
        full('--csv', f'{many} --csv small/full.csv', folder, 'No space left on device')
    finally:
        if mounted:
            subprocess.run(['umount', folder], check=True)


def two_writers():
    """Two trainings at once with one --save, or one --log."""
    model, failures, reads = 'shared.safetensors', [], 0
    run(f'{SMALL} --epochs 1 --save {model}')
    both = [start(f'{SMALL} --seed {seed} --epochs 150 --save {model} --save-every 1') for seed in (1, 2)]
    while any(process.poll() is None for process in both):
        why = unreadable(model)
        failures += [why] if why else []
        reads += 1
    failures += [f'exit code {code}: {errors}' for code, errors in map(end, both) if code]
    if temporaries(model):
        failures.append(f'left behind: {temporaries(model)}')
    report('two writers, --save', failures, reads, 'reads of a whole checkpoint in between')
    failures, log = [], 'shared.jsonl'
    run(f'{SMALL} --epochs 1 --save start.safetensors')
    both = [start(f'--resume start.safetensors --epochs 200 --log-steps 4000 --log {log}') for _ in range(2)]
    failures += [f'exit code {code}: {errors}' for code, errors in map(end, both) if code]
    kinds = []
    for line in Path(log).read_text(encoding='utf-8').splitlines():
        try:
            kinds.append(json.loads(line)['type'])
        except (ValueError, KeyError):
            failures.append(f'not a line of JSON: {line[:80]}')
    if kinds.count('header') != 2 or kinds.count('epoch') != 2 * 199:
        failures.append(f'{kinds.count("header")} headers, {kinds.count("epoch")} epochs')
    report('two writers, --log', failures, len(kinds), 'whole lines')


# --- jobs of several processes ---

MPI = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
       'OMPI_MCA_btl_vader_single_copy_mechanism': 'none'}  # containers forbid it


def has_mpi():
    """Can MPI start processes here, and was the program built with it?"""
    command = ['mpirun', '--oversubscribe', '-n', '2', TRAIN, *SMALL.split(), '--epochs', '1', '--comm', 'mpi']
    environment = {**os.environ, **MPI, 'TESSERA_DATA': 'data'}
    try:
        return subprocess.run(command, env=environment, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def start_ranks(arguments, size):
    """A process for each rank, connected by sockets."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    return [start(arguments, variables={'RANK': str(rank), 'WORLD_SIZE': str(size), 'MASTER_ADDR': '127.0.0.1',
                                        'MASTER_PORT': str(port)}) for rank in range(size)]


def ranks_of(mpirun, size):
    """The process numbers of the ranks that mpirun started."""
    found = {}
    while len(found) < size and mpirun.poll() is None:
        for path in Path('/proc').glob('[0-9]*/environ'):
            try:
                variables = dict(pair.split('=', 1) for pair in path.read_text(errors='replace').split('\0')
                                 if '=' in pair)
                parent = int((path.parent / 'stat').read_text().rsplit(')', 1)[1].split()[1])
            except (OSError, ValueError):
                continue
            if parent == mpirun.pid and 'OMPI_COMM_WORLD_RANK' in variables:
                found[int(variables['OMPI_COMM_WORLD_RANK'])] = int(path.parent.name)
    return found


def broken_job(arguments, size, by_mpi, dice):
    """Kills one rank; '' if the others end within ten seconds, and say which one it was."""
    victim = dice.randrange(size)
    if by_mpi:
        processes = [start(arguments, launcher=('mpirun', '--oversubscribe', '-n', str(size)), variables=MPI)]
        pid = ranks_of(processes[0], size).get(victim)
    else:
        processes = start_ranks(arguments, size)
        pid = processes[victim].pid
    time.sleep(dice.uniform(0.05, 1))
    if processes[0].poll() is not None or pid is None:
        return f'it ended by itself: {[end(process) for process in processes]}'
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    ends = [end(process) for process in processes]
    took = time.monotonic() - killed
    codes = [code for code, _ in ends if code != -signal.SIGKILL]
    said = '\n'.join(errors for _, errors in ends)
    if took > 10 or None in codes or 0 in codes or (not by_mpi and set(codes) != {1}):
        return f'exit codes {codes} after {took:.1f} s: {said}'
    early = 'not come' in said or 'does not answer' in said  # before they had met
    named = f'rank {victim} of {size}: ' in said or f'process rank {victim} ' in said  # as mpirun says
    return '' if early or named else f'rank {victim} is not named: {said}'


def jobs(dice):
    """SIGKILL of one of several processes; the same command with --resume goes on with the same bits."""
    model, epochs = 'jobs.safetensors', 150
    recipe = f'{SMALL} --reduction fixed --momentum 0.9 --epochs {epochs}'
    whole = run(f'{recipe} --save whole.safetensors')[0]
    kinds = (('sockets', False), ('MPI', True)) if has_mpi() else (('sockets', False),)
    for name, by_mpi in kinds:
        failures, resumed = [f'alone: exit code {whole}'] if whole else [], 0
        for _ in range(JOBS // len(kinds)):
            Path(model).unlink(missing_ok=True)
            size = dice.choice((2, 4))
            # more epochs than it can train before the kill
            why = broken_job(f'{recipe} --comm-timeout 8 --save {model} --save-every 1 --epochs 100000', size, by_mpi,
                             dice)
            why = why or (Path(model).exists() and unreadable(model))
            if not why and Path(model).exists() and epoch_of(model) <= epochs:
                ends = [end(process) for process in start_ranks(
                    f'--resume {model} --reduction fixed --threads 1 --epochs {epochs} --save {model}', size)]
                resumed += 1
                same = Path(model).read_bytes() == Path('whole.safetensors').read_bytes()
                why = '' if same and not any(code for code, _ in ends) else f'resumed otherwise: {ends}'
            if why:
                failures.append(why)
        report(f'jobs by {name}', failures, JOBS // len(kinds), f'killed, all ended; {resumed} resumed, equal byte for byte')


def main():
    os.environ.pop('TESSERA_BACKEND', None)
    began = time.monotonic()
    print(f'SOAK_SEED={SEED} KILLS={KILLS} INTERRUPTS={INTERRUPTS} JOBS={JOBS}', flush=True)
    with tempfile.TemporaryDirectory(prefix='tessera-soak-') as folder:
        os.chdir(folder)
        write_data()
        try:
            signals()
            full_disk()
            two_writers()
            jobs(random.Random(SEED + 2))
            kills(random.Random(SEED))
            interrupts(random.Random(SEED + 1))
        finally:
            for child in children:
                child.kill()
            os.chdir(ROOT)
    failed = results.count(False)
    print(f'{time.monotonic() - began:.0f} s; {len(results) - failed} passed, {failed} failed')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
