"""The dispatcher: its stage, and its border to other threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import psutil
import pykka
import pytest
from support.collected import fields_of, logged_to
from support.expect import PATIENCE_S
from support.role_harness import BlockThread, blocked, dispatchers, hub_without_peers

from fencelock.actors.api.lock_message import Abandon, Acquire, Granted, Reason, Refused, Release
from fencelock.actors.api.session_message import Alive, KeepAlive
from fencelock.actors.effect import Effects, Observe, Retire, Send, Spawn, Wake
from fencelock.actors.error import NotHeldError, OverloadedError
from fencelock.actors.message import NS_PER_MS, Address, Instant, Local, Timer, address_of, node_of
from fencelock.actors.proxy.event import Report, Reported
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.host.scheduler import INBOX_MAX, SLOW_NS
from fencelock.cluster.log import set_up, silence
from fencelock.transport.hub import SocketHub

ROLE = address_of("n1", "role")
Start = Callable[..., Dispatcher]


class Later(Timer):
    asker: Address


class Grow(Local):
    child: Address


class Break(Local):
    text: str = "broken on purpose"


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
                event.wait()
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


def test_an_ask_may_be_answered_many_events_later(start: Start) -> None:
    ref = start().ref(ROLE)
    future = ref.ask(Acquire(lock="later"), block=False)
    assert ref.ask(Acquire(lock="a"), timeout=PATIENCE_S).lock == "a"
    assert future.get(timeout=PATIENCE_S) == Granted(lock="later", fence=1)


def test_a_refusal_is_raised_at_the_caller(start: Start) -> None:
    with pytest.raises(NotHeldError, match="fence 9"):
        start().ref(ROLE).ask(Release(lock="a", fence=9), timeout=PATIENCE_S)


def test_an_ask_that_times_out_is_taken_back(start: Start) -> None:
    ref = start().ref(ROLE)
    with pytest.raises(pykka.Timeout):
        ref.ask(Acquire(lock="never"), timeout=0.02)
    abandoned = ref.proxy().abandoned.get(timeout=PATIENCE_S)
    assert [node_of(address) for address in abandoned] == ["n1"]


@pytest.mark.parametrize("stranger", ["hello", Granted(lock="a", fence=1)], ids=["str", "message"])
def test_a_message_no_role_accepts_is_refused_at_the_caller(start: Start, stranger: Any) -> None:
    ref = start().ref(ROLE)
    with pytest.raises(TypeError, match="Clerk does not accept"):
        ref.ask(stranger, timeout=PATIENCE_S)
    with pytest.raises(TypeError, match="Clerk does not accept"):
        ref.tell(stranger)
    assert ref.ask(Acquire(lock="a"), timeout=PATIENCE_S).lock == "a"


def test_roles_spawn_and_retire_roles(start: Start) -> None:
    dispatcher = start()
    child = address_of("n1", "child")
    ref = dispatcher.ref(ROLE)
    ref.tell(Grow(child=child))
    ref.ask(Acquire(lock="a"), timeout=PATIENCE_S)
    grown = dispatcher.ref(child)
    assert grown.proxy().remark.get(timeout=PATIENCE_S) == "child"
    assert grown.ask(Acquire(lock="retire"), timeout=PATIENCE_S).fence == 1
    with pytest.raises(pykka.ActorDeadError):
        grown.ask(Acquire(lock="a"), timeout=PATIENCE_S)


def test_roles_can_ask_the_host_what_was_counted(start: Start) -> None:
    assert start().ref(ROLE).ask(Acquire(lock="report"), timeout=PATIENCE_S).fence == 3


def test_a_role_can_be_started_and_stopped_as_pykka_users_do(start: Start) -> None:
    dispatcher = start()
    ref: pykka.ActorRef[Any] = EchoClerk.start(address_of("n1", "client"), dispatcher)
    answer: Any = ref.ask(Acquire(lock="a"), timeout=PATIENCE_S)
    assert answer == Granted(lock="a", fence=1)
    assert ref.stop(timeout=PATIENCE_S)
    assert not ref.is_alive()
    with pytest.raises(pykka.ActorDeadError):
        ref.ask(Acquire(lock="a"), timeout=PATIENCE_S)


def test_a_role_that_was_never_started_refuses() -> None:
    role = EchoClerk(ROLE, Dispatcher("n1", hub := hub_without_peers()))
    with pytest.raises(pykka.ActorDeadError):
        role.actor_ref.tell(Acquire(lock="a"))
    hub.close()


def test_a_bug_in_a_role_stops_the_node_and_is_logged_with_event_and_state(start: Start) -> None:
    lines: list[dict[str, Any]] = []
    with logged_to(lambda record: lines.append(fields_of(record)), "CRITICAL"):
        dispatcher = start()
        ref = dispatcher.ref(ROLE)
        waiting = ref.ask(Acquire(lock="never"), block=False)
        ref.tell(Break())
        assert dispatcher.stopped.wait(PATIENCE_S)
    assert "broken on purpose" in str(dispatcher.failure)
    assert lines[0]["role"] == ROLE
    assert lines[0]["event"] == "Break(text='broken on purpose')"
    assert "'remark': ''" in lines[0]["state"]
    with pytest.raises(pykka.ActorDeadError):
        waiting.get(timeout=PATIENCE_S)


def test_a_pause_while_the_node_sleeps_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a process is stopped, or its machine suspended: most often it sleeps then."""
    lines: list[dict[str, Any]] = []
    poll, pause_ms = SocketHub.poll, 2 * SLOW_NS // NS_PER_MS

    def oversleep(hub: SocketHub, timeout_ms: int | None, expects_reply: bool = False) -> None:
        poll(hub, timeout_ms, expects_reply)
        if timeout_ms:
            time.sleep(pause_ms / 1_000)

    monkeypatch.setattr(SocketHub, "poll", oversleep)
    with logged_to(lambda record: lines.append(fields_of(record)), "WARNING"), dispatchers() as run:
        ref = run(RoleSet((Spawn(ROLE, EchoClerk),))).ref(ROLE)
        ref.ask(Acquire(lock="later"), timeout=PATIENCE_S)
    assert lines[0]["event"] == "slow_turn"
    assert lines[0]["worst_ms"] > pause_ms // 2


def test_requests_that_wait_for_a_turn_of_a_node_that_fails_are_failed(start: Start) -> None:
    dispatcher = start()
    ref = dispatcher.ref(ROLE)
    leave = blocked(ref)
    dispatcher.enter(lambda: pytest.fail("broken on purpose"))
    waiting = ref.ask(Acquire(lock="a"), block=False)
    leave.set()
    with pytest.raises(pykka.ActorDeadError, match="has stopped"):
        waiting.get(timeout=PATIENCE_S)
    assert "broken on purpose" in str(dispatcher.failure)


def test_a_crash_is_logged_without_the_secrets_of_sessions(start: Start) -> None:
    secret = "~" + "0123456789abcdef" * 2
    set_up("CRITICAL", stream=(stream := StringIO()))
    try:
        dispatcher = start()
        dispatcher.ref(ROLE).tell(Break(text=f"session 'ann{secret}.7' is broken"))
        assert dispatcher.stopped.wait(PATIENCE_S)
    finally:
        silence()
    text = stream.getvalue()
    assert "session 'ann.7' is broken" in text
    assert "Traceback" in text
    assert secret not in text
    assert secret not in str(dispatcher.failure)


def flooded(ref: pykka.ActorRef[Any]) -> tuple[threading.Event, list[pykka.Future[Any]]]:
    """Ask more than is let in, while the thread is blocked until the returned event."""
    leave = blocked(ref)
    return leave, [ref.ask(Acquire(lock="a"), block=False) for _ in range(INBOX_MAX + 10)]


def test_too_much_from_outside_is_refused_and_the_role_serves_on(start: Start) -> None:
    ref = start().ref(ROLE)
    leave, futures = flooded(ref)
    leave.set()
    assert futures[0].get(timeout=PATIENCE_S).lock == "a"
    with pytest.raises(OverloadedError, match=str(INBOX_MAX)):
        futures[-1].get(timeout=PATIENCE_S)
    assert ref.ask(Acquire(lock="a"), timeout=PATIENCE_S).lock == "a"


def test_messages_that_ease_the_load_are_admitted_however_much_waits(start: Start) -> None:
    ref = start().ref(ROLE)
    leave, futures = flooded(ref)
    release = ref.ask(Release(lock="a", fence=5), block=False)
    kept = ref.ask(KeepAlive(session="s"), block=False)
    leave.set()
    with pytest.raises(OverloadedError):
        futures[-1].get(timeout=PATIENCE_S)
    with pytest.raises(NotHeldError, match="fence 5"):
        release.get(timeout=PATIENCE_S)
    assert kept.get(timeout=PATIENCE_S) == Alive(session="s", node="n1")


def test_stopping_leaves_no_thread_no_file_and_no_hanging_future() -> None:
    process = psutil.Process()
    files, threads = process.num_fds(), threading.active_count()
    dispatcher = Dispatcher("n1", hub_without_peers())
    dispatcher.start(RoleSet((Spawn(ROLE, EchoClerk),)))
    ref = dispatcher.ref(ROLE)
    waiting = ref.ask(Acquire(lock="never"), block=False)
    assert dispatcher.stop(PATIENCE_S)
    with pytest.raises(pykka.ActorDeadError, match="has stopped"):
        waiting.get(timeout=PATIENCE_S)
    with pytest.raises(pykka.ActorDeadError):
        ref.ask(Acquire(lock="a"), timeout=PATIENCE_S)
    assert process.num_fds() == files
    assert threading.active_count() <= threads  # Threads of an earlier test may have ended.


def test_many_threads_ask_at_once_and_each_gets_its_own_answer(start: Start) -> None:
    ref = start().ref(ROLE)

    def ask(number: int) -> None:
        for turn in range(200):
            name = f"{number}-{turn}"
            assert ref.ask(Acquire(lock=name), timeout=PATIENCE_S).lock == name

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))


class Granter(Role[Acquire | Abandon]):
    """Grants everything, and notes cancelled requests."""

    def __init__(self, address: Address, host: Host) -> None:
        super().__init__(address, host)
        self.received: list[str] = []

    def handle(self, sender: Address, event: Acquire | Abandon, now: Instant) -> Effects:
        self.received.append(f"{type(event).__name__} from {sender}")
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


def test_a_caller_that_gives_up_as_the_answer_comes_frees_it(dispatcher: Dispatcher) -> None:
    ref = dispatcher.ref(ROLE)
    answered = ref.ask(Acquire(lock="a"), block=False)
    assert answered.get(timeout=PATIENCE_S)
    assert isinstance(answered, AskReply)
    dispatcher.abandon(answered)  # As `ask` does when its time is over, an instant too late.
    received = ref.proxy().received.get(timeout=PATIENCE_S)
    assert received == ["Acquire from n1/ask-1", "Abandon from n1/ask-1"]


def test_an_exception_that_is_set_as_the_reply_reaches_a_thread_that_waits_for_it() -> None:
    reply = AskReply()
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(reply.get, timeout=PATIENCE_S)
        while not reply._awaited:  # pyright: ignore[reportPrivateUsage]
            time.sleep(0.001)
        reply.set_exception((ValueError, ValueError("no"), None))
        with pytest.raises(ValueError, match="no"):
            waits.result(PATIENCE_S)


def test_a_wrong_type_is_the_callers_error_and_the_node_serves_on(dispatcher: Dispatcher) -> None:
    ref = dispatcher.ref(ROLE)
    wrong: Any = 5
    with pytest.raises(TypeError, match=r"Acquire\.lock: 5: expected `str`"):
        ref.ask(Acquire(lock=wrong), timeout=PATIENCE_S)
    wrong = 1.5
    with pytest.raises(TypeError, match=r"Acquire\.wait_ms: 1\.5: expected `int \| null`"):
        ref.tell(Acquire(lock="a", wait_ms=wrong))
    assert ref.ask(Acquire(lock="a"), timeout=PATIENCE_S) == Granted(lock="a", fence=1)


def test_the_caller_that_starts_a_role_unable_to_begin_gets_the_error(
    dispatcher: Dispatcher,
) -> None:
    starter = threading.Thread(
        target=RaisesOnEvent.start, args=(address_of("n1", "broken"), dispatcher), daemon=True
    )
    starter.start()
    starter.join(PATIENCE_S)
    assert not starter.is_alive()
    assert dispatcher.stopped.wait(PATIENCE_S)
    assert "broken on purpose" in str(dispatcher.failure)
