"""Our runtime beside Pykka's own threads: the same actors, measured alternately, in one run."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pykka

from fencelock.actors.effect import Effects, Send, Spawn
from fencelock.actors.message import Address, Instant, Local, address_of
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.config import parse
from fencelock.cluster.node.node import Node
from fencelock.cluster.testing.ports import free_ports
from fencelock.transport.hub import SocketHub
from fencelock.verification.bench.machine import resident_bytes
from fencelock.verification.bench.report import BarFigure, below, compared_times, higher_is_better

M = TypeVar("M")
"""A measurement."""

NODE = "bench"
CROWD = 100
"""Messages that bounce between the two actors at once, in the second of two comparisons."""

ROLES = 10_000
ROLES_MB_MAX = 100
ROLES_S_MAX = 5
IDLE_PERCENT_MAX = 1


IDLE_CLUSTER = """
cluster = "idle"
protocol = "lamport"
[nodes.n1]
address = "tcp://127.0.0.1:{0}"
[nodes.n2]
address = "tcp://127.0.0.1:{1}"
"""

SETTLE_S = 1.0
"""Time for two nodes to connect (s); they need far less."""


def share_of_a_core(seconds: float) -> float:
    """Return the share of a core (0 to 1) that one of two connected, idle nodes uses meanwhile."""
    text = IDLE_CLUSTER.format(*free_ports(2))
    config = parse(text, Path())
    nothing = threading.Event()
    with Node.start(config, "n1", found=True), Node.start(config, "n2", found=True):
        nothing.wait(SETTLE_S)
        cpu, wall = time.process_time(), time.perf_counter()
        nothing.wait(seconds)
        used = time.process_time() - cpu
        return used / (time.perf_counter() - wall) / 2


class Ball(Local):
    """A message that bounces until ``left`` is 0."""

    left: int


class Done(Local):
    """The last ball was caught."""


class Bouncer(Role[Ball]):
    """Sends each ball back to ``other``, and notifies ``referee`` when a ball stops."""

    def __init__(self, address: Address, host: Host, *, other: Address, referee: Address) -> None:
        super().__init__(address, host)
        self.other = other
        self.referee = referee

    def handle(self, sender: Address, event: Ball, now: Instant) -> Effects:
        if event.left:
            return (Send(self.other, Ball(left=event.left - 1)),)
        return (Send(self.referee, Done()),)


class Referee(Role[Done]):
    """Sets a `threading.Event` when all balls are caught."""

    def __init__(self, address: Address, host: Host, *, over: threading.Event, balls: int) -> None:
        super().__init__(address, host)
        self.over = over
        self.balls = balls

    def handle(self, sender: Address, event: Done, now: Instant) -> Effects:
        self.balls -= 1
        if self.balls == 0:
            self.over.set()
        return ()


class EchoRole(Role[Ball]):
    """Answers each request with the same message."""

    def handle(self, sender: Address, event: Ball, now: Instant) -> Effects:
        return (Send(sender, event),)


class ThreadBouncer(pykka.ThreadingActor):
    """`Bouncer` and `Referee` in one, on a thread of Pykka's own."""

    use_daemon_thread = True

    def __init__(self, over: threading.Event, balls: int) -> None:
        super().__init__()
        self.over = over
        self.balls = balls
        self.other: pykka.ActorRef[Any] | None = None

    def on_receive(self, message: Any) -> None:
        if isinstance(message, pykka.ActorRef):
            self.other = message
        elif message.left:
            assert self.other is not None
            self.other.tell(Ball(left=message.left - 1))
        else:
            self.balls -= 1
            if self.balls == 0:
                self.over.set()


class ThreadEcho(pykka.ThreadingActor):
    """`EchoRole` on a thread of Pykka's own."""

    use_daemon_thread = True

    def on_receive(self, message: Any) -> Any:
        return message


def measure(
    *, rounds: int = 5, idle: Callable[[float], float] | None = None, say: Callable[[str], None]
) -> list[BarFigure]:
    """Run every measurement alternately with Pykka's threads.

    Medians of ``rounds`` are reported. ``idle`` measures an idle node for so many seconds, and
    returns its share of a core.
    """
    figures = [*_messages(rounds, say), *_asks(rounds, say), *_crowd(rounds, say)]
    if idle is not None:
        say("an idle node")
        share = 100 * idle(3.0)
        figures.append(below("idle node", "% of a core", share, IDLE_PERCENT_MAX))
    say(f"{ROLES} roles in one process")
    figures += _many_roles()
    return figures


def _alternately(
    what: str,
    rounds: int,
    say: Callable[[str], None],
    ours: Callable[[], M],
    theirs: Callable[[], M],
) -> tuple[list[M], list[M]]:
    """Make both measurements in each round; return the results of each."""
    found: tuple[list[M], list[M]] = [], []
    for number in range(rounds):
        say(f"{what}, round {number + 1} of {rounds}")
        found[0].append(ours())
        found[1].append(theirs())
    return found


def _messages(rounds: int, say: Callable[[str], None]) -> list[BarFigure]:
    figures: list[BarFigure] = []
    for balls, ours_long, theirs_long, bar in (
        (1, 100_000, 10_000, 5.0),
        (CROWD, 2_000, 300, None),
    ):
        name = f"role to role, {balls} under way"
        ours = partial(_bounce_roles, balls, ours_long)
        theirs = partial(_bounce_threads, balls, theirs_long)
        both = _alternately(name, rounds, say, ours, theirs)
        figures.append(higher_is_better(name, "messages/s", *both, bar))
    return figures


def _bounce_roles(balls: int, bounces: int) -> float:
    over = threading.Event()
    dispatcher = Dispatcher(NODE, _bridge())
    a, b, referee = (address_of(NODE, role) for role in ("a", "b", "referee"))
    roles = (
        Spawn(a, Bouncer, {"other": b, "referee": referee}),
        Spawn(b, Bouncer, {"other": a, "referee": referee}),
        Spawn(referee, Referee, {"over": over, "balls": balls}),
    )
    dispatcher.start(RoleSet(roles))
    ref = dispatcher.ref(a)
    rate = _rate(ref, over, balls, bounces)
    dispatcher.stop()
    return rate


def _bounce_threads(balls: int, bounces: int) -> float:
    overs = [threading.Event(), threading.Event()]
    a, b = (ThreadBouncer.start(over, balls) for over in overs)
    a.tell(b)
    b.tell(a)
    last = overs[bounces % 2]
    rate = _rate(a, last, balls, bounces)
    a.stop()
    b.stop()
    return rate


def _rate(first: pykka.ActorRef[Any], over: threading.Event, balls: int, bounces: int) -> float:
    """Throw all balls to ``first``, and return how many bounces there are in a second."""
    began = time.perf_counter()
    for _ in range(balls):
        first.tell(Ball(left=bounces))
    over.wait()
    return balls * (bounces + 1) / (time.perf_counter() - began)


def _bridge() -> SocketHub:
    """Return the sockets of a node, so that the measurements are of a real node."""
    return SocketHub(
        node=NODE,
        boot=1,
        cluster=NODE,
        listen="tcp://127.0.0.1:0",
        peers={},
        count=lambda name, times: None,
    )


def _asks(rounds: int, say: Callable[[str], None]) -> list[BarFigure]:
    both = _echoes("ask from one thread", rounds, say, lambda ref: _ask_times(ref, 3_000))
    return compared_times("ask, one thread", *both, 1.5, None)


def _crowd(rounds: int, say: Callable[[str], None]) -> list[BarFigure]:
    both = _echoes("ask from 16 threads", rounds, say, _crowd_rate)
    return [higher_is_better("ask, 16 threads", "asks/s", *both, 1.2)]


def _echoes(
    what: str, rounds: int, say: Callable[[str], None], ask: Callable[[pykka.ActorRef[Any]], M]
) -> tuple[list[M], list[M]]:
    """Let ``ask`` measure a role and a thread that send each message back."""

    def asked(start: Callable[[], AbstractContextManager[pykka.ActorRef[Any]]]) -> M:
        with start() as ref:
            return ask(ref)

    return _alternately(what, rounds, say, lambda: asked(_echo_role), lambda: asked(_echo_thread))


@contextmanager
def _echo_role() -> Generator[pykka.ActorRef[Any], None, None]:
    dispatcher = Dispatcher(NODE, _bridge())
    echo = address_of(NODE, "echo")
    dispatcher.start(RoleSet((Spawn(echo, EchoRole),)))
    yield dispatcher.ref(echo)
    dispatcher.stop()


@contextmanager
def _echo_thread() -> Generator[pykka.ActorRef[Any], None, None]:
    ref = ThreadEcho.start()
    yield ref
    ref.stop()


def _ask_times(ref: pykka.ActorRef[Any], asks: int) -> list[float]:
    times: list[float] = []
    for number in range(asks):
        began = time.perf_counter()
        ref.ask(Ball(left=number))
        times.append(time.perf_counter() - began)
    return times[asks // 10 :]  # The first tenth warms up.


def _crowd_rate(ref: pykka.ActorRef[Any], asks: int = 1_000, threads: int = 16) -> float:
    def run() -> None:
        for number in range(asks):
            ref.ask(Ball(left=number))

    crowd = [threading.Thread(target=run) for _ in range(threads)]
    began = time.perf_counter()
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    return asks * threads / (time.perf_counter() - began)


def _many_roles() -> list[BarFigure]:
    gc.collect()
    before = resident_bytes(os.getpid())
    began = time.perf_counter()
    dispatcher = Dispatcher(NODE, _bridge())
    dispatcher.start(
        RoleSet(tuple(Spawn(address_of(NODE, f"echo-{n}"), EchoRole) for n in range(ROLES)))
    )
    for n in range(ROLES):
        dispatcher.ref(address_of(NODE, f"echo-{n}")).ask(Ball(left=n))
    took = time.perf_counter() - began
    grown = (resident_bytes(os.getpid()) - before) / 1e6
    dispatcher.stop()
    return [
        below(f"{ROLES} roles", "MB", grown, ROLES_MB_MAX),
        below(f"{ROLES} roles started and each asked", "s", took, ROLES_S_MAX),
    ]
