"""Numbers of requests leave room for a release, and few descriptions are sent at a time."""

from __future__ import annotations

import pytest

from fencelock.actors.api.message import Acquire, Cancel, Release
from fencelock.actors.api.name import REQUEST_MAX
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.message import Address
from fencelock.actors.proxy.description import DESCRIBES_MAX, DESCRIBES_OF_CLIENT_MAX, has_room


def acquire(request: int) -> Acquire:
    return Acquire(lock="l", session="s", owner="o", request=request, wait_ms=None)


def test_an_acquire_is_refused_whose_lock_no_later_request_could_release() -> None:
    acquire(REQUEST_MAX).check_new()
    for asked in (
        acquire(REQUEST_MAX + 1),
        acquire((1 << 63) - 1),
        Cancel(lock="l", session="s", owner="o", request=REQUEST_MAX + 1),
    ):
        with pytest.raises(InvalidRequestError, match=f"request is .*, at most {REQUEST_MAX}"):
            asked.check_new()


def test_a_release_may_have_a_higher_number_than_any_acquire() -> None:
    release = Release(lock="l", fence=1, session="s", owner="o", request=(1 << 63) - 1)
    release.check_new()
    assert release.key[-1] == release.request


def test_a_description_answers_few_requests_of_a_client_and_not_many_in_all() -> None:
    asked: list[tuple[Address, object]] = []
    for _ in range(100):
        if has_room("n1", asked, Address("greedy/session")):
            asked.append((Address("greedy/session"), None))
    assert len(asked) == DESCRIBES_OF_CLIENT_MAX
    for number in range(100):
        if has_room("n1", asked, Address(f"c{number}/session")):
            asked.append((Address(f"c{number}/session"), None))
    assert len(asked) == DESCRIBES_MAX
    assert has_room("n1", asked, Address("n1/~7"))
