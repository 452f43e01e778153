"""The host's services for clients: listeners, replies that call back, and the end of a node."""

from __future__ import annotations

import queue
import threading
from functools import partial

import pykka
import pytest

from fencelock.actors.api.message import Acquire, Granted, Reason, Refused
from fencelock.actors.effect import Effects, Send, Spawn
from fencelock.actors.message import Address, Event, Instant, address_of
from fencelock.actors.role import Role
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.host.role_set import RoleSet
from fencelock.transport.hub import SocketHub

LONG_S = 30.0
ROLE = address_of("n1", "clerk")
WATCHER = address_of("n1", "watcher")


class ListeningClerk(Role[Acquire]):
    """Grants what is asked for, and tells the watcher first."""

    def handle(self, sender: Address, event: Acquire, now: Instant) -> Effects:
        del now
        if event.lock == "no":
            return [Send(sender, Refused(lock="no", reason=Reason.TIMED_OUT, detail="no"))]
        granted = Granted(lock=event.lock, fence=1)
        return [Send(WATCHER, granted), Send(sender, granted)]


def dispatcher() -> Dispatcher:
    hub = SocketHub(
        node="n1", boot=1, cluster="c", listen=None, peers={}, count=lambda name, times: None
    )
    return Dispatcher("n1", hub)


def test_a_listener_hears_what_roles_send_it_before_what_they_send_after() -> None:
    host = dispatcher()
    heard: list[tuple[Event, str]] = []
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    address = host.listen(
        "watcher", lambda event: heard.append((event, threading.current_thread().name))
    )
    host.start(RoleSet((Spawn(ROLE, ListeningClerk),)))
    assert address == WATCHER
    host.ref(ROLE).submit(Acquire(lock="a"), AskReply(lambda _, __, ___: told.put(len(heard))))
    assert told.get(timeout=LONG_S) == 1
    assert heard == [(Granted(lock="a", fence=1), "fencelock-n1")]
    assert host.stop(LONG_S)


def test_a_listener_that_raises_stops_the_node_as_a_role_does() -> None:
    def stumble(event: Event) -> None:
        raise IndexError(event)

    host = dispatcher()
    host.listen("watcher", stumble)
    host.start(RoleSet((Spawn(ROLE, ListeningClerk),)))
    host.ref(ROLE).tell(Acquire(lock="a"))
    assert host.stopped.wait(LONG_S)
    assert isinstance(host.failure, IndexError)


def test_an_answer_is_told_first_to_its_maker_then_to_who_called_back_then_to_who_waits() -> None:
    order: list[object] = []
    reply = AskReply(lambda _, value, error: order.append((value, error)))
    reply.add_done_callback(lambda: order.append(reply.done))
    assert not reply.done
    reply.set(7)
    reply.add_done_callback(lambda: order.append("late"))
    assert order == [(7, None), True, "late"]
    assert reply.get(timeout=0) == 7


def test_an_error_is_told_likewise() -> None:
    host = dispatcher()
    host.start(RoleSet((Spawn(ROLE, ListeningClerk),)))
    told: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()
    host.ref(ROLE).submit(
        Acquire(lock="no"), AskReply(lambda _, value, error: told.put((value, error)))
    )
    value, error = told.get(timeout=LONG_S)
    assert value is None
    assert "no" in str(error)
    assert host.stop(LONG_S)


def test_callbacks_are_called_once_however_they_race_with_the_answer() -> None:
    for _ in range(200):
        reply = AskReply()
        calls: list[int] = []
        start = threading.Barrier(2)

        def ask(
            reply: AskReply = reply, calls: list[int] = calls, start: threading.Barrier = start
        ) -> None:
            start.wait(LONG_S)
            for number in range(20):
                reply.add_done_callback(partial(calls.append, number))

        asker = threading.Thread(target=ask)
        asker.start()
        start.wait(LONG_S)
        reply.set(1)
        asker.join(LONG_S)
        assert sorted(calls) == list(range(20))


def test_a_host_that_stopped_says_so_to_who_cannot_block() -> None:
    host = dispatcher()
    ended: queue.SimpleQueue[bool] = queue.SimpleQueue()
    host.ended.add_done_callback(lambda: ended.put(host.stopped.is_set()))
    host.start(RoleSet((Spawn(ROLE, ListeningClerk),)))
    host.stop(0)
    assert ended.get(timeout=LONG_S)
    with pytest.raises(pykka.ActorDeadError):
        host.ref(ROLE)
