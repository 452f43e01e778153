"""Requests of threads outside a node: they time out, or have wrong types."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.dispatchers import dispatchers

from fencelock.actors.api.message import Abandon, Acquire, Granted
from fencelock.actors.effect import Effects, Send, Spawn
from fencelock.actors.message import Address, Instant, address_of
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.role_set import RoleSet

LONG_S = 20.0
ROLE = address_of("n1", "role")


class Granter(Role[Acquire | Abandon]):
    """Grants everything, and notes cancelled requests."""

    def __init__(self, address: Address, host: Host) -> None:
        super().__init__(address, host)
        self.heard: list[str] = []

    def handle(self, sender: Address, event: Acquire | Abandon, now: Instant) -> Effects:
        self.heard.append(f"{type(event).__name__} from {sender}")
        if isinstance(event, Abandon):
            return ()
        return [Send(sender, Granted(lock=event.lock[:1], fence=1))]


class RaisesOnEvent(Granter):
    """Cannot even begin."""

    def begin(self, now: Instant) -> Effects:
        raise AssertionError("broken on purpose")


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    with dispatchers() as start:
        yield start(RoleSet((Spawn(ROLE, Granter),)))


def test_who_gives_up_as_the_answer_comes_is_taken_back_all_the_same(
    dispatcher: Dispatcher,
) -> None:
    ref = dispatcher.ref(ROLE)
    answered = ref.ask(Acquire(lock="a"), block=False)
    assert answered.get(timeout=LONG_S)
    dispatcher.abandon(answered)  # As `ask` does when its time is over, an instant too late.
    heard = ref.proxy().heard.get(timeout=LONG_S)
    assert heard == ["Acquire from n1/ask-1", "Abandon from n1/ask-1"]


def test_a_wrong_type_is_the_callers_error_and_the_node_serves_on(dispatcher: Dispatcher) -> None:
    ref = dispatcher.ref(ROLE)
    wrong: Any = 5
    with pytest.raises(TypeError, match=r"Acquire\.lock: 5: expected `str`"):
        ref.ask(Acquire(lock=wrong), timeout=LONG_S)
    wrong = 1.5
    with pytest.raises(TypeError, match=r"Acquire\.wait_ms: 1\.5: expected `int \| null`"):
        ref.tell(Acquire(lock="a", wait_ms=wrong))
    assert ref.ask(Acquire(lock="a"), timeout=LONG_S) == Granted(lock="a", fence=1)


def test_whoever_starts_a_role_that_cannot_begin_is_not_left_hanging(
    dispatcher: Dispatcher,
) -> None:
    starter = threading.Thread(
        target=RaisesOnEvent.start, args=(address_of("n1", "broken"), dispatcher), daemon=True
    )
    starter.start()
    starter.join(LONG_S)
    assert not starter.is_alive()
    assert dispatcher.stopped.wait(LONG_S)
    assert "broken on purpose" in str(dispatcher.failure)
