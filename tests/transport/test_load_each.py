"""Commands of the log are read many at a time, with the result of reading them one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelock.actors.api.message import Acquire, Granted
from fencelock.actors.api.session_message import Open
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.transport.cbor import DEPTH_MAX, MalformedFrameError, dump, load, load_each
from fencelock.transport.codec import encode

MARK = b"fencelock-command"


def one_by_one(items: Sequence[bytes]) -> list[object] | None:
    """Return what `load` makes of each, None if it refuses one."""
    try:
        return [load(item) for item in items]
    except MalformedFrameError:
        return None


def test_what_is_read_at_a_time_is_what_is_read_one_by_one() -> None:
    items = [dump([1, "a", None]), dump(b"x" * 300), dump([[]]), dump(7)]
    assert load_each(items) == [load(item) for item in items]
    assert load_each([]) == []


@pytest.mark.parametrize(
    "items",
    [
        [b"\x82\x01", b"\x02"],  # The first takes the bytes after it as its own.
        [b"\x01\x01", b"\x02"],  # The first is two.
        [b"", b"\x01\x02"],
        [b"\x42", b"", dump(1)],
        [b"\x58\x11", dump(1)],  # A text as long as the mark with its head.
        [b"\x51", dump(1)],
        [b"\x01\x58", dump(1)],  # A longer head for the mark.
        [dump(1) + dump(MARK), dump(2)],
        [dump(MARK), dump(1)],
        [dump([1, MARK])],
        [b"\x9f\x01\xff"],
        [b"\xc1\x01", dump(1)],
        [b"\xff"],
    ],
)
def test_items_that_run_into_one_another_are_not_read_at_a_time(items: list[bytes]) -> None:
    assert load_each(items) is None


def test_items_as_deep_as_may_be_are_left_to_be_read_one_by_one() -> None:
    deep = b"\x81" * (DEPTH_MAX - 1) + b"\x01"
    assert load_each([deep]) in (None, [load(deep)])


PIECES = st.sampled_from(
    [b"\x81", b"\x82", b"\x01", b"\x42", b"\x51", b"\x58\x10", b"\x50", b"a", MARK, dump("b"), b""]
)


@given(st.lists(st.lists(PIECES, max_size=4).map(b"".join), max_size=4))
def test_bytes_of_a_peer_are_never_read_otherwise_than_one_by_one(items: list[bytes]) -> None:
    together = load_each(items)
    assert together is None or together == one_by_one(items)


def test_a_machine_applies_commands_together_as_one_by_one() -> None:
    opening = encode(Open(session="me", ttl_ms=5_000))
    acquires = [
        encode(Acquire(session="me.1", owner="o", request=n, lock=f"l{n}", limit=0)) for n in (1, 2)
    ]
    strange = encode(Granted(lock="l1", fence=1))
    for batch in ([opening, *acquires], [opening, b"\x82", acquires[0]], [opening, strange]):
        together, single, knowing = LockMachine(), LockMachine(), LockMachine()
        told = together.apply(5, batch)
        assert told == [single.apply(5, [command])[0] for command in batch]
        assert [knowing.admits(command) for command in batch[1:]] == [
            together.admits(c) for c in batch[1:]
        ]
        assert told == knowing.apply(5, batch)
        assert together.digest() == single.digest() == knowing.digest()
