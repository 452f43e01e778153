"""`actors/table/rules.md` lists the rules of the table, each with tests that name it."""

from __future__ import annotations

from support.table_rules import PAGE, RULES, page, rules_and_tests


def test_every_rule_has_a_test_and_every_named_rule_exists() -> None:
    found = rules_and_tests()
    assert [rule for rule, tests in found.items() if not tests] == []
    assert set(found) - set(RULES) == set()


def test_the_page_lists_the_tests_that_there_are() -> None:
    command = "PYTHONPATH=tests python tests/support/table_rules.py --rewrite"
    assert page() == PAGE.read_text(encoding="utf-8"), f"write it anew: {command}"
