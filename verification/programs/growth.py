"""The size of a member's journal under a steady load, and the duration of a restart.

Three members of a replicated table of locks, with real sockets and disks, in one process.
Run it as ``python verification/programs/growth.py --commands 500000``.
"""

from __future__ import annotations

import argparse
import secrets
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from fencelock.actors.api.message import Acquire, Cancel, Cancelled, Granted
from fencelock.actors.api.request import Command
from fencelock.actors.api.session_message import Open, Opened
from fencelock.actors.bootstrap_message import Founding
from fencelock.actors.clock import Clock
from fencelock.actors.effect import Effect, Effects, Send, Spawn, Wake
from fencelock.actors.message import Address, Instant, Local, Timer, address_of
from fencelock.actors.paxos.config import replica_of
from fencelock.actors.paxos.event import LeaderChanged, Skipped, SlotOutcomes
from fencelock.actors.paxos.member import LogOptions, log_roles
from fencelock.actors.paxos.message import Declined, Propose, Proposed
from fencelock.actors.role import Host, Role
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.lock_machine import LockMachine
from fencelock.cluster.node.storage.journal import STREAM, Journal, claim
from fencelock.cluster.testing.ports import free_ports
from fencelock.transport.codec import decode, encode
from fencelock.transport.hub import SocketHub

MEMBERS = ("n1", "n2", "n3")
OWNERS = 256
"""Owners that request locks at the same time."""
KEPT = 1_000
"""Locks that are held all the time, so that a snapshot is not empty."""
AGAIN_MS = 1_000
LONG_S = 3_600.0
TTL_MS = 3_600_000


class Load(Local):
    """A request to have ``commands`` decided. Answered by `Loaded`."""

    commands: int


class Loaded(Local):
    """The commands were decided; ``applied`` slots were applied in all."""

    applied: int


class Again(Timer):
    """Propose again the commands without an outcome."""


class Loader(Role[Load | SlotOutcomes | LeaderChanged | Skipped | Proposed | Declined | Again]):
    """Has owners take locks and give them back, each as soon as it receives the outcome.

    Args:
        kept: number of locks held by owners of their own from the beginning.

    """

    def __init__(self, address: Address, host: Host, *, kept: int) -> None:
        super().__init__(address, host)
        self.replica = replica_of(address.partition("/")[0])
        self.kept = kept
        self.asker: Address | None = None
        self.session = ""
        self.left = 0
        self.requests = 0
        self.waiting: dict[int, Command] = {}
        """Commands without an outcome, by request."""
        self.slot = 0

    def handle(
        self,
        sender: Address,
        event: Load | SlotOutcomes | LeaderChanged | Skipped | Proposed | Declined | Again,
        now: Instant,
    ) -> Effects:
        """Begin, or go on."""
        match event:
            case Load():
                self.asker, self.left = sender, event.commands
                opening = Open(session=f"load-{now}", ttl_ms=TTL_MS)
                self.waiting[0] = opening
                return [self._propose(0, opening), Wake(AGAIN_MS, Again())]
            case SlotOutcomes():
                self.slot = event.slot
                return [effect for told in event.outcomes for effect in self._on_outcome(told)]
            case Again():
                again = [self._propose(request, one) for request, one in self.waiting.items()]
                return [*again, Wake(AGAIN_MS, Again())] if again else []
            case LeaderChanged() | Skipped() | Proposed() | Declined():
                return ()

    def _on_outcome(self, outcome: Any) -> list[Effect]:
        match outcome:
            case Opened() if self.waiting.pop(0, None) is not None:
                self.session = outcome.assigned
                owners = range(OWNERS + self.kept)
                return [effect for owner in owners for effect in self._acquire(f"o{owner}")]
            case Granted() if outcome.session == self.session and outcome.request in self.waiting:
                return self._on_held(outcome)
            case Cancelled() if outcome.session == self.session:
                if self.waiting.pop(outcome.request, None) is None:
                    return []
                self.left -= 2
                return self._acquire(outcome.owner)
            case _:
                return []

    def _acquire(self, owner: str) -> list[Effect]:
        if self.left <= 0:
            if self.asker is None or self.waiting:
                return []
            asker, self.asker = self.asker, None
            return [Send(asker, Loaded(applied=self.slot))]
        self.requests += 1
        command = Acquire(
            session=self.session, owner=owner, request=self.requests, lock=f"lock-of-{owner}"
        )
        self.waiting[self.requests] = command
        return [self._propose(self.requests, command)]

    def _on_held(self, held: Granted) -> list[Effect]:
        if held.request <= self.kept:
            self.waiting.pop(held.request, None)
            return []
        cancel = Cancel(
            session=held.session, owner=held.owner, request=held.request, lock=held.lock
        )
        self.waiting[held.request] = cancel
        return [self._propose(held.request, cancel)]

    def _propose(self, number: int, command: Command) -> Send:
        propose = Propose(client=self.address, number=number, command=encode(command))
        return Send(self.replica, propose)


class GrowthMember:
    """One member with its journal in ``folder``."""

    def __init__(
        self, node: str, addresses: dict[str, str], folder: Path, journal_bytes: int, kept: int
    ) -> None:
        began = time.perf_counter()
        boot = secrets.randbits(63)
        self.journal = Journal.open(folder / node, segment_bytes_max=journal_bytes)
        found = self.journal.take_records()
        records = [
            decode(one) for name, stream in found.items() if name != STREAM for one in stream
        ]
        loader = address_of(node, "loader")
        identity = claim(self.journal, found, {"node": node})
        log = log_roles(
            node,
            MEMBERS,
            Random(boot),
            LockMachine(),
            records=records,
            journal=identity.id,
            secret=identity.secret,
            boot=boot,
            date_ms=time.time_ns() // 1_000_000,
            founding=Founding.ONCE,
            options=LogOptions(listener=loader, journal_bytes=journal_bytes),
        )
        clock = Spawn(address_of(node, "clock"), Clock, {"start": 0})
        role_set = RoleSet(roles=(clock, *log, Spawn(loader, Loader, {"kept": kept})))
        hub = SocketHub(
            node=node,
            boot=boot,
            cluster="growth",
            listen=addresses[node],
            peers={peer: at for peer, at in addresses.items() if peer != node},
            count=lambda _name, _times: None,
        )
        others = frozenset(MEMBERS) - {node}
        self.dispatcher = Dispatcher(node, hub, members=others, journal=self.journal)
        self.dispatcher.start(role_set)
        self.start_s = time.perf_counter() - began
        self.loader = self.dispatcher.ref(loader)


@dataclass(frozen=True, slots=True)
class Growth:
    """The result of a run."""

    commands: int
    seconds: float
    bytes_max: int
    """The largest observed size of a journal (bytes)."""
    bytes_end: int
    restart_s: float
    """Restart time of the slowest member with its journal (s)."""


def grow(commands: int, journal_bytes: int, folder: Path, *, kept: int = KEPT) -> Growth:
    """Load three members with ``commands``, then restart them.

    Args:
        commands: their number.
        journal_bytes: the size after which each member compacts its journal.
        folder: for the journals.
        kept: locks that are held all the time.

    """
    ports = zip(MEMBERS, free_ports(len(MEMBERS)), strict=True)
    addresses = {node: f"tcp://127.0.0.1:{port}" for node, port in ports}
    members = [GrowthMember(node, addresses, folder, journal_bytes, kept) for node in MEMBERS]
    over, sizes = threading.Event(), [0]
    watcher = threading.Thread(target=_watch, args=(members, over, sizes))
    watcher.start()
    began = time.perf_counter()
    try:
        members[0].loader.ask(Load(commands=commands + kept), timeout=LONG_S)
        seconds = time.perf_counter() - began
    finally:
        over.set()
        watcher.join()
        for member in members:
            member.dispatcher.stop()
    end = max(member.journal.disk_bytes for member in members)
    again = [GrowthMember(node, addresses, folder, journal_bytes, kept) for node in MEMBERS]
    for member in again:
        member.dispatcher.stop()
    restart_s = max(member.start_s for member in again)
    return Growth(commands, seconds, sizes[0], end, restart_s)


def _watch(members: list[GrowthMember], over: threading.Event, sizes: list[int]) -> None:
    while not over.wait(0.01):
        sizes[0] = max(sizes[0], *(member.journal.disk_bytes for member in members))


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--commands", type=int, default=500_000)
    parser.add_argument("--journal-bytes", type=int, default=8 << 20)
    parser.add_argument("--kept", type=int, default=KEPT)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(grow(asked.commands, asked.journal_bytes, Path(folder), kept=asked.kept))


if __name__ == "__main__":
    main()
