"""Every rule of `rules.md` has its row, and every test that a row names exists and says so."""

from __future__ import annotations

import ast
import re

from support.paths import TESTS

RULES = 107


def rows() -> dict[int, tuple[list[str], str]]:
    """Return of each rule the tests and the reason that its row gives."""
    found: dict[int, tuple[list[str], str]] = {}
    for line in (TESTS / "rules.md").read_text(encoding="utf-8").splitlines():
        match = re.fullmatch(r"\| (\d+) \| [^|]+ \| ([^|]*)\| ([^|]*)\|", line)
        if match is not None:
            assert int(match[1]) not in found
            found[int(match[1])] = (re.findall(r"`(test_\w+)`", match[2]), match[3].strip())
    return found


def docstrings(names: str) -> dict[str, str]:
    """Return the docstring of each test function in the files of these names."""
    return {
        node.name: ast.get_docstring(node) or ""
        for path in sorted(TESTS.rglob(names))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def rules_in(docstring: str) -> set[int]:
    """Return the rules that a docstring begins with: ``Rules 1, 20 to 25, 41:``."""
    match = re.match(r"Rules? ([0-9, andto]+)", docstring)
    named: set[int] = set()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", match[1] if match else ""):
        named.update(range(int(first), int(last or first) + 1))
    return named


def test_every_rule_has_a_row_with_a_test_or_a_reason() -> None:
    found = rows()
    assert sorted(found) == list(range(1, RULES + 1))
    assert [rule for rule, (tests, reason) in found.items() if not tests and not reason] == []


def test_every_test_that_a_row_names_exists() -> None:
    there = docstrings("test_*.py")
    named = {(rule, test) for rule, (tests, _) in rows().items() for test in tests}
    assert sorted(one for one in named if one[1] not in there) == []


def test_the_tests_of_the_table_and_the_rows_name_each_other() -> None:
    said = docstrings("test_table_*.py")
    by_rows = {(rule, test) for rule, (tests, _) in rows().items() for test in tests}
    by_tests = {(rule, test) for test, docstring in said.items() for rule in rules_in(docstring)}
    assert by_tests == {one for one in by_rows if one[1] in said}
