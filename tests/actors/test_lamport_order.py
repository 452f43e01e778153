"""The total order, and the structures that judge it in O(log n)."""

from __future__ import annotations

import math
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from support.expect import present
from support.role_harness import T0

from fencelock.actors.clock import STAMP_MAX
from fencelock.actors.lamport.order import (
    LAMPORT_NODES_MAX,
    SLACK,
    Evidence,
    LocalTicket,
    PendingRequests,
    Queue,
    QueuePlace,
    Rejoin,
    pack_fence,
)

stamps = st.integers(1, STAMP_MAX)
ranks = st.integers(0, LAMPORT_NODES_MAX - 1)


@given(stamps, ranks, stamps, ranks)
def test_fences_are_ordered_as_turns_and_fit_63_bits(a: int, x: int, b: int, y: int) -> None:
    assert (pack_fence(a, x) < pack_fence(b, y)) == ((a, x) < (b, y))
    assert 0 < pack_fence(a, x) < 1 << 63


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 9))))
def test_the_first_of_a_queue_is_the_least_not_removed(steps: list[tuple[str, int]]) -> None:
    queue, model = Queue(), dict[str, int]()
    for node, stamp in steps:
        if node in model:
            del model[node]
            queue.remove(node)
        else:
            model[node] = stamp
            queue.add(QueuePlace(stamp, node))
        places = sorted(QueuePlace(stamp, node) for node, stamp in model.items())
        assert queue.places == places
        assert queue.first() == (places[0] if places else None)
        assert len(queue) == len(places)


def test_evidence_is_the_last_stamp_of_each_process_and_no_request_loses_it() -> None:
    """The essay's `remove` drops the senders of acknowledgements; here nothing can."""
    evidence = Evidence(["b", "c"])
    evidence.note("b", 8)
    assert not evidence.covers(QueuePlace(7, "a"))
    assert evidence.missing(QueuePlace(7, "a")) == ("c",)

    evidence.note("c", 9)
    assert evidence.covers(QueuePlace(7, "a"))
    assert evidence.missing(QueuePlace(7, "a")) == ()
    assert not evidence.covers(QueuePlace(9, "a"))


def test_evidence_at_the_same_stamp_counts_if_its_node_comes_later() -> None:
    evidence = Evidence(["b"])
    evidence.note("b", 7)

    assert evidence.covers(QueuePlace(7, "a"))
    assert not evidence.covers(QueuePlace(7, "c"))


def test_everything_is_covered_in_a_group_of_one() -> None:
    assert Evidence([]).covers(QueuePlace(STAMP_MAX, "a"))


@given(st.lists(st.tuples(st.sampled_from("bcde"), st.integers(0, 5)), max_size=60))
def test_evidence_agrees_with_a_search_through_all_processes(steps: list[tuple[str, int]]) -> None:
    evidence, model = Evidence("bcde"), dict.fromkeys("bcde", 0)
    for node, rise in steps:
        model[node] = model[node] + rise if rise else 0
        if rise:
            evidence.note(node, model[node])
        else:
            evidence.forget(node)
        for stamp in range(max(model.values()) + 2):
            dumb = all(
                QueuePlace(received, other) > (stamp, "a") for other, received in model.items()
            )
            assert evidence.covers(QueuePlace(stamp, "a")) == dumb
        assert len(evidence.heap) == len(model)


class CountedTurn(QueuePlace):
    """Counts comparisons, to show the cost of a message."""

    compared = 0

    def __lt__(self, other: object) -> bool:
        CountedTurn.compared += 1
        return tuple(self) < other  # type: ignore[operator]


def test_a_message_costs_log_n_comparisons_and_not_queue_times_processes() -> None:
    """The essay's check is O(N M), "the number of processes" times "of messages"."""
    requests, messages = 4_000, 4_000
    queue, random = Queue(), Random(1)
    order = list(range(1, requests + 1))
    random.shuffle(order)
    for stamp in order:
        queue.add(CountedTurn(stamp, f"n{stamp}"))
    CountedTurn.compared = 0
    for stamp in range(requests + 1, requests + messages + 1):
        queue.add(CountedTurn(stamp, f"n{stamp}"))
        first = present(queue.first())
        queue.remove(first.node)

    assert 0 < CountedTurn.compared <= 3 * messages * math.log2(requests)


class Requested(PendingRequests):
    """The pending requests of node a, which knows node b."""

    def __init__(self, **stamps: int) -> None:
        super().__init__()
        self.evidence = Evidence(["b"])
        for lock, stamp in stamps.items():
            self.request(lock, stamp)

    def request(self, lock: str, stamp: int) -> None:
        self.queue(lock, LocalTicket(1, "s", "o", T0))
        self.enter(lock)
        assert self.begin() == lock
        self.stamped(lock, QueuePlace(stamp, "a"))

    def received(self, stamp: int) -> list[str]:
        """Note a message of b with that stamp; return the locks whose requests it covers."""
        self.evidence.note("b", stamp)
        return self.covered(self.evidence)


def test_a_request_is_reported_once_when_its_evidence_is_complete() -> None:
    pending = Requested(x=5, y=3, z=9)

    assert pending.received(6) == ["y", "x"]
    assert pending.received(7) == []


def test_a_request_given_up_is_not_reported_and_its_entry_does_not_stay() -> None:
    pending = Requested()
    for stamp in range(1, 1_000):
        pending.request("x", stamp)
        pending.end("x")
    assert len(pending.uncovered) <= SLACK

    pending.request("x", 3_000)
    assert pending.received(2_000) == []
    assert pending.received(3_001) == ["x"]


def test_lost_evidence_lets_all_be_reported_again() -> None:
    pending = Requested(x=5)
    assert pending.received(6) == ["x"]

    pending.evidence.forget("b")
    pending.renew()
    assert pending.covered(pending.evidence) == []
    assert pending.received(7) == ["x"]


def test_ready_is_who_was_welcomed_by_all_in_a_round_begun_after_meeting_all() -> None:
    joining = Rejoin(["b", "c"])
    assert joining.missing() == ("b", "c")
    assert joining.meet("b", 1) == ("b",)
    joining.welcome("b", joining.round)
    assert joining.missing() == ("c",)

    assert joining.meet("c", 1) == ("b", "c")
    joining.welcome("c", joining.round)
    assert not joining.ready  # b's message may be older than a grant of c's former life.
    assert joining.missing() == ("b",)
    joining.welcome("b", joining.round)
    assert joining.ready
    assert joining.missing() == ()


def test_a_new_life_of_another_begins_a_new_round() -> None:
    joining = Rejoin(["b", "c"])
    joining.meet("b", 1)
    joining.meet("c", 1)
    early = joining.round
    joining.welcome("b", early)
    assert joining.meet("c", 2) == ("b", "c")
    joining.welcome("c", joining.round)
    joining.welcome("b", early)

    assert not joining.ready


def test_a_ready_process_stays_ready_and_sends_no_greeting() -> None:
    joining = Rejoin(["b"])
    joining.meet("b", 1)
    joining.welcome("b", joining.round)

    assert joining.meet("b", 2) == ()
    assert joining.ready


def test_a_process_that_does_not_know_the_others_is_not_ready_and_one_without_others_is() -> None:
    assert not Rejoin(None).ready
    assert Rejoin([]).ready
