"""The judge of leases in `bakery`: clients' beliefs, leaders' tables and proxies' answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fencelock.actors.api.message import Granted, Release
from fencelock.actors.api.session_message import Renewed
from fencelock.actors.bakery.message import (
    DropTicket,
    HoldRenewed,
    Lock,
    Locked,
    Merged,
    RenewHold,
    Unlock,
    UnlockAll,
)
from fencelock.actors.bakery.table import TicketPhase
from fencelock.actors.bakery.ticket import RequestKey, Who
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import NS_PER_MS, Address, Instant, address_of
from fencelock.actors.session.message import HoldsLost
from fencelock.verification.simulation.judge import ClientView
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationReport
from fencelock.verification.simulation.world import World

PER_MILLE = 998
"""Share of a lease that has passed, at least, when two clocks as declared show its end."""


STRAY = Observe("bakery.stray_grant")
"""A proxy that returns this passes a grant on for which no request waits there."""


@dataclass(slots=True)
class LeaseSpan:
    """A lease that a leader granted.

    Attributes:
        until: true time before which no leader may treat it as over, counted from the first
            receipt of the request (ns).
        epoch: the epoch of its first grant. Its fence may be from an earlier epoch.
        shared: whether its request was shared.
        client: the client that believes in it, empty while none is known to.
        believed: the end of that belief, on the client's clock.

    """

    key: RequestKey
    until: int
    epoch: int
    shared: bool
    client: str = ""
    believed: Instant | None = None
    over: bool = False


class LeasesJudge:
    """Judges merged-tables-complete, lease-outlives-belief and one-reply."""

    def __init__(
        self, world: World, violation_report: ViolationReport, *, clocks_true: bool
    ) -> None:
        self.world = world
        self.view = ClientView(world)
        self.violation_report = violation_report
        self.clocks_true = clocks_true
        self.heard: dict[RequestKey, int] = {}
        """True time at which a leader first received a request (ns)."""
        self.shared: set[RequestKey] = set()
        """The shared requests."""
        self.leases: dict[str, dict[int, LeaseSpan]] = {}
        """By lock and fence."""
        self.renewals: dict[tuple[Address, int], tuple[str, int]] = {}
        """By proxy and its number: the lock, and the time when a leader first received it (ns)."""
        self.answers: dict[tuple[str, int, str, str, str, int], int] = {}
        """By proxy, its life, session, owner, lock and request: the fence of the answer."""

    def at_client(self, delivered: Delivery, effects: Effects) -> None:
        """Record how long clients rely on holds, and their releases."""
        event, client = delivered.event, delivered.node
        if type(event) is Granted or type(event) is Renewed:
            if delivered.to == address_of(client, "session"):
                self._believed(client, event)
        elif type(event) is HoldsLost:
            for loss in event.losses:
                self._end(loss.lock, loss.fence)
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Release:
                self._end(effect.message.lock, effect.message.fence)

    def at_proxy(self, delivered: Delivery, effects: Effects) -> None:
        """Check that a request is not answered with a fence that answered another (one-reply).

        A request may get a higher fence later: its first answer was lost, and its lease over. If
        the first answer comes late, no request waits for it: then the proxy passes it on, and its
        client gives the hold back.
        """
        if STRAY in effects:
            return
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
                    "one-reply", f"{delivered.to} says {said}, and fence {before} was said before"
                )
            self.answers[key] = said.fence

    def at_leader(self, delivered: Delivery, effects: Effects) -> None:
        event = delivered.event
        match event:
            case Lock():
                self.heard.setdefault(event.key, self.world.time)
                if event.shared:
                    self.shared.add(event.key)
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
        for leases in self.leases.values():
            for lease in leases.values():
                if lease.client == node:
                    lease.over = True

    def _believed(self, client: str, answer: Granted | Renewed) -> None:
        """Record how long a client relies on its hold, once its session took the answer."""
        lease = self.leases.get(answer.lock, {}).get(answer.fence)
        hold = self.view.hold_of(client, answer.lock, answer.owner)
        if lease is not None and hold is not None and hold.fence == answer.fence and hold.lease:
            lease.client, lease.believed = client, hold.lease.until

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

    def lives(self, lease: LeaseSpan) -> bool:
        """Return whether a client may rely on ``lease``."""
        if lease.over:
            return False
        if lease.believed is None:
            return self.world.time < lease.until
        return self.world.nodes[lease.client].now() < lease.believed

    def _granted(self, delivered: Delivery, locked: Locked) -> None:
        leases = self.leases.setdefault(locked.lock, {})
        if locked.fence in leases:
            return
        key = locked.key
        shared = key in self.shared
        for fence, other in leases.items():
            if shared and other.shared:
                continue
            if self.clocks_true and other.believed is not None and self.lives(other):
                told = f"{other.client} believes in fence {fence}"
                self.violation_report(
                    "lease-outlives-belief", f"{delivered.node} grants {locked}, and {told}"
                )
        since = self.heard.get(key, self.world.time)
        lease_ns = (locked.hold_ms + locked.grace_ms) * NS_PER_MS
        role: Any = self.world.role_at(delivered.to)
        until = since + lease_ns * PER_MILLE // 1_000
        leases[locked.fence] = LeaseSpan(key, until, role.epoch_state.epoch, shared)

    def _prolonged(self, proxy: Address, said: HoldRenewed) -> None:
        """Extend a lease; its client, if there is one, reports its belief itself."""
        lock, since = self.renewals.get((proxy, said.number), ("", 0))
        lease = self.leases.get(lock, {}).get(said.fence)
        if lease is not None:
            lease_ns = (said.hold_ms + said.grace_ms) * NS_PER_MS
            lease.until = max(lease.until, since + lease_ns * PER_MILLE // 1_000)

    def _merged(self, delivered: Delivery, merged: Merged) -> None:
        """Check that a leader that becomes ready knows every older lease that lives.

        It need not know grants that a quorum of the same epoch made meanwhile.
        """
        if not self.clocks_true:
            return
        role: Any = self.world.role_at(delivered.to)
        for lock, leases in self.leases.items():
            for fence, lease in leases.items():
                if lease.epoch >= merged.epoch or not self.lives(lease):
                    continue
                entry = role.tickets.get(lease.key)
                if entry is None or entry.phase is not TicketPhase.HOLDING:
                    told = f"fence {fence} of {lease.key} at {lock!r}"
                    self.violation_report(
                        "merged-tables-complete",
                        f"{delivered.node} is ready for {merged}, without {told}",
                    )
