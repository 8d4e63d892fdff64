#!/usr/bin/env python3
"""tests/examples.py [PROGRAM]: runs the examples of the documents below as a reader would, in order, each document in a
scratch folder that has ./train and links to the folders of the source tree, two documents at a time. tests/consumers.py runs
those of docs/deployment.md.

- A block of `sh` or `python` is run; later Python continues earlier. A command must succeed, unless its comment says
  `# exits with N`. What it must print may stand in a comment, too: `# prints TEXT`.
- A block whose first line is a comment that begins with the name of a file is that file. If a command has written it
  already, it must be the same.
- The lines of a block of `text` are printed by the blocks before it, in this order, but for what is measured: numbers with a
  decimal point, percentages, N of N/M, and the width of columns. Other lines may stand between them. A line that ends with
  `..` goes on.
- `<!-- needs NAME.. -->` before a block: it is run only if each NAME can be found: a file, if it has a slash; else a
  program or a Python module. A block of text belongs to the one before.

Blocks without a language are not run, nor is what `make figures` writes. Exit status 1 if an example is wrong."""
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = ["docs/your-own-gemm.md", "docs/report.md", "docs/grading.md", "docs/own-images.md"]
BLOCK = re.compile(r"^(?:<!-- needs ([^\n]*?) -->\n+)?```(\w+)\n(.*?)^```", re.M | re.S)
MEASURED = re.compile(r"[\d,]*\d\.\d+|[\d,]*\d(?=/[\d]| %)")
FILE = re.compile(r"(?:/\*|//|#) ([\w-]+\.\w+)\b")


class Wrong(Exception):
    pass


def missing(names):
    """The first of them that is not here, or None."""
    for name in names.split():
        if "/" in name and not os.path.exists(name) or "/" not in name and not (
                shutil.which(name) or importlib.util.find_spec(name)):
            return name
    return None


def shell(block):
    """The block as a script that ends at the first command whose exit code is not the expected one."""
    lines = block.replace("\\\n", " ").splitlines()
    for i, line in enumerate(lines):
        code = re.search(r"# exits with (\d+)", line)
        if code:
            command = line[:code.start()]
            lines[i] = f"{{ {command}; }} && exit 1 || [ $? = {code[1]} ]"
    return "\n".join(lines)


def run(command, folder):
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          stdin=subprocess.DEVNULL, timeout=300)
    if done.returncode:
        raise Wrong(f"ends with exit code {done.returncode}:\n{done.stdout}")
    return done.stdout


def pattern(wanted):
    """Matches what another run or machine may print in place of this line: a number with a decimal point becomes any
    number (three digits of 98.7 are 113 elsewhere)."""
    text, begins = " ".join(wanted.split()), wanted.endswith("..")
    parts = MEASURED.split(text[:-2].rstrip() if begins else text)
    return re.compile(r"[\d,]*\d(?:\.\d+)?".join(re.escape(part) for part in parts) + (".*" if begins else ""))


def check_text(block, printed):
    lines = iter([" ".join(line.split()) for line in printed.splitlines()])
    for wanted in block.splitlines():
        if not any(pattern(wanted).fullmatch(line) for line in lines):
            raise Wrong(f"not printed, or not in this order: {wanted}\nbut:\n{printed}")


def write_file(path, block):
    if not path.exists():
        path.write_text(block)
    elif path.read_text() != block:
        raise Wrong(f"{path.name} is not what the command wrote")


def run_block(language, block, folder, state):
    file = FILE.match(block)
    if language in ("sh", "python"):
        state["python"] += block if language == "python" else ""
        command = ["sh", "-ec", shell(block)] if language == "sh" else [sys.executable, "-c", state["python"]]
        output = run(command, folder)
        for text in re.findall(r"# prints (.*\S)", block):
            if text not in output:
                raise Wrong(f"not printed: {text}\nbut:\n{output}")
        state["printed"] += output
    elif language == "text":
        check_text(block, state["printed"])
        state["printed"] = ""
    elif file:
        write_file(folder / file[1], block)


def run_document(document, program):
    """True if all examples are right."""
    text = re.sub(r"<!-- file.*?<!-- end -->", lambda part: "\n" * part[0].count("\n"), (ROOT / document).read_text(),
                  flags=re.S)
    state, skipped, start = {"python": "", "printed": ""}, False, time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "train").symlink_to(program)
        for part in "configs", "data", "docs", "kernels", "src", "tests":
            (folder / part).symlink_to(ROOT / part)
        for needs, language, block in BLOCK.findall(text):
            absent = missing(needs)
            skipped = bool(absent) or skipped and language == "text"
            if absent:
                print(f"{document}: skipped, there is no {absent}: {block.splitlines()[0]}")
            if skipped:
                continue
            try:
                run_block(language, block, folder, state)
            except (Wrong, subprocess.TimeoutExpired) as wrong:
                print(f"WRONG: {document}:{text[:text.index(block)].count(chr(10)) + 1}: {wrong}")
                return False
    print(f"{document}: the examples are right ({time.monotonic() - start:.0f} s)")
    return True


def main():
    if not list((ROOT / "data" / "mnist").glob("train-images*")):
        print("skipped: no MNIST (data/fetch.sh downloads it)")
        return
    program = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ROOT / "train")
    with ThreadPoolExecutor(2) as pool:
        sys.exit(not all(list(pool.map(lambda document: run_document(document, program), DOCUMENTS))))


if __name__ == "__main__":
    main()
