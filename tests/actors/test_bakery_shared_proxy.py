"""Read/write locks at a proxy of `bakery`: the modes of requests, and reads of several holders."""

from __future__ import annotations

import pytest
from support.bakery_proxy import MEMBERS, BakeryProxyHarness
from support.leader_trio import NOW
from support.session_harness import of

from fencelock.actors.api.message import Contender
from fencelock.actors.api.name import object_name
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS, AcquireReadWrite
from fencelock.actors.bakery.config import HOLDERS_SHOWN_MAX
from fencelock.actors.bakery.event import Member
from fencelock.actors.bakery.in_flight import Poll
from fencelock.actors.bakery.message import NOBODY
from fencelock.actors.bakery.proxy_message import Lock, QueryResult
from fencelock.actors.effect import Send
from fencelock.actors.message import Address

ANN = Address("ann/session")
NAME = object_name(RWLOCK, "x")


class ProxyHarness(BakeryProxyHarness):
    """The proxy of n4 and its read/write lock x."""

    def lead(self, epoch: int) -> list[Send]:
        """Let the leaders be known."""
        members = tuple(Member(name, 1, 14, 1, epoch, NOBODY, epoch, 0) for name in MEMBERS)
        return self.learn(epoch, members=members)

    def acquire(self, *, write: bool, request: int = 1) -> list[Send]:
        asked = AcquireReadWrite(
            rwlock="x", write=write, session="ann", owner="o", request=request, wait_ms=None
        )
        return self.hear(ANN, asked)


@pytest.fixture
def harness() -> ProxyHarness:
    return ProxyHarness()


@pytest.mark.parametrize("write", [True, False])
def test_a_request_says_its_mode(harness: ProxyHarness, *, write: bool) -> None:
    harness.lead(1)
    (sent,) = of(Lock, harness.acquire(write=write))
    assert sent == Lock(
        lock=NAME,
        who=sent.who,
        request=1,
        wait_ms=5_000,
        hold_ms=5_000,
        grace_ms=5_000,
        label="",
        shared=not write,
    )


def holder(owner: str, fence: int, times: int = 1) -> Contender:
    return Contender("n1", "c", owner, fence, 5, "", times)


A, B, C = holder("ann", 7), holder("bob", 9), holder("cid", 11)
WRITER = holder("wil", 12, RWLOCK_PERMITS)


def answer(*holders: Contender, expired_ms: int | None = None) -> QueryResult:
    return QueryResult(
        lock=NAME,
        number=1,
        holder=holders[0] if holders else None,
        waiters=(),
        waiting=0,
        epoch=1,
        nonce=7,
        expired_ms=expired_ms,
        holders=holders,
    )


def decide(*answers: QueryResult) -> tuple[Contender, ...] | None:
    poll = Poll(7, NOW, dict(zip(MEMBERS, answers, strict=False)))
    decided = poll.decide(2, NOW)
    assert decided is None or decided.holder == next(iter(decided.holders), None)
    return None if decided is None else decided.holders


@pytest.mark.parametrize(
    ("answers", "holders"),
    [
        ((answer(A, B),), None),
        ((answer(A, B), answer(A, B)), (A, B)),
        ((answer(A, B), answer(B, C)), None),
        ((answer(A, B), answer(B, C), answer(A)), (A, B)),
        ((answer(A), answer(), answer()), ()),
        ((answer(WRITER), answer(WRITER)), (WRITER,)),
        ((answer(WRITER), answer(A), answer(A)), (A,)),
        ((answer(A, B), answer(A, expired_ms=0), answer(A, expired_ms=0)), None),
        ((answer(A, B), answer(A, expired_ms=9_000), answer(A)), (A,)),
    ],
)
def test_an_owner_holds_it_if_a_quorum_of_leaders_says_so(
    answers: tuple[QueryResult, ...], holders: tuple[Contender, ...] | None
) -> None:
    assert decide(*answers) == holders


def test_a_report_of_many_readers_ends_where_a_leader_has_no_room() -> None:
    many = [holder(f"r{fence}", fence) for fence in range(1, HOLDERS_SHOWN_MAX + 2)]
    found = decide(answer(*many[:-1]), answer(*many[1:]))
    assert found is None  # The first may still hold it: another leader has to answer.
    assert decide(answer(*many[:-1]), answer(*many[1:]), answer()) == tuple(many[1:-1])
