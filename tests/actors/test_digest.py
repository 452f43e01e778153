"""Digests of the table are equal for equal tables, and a majority of members decides."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.table_comparison import LogComposer, steps_of
from support.table_model import Model

from fencelock.actors.api.message import Acquire, Cancel, Release
from fencelock.actors.api.session_message import Evict, Open
from fencelock.actors.message import address_of
from fencelock.actors.paxos.config import LogConfig, View
from fencelock.actors.paxos.divergence import Digests, Verdict
from fencelock.actors.paxos.machine import Fingerprint, state_of
from fencelock.actors.paxos.message import SCHEME, Figure, TableDigest
from fencelock.actors.table.table import LockTable
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.transport.codec import encode

LISTENER = address_of("a", "proxy")
MEMBERS = ("a", "b", "c")
CONFIG = LogConfig(View(0, MEMBERS))


@pytest.mark.parametrize("seed", range(15))
def test_a_restored_table_has_the_digest_of_the_one_that_grew(seed: int) -> None:
    """The digest that is updated at every change equals the digest of a restored snapshot."""
    table, model, writer = LockTable(), Model(), LogComposer()
    for name in "ab":
        opening = Open(session=name, ttl_ms=5_000)
        table.apply(0, opening)
        model.apply(0, opening)
    for step in steps_of(seed):
        at = table.time_ms + (0, 0, 0, 1, 5, 40, 100, 200)[step[1] % 8]
        command = writer.command(step, model)
        table.apply(at, command)
        model.apply(at, command)
        assert LockTable.restore(table.snapshot()).numbers() == table.numbers()
    table.advance(table.time_ms + 10_000)
    assert (table.holds_checksum, table.waits_checksum, table.sessions.marks) == (0, 0, 0)


ABOUT: dict[str, Any] = {"session": "s.1", "owner": "o"}


def machine_after(*commands: Any) -> LockMachine:
    machine = LockMachine()
    opening = Open(session="s", ttl_ms=50_000)
    machine.apply(1, [encode(one) for one in (opening, *commands)])
    return machine


DIFFERENT = {
    "another lock": Acquire(**ABOUT, request=2, lock="M"),
    "another owner": Acquire(session="s.1", owner="p", request=2, lock="M", limit=0),
    "a wait": Acquire(session="s.1", owner="p", request=2, lock="L", limit=0),
    "a wait that ends": Acquire(session="s.1", owner="p", request=2, lock="L", wait_ms=10, limit=0),
    "once more": Acquire(**ABOUT, request=2, lock="L"),
    "a refusal": Acquire(session="s.1", owner="p", request=2, lock="L", wait_ms=0, limit=0),
    "a release": Release(**ABOUT, request=2, lock="L", fence=1),
    "a release that is denied": Release(**ABOUT, request=2, lock="L", fence=9),
    "a cancel": Cancel(**ABOUT, request=2, lock="L"),
    "an eviction": Evict(operator="op", request=1, lock="L", fence=1),
    "a session": Open(session="t", ttl_ms=50_000),
    "a session of another length": Open(session="t", ttl_ms=60_000),
    "an invalid name": Acquire(**ABOUT, request=2, lock="\x85"),
    "nothing": None,
}


def test_every_decision_changes_the_digest() -> None:
    held = Acquire(**ABOUT, request=1, lock="L")
    seen: dict[tuple[int, int], str] = {}
    for name, command in DIFFERENT.items():
        commands = (held,) if command is None else (held, command)
        state, decided, _ = machine_after(*commands).fingerprint()
        assert (state, decided) not in seen, (name, seen.get((state, decided)))
        seen[state, decided] = name


def fingerprint(state: int, decided: int = 0) -> Fingerprint:
    return Fingerprint(state, decided, (Figure("fence", state),))


def digest(slot: int, state: int, decided: int | None = 0, **more: Any) -> TableDigest:
    fields: dict[str, Any] = {"scheme": SCHEME, "asks": False} | more
    return TableDigest(
        slot=slot, state=state, decided=decided, counters=(Figure("fence", state),), **fields
    )


def digests_of(state: int, members: tuple[str, ...] = MEMBERS, decided: int = 0) -> Digests:
    made = Digests("a", LogConfig(View(0, tuple(members))), every=10)
    made.begin(fingerprint(0))
    made.note(10, fingerprint(state, decided))
    return made


VERDICTS: list[tuple[tuple[str, ...], dict[str, tuple[int, int | None]], Verdict]] = [
    (MEMBERS, {}, Verdict.AGREED),
    (MEMBERS, {"b": (1, 0), "c": (1, 0)}, Verdict.AGREED),
    (MEMBERS, {"b": (2, 0)}, Verdict.UNDECIDED),
    (MEMBERS, {"b": (2, 0), "c": (1, 0)}, Verdict.OTHERS_DIFFER),
    (MEMBERS, {"b": (2, 0), "c": (3, 0)}, Verdict.UNDECIDED),
    (MEMBERS, {"b": (2, 0), "c": (2, 0)}, Verdict.DIVERGED),
    (MEMBERS, {"b": (1, 5), "c": (1, 5)}, Verdict.DIVERGED),
    (MEMBERS, {"b": (1, None), "c": (1, 5)}, Verdict.OTHERS_DIFFER),
    (MEMBERS, {"b": (1, None), "c": (1, None)}, Verdict.AGREED),
    (("a", "b"), {"b": (2, 0)}, Verdict.UNDECIDED),
    (tuple("abcd"), {"b": (2, 0), "c": (2, 0)}, Verdict.UNDECIDED),
    (tuple("abcde"), {"b": (2, 0), "c": (2, 0)}, Verdict.UNDECIDED),
    (tuple("abcde"), {"b": (2, 0), "c": (2, 0), "d": (2, 0)}, Verdict.DIVERGED),
]


@pytest.mark.parametrize(("members", "heard", "verdict"), VERDICTS)
def test_only_a_majority_is_right(
    members: tuple[str, ...], heard: dict[str, tuple[int, int | None]], verdict: Verdict
) -> None:
    made = digests_of(1, members)
    for member, (state, decided) in heard.items():
        assert made.receive(member, digest(10, state, decided), 11)
    found = made.compare(10)
    assert found is not None
    assert found.verdict is verdict


def test_what_was_decided_counts_from_one_agreed_slot_to_the_next() -> None:
    grown, restored = Digests("a", CONFIG, every=10), Digests("b", CONFIG, every=10)
    grown.begin(fingerprint(0, 100))
    restored.begin(None)
    for made, base in ((grown, 100), (restored, 0)):
        made.note(10, fingerprint(1, base + 5))
        made.note(20, fingerprint(1, base + 12))
    assert [grown.own[slot].decided for slot in (10, 20)] == [5, 7]
    assert [restored.own[slot].decided for slot in (10, 20)] == [None, 7]


@pytest.mark.parametrize(
    "bad",
    [
        digest(15, 1, scheme=SCHEME + 1),
        digest(0, 1),
        digest(-10, 1),
        digest(10, 1),  # Long forgotten here.
        replace(digest(20, 1), counters=(Figure("\x1b[2J", 1),)),
        replace(digest(20, 1), counters=(Figure("f" * 33, 1),)),
        replace(digest(20, 1), counters=(Figure("fence", 1),) * 17),
    ],
)
def test_a_digest_that_is_of_no_use_is_not_kept(bad: TableDigest) -> None:
    made = Digests("a", CONFIG, every=10)
    made.begin(fingerprint(0))
    assert not made.receive("b", bad, 11)
    assert made.received == {}


def test_what_others_send_fills_no_memory() -> None:
    made = Digests("a", CONFIG, every=10)
    made.begin(fingerprint(0))
    for slot in range(10, 10_000, 10):
        made.receive("b", digest(slot, 1), 1)
    assert len(made.received) <= 32


def test_the_digest_of_numbers_is_a_standard_one() -> None:
    assert state_of((1, 2, 3)) == state_of([1, 2, 3]) != state_of((1, 23))
    assert 0 <= state_of((1 << 80,)) < 1 << 63
