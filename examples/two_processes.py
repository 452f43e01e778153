"""Two roles of your own on two nodes: the processes of Lamport's algorithm, played from a client.

    python examples/two_processes.py

Two nodes run in this process and connect over loopback. Each has a role `Contender` beside those
of fencelock. The two share one resource by the five rules of the essay in `actors/lamport/`; they
have a clock and a queue of their own. A client plays them as the essay's author does from a shell:
one enters, the other waits, the first leaves. Then both compete.

Links lose messages when they break, so a request is sent again until it is granted, and an
acknowledgement says which request its sender has: a lost release does no harm. But these processes
must not restart, since they forget what they promised. The protocol `lamport` covers that.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pykka

import fencelock
from fencelock import Node, ReadState
from fencelock.cluster.node.config import parse
from fencelock.cluster.testing.ports import free_ports
from fencelock.roles import (
    Abandon,
    Address,
    Effects,
    Facts,
    Host,
    Instant,
    Int64,
    Message,
    Role,
    RoleRequest,
    Send,
    Timer,
    Wake,
    node_of,
)

CONFIG = """
cluster = "essay"
protocol = "lamport"
[nodes.n1]
address = "tcp://127.0.0.1:{}"
[nodes.n2]
address = "tcp://127.0.0.1:{}"
"""

REPEAT_MS = 200
"""Pause before a request is sent again (ms)."""

ENTRIES = 25
"""Entries of each contender in the contest."""


class Request(Message, tag=0x1000):
    """I want the resource since ``time``, and queue behind earlier requests."""

    time: Int64


class Acknowledge(Message, tag=0x1001):
    """I know your request. My own is of ``request``, or I have none if that is 0."""

    time: Int64
    request: Int64


class Release(Message, tag=0x1002):
    """I do not want the resource any more."""

    time: Int64


class Entered(Message, tag=0x1003):
    """The resource is yours, by the request of ``time``."""

    time: Int64


class Left(Message, tag=0x1004):
    """The resource is not yours any more."""


class Enter(RoleRequest[Entered], tag=0x1005):
    """Give me the resource. Answered once it is mine."""


class Leave(RoleRequest[Left], tag=0x1006):
    """Take the resource back."""


class Repeat(Timer):
    """Send the request of ``time`` again, if it still waits."""

    time: Int64


Event = Enter | Leave | Abandon | Request | Acknowledge | Release | Repeat


class Contender(Role[Event]):
    """One of the processes that share a resource.

    Args:
        others: the addresses of the other processes.

    """

    def __init__(self, address: Address, host: Host, *, others: tuple[Address, ...]) -> None:
        super().__init__(address, host)
        self.others = others
        self.time = 0
        self.queue: dict[Address, int] = {}
        """The request of each process that has one."""
        self.latest = dict.fromkeys(others, 0)
        """The time of the latest message of each other process: the evidence."""
        self.callers: list[Address] = []
        """Callers of this process, of which the first has, or waits for, the resource."""
        self.holds = False

    def handle(  # noqa: PLR0912  (a case for each event)
        self, sender: Address, event: Event, now: Instant
    ) -> Effects:
        """Process one event by the rules of the essay."""
        if isinstance(event, Request | Acknowledge | Release):
            if sender not in self.latest:
                return ()
            self.time = max(self.time, event.time) + 1
            self.latest[sender] = max(self.latest[sender], event.time)
        match event:
            case Enter():
                self.callers.append(sender)
                return self._request() if len(self.callers) == 1 else ()
            case Leave():
                return [*self._release(), Send(sender, Left())]
            case Abandon():  # Its caller has stopped waiting.
                if self.callers[:1] == [sender]:
                    return self._release()
                self.callers = [caller for caller in self.callers if caller != sender]
                return ()
            case Request():  # Rule 2: put it into the queue, and acknowledge it.
                self.queue[sender] = event.time
                self.time += 1
                own = self.queue.get(self.address, 0)
                return [Send(sender, Acknowledge(time=self.time, request=own))]
            case Acknowledge():
                if event.request:
                    self.queue[sender] = event.request
                else:
                    self.queue.pop(sender, None)
                return self._enter()
            case Release():  # Rule 4: remove the request.
                self.queue.pop(sender, None)
                return self._enter()
            case Repeat():
                if self.holds or self.queue.get(self.address) != event.time:
                    return ()
                return self._send_request(event.time)

    def facts(self, now: Instant) -> Facts:
        """Return the queue in order, and the evidence."""
        yield "time", self.time
        yield "holds", self.holds
        for place, (time, process) in enumerate(self._in_order(), 1):
            yield f"place {place}", f"{process} at {time}"
        for process, time in self.latest.items():
            yield f"latest of {process}", time

    def _in_order(self) -> list[tuple[int, Address]]:
        return sorted((time, process) for process, time in self.queue.items())

    def _request(self) -> Effects:
        """Rule 1: send a request to every process."""
        self.time += 1
        self.queue[self.address] = self.time
        return [*self._send_request(self.time), *self._enter()]

    def _send_request(self, time: int) -> Effects:
        asked = [Send(other, Request(time=time)) for other in self.others]
        return [*asked, Wake(REPEAT_MS, Repeat(time=time))]

    def _enter(self) -> Effects:
        """Rule 5: enter with the first request, and a later message of every other process."""
        if self.holds or not self.callers or not self.queue:
            return ()
        time, process = self._in_order()[0]
        if process != self.address or any(latest <= time for latest in self.latest.values()):
            return ()
        self.holds = True
        return [Send(self.callers[0], Entered(time=time))]

    def _release(self) -> Effects:
        """Rule 3: remove the own request, and notify every other process."""
        if not self.callers:
            return ()
        del self.callers[0], self.queue[self.address]
        self.holds = False
        self.time += 1
        notices = [Send(other, Release(time=self.time)) for other in self.others]
        return [*notices, *(self._request() if self.callers else ())]


def show(contender: fencelock.RemoteRef) -> None:
    state = contender.ask(ReadState(), timeout=10)
    facts = ", ".join(f"{fact.name}: {fact.value}" for fact in state.facts)
    print(f"  {contender.address}  {facts}")


def play(first: fencelock.RemoteRef, second: fencelock.RemoteRef) -> None:
    """Let one process enter while the other waits, as the author does."""
    entered = first.ask(Enter(), timeout=10)
    print(f"{first.address} entered by its request of time {entered.time}")
    waiting = second.ask(Enter(), block=False)
    try:
        waiting.get(timeout=0.3)
    except pykka.Timeout:
        print(f"{second.address} waits")
    show(first)
    show(second)
    first.ask(Leave(), timeout=10)
    print(f"{first.address} left; {second.address} entered at {waiting.get(timeout=10).time}")
    second.ask(Leave(), timeout=10)


def compete(contenders: tuple[fencelock.RemoteRef, ...]) -> None:
    """Let a thread enter and leave through each process, and count overlaps."""
    inside: list[str] = []
    overlaps: list[str] = []

    def contend(contender: fencelock.RemoteRef) -> None:
        for _ in range(ENTRIES):
            contender.ask(Enter(), timeout=30)
            overlaps.extend(inside)
            inside.append(contender.address)
            inside.remove(contender.address)
            contender.ask(Leave(), timeout=30)

    threads = [threading.Thread(target=contend, args=(one,)) for one in contenders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{ENTRIES * len(contenders)} entries, {len(overlaps)} overlaps")


def main(folder: Path) -> None:
    config = parse(CONFIG.format(*free_ports(2)), folder)
    addresses = {node: Address(f"{node}/contender") for node in config.nodes}
    with ExitStack() as stack:
        nodes = [stack.enter_context(Node.start(config, node)) for node in config.nodes]
        for node in nodes:
            others = tuple(one for one in addresses.values() if node_of(one) != node.id)
            node.add_role(Contender, others=others)
        client = stack.enter_context(
            fencelock.connect([node.address for node in nodes], cluster="essay")
        )
        first, second = (client.ref(address) for address in addresses.values())
        play(first, second)
        compete((first, second))


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(Path(folder))
