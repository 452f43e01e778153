"""The table of handlers of a client's session, and what its checks come before."""

from __future__ import annotations

from random import Random
from typing import get_args

import pytest
from support.effects import HOST

from fencelock.actors.api.message import Acquire, Release
from fencelock.actors.message import Address, Instant
from fencelock.actors.session import session
from fencelock.actors.session.lease import MOVES, SessionLease, Stage
from fencelock.actors.session.requests import lock_key_named
from fencelock.actors.session.session import HANDLERS, ClientSession


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


def test_what_a_stranger_or_nobody_may_name_is_not_kept() -> None:
    """Names are checked before they enter a cache, so that the cache is bounded."""
    role = ClientSession(
        Address("c/session"), HOST, session="c", endpoints=(Address("a/proxy"),), random=Random(1)
    )
    for stage in (Stage.OPENING, Stage.OPEN):
        role.session_state.session_lease.enter(stage)
    kept = lock_key_named.cache_info().currsize
    for user in (Address("a/proxy"), Address("c/ask-1")):
        for request in (
            Release(lock="n" * 100_000, fence=7, owner="o"),
            Acquire(lock="n" * 100_000, owner="o"),
        ):
            role.handle(user, request, Instant(0))
    assert lock_key_named.cache_info().currsize == kept
