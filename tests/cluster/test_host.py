"""The dispatcher and its stage, with real threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pykka
import pytest
from loguru import logger
from support.dispatchers import dispatchers, hub_without_peers

from fencelock.actors.api.message import (
    Abandon,
    Acquire,
    Alive,
    Granted,
    KeepAlive,
    Reason,
    Refused,
    Release,
)
from fencelock.actors.effect import Effects, Observe, Retire, Send, Spawn, Wake
from fencelock.actors.error import NotHeldError, OverloadedError
from fencelock.actors.message import Address, Instant, Local, Timer, address_of, node_of
from fencelock.actors.proxy.message import Report, Reported
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.host.scheduler import INBOX_MAX

LONG_S = 20.0
ROLE = address_of("n1", "role")
Start = Callable[..., Dispatcher]


class Later(Timer):
    asker: Address


class Grow(Local):
    child: Address


class Break(Local):
    text: str = "broken on purpose"


class BlockThread(Local):
    entered: threading.Event
    leave: threading.Event


Request = Acquire | Release | KeepAlive | Later | Grow | Break | BlockThread | Abandon | Reported


class EchoClerk(Role[Request]):
    """Performs each action that a test requests."""

    def __init__(self, address: Address, host: Host, *, remark: str = "") -> None:
        super().__init__(address, host)
        self.remark = remark
        self.abandoned: list[Address] = []
        self.reporter: Address | None = None

    def handle(self, sender: Address, event: Request, now: Instant) -> Effects:
        match event:
            case Acquire():
                return self._on_acquire(sender, event)
            case Release():
                detail = f"fence {event.fence}"
                return [Send(sender, Refused(lock="a", reason=Reason.NOT_HELD, detail=detail))]
            case KeepAlive():
                return [Send(sender, Alive(session=event.session, node="n1"))]
            case Later():
                return [Send(event.asker, Granted(lock="later", fence=1))]
            case Grow():
                return [Spawn(event.child, EchoClerk, {"remark": "child"})]
            case Break():
                raise AssertionError(event.text)
            case BlockThread():
                event.entered.set()
                event.leave.wait(LONG_S)
                return ()
            case Abandon():
                self.abandoned.append(sender)
                return ()
            case Reported():
                assert self.reporter is not None
                counts = {counted.name: counted.times for counted in event.counters}
                return [Send(self.reporter, Granted(lock="reported", fence=counts["clerk.seen"]))]

    def _on_acquire(self, sender: Address, acquire: Acquire) -> Effects:
        match acquire.lock:
            case "later":
                return [Wake(20, Later(asker=sender))]
            case "never":
                return ()
            case "retire":
                return [Send(sender, Granted(lock="retire", fence=1)), Retire(self.address)]
            case "report":
                self.reporter = sender
                return [Observe("clerk.seen", 3), Send(address_of("n1", "node"), Report())]
            case _:
                return [Send(sender, Granted(lock=acquire.lock, fence=1))]


@pytest.fixture
def start() -> Iterator[Start]:
    with dispatchers() as start:
        yield lambda: start(RoleSet((Spawn(ROLE, EchoClerk),)))


def test_an_ask_is_answered(start: Start) -> None:
    ref = start().ref(ROLE)
    assert ref.ask(Acquire(lock="a"), timeout=LONG_S) == Granted(lock="a", fence=1)


def test_an_ask_may_be_answered_many_events_later(start: Start) -> None:
    ref = start().ref(ROLE)
    future = ref.ask(Acquire(lock="later"), block=False)
    assert ref.ask(Acquire(lock="a"), timeout=LONG_S).lock == "a"
    assert future.get(timeout=LONG_S) == Granted(lock="later", fence=1)


def test_a_refusal_is_raised_at_the_caller(start: Start) -> None:
    with pytest.raises(NotHeldError, match="fence 9"):
        start().ref(ROLE).ask(Release(lock="a", fence=9), timeout=LONG_S)


def test_an_ask_that_times_out_is_taken_back(start: Start) -> None:
    ref = start().ref(ROLE)
    with pytest.raises(pykka.Timeout):
        ref.ask(Acquire(lock="never"), timeout=0.02)
    abandoned = ref.proxy().abandoned.get(timeout=LONG_S)
    assert [node_of(address) for address in abandoned] == ["n1"]


@pytest.mark.parametrize("stranger", ["hello", Granted(lock="a", fence=1)], ids=["str", "message"])
def test_what_a_role_does_not_accept_is_refused_at_the_caller(start: Start, stranger: Any) -> None:
    ref = start().ref(ROLE)
    with pytest.raises(TypeError, match="Clerk does not accept"):
        ref.ask(stranger, timeout=LONG_S)
    with pytest.raises(TypeError, match="Clerk does not accept"):
        ref.tell(stranger)
    assert ref.ask(Acquire(lock="a"), timeout=LONG_S).lock == "a"


def test_roles_spawn_and_retire_roles(start: Start) -> None:
    dispatcher = start()
    child = address_of("n1", "child")
    ref = dispatcher.ref(ROLE)
    ref.tell(Grow(child=child))
    ref.ask(Acquire(lock="a"), timeout=LONG_S)
    grown = dispatcher.ref(child)
    assert grown.proxy().remark.get(timeout=LONG_S) == "child"
    assert grown.ask(Acquire(lock="retire"), timeout=LONG_S).fence == 1
    with pytest.raises(pykka.ActorDeadError):
        grown.ask(Acquire(lock="a"), timeout=LONG_S)


def test_roles_can_ask_the_host_what_was_counted(start: Start) -> None:
    assert start().ref(ROLE).ask(Acquire(lock="report"), timeout=LONG_S).fence == 3


def test_a_role_can_be_started_and_stopped_as_pykka_users_do(start: Start) -> None:
    dispatcher = start()
    ref: pykka.ActorRef[Any] = EchoClerk.start(address_of("n1", "client"), dispatcher)
    answer: Any = ref.ask(Acquire(lock="a"), timeout=LONG_S)
    assert answer == Granted(lock="a", fence=1)
    assert ref.stop(timeout=LONG_S)
    assert not ref.is_alive()
    with pytest.raises(pykka.ActorDeadError):
        ref.ask(Acquire(lock="a"), timeout=LONG_S)


def test_a_role_that_was_never_started_refuses() -> None:
    role = EchoClerk(ROLE, Dispatcher("n1", hub := hub_without_peers()))
    with pytest.raises(pykka.ActorDeadError):
        role.actor_ref.tell(Acquire(lock="a"))
    hub.close()


def test_a_bug_in_a_role_stops_the_node_and_is_logged_with_event_and_state(start: Start) -> None:
    lines: list[dict[str, Any]] = []
    logger.enable("fencelock")
    sink = logger.add(lambda line: lines.append(dict(line.record["extra"])), level="CRITICAL")
    try:
        dispatcher = start()
        ref = dispatcher.ref(ROLE)
        waiting = ref.ask(Acquire(lock="never"), block=False)
        ref.tell(Break())
        assert dispatcher.stopped.wait(LONG_S)
    finally:
        logger.remove(sink)
        logger.disable("fencelock")
    assert "broken on purpose" in str(dispatcher.failure)
    assert lines[0]["role"] == ROLE
    assert lines[0]["event"] == "Break(text='broken on purpose')"
    assert "'remark': ''" in lines[0]["state"]
    with pytest.raises(pykka.ActorDeadError):
        waiting.get(timeout=LONG_S)


def test_a_crash_is_logged_without_the_secrets_of_sessions(start: Start) -> None:
    secret = "~" + "0123456789abcdef" * 2
    lines: list[str] = []
    logger.enable("fencelock")
    format_ = "{message} {extra}\n{exception}"
    sink = logger.add(lines.append, level="CRITICAL", format=format_, diagnose=False)  # As serve.
    try:
        dispatcher = start()
        dispatcher.ref(ROLE).tell(Break(text=f"session 'ann{secret}.7' is broken"))
        assert dispatcher.stopped.wait(LONG_S)
    finally:
        logger.remove(sink)
        logger.disable("fencelock")
    text = "".join(lines)
    assert "session 'ann.7' is broken" in text
    assert "Traceback" in text
    assert secret not in text
    assert secret not in str(dispatcher.failure)


def flooded(ref: pykka.ActorRef[Any]) -> tuple[threading.Event, list[pykka.Future[Any]]]:
    """Ask more than is let in, while the thread is blocked until the returned event."""
    entered, leave = threading.Event(), threading.Event()
    ref.tell(BlockThread(entered=entered, leave=leave))
    assert entered.wait(LONG_S)
    return leave, [ref.ask(Acquire(lock="a"), block=False) for _ in range(INBOX_MAX + 10)]


def test_too_much_from_outside_is_refused_and_the_role_serves_on(start: Start) -> None:
    ref = start().ref(ROLE)
    leave, futures = flooded(ref)
    leave.set()
    assert futures[0].get(timeout=LONG_S).lock == "a"
    with pytest.raises(OverloadedError, match=str(INBOX_MAX)):
        futures[-1].get(timeout=LONG_S)
    assert ref.ask(Acquire(lock="a"), timeout=LONG_S).lock == "a"


def test_what_eases_the_load_is_let_in_however_much_waits(start: Start) -> None:
    ref = start().ref(ROLE)
    leave, futures = flooded(ref)
    release = ref.ask(Release(lock="a", fence=5), block=False)
    kept = ref.ask(KeepAlive(session="s"), block=False)
    leave.set()
    with pytest.raises(OverloadedError):
        futures[-1].get(timeout=LONG_S)
    with pytest.raises(NotHeldError, match="fence 5"):
        release.get(timeout=LONG_S)
    assert kept.get(timeout=LONG_S) == Alive(session="s", node="n1")


def test_stopping_leaves_no_thread_no_file_and_no_hanging_future() -> None:
    process = psutil.Process()
    files, threads = process.num_fds(), threading.active_count()
    dispatcher = Dispatcher("n1", hub_without_peers())
    dispatcher.start(RoleSet((Spawn(ROLE, EchoClerk),)))
    ref = dispatcher.ref(ROLE)
    waiting = ref.ask(Acquire(lock="never"), block=False)
    assert dispatcher.stop(LONG_S)
    with pytest.raises(pykka.ActorDeadError, match="has stopped"):
        waiting.get(timeout=LONG_S)
    with pytest.raises(pykka.ActorDeadError):
        ref.ask(Acquire(lock="a"), timeout=LONG_S)
    assert process.num_fds() == files
    assert threading.active_count() <= threads  # Threads of an earlier test may have ended.


def test_many_threads_ask_at_once_and_each_gets_its_own_answer(start: Start) -> None:
    ref = start().ref(ROLE)
    wrong: list[str] = []

    def ask(number: int) -> None:
        for turn in range(200):
            name = f"{number}-{turn}"
            if ref.ask(Acquire(lock=name), timeout=LONG_S).lock != name:
                wrong.append(name)

    crowd = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(LONG_S)
    assert wrong == []
