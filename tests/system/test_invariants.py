"""Each invariant has a judge and a planted bug; each rule of the table has tests."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from support.paths import ROOT, TESTS
from support.table_rules import PAGE, RULES, page, rules_and_tests

from fencelock.actors.bakery import invariants as bakery
from fencelock.actors.paxos import invariants as paxos
from fencelock.verification.simulation.replay import RULES as TABLE_RULES

PROTOCOLS = {"paxos": paxos.INVARIANTS, "bakery": bakery.INVARIANTS}
REPORTED = re.compile(r'violation_report\(\s*"([a-z-]+)"')
NAME = re.compile(r"\b[a-z]+(?:-[a-z]+)+\b")


@pytest.mark.parametrize(("protocol", "invariants"), PROTOCOLS.items())
def test_judges_report_each_invariant_and_no_other(
    protocol: str, invariants: Mapping[str, str]
) -> None:
    files = sorted((ROOT / "verification" / "simulation").glob(f"{protocol}_*.py"))
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    assert set(REPORTED.findall(text)) - set(invariants) == set()
    assert set(invariants) - set(NAME.findall(text)) == set()


@pytest.mark.parametrize(("protocol", "invariants"), PROTOCOLS.items())
def test_a_planted_bug_breaks_each_invariant(protocol: str, invariants: Mapping[str, str]) -> None:
    files = [*TESTS.rglob(f"test_{protocol}*.py"), *TESTS.rglob("test_host_mutants.py")]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    assert set(invariants) - set(NAME.findall(text)) == set()


def test_a_planted_bug_breaks_each_rule_of_the_table() -> None:
    files = (TESTS / "simulation").glob("test_*.py")
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    others = "outcome"  # Any difference that breaks none of the other rules.
    assert [rule for rule in TABLE_RULES if f'"{rule}' not in text] == [others]


def test_no_comment_cites_a_number_that_needs_a_legend() -> None:
    label = re.compile(r"(?:# |\()[BCHIMPS]\d{1,2}\b(?!-)")
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for folder in ("paxos", "bakery", "lamport", "central", "session")
        for file in sorted((ROOT / "actors" / folder).glob("*.py"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if label.search(line)
    ]
    assert found == []


def test_every_rule_has_a_test_and_every_named_rule_exists() -> None:
    found = rules_and_tests()
    assert [rule for rule, tests in found.items() if not tests] == []
    assert set(found) - set(RULES) == set()


def test_the_page_lists_the_tests_that_there_are() -> None:
    command = "PYTHONPATH=tests python tests/support/table_rules.py --rewrite"
    assert page() == PAGE.read_text(encoding="utf-8"), f"write it anew: {command}"
