"""Cyclic barriers in the replicated table: generations, repetitions, ends, snapshots."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import only
from support.table_scene import applied, restored, said, text_of

from fencelock.actors.api.barrier import BARRIER, PARTIES_MAX, AwaitBarrier, BarrierPassed
from fencelock.actors.api.message import Cancel, Reason, Refused
from fencelock.actors.api.name import object_name
from fencelock.actors.api.session_message import End
from fencelock.actors.table.table import LockTable

LOCK = object_name(BARRIER, "B")
A, B, C = "s.1", "t.2", "u.3"


def arrive(session: str = A, request: int = 1, **fields: Any) -> AwaitBarrier:
    made = AwaitBarrier(barrier="B", parties=3, session=session, owner="o", request=request)
    return replace(made, **fields)


def passed(table: LockTable, command: AwaitBarrier) -> list[tuple[str, int, int]]:
    """Return the owners that pass, each with its index and generation."""
    told = table.apply(table.time_ms, command)
    return [
        (one.session, one.index, one.generation) for one in told if isinstance(one, BarrierPassed)
    ]


def test_all_pass_when_the_last_one_has_arrived_and_the_next_generation_begins(
    table: LockTable,
) -> None:
    generations: list[int] = []
    for request in (1, 2):
        assert applied(table, arrive(B, request)) == ["t.2 waits"]
        assert applied(table, arrive(A, request)) == ["s.1 waits"]
        told = passed(table, arrive(C, request))
        assert [one[:2] for one in told] == [(B, 0), (A, 1), (C, 2)]
        (generation,) = {one[2] for one in told}
        generations.append(generation)
        assert (table.objects, table.claims, table.marked, table.waits_checksum) == ({}, 0, 0, 0)
    assert generations[0] < generations[1]


def test_an_arrival_that_is_sent_again_is_no_other_party(table: LockTable) -> None:
    applied(table, arrive(A))
    assert applied(table, arrive(A)) == ["s.1 waits"]
    assert applied(table, arrive(B)) == ["t.2 waits"]
    first = passed(table, arrive(C))
    assert passed(table, arrive(A)) == [first[0]]
    assert passed(table, arrive(C)) == [first[2]]
    assert table.objects == {}


def test_a_lone_party_passes_at_once(table: LockTable) -> None:
    first = passed(table, arrive(A, parties=1, wait_ms=0))
    second = passed(table, arrive(A, 2, parties=1))
    assert (first[0][:2], second[0][:2]) == ((A, 0), (A, 0))
    assert first[0][2] < second[0][2]


def two_wait(table: LockTable) -> None:
    applied(table, arrive(A, wait_ms=50))
    applied(table, arrive(B))


def test_a_party_whose_time_runs_out_breaks_the_generation(table: LockTable) -> None:
    two_wait(table)
    late, other = table.advance(50)
    assert [said(late), said(other)] == ["s.1 TIMED_OUT", "t.2 BROKEN"]
    assert isinstance(late, Refused)
    assert isinstance(other, Refused)
    assert text_of(late) == "barrier 'B': waited 50 ms; 2 of 3 parties have arrived"
    assert text_of(other).startswith("barrier 'B': generation ")
    assert "is broken: a party stopped waiting" in text_of(other)
    assert table.apply(50, arrive(B))[0] == other
    assert (table.objects, table.claims, table.timeouts.items) == ({}, 0, {})
    assert applied(table, arrive(C)) == ["u.3 waits"]  # The next generation is clean.


def test_a_party_that_is_cancelled_or_arrives_anew_breaks_the_generation(table: LockTable) -> None:
    two_wait(table)
    cancel = Cancel(lock=LOCK, session=A, owner="o", request=1)
    assert applied(table, cancel) == ["Cancelled", "s.1 CANCELLED", "t.2 BROKEN"]
    applied(table, arrive(B, 2))
    assert applied(table, arrive(B, 3)) == ["t.2 CANCELLED", "t.2 waits"]


def test_a_session_that_ends_breaks_the_generation(table: LockTable) -> None:
    two_wait(table)
    applied(table, arrive(A, 2, owner="x", barrier="other"))
    end = End(session=A)
    told = ["s.1 SESSION_EXPIRED", "s.1 SESSION_EXPIRED", "Ended", "t.2 BROKEN"]
    assert applied(table, end) == told
    assert (table.objects, table.claims, table.marked) == ({}, 0, 0)


def test_a_party_that_does_not_wait_breaks_the_generation_unless_it_is_the_last(
    table: LockTable,
) -> None:
    assert applied(table, arrive(C, wait_ms=0)) == ["u.3 TIMED_OUT"]
    two_wait(table)
    assert len(passed(table, arrive(C, 2, wait_ms=0))) == 3
    applied(table, arrive(A, 2))
    assert applied(table, arrive(C, 3, wait_ms=0)) == ["u.3 TIMED_OUT", "s.1 BROKEN"]


def test_another_number_of_parties_is_refused_while_some_wait(table: LockTable) -> None:
    two_wait(table)
    no = only(Refused, table.apply(0, arrive(C, parties=5)))
    assert (no.reason, text_of(no)) == (
        Reason.INVALID,
        "barrier 'B' has 3 parties; this client asked for one with 5",
    )
    assert len(passed(table, arrive(C, 2))) == 3
    assert len(passed(table, arrive(A, 2, parties=1))) == 1


@pytest.mark.parametrize("parties", [0, PARTIES_MAX + 1])
def test_a_wrong_number_of_parties_is_refused(table: LockTable, parties: int) -> None:
    assert applied(table, arrive(parties=parties)) == ["s.1 INVALID"]
    assert table.objects == {}


def test_a_snapshot_holds_generations_and_replies(table: LockTable) -> None:
    passed(table, arrive(C, 7, parties=1))
    two_wait(table)
    copy = restored(table)
    for one in (table, copy):
        assert passed(one, arrive(C, 7, parties=1)) == [(C, 0, 1)]
    assert passed(copy, arrive(C, 8)) == passed(table, arrive(C, 8))
    assert copy.digest() == table.digest()


def test_a_snapshot_that_contradicts_itself_is_refused(table: LockTable) -> None:
    two_wait(table)
    (part,) = table.snapshot()
    (record,) = part.barriers
    wrong = (
        (record, record),
        (record._replace(parties=2),),
        (record._replace(lock="barrier\x1fX"),),
    )
    for barriers in wrong:
        with pytest.raises(ValueError, match="the snapshot has"):
            LockTable.restore((replace(part, barriers=barriers),))
