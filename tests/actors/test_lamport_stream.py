"""Streams: numbered, confirmed, within a window; delivered once and in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fencelock.actors.lamport.reliable_channel import WINDOW, ArrivalResult, Incoming, Outgoing


def test_a_stream_sends_no_more_than_its_window_before_it_is_confirmed() -> None:
    outgoing = Outgoing[int]()
    for number in range(WINDOW + 10):
        outgoing.push(number)

    assert [number for number, _ in outgoing.fresh()] == list(range(WINDOW))
    assert outgoing.fresh() == []
    assert outgoing.confirm(4)
    assert outgoing.fresh() == [(n, n) for n in range(WINDOW, WINDOW + 4)]
    assert outgoing.unconfirmed() == [(n, n) for n in range(4, WINDOW + 4)]


def test_a_confirmation_of_what_was_never_sent_changes_nothing() -> None:
    outgoing = Outgoing[int]()
    outgoing.push(0)
    outgoing.fresh()
    outgoing.push(1)

    assert not outgoing.confirm(2)
    assert not outgoing.confirm(-1)
    assert outgoing.confirm(1)
    assert outgoing.confirm(0)  # An old one, late.
    assert outgoing.fresh() == [(1, 1)]


@given(st.permutations(range(12)), st.lists(st.integers(0, 11)))
def test_what_arrives_in_any_order_and_twice_is_delivered_once_in_order(
    order: list[int], repeats: list[int]
) -> None:
    incoming, got = Incoming[int](), list[int]()
    for number in [*order, *repeats]:
        got += incoming.accept(number, number)[1]
        assert got == list(range(len(got)))

    assert got == list(range(12))
    assert incoming.early == {}


def test_what_is_too_early_to_be_held_back_is_dropped() -> None:
    incoming = Incoming[int]()

    assert incoming.accept(WINDOW, 0) == (ArrivalResult.BEYOND, [])
    assert incoming.accept(WINDOW - 1, 0) == (ArrivalResult.EARLY, [])
    assert incoming.accept(WINDOW - 1, 0) == (ArrivalResult.REPEATED, [])
    assert list(incoming.early) == [WINDOW - 1]
