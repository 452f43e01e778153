"""The judge of leases in `bakery`: what clients believe, what tables hold, what doors answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fencelock.actors.bakery.entry import Key, Phase
from fencelock.actors.bakery.message import Merged
from fencelock.actors.bakery.proxy_message import (
    HoldRenewed,
    Lock,
    Locked,
    RenewHold,
    Unlock,
    UnlockAll,
)
from fencelock.actors.bakery.step_message import DropTicket
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.client.message import HoldsLost, Leased
from fencelock.actors.effect import Effects, Send
from fencelock.actors.lock.message import Granted, Release
from fencelock.actors.message import NS_PER_MS, Address, Instant, node_of
from fencelock.cluster.simulation.trace import Delivered
from fencelock.cluster.simulation.violation_report import ViolationReport
from fencelock.cluster.simulation.world import World

PER_MILLE = 998
"""How much of a lease has passed, at least, when two clocks as declared say that it has."""


@dataclass(slots=True)
class Lease:
    """What a leader granted.

    Attributes:
        until: true time before which no leader may take it for over, counted from when the
            request was heard first (ns).
        epoch: in which it was granted first; its fence may be one that was voted for earlier.
        client: who believes in it, empty as long as nobody is known to.
        believed: until when, on the client's clock.

    """

    key: Key
    until: int
    epoch: int
    client: str = ""
    believed: Instant | None = None
    over: bool = False


class LeasesJudge:
    """Judges B3, B9 and B11.

    Args:
        world: with roles and clocks.
        violation_report: is told what is wrong.
        clocks_true: whether clocks keep to what is declared of them.

    """

    def __init__(
        self, world: World, violation_report: ViolationReport, *, clocks_true: bool
    ) -> None:
        self.world = world
        self.violation_report = violation_report
        self.clocks_true = clocks_true
        self.heard: dict[tuple[str, Key], int] = {}
        """True time at which a request was said to a leader first (ns)."""
        self.leases: dict[str, dict[int, Lease]] = {}
        """By lock and fence."""
        self.renewals: dict[tuple[Address, int], tuple[str, int]] = {}
        """By door and its number: which lock, and when a leader heard of it first (ns)."""
        self.answers: dict[tuple[str, int, str, str, str, int], int] = {}
        """By door, its life, session, owner, lock and request: the fence that was answered."""

    def at_client(self, delivered: Delivered, effects: Effects) -> None:
        """Take note of what clients believe and give back."""
        event, client = delivered.event, delivered.node
        if type(event) is Leased:
            lease = self.leases.get(event.lock, {}).get(event.fence)
            if lease is not None:
                lease.client, lease.believed = client, event.until
        elif type(event) is HoldsLost:
            for loss in event.losses:
                self._end(loss.lock, loss.fence)
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Release:
                self._end(effect.message.lock, effect.message.fence)

    def at_door(self, delivered: Delivered, effects: Effects) -> None:
        """Judge that a request is not answered with what it was answered before another (B11).

        It may be with a higher one: the first answer was lost, and its lease over.
        """
        for effect in effects:
            if type(effect) is not Send or type(effect.message) is not Granted:
                continue
            said = effect.message
            boot = self.world.nodes[delivered.node].boot
            session = said.session or effect.to
            key = (delivered.node, boot, session, said.owner, said.lock, said.request)
            before = self.answers.get(key, 0)
            if said.fence < before:
                self.violation_report(
                    "B11", f"{delivered.to} says {said}, and fence {before} was said before"
                )
            self.answers[key] = said.fence

    def at_leader(self, delivered: Delivered, effects: Effects) -> None:
        """Judge what a leader heard and wants."""
        event = delivered.event
        match event:
            case Lock():
                key = (event.lock, Key(event.who, event.request))
                self.heard.setdefault(key, self.world.time)
            case RenewHold():
                renewal = (delivered.sender, event.number)
                self.renewals.setdefault(renewal, (event.lock, self.world.time))
            case Unlock() if not event.waiting:
                self._dropped(event.lock, event.who, event.request, event.fence)
            case DropTicket() if not event.mine:
                self._dropped(event.lock, event.who, event.request, event.fence)
            case UnlockAll():
                self._all_dropped(event.session)
            case _:
                pass
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Locked:
                self._granted(delivered, effect.message)
            elif type(effect) is Send and type(effect.message) is HoldRenewed:
                self._prolonged(effect.to, effect.message)
            elif type(effect) is Send and type(effect.message) is Merged:
                self._merged(delivered, effect.message)

    def crashed(self, node: str) -> None:
        """Let a client that died believe in nothing."""
        for leases in self.leases.values():
            for lease in leases.values():
                if lease.client == node:
                    lease.over = True

    def _end(self, lock: str, fence: int) -> None:
        lease = self.leases.get(lock, {}).get(fence)
        if lease is not None:
            lease.over = True

    def _dropped(self, lock: str, who: Who, request: int, fence: int) -> None:
        for number, lease in self.leases.get(lock, {}).items():
            if lease.key.who == who and (number == fence or lease.key.request <= request):
                lease.over = True

    def _all_dropped(self, session: str) -> None:
        for leases in self.leases.values():
            for lease in leases.values():
                if lease.key.who.session == session:
                    lease.over = True

    def _lives(self, lease: Lease) -> bool:
        if lease.over:
            return False
        if lease.believed is None:
            return self.world.time < lease.until
        return self.world.nodes[lease.client].now() < lease.believed

    def _granted(self, delivered: Delivered, locked: Locked) -> None:
        leases = self.leases.setdefault(locked.lock, {})
        if locked.fence in leases:
            return
        for fence, other in leases.items():
            if self.clocks_true and other.believed is not None and self._lives(other):
                told = f"{other.client} believes in fence {fence}"
                self.violation_report("B9", f"{delivered.node} grants {locked}, and {told}")
        key = Key(locked.who, locked.request)
        since = self.heard.get((locked.lock, key), self.world.time)
        lease_ns = (locked.hold_ms + locked.grace_ms) * NS_PER_MS
        role: Any = self.world.role_at(delivered.to)
        until = since + lease_ns * PER_MILLE // 1_000
        leases[locked.fence] = Lease(key, until, role.epoch_state.epoch)

    def _prolonged(self, door: Address, said: HoldRenewed) -> None:
        """Let a lease be over later; who believes in it says so, if it is a client at all."""
        lock, since = self.renewals.get((door, said.number), ("", 0))
        lease = self.leases.get(lock, {}).get(said.fence)
        if lease is not None:
            lease_ns = (said.hold_ms + said.grace_ms) * NS_PER_MS
            lease.until = max(lease.until, since + lease_ns * PER_MILLE // 1_000)

    def _merged(self, delivered: Delivered, merged: Merged) -> None:
        """Demand that whoever is ready to lead knows of every lease of before that lives (B3).

        What a quorum of the same epoch granted meanwhile a third one need not know.
        """
        if not self.clocks_true:
            return
        role: Any = self.world.role_at(delivered.to)
        for lock, leases in self.leases.items():
            for fence, lease in leases.items():
                if lease.epoch >= merged.epoch or not self._lives(lease):
                    continue
                entry = role.tickets.get(lock, lease.key)
                if entry is None or entry.phase is not Phase.HOLDING:
                    told = f"fence {fence} of {lease.key} at {lock!r}"
                    self.violation_report(
                        "B3", f"{delivered.node} is ready for {merged}, without {told}"
                    )


def is_door(delivered: Delivered) -> bool:
    """Return whether a door handled it."""
    return delivered.to == f"{node_of(delivered.to)}/proxy"
