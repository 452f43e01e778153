"""The door of the log: what is refused, in which words, and what operators hear."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from support.effects import HOST, T0
from support.unbatched_proxy import UnbatchedProxy

from fencelock.actors.api.message import Acquire, Cancel, KeepAlive, Reason, Refused, Release
from fencelock.actors.api.session_message import Evict, Evicted
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Address
from fencelock.actors.paxos.event import LeaderChanged, SlotOutcomes
from fencelock.actors.paxos.message import Propose
from fencelock.actors.paxos.proxy import LogProxy
from fencelock.actors.table.command import Command, ForceRelease
from fencelock.actors.table.outcome import Denial, Denied, Forced, Outcome
from fencelock.transport.codec import decode, encode

DOOR, REPLICA, FAR = Address("n1/proxy"), Address("n1/replica"), Address("n2/replica")
ANN = Address("ann/session")
ME = "ann.7"
K = TypeVar("K")

ACQUIRE = Acquire(lock="a", session=ME, owner="o", request=2, wait_ms=50, limit=3, label="x")
RELEASE = Release(lock="a", fence=5, session=ME, owner="o", request=3)
CANCEL = Cancel(lock="a", session=ME, owner="o", request=2)


@pytest.fixture
def door() -> LogProxy:
    door = UnbatchedProxy(
        DOOR,
        HOST,
        node="n1",
        members=("n1", "n2", "n3"),
        replica=REPLICA,
        encode=encode,
    )
    assert door.begin(T0) == ()
    door.handle(REPLICA, LeaderChanged(master="n2"), T0)
    return door


def happens(door: LogProxy, *outcomes: Outcome) -> Effects:
    return door.handle(REPLICA, SlotOutcomes(slot=1, time_ms=1, outcomes=outcomes), T0)


def proposed(effects: Effects) -> list[Command]:
    sent = [e.message for e in effects if isinstance(e, Send) and e.to == REPLICA]
    commands: list[Any] = [decode(m.command) for m in sent if isinstance(m, Propose)]
    return commands


def told(effects: Effects, kind: type[K], to: Address = ANN) -> list[K]:
    sent = [e.message for e in effects if isinstance(e, Send) and e.to == to]
    return [message for message in sent if isinstance(message, kind)]


def denied(reason: Denial, detail: str = "", request: int = 2, lock: str = "a") -> Denied:
    owner = "o" if lock else ""
    return Denied(session=ME, owner=owner, request=request, lock=lock, reason=reason, detail=detail)


@pytest.mark.parametrize(
    ("why", "reason", "words"),
    [
        (denied(Denial.TIMED_OUT, "held by 'p'"), Reason.TIMED_OUT, "held by 'p'"),
        (denied(Denial.CANCELLED), Reason.CANCELLED, "given up"),
        (denied(Denial.LIMIT_REACHED, "held 3 times"), Reason.LIMIT_REACHED, "held 3 times"),
        (denied(Denial.SESSION_EXPIRED), Reason.SESSION_EXPIRED, f"session '{ME}'"),
        (denied(Denial.SUPERSEDED), Reason.CANCELLED, "something else"),
        (denied(Denial.FORGOTTEN), Reason.CANCELLED, "nothing is done now"),
        (denied(Denial.OVERLOADED, "9 holds"), Reason.OVERLOADED, "9 holds"),
        (denied(Denial.INVALID, "owner is"), Reason.INVALID, "owner is"),
        (denied(Denial.OWNERSHIP_LOST, "taken by 'eve'"), Reason.OWNERSHIP_LOST, "eve"),
    ],
    ids=lambda value: value.name if isinstance(value, Reason) else "",
)
def test_a_denied_acquire_is_refused_in_words(
    door: LogProxy, why: Denied, reason: Reason, words: str
) -> None:
    door.handle(ANN, ACQUIRE, T0)
    (refused,) = told(happens(door, why), Refused)
    assert (refused.reason, refused.lock, refused.request) == (reason, "a", 2)
    assert words in refused.detail


@pytest.mark.parametrize(
    ("why", "reason", "words"),
    [
        (denied(Denial.NOT_HELD, "nobody holds it", 3), Reason.NOT_HELD, "fence 5 was shown"),
        (denied(Denial.OWNERSHIP_LOST, "held by 'p'", 3), Reason.OWNERSHIP_LOST, "has lost it"),
        (denied(Denial.SUPERSEDED, "", 3), Reason.NOT_HELD, "something else"),
        (denied(Denial.SESSION_EXPIRED, "", 3), Reason.SESSION_EXPIRED, "open one"),
    ],
    ids=lambda value: value.name if isinstance(value, Reason) else "",
)
def test_a_denied_release_is_refused_in_words(
    door: LogProxy, why: Denied, reason: Reason, words: str
) -> None:
    door.handle(ANN, RELEASE, T0)
    (refused,) = told(happens(door, why), Refused)
    assert (refused.reason, refused.owner, refused.request) == (reason, "o", 3)
    assert words in refused.detail


def test_who_may_hold_once_is_told_that_it_holds(door: LogProxy) -> None:
    door.handle(ANN, Acquire(lock="a", session=ME, owner="o", request=2), T0)
    (refused,) = told(happens(door, denied(Denial.LIMIT_REACHED, "held once")), Refused)
    assert refused.reason is Reason.ALREADY_HELD


def test_a_cancel_in_a_session_that_is_gone_hears_so(door: LogProxy) -> None:
    door.handle(ANN, CANCEL, T0)
    (refused,) = told(happens(door, denied(Denial.SESSION_EXPIRED)), Refused)
    assert refused.reason is Reason.SESSION_EXPIRED


def test_a_keep_alive_of_a_session_that_is_gone_hears_so(door: LogProxy) -> None:
    door.handle(ANN, KeepAlive(session=ME, request=4), T0)
    gone = denied(Denial.SESSION_EXPIRED, request=4, lock="")
    (refused,) = told(happens(door, gone), Refused)
    assert (refused.reason, refused.request) == (Reason.SESSION_EXPIRED, 4)


def test_an_operator_is_named_in_the_log_with_who_spoke_for_it(door: LogProxy) -> None:
    evict = Evict(lock="a", fence=5, operator="eve", session=ME, request=8)
    (command,) = proposed(door.handle(ANN, evict, T0))
    assert command == ForceRelease(operator="eve (ann)", request=8, lock="a", fence=5)
    forced = Forced(
        operator="eve (ann)",
        request=8,
        lock="a",
        fence=5,
        session="bob~2.9",
        owner="p",
        label="host:2",
        time_ms=1,
    )
    (evicted,) = told(happens(door, forced), Evicted)
    assert (evicted.lock, evicted.fence, evicted.request) == ("a", 5, 8)
    assert evicted.holder[:4] == ("bob", "bob~2.9", "p", 5)


def test_an_eviction_of_somebody_who_does_not_hold_is_refused(door: LogProxy) -> None:
    evict = Evict(lock="a", fence=5, operator="eve", session="ann", request=8)
    door.handle(ANN, evict, T0)
    why = Denied(
        session="", owner="eve (ann)", request=8, lock="a", reason=Denial.NOT_HELD, detail="free"
    )
    (refused,) = told(happens(door, why), Refused)
    assert (refused.reason, refused.request) == (Reason.NOT_HELD, 8)
    assert "fence 5" in refused.detail
