"""The rules of the table as sentences, and the page that lists the tests which name each.

A test names its rules at the beginning of its docstring: ``Rules one-holder, fences-rise: ...``. A
case of a transcript (`transcript.py`) names them so in its first line.
``PYTHONPATH=tests python tests/support/table_rules.py --rewrite`` writes the list of
``actors/table/rules.md`` anew.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from support.paths import ROOT, TESTS
from support.transcript import FOLDER, cases_of

PAGE = ROOT / "actors" / "table" / "rules.md"
BEGIN = "<!-- Written by tests/support/table_rules.py, and compared by a test. -->\n"
END = "<!-- End of what is written. -->\n"

RULES = {
    # Locks.
    "one-holder": "A lock has one holder at a time: an owner of a session, not the session.",
    "free-is-granted-at-once": "A free lock is granted at once, whatever the acquire would wait.",
    "holder-enters-again": "A holder that acquires again holds it once more, under the same fence.",
    "holds-are-limited": "An owner holds a lock at most as often as its acquire allows, or fails "
    "at once: it would wait for itself.",
    "fences-rise": "Each new ownership has a greater fence than all before it, of any lock, also "
    "after the lock was free or the table was restored. A fence is drawn at the grant; none is 0. "
    "A hold with a span takes all of its fences, so the next grant is above these.",
    "release-grants-the-next": "A release frees the lock and grants it to the first waiter in the "
    "same step.",
    "releases-are-counted": "A lock is free after as many releases as acquires; each release "
    "reports how many are left.",
    "only-holders-release": "Only the holder releases, and only under its fence: the first of a "
    "span.",
    "waits-recall": "A hold with a span is recalled when the first claim begins to wait for its "
    "object, when it is granted while others wait, and with each keep-alive of its session as long "
    "as it lasts and others wait.",
    "queue-in-log-order": "Waiters are granted in the order in which the log has their acquires.",
    "tries-never-wait": "A try at a held lock fails at once and leaves nothing behind. Where only "
    "retained holds are in its way, it waits 200 ms for them to come back.",
    "waits-end-by-log-time": "A wait ends by log time, at its timeout and not before, and leaves "
    "no deadline. Without a timeout it never ends by time.",
    "log-time-alone": "Nothing ends but by log time, in the same order on every member.",
    "status-is-complete": "Status shows the holder and the waiters in order.",
    "free-leaves-nothing": "A free lock leaves no state, and its fences rise all the same.",
    # Requests.
    "one-outcome": "A request has one outcome, however often it is sent: a grant, a failure, a "
    "release. While it waits, a repetition neither cancels nor doubles it.",
    "new-request-ends-the-wait": "A new request of an owner about a lock ends its wait there.",
    "outcomes-are-kept": "The last outcome of an owner at a lock is kept while it holds or waits, "
    "and for one TTL after.",
    "outcomes-are-bounded": "One outcome is kept of an owner and a lock. Beyond a bound the "
    "quietest are forgotten, and their requests have no effect any more.",
    # Sessions.
    "sessions-are-found-again": "A repeated open finds the session, until it is closed.",
    "numbers-never-return": "Numbers of sessions rise, and the id of an ended one never returns.",
    "requests-keep-alive": "Every request keeps its session alive. Without one it ends after its "
    "TTL, and not before.",
    "leaders-extend-sessions": "A new leader gives every session at least one more TTL.",
    "close-ends-waits-first": "A session and its waits end in one step; then its holds end, "
    "a hundred at a time, each with the grants that follow.",
    # Redis doors.
    "value-proves": "A hold through a Redis door ends or changes only by a request that expects "
    "its value or accepts any, by force, by its deadline, or by an operator.",
    "counts-exact": "A key with counted holds ends with as many removals as there were additions. "
    "A removal that is repeated with its receipt changes nothing.",
    "same-hold": "A SET with the value that holds a key, or for which it is reserved, keeps the "
    "fence. Any other SET makes a new hold, under a new fence.",
    "keys-outlive-sessions": "A hold through a Redis door ends with no session, not even with that "
    "of the door, and no client acts in its session.",
    "deadlines-are-exact": "A key ends when its time has passed in log time, and not before. Its "
    "deadline can become later or earlier.",
    "keys-change-together": "The keys of one request are changed in one step: all or none, unless "
    "the request is for each of them.",
    "force-is-audited": "A key that is taken by force goes to the request at once, before those "
    "who wait; the audit has the former holder.",
    # Detached locks.
    "nobody-between": "From the hold that a client detaches to the one that attaches it, no claim "
    "in the queue is granted the lock; if no client attaches it in time, the next one is.",
    "attached-once": "A secret attaches one hold at most, and only of the lock that was detached "
    "with its digest.",
    # The table.
    "snapshots-are-complete": "A restored table is the table: holders, queues, deadlines, "
    "sessions, outcomes, fences and numbers.",
    "equals-the-model": "The table does what a simple model does, over random logs.",
}


def named_rules(docstring: str) -> list[str]:
    """Return the rules that a docstring begins with."""
    match = re.match(r"Rules? ([a-z-]+(?:, [a-z-]+)*)[.:]", " ".join(docstring.split()))
    return match[1].split(", ") if match else []


def rules_and_tests() -> dict[str, list[str]]:
    """Return the tests that name each rule, in order of their files."""
    found: dict[str, list[str]] = {rule: [] for rule in RULES}
    for name, docstring in _docstrings():
        for rule in named_rules(docstring):
            found.setdefault(rule, []).append(name)
    return found


def _docstrings() -> Iterator[tuple[str, str]]:
    for path in sorted(TESTS.rglob("test_table_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                yield node.name, ast.get_docstring(node) or ""
    for path in sorted(FOLDER.glob("table-*.txt")):
        for case in cases_of(path):
            yield f"{path.stem}: {case.title}", next(iter(case.lines), "")


def written() -> str:
    """Return the list of rules as the page has it."""
    lines = [BEGIN]
    for rule, tests in rules_and_tests().items():
        lines.append(f"\n**{rule}.** {RULES.get(rule, '')}\n\n")
        lines += [f"- `{test}`\n" for test in tests]
    return "".join([*lines, "\n", END])


def page() -> str:
    """Return the whole page, with the list written anew."""
    kept = PAGE.read_text(encoding="utf-8")
    return kept[: kept.index(BEGIN)] + written() + kept[kept.index(END) + len(END) :]


if __name__ == "__main__":
    if sys.argv[1:] != ["--rewrite"]:
        sys.exit(f"usage: PYTHONPATH=tests python {sys.argv[0]} --rewrite   (write {PAGE.name})")
    PAGE.write_text(page(), encoding="utf-8")
