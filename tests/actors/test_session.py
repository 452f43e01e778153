"""A client's session: chance, handlers, and waits over at every moment of a cut."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import get_args

import pytest
from support.role_harness import RoleHarness
from support.session_harness import ANN, BEN, ME, A, B, SessionHarness, UnkeptSession, of

from fencelock.actors.api.lock_message import Acquire, Cancel, Reason, Refused, Release
from fencelock.actors.api.session_message import Open, Opened
from fencelock.actors.effect import Send
from fencelock.actors.message import Address, Instant, later, ms_between
from fencelock.actors.session import session
from fencelock.actors.session.event import Suspected
from fencelock.actors.session.lease import EPOCH, MOVES, SENT_MAX, SessionLease, Stage
from fencelock.actors.session.requests import lock_key_named
from fencelock.actors.session.session import HANDLERS, SESSION_TICK_MS, ClientSession


def test_the_first_endpoint_is_drawn_by_chance() -> None:
    def first(seed: int) -> Address:
        unkept = RoleHarness(
            lambda host: ClientSession(ME, host, session="c", endpoints=(A, B), random=Random(seed))
        )
        return unkept.role.session_state.endpoints.current

    assert {first(seed) for seed in range(20)} == {A, B}


def test_pauses_vary_with_the_chance_given() -> None:
    def pause(seed: int) -> int | None:
        unkept = UnkeptSession()
        unkept.role.session_state.in_flight.random = Random(seed)
        unkept.acquire()
        unkept.run(SESSION_TICK_MS)
        return unkept.role.session_state.in_flight.pending[1].resend_at

    assert len({pause(seed) for seed in range(10)}) > 5
    assert pause(3) == pause(3)


def test_the_memory_of_a_session_can_be_copied(unkept: UnkeptSession) -> None:
    unkept.held()
    unkept.acquire(BEN)
    copy = deepcopy(unkept.role.state())
    assert list(copy["session_state"].holds) == list(unkept.role.session_state.holds)


TTL_MS = 3_600_000
"""So long that the session does not end meanwhile, which would free everything."""


def cut_off(ms: int) -> tuple[SessionHarness, list[Send]]:
    """Return a session ``ms`` after all nodes fell silent, and the messages it sent.

    Its user waited for a second, and learned 4.5 s later that no node decided.
    """
    harness = SessionHarness(TTL_MS)
    harness.open(harness.acquire(wait_ms=1_000))
    return harness, harness.run(ms)


@pytest.mark.parametrize("ms", range(6_000, 26_000, 500))
def test_a_wait_is_cancelled_with_the_first_sign_of_life_of_a_node(ms: int) -> None:
    """However long the cut was: whichever nodes were given up, and whatever pauses had grown."""
    harness, sends = cut_off(ms)
    earlier = cut_off(max(0, ms - 700))[1]  # What was sent since may still arrive.
    recent = of(Cancel, sends)[len(of(Cancel, earlier)) :]

    cancels = [*recent, *of(Cancel, harness.alive(sends)), *of(Cancel, harness.run(100))]

    assert cancels != []


@pytest.mark.parametrize("reason", [one for one in Reason if one is not Reason.SESSION_EXPIRED])
def test_a_session_that_is_refused_for_any_reason_refuses_what_waits_for_it(
    harness: SessionHarness, reason: Reason
) -> None:
    sends = [sent for sent in harness.acquire() if isinstance(sent.message, Open)]
    refused = of(Refused, [*harness.refuse(sends, reason), *harness.run(20_000)], ANN)
    assert len(refused) == 1


# The table of handlers of a client's session, and what its checks come before


@pytest.mark.parametrize("kind", get_args(session.Event))
def test_each_type_of_event_has_a_handler(kind: type) -> None:
    assert callable(HANDLERS[kind])


def test_a_type_that_no_session_receives_has_no_handler() -> None:
    with pytest.raises(KeyError):
        HANDLERS[int]


@pytest.mark.parametrize("former", Stage)
@pytest.mark.parametrize("following", Stage)
def test_a_session_moves_only_along_its_table(former: Stage, following: Stage) -> None:
    lease = SessionLease("c", 15_000, "")
    lease.stage = former
    if following in MOVES[former]:
        lease.enter(following)
        assert lease.stage is following
    else:
        with pytest.raises(AssertionError, match=f"{former.value} cannot be {following.value}"):
            lease.enter(following)


def opened_lease(ttl_ms: int) -> SessionLease:
    """Return the lease of a session that was asked for and opened at `EPOCH`."""
    lease = SessionLease("c", ttl_ms, "")
    lease.need(EPOCH)
    lease.note_sent(1, EPOCH)
    opened = Opened(session="c", assigned="c.1", ttl_ms=ttl_ms, node="a", request=1)
    assert lease.opened(opened, EPOCH)
    assert lease.sent == {}
    return lease


def test_a_session_is_suspected_and_left_at_the_very_instant() -> None:
    lease = opened_lease(10_000)
    suspect_at, until = later(EPOCH, 5_000), lease.until
    assert until == SessionLease.trusted_until(EPOCH, 10_000)
    assert lease.suspect(Instant(suspect_at - 1)) is None
    assert lease.suspect(suspect_at) == Suspected(
        silent_ms=5_000, left_ms=ms_between(suspect_at, until)
    )
    assert lease.suspect(suspect_at) is None
    assert (lease.passed(Instant(until - 1)), lease.passed(until)) == (False, True)
    lease.confirm(suspect_at)  # It is notified once each time.
    assert lease.suspect(later(suspect_at, 5_000)) == Suspected(
        silent_ms=5_000, left_ms=ms_between(suspect_at, until)
    )


def test_a_session_that_opens_too_late_is_not_taken() -> None:
    until = SessionLease.trusted_until(EPOCH, 10_000)
    for now, taken in ((Instant(until - 1), True), (until, False)):
        lease = SessionLease("c", 10_000, "")
        lease.need(EPOCH)
        lease.note_sent(1, EPOCH)
        opened = Opened(session="c", assigned="c.1", ttl_ms=10_000, node="a", request=1)
        assert lease.opened(opened, now) is taken


def test_the_next_session_has_nothing_of_the_last_one() -> None:
    lease = opened_lease(10_000)
    lease.note_sent(2, EPOCH)
    lease.pinned = True
    lease.suspect(later(EPOCH, 5_000))
    assert lease.drop() == "c.1"
    assert (lease.sent, lease.pinned, lease.suspected) == ({}, False, False)


def test_a_keep_alive_comes_after_a_fifth_of_the_ttl_and_never_at_once() -> None:
    assert [opened_lease(ttl_ms).keep_ms for ttl_ms in (10_000, 4)] == [2_000, 1]


def test_as_many_keep_alives_as_the_limit_may_still_be_confirmed() -> None:
    lease = opened_lease(10_000)
    for number in range(SENT_MAX + 1):
        lease.note_sent(number, EPOCH)
    assert list(lease.sent) == list(range(1, SENT_MAX + 1))


def test_a_name_of_a_stranger_or_a_forbidden_one_is_not_kept(unkept: UnkeptSession) -> None:
    """Names are checked before they enter a cache, so that the cache is bounded."""
    kept = lock_key_named.cache_info().currsize
    for user in (A, Address("c/ask-1")):
        unkept.receive(user, Release(lock="n" * 100_000, fence=7, owner="o"))
        unkept.receive(user, Acquire(lock="n" * 100_000, owner="o"))
    assert lock_key_named.cache_info().currsize == kept
