"""`scenarios.md` lists every scenario of the design page once, with tests that there are."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from support.paths import TESTS

ROW = re.compile(r"\| (?P<numbers>M?[0-9][^|]*) \| (?P<what>[^|]+) \| (?P<tests>[^|]*)\|")
NUMBER = re.compile(r"(M?)([0-9]+)(?:-([0-9]+))?")
TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
CLAIM = re.compile(r"(?:Scenarios? )?((?:M?[0-9]+(?:, | and | \(!\))*)+)")
EVERY = {*(str(number) for number in range(1, 112)), *(f"M{number}" for number in range(1, 21))}


def rows() -> list[re.Match[str]]:
    lines = (TESTS / "scenarios.md").read_text(encoding="utf-8").splitlines()
    return [row for line in lines if (row := ROW.fullmatch(line)) is not None]


def numbers_of(text: str) -> Iterator[str]:
    for kind, first, last in NUMBER.findall(text):
        yield from (f"{kind}{number}" for number in range(int(first), int(last or first) + 1))


def functions_of(file: str) -> dict[str, str]:
    """Return the tests of a file, with their docstrings."""
    tree = ast.parse(next(TESTS.rglob(file)).read_text(encoding="utf-8"))
    return {
        node.name: ast.get_docstring(node) or ""
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


def test_every_scenario_is_listed_once() -> None:
    listed = Counter(number for row in rows() for number in numbers_of(row["numbers"]))
    assert set(listed) == EVERY
    assert [number for number, times in listed.items() if times > 1] == []


def test_each_has_a_test_that_exists_or_says_why_it_is_left_out() -> None:
    known: dict[str, dict[str, str]] = {}
    wrong: list[str] = []
    for row in rows():
        named = TEST.findall(row["tests"])
        if not named and not row["what"].startswith("left out: "):
            wrong.append(f"{row['numbers']}: neither a test nor a reason")
        if row["tests"].count("`") != 2 * len(named):
            wrong.append(f"{row['numbers']}: {row['tests']} names something else")
        for file, test in named:
            if file not in known:
                known[file] = functions_of(file) if any(TESTS.rglob(file)) else {}
            if test not in known[file]:
                wrong.append(f"{row['numbers']}: {file} has no {test}")
    assert wrong == []


def test_a_test_that_says_its_numbers_is_listed_under_them() -> None:
    """In the docstring of a test: ``Scenarios 3 and 7 (!): ...``."""
    listed = {
        (test, number)
        for row in rows()
        for _, test in TEST.findall(row["tests"])
        for number in numbers_of(row["numbers"])
    }
    unlisted: list[str] = []
    for file in sorted(TESTS.rglob("test_bakery_*.py")):
        for test, said in functions_of(file.name).items():
            claim = CLAIM.match(said)
            numbers = () if claim is None else tuple(numbers_of(claim[1]))
            unlisted += [f"{n}: {file.name}::{test}" for n in numbers if (test, n) not in listed]
    assert unlisted == []
