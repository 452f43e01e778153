"""Mutants of the product: which of them the tests notice.

    python verification/programs/mutants.py                          # 60 mutants, an hour or two
    python verification/programs/mutants.py --seed 7 --mutants 20 --only actors/paxos
    python verification/programs/mutants.py --seed 7 --mutants 60 --list    # without running any
    python verification/programs/mutants.py --first 31               # go on where a run was stopped

A mutant is the product with one small change, drawn by the seed (`OPERATORS`). It stands in a copy
of the tree. The test files that are about the changed function (`Selection`) run until a test
fails: a few at first, then the others (`STAGES`). A verdict is one of

``killed``
    A test failed; the line below names it.
``hung``
    A test took longer than `--test-seconds`, and less without the mutant. This counts as killed.
``slow``
    A test took longer than `--test-seconds` without the mutant, too: this machine needs a higher
    limit, and nothing is known of the mutant.
``survived``
    All chosen test files passed. Either the mutant behaves as the product does, or a test is
    missing: a person decides. `--only FILE:LINE --files 400` tries one line with all tests.

The program needs pytest 9 and Linux. The status is 0 whatever survives.
"""

from __future__ import annotations

import argparse
import ast
import copy
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent.parent
PRODUCT = ("actors", "transport", "cluster")
"""The folders that are mutated."""

START_SECONDS = 60
"""Time for a test process to start, on a machine under load."""

MEMORY_MAX = 6 << 30
"""Address space of a test process (bytes): a loop that only allocates ends in a MemoryError."""

STAGES = (3, 12)
"""Test files after which a run pauses: most mutants are killed by the first few, so pytest need not
collect the others."""

NEAR = 4
"""How much more a test file counts that imports the changed module itself. It is half as much with
twice as many imports between them."""

SLOW = 0.25
"""How much less a simulation counts. It is twice as much for a file that starts real nodes."""

FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}

Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file: the text from `start` to `end` becomes `after`."""

    file: str
    line: int
    operator: str
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        before, after = in_one_line(self.before), in_one_line(self.after)
        return f"{self.file}:{self.line} {self.operator}\n      - {before}\n      + {after}"

    def apply(self, source: str) -> str:
        text = source.encode()
        return (text[: self.start] + self.after.encode() + text[self.end :]).decode()


def _with(node: Node, change: Callable[[Node], None]) -> str:
    """Return the text of a copy of an expression after ``change``, in parentheses."""
    changed = copy.deepcopy(node)
    change(changed)
    return f"({ast.unparse(changed)})"


def flip_comparison(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Turn ``<`` into ``<=``, ``==`` into ``!=``, ``in`` into ``not in``, and back."""
    if isinstance(node, ast.Compare):
        for at in range(len(node.ops)):

            def flip(other: ast.Compare, at: int = at) -> None:
                other.ops[at] = FLIPPED[type(other.ops[at])]()

            yield node, _with(node, flip)


def swap_and_or(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Turn ``and`` into ``or``, and back."""
    if isinstance(node, ast.BoolOp):

        def swap(other: ast.BoolOp) -> None:
            other.op = ast.Or() if isinstance(other.op, ast.And) else ast.And()

        yield node, _with(node, swap)


def change_condition(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Negate a condition, or make it always true or always false."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield node.test, f"(not ({ast.unparse(node.test)}))"
        yield node.test, "False"
        if not isinstance(node, ast.While):
            yield node.test, "True"
    if isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield test, "True"


def change_constant(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Add one to a number, or turn a truth value around."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield node, str(not node.value)
        elif isinstance(node.value, int):
            yield node, str(node.value + 1)


def change_sign(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Turn ``+`` into ``-``, and back."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):

        def swap(other: ast.BinOp) -> None:
            other.op = ast.Sub() if isinstance(other.op, ast.Add) else ast.Add()

        yield node, _with(node, swap)


def swap_arguments(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Swap two arguments that stand side by side."""
    if isinstance(node, ast.Call) and not any(isinstance(arg, ast.Starred) for arg in node.args):
        for at in range(len(node.args) - 1):

            def swap(other: ast.Call, at: int = at) -> None:
                other.args[at], other.args[at + 1] = other.args[at + 1], other.args[at]

            yield node, _with(node, swap)


def drop_statement(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Drop a call, a raise, a deletion, or an assignment to an attribute or an item."""
    match node:
        case (
            ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete() | ast.Raise()
        ):
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case _:
            pass


OPERATORS = (
    flip_comparison,
    swap_and_or,
    change_condition,
    change_constant,
    change_sign,
    swap_arguments,
    drop_statement,
)


def mutated_parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that may be changed: no annotation, no assertion, no import for types."""
    match node:
        case ast.Assert() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.AnnAssign():
            parts: Iterable[ast.AST | None] = [node.value]
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            parts = [*node.args.defaults, *node.args.kw_defaults, *node.body]
        case _:
            parts = ast.iter_child_nodes(node)
    yield node
    for part in parts:
        if part is not None:
            yield from mutated_parts(part)


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for part in mutated_parts(ast.parse(source)):
        for operator in OPERATORS:
            for node, after in operator(part):
                assert isinstance(node, (ast.expr, ast.stmt))
                assert node.end_lineno is not None
                assert node.end_col_offset is not None
                start = starts[node.lineno - 1] + node.col_offset
                end = starts[node.end_lineno - 1] + node.end_col_offset
                before = source.encode()[start:end].decode()
                name = operator.__name__
                yield Mutant(file, node.lineno, name, start, end, before, after)


def draw(root: Path, seed: int, count: int, only: list[str]) -> list[Mutant]:
    """Draw ``count`` mutants of the files, folders or lines that ``only`` names, or of all."""
    found: list[Mutant] = []
    for folder in PRODUCT:
        for path in sorted((root / folder).rglob("*.py")):
            file = str(path.relative_to(root))
            if only and not file.startswith(tuple(one.partition(":")[0] for one in only)):
                continue
            for mutant in mutants_of(file, path.read_text(encoding="utf-8")):
                line = f"{file}:{mutant.line}"
                if not only or any(file.startswith(one) or line == one for one in only):
                    found.append(mutant)
    print(f"{len(found):,} candidates", flush=True)
    return Random(seed).sample(found, min(count, len(found)))


@cache
def imported_files(root: Path, path: Path) -> set[Path]:
    """Return the files of the product and of `tests/support` that a file imports itself."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    places = (root / "src", root / "tests", root / "verification" / "programs")
    files = (
        base.joinpath(*name.split(".")).with_suffix(".py") for name in names for base in places
    )
    return {file.resolve() for file in files if file.is_file()}


def distances(root: Path, test: Path) -> dict[Path, int]:
    """Return how many imports lead from a test file to each file, at the least."""
    known = {test.resolve(): 0}
    waiting = deque([test.resolve()])
    while waiting:
        file = waiting.popleft()
        for found in imported_files(root, file) - known.keys():
            known[found] = known[file] + 1
            waiting.append(found)
    return known


def slowness(test: Path) -> int:
    """Return the imports that count as the cost of a test file: simulations and nodes are slow."""
    text = test.read_text(encoding="utf-8")
    marks = ("subprocess", "real_nodes", "paxos_nodes", "face:", "connect:", "local(")
    if "system" in test.parts or any(mark in text for mark in marks):
        return 2
    return int("simulation" in test.parts)


def text_of(test: Path) -> str:
    """Return the text of a test file, and of what it plays: `transcripts/` for `*_transcripts`."""
    played = sorted(test.parent.glob(f"{test.stem.rpartition('_')[2]}/*.txt"))
    return "\n".join(one.read_text(encoding="utf-8") for one in (test, *played))


def words(text: str) -> Counter[str]:
    """Count the words of a text and the parts of its names: `_on_lost` and `OnLost` have "lost"."""
    return Counter(word.lower() for word in re.findall(r"[A-Z]?[a-z]{2,}|[A-Z]{3,}", text))


def surroundings(source: str, line: int) -> str:
    """Return the function that has a line, with the names of its classes; outside of any, all."""
    first, last = 1, len(source)
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            if node.lineno <= line <= node.end_lineno:
                names.append(node.name)
                if not isinstance(node, ast.ClassDef):
                    first, last = node.lineno, node.end_lineno
                    break
    return "\n".join([*names, *source.splitlines()[first - 1 : last]])


class Selection:
    """The order in which test files judge a mutant: the most similar to the changed function first.

    A test names what it is about: requests, fields, limits, texts of errors and of log lines. So it
    shares rare words with the function that it shows, however many modules are between the two.
    The similarity is the cosine of two vectors with a weight for each word (tf-idf). Imports count
    too, since some functions have only words that are everywhere.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        tests = sorted((self.root / "tests").rglob("test_*.py"))
        counts = {test: words(text_of(test)) for test in tests}
        having = Counter(word for counted in counts.values() for word in counted)
        self.rarity = {word: math.log((len(tests) + 1) / having[word]) for word in having}
        self.vectors = {test: self.vector(counted) for test, counted in counts.items()}
        self.known = {test: distances(self.root, test) for test in tests}
        self.slowness = {test: slowness(test) for test in tests}

    def vector(self, counted: Counter[str]) -> dict[str, float]:
        """Return the weight of each word that tests have, as a vector of length 1."""
        found = {
            word: (1 + math.log(count)) * self.rarity[word]
            for word, count in counted.items()
            if word in self.rarity
        }
        length = math.hypot(*found.values()) or 1
        return {word: weight / length for word, weight in found.items()}

    def tests_of(self, file: str, line: int, most: int) -> list[Path]:
        target = self.root / file
        about = surroundings(target.read_text(encoding="utf-8"), line)
        wanted = self.vector(words(f"{file} {about}"))

        def rank(test: Path) -> float:
            vector = self.vectors[test]
            similarity = sum(weight * vector.get(word, 0) for word, weight in wanted.items())
            distance = self.known[test].get(target, math.inf)
            return -similarity * (1 + NEAR / distance) / (1 + SLOW * self.slowness[test])

        return sorted(self.vectors, key=rank)[:most]


def run(root: Path, tests: Sequence[Path | str], test_seconds: int) -> tuple[str, str]:
    """Run tests in a copy until one fails; return the verdict, and the test that decided."""
    command = [sys.executable, "-m", "pytest", "-v", "-x", "--tb=no", "-p", "no:cacheprovider"]
    command += ["-o", f"faulthandler_timeout={test_seconds}"]
    command += ["-o", "faulthandler_exit_on_timeout=true"]
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            [*command, *map(str, tests)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root / "src")},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=limit_memory,  # noqa: PLW1509  # This program has one thread.
        ) as child,
    ):
        try:
            status = child.wait(START_SECONDS + test_seconds * len(tests))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        output.seek(0)
        text = output.read().decode(errors="replace")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    if failed:
        return "killed", failed[0]
    if status == 0:
        return "survived", f"{len(tests)} files"
    if status is None or "Timeout (" in text:
        started = re.findall(r"^(\S+\.py::.*?) +(?:[A-Z]+ +\[|Timeout \(|$)", text, re.MULTILINE)
        return "hung", started[-1] if started else ""
    return "killed", f"status {status}: {text.strip().splitlines()[-1:]}"


def run_in_stages(root: Path, tests: Sequence[Path], test_seconds: int) -> tuple[str, str]:
    """Run the tests in stages until one fails; return the verdict, and what decided."""
    for start, end in pairwise((0, *(stage for stage in STAGES if stage < len(tests)), len(tests))):
        verdict, reason = run(root, tests[start:end], test_seconds)
        if verdict != "survived":
            return verdict, reason
    return "survived", f"{len(tests)} files"


def made_hang(root: Path, chosen: list[Path], hung: str, test_seconds: int) -> bool:
    """Return whether the mutant made the tests hang: without it, they end in time.

    ``hung`` is the test that hung with the mutant, or empty if that is not known.
    """
    return run(root, [hung] if hung else chosen, test_seconds)[0] != "hung"


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))


def in_one_line(text: str) -> str:
    return " ".join(text.split())[:150]


def copy_tree(to: Path) -> None:
    """Copy what the tests read, without environments and caches, as a repository of its own."""
    unneeded = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", "build")
    shutil.copytree(ROOT, to, symlinks=True, ignore=unneeded)


def judge(mutants: list[Mutant], first: int, files: int, test_seconds: int) -> Counter[str]:
    """Run the tests of each mutant from the number ``first`` on; print and count the verdicts."""
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve() / "fencelock"
        copy_tree(root)
        selection = Selection(root)
        for number, mutant in enumerate(mutants[first:], first):
            path = root / mutant.file
            source = path.read_text(encoding="utf-8")
            began = time.monotonic()
            chosen = selection.tests_of(mutant.file, mutant.line, files)
            path.write_text(mutant.apply(source), encoding="utf-8")
            verdict, reason = run_in_stages(root, chosen, test_seconds)
            path.write_text(source, encoding="utf-8")
            if verdict == "hung" and not made_hang(root, chosen, reason, test_seconds):
                verdict = "slow"
            print(f"{number:3} {verdict:8} {time.monotonic() - began:4.0f} s  {mutant}")
            print(f"      {reason.removeprefix('tests/')}", flush=True)
            verdicts[verdict] += 1
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="number of the first to run")
    parser.add_argument("--only", action="append", default=[], metavar="PATH[:LINE]")
    parser.add_argument("--files", type=int, default=30, help="test files for each mutant")
    parser.add_argument("--test-seconds", type=int, default=60, help="limit of one test")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    given = parser.parse_args()
    mutants = draw(ROOT, given.seed, given.mutants, given.only)
    if given.list:
        for number, mutant in enumerate(mutants):
            print(f"{number:3} {mutant}")
        return 0
    verdicts = judge(mutants, given.first, given.files, given.test_seconds)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
