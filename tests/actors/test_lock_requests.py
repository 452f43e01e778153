"""The claims of a node, and the replies that it keeps for repeated requests."""

from __future__ import annotations

import pytest

from fencelock.actors.api.message import Released
from fencelock.actors.proxy import lock_manager
from fencelock.actors.proxy.lock_manager import Key, LockRequests


def test_the_oldest_reply_is_dropped_once_too_many_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock_manager, "REPLIES_MAX", 2)
    first, second, third = (Key("ann", "o", lock) for lock in "abc")
    requests = LockRequests()

    for number, key in enumerate((first, second, first, third), 1):
        requests.record(key, number, Released(lock=key.lock, request=number))

    assert {key: number for key, (number, _) in requests.replies.items()} == {first: 3, third: 4}
