"""The judge of `bakery`, which sees everything: roles, disks, all messages, and true time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from fencelock.actors.api.lock_message import Granted, Release, Renewed
from fencelock.actors.bakery.config import (
    election_of,
    leader_of,
    members_of,
    proxy_of,
    quorum,
    status_of,
)
from fencelock.actors.bakery.invariants import INVARIANTS
from fencelock.actors.bakery.max_lease import longest_lease_ms
from fencelock.actors.bakery.table import TicketPhase
from fencelock.actors.bakery.ticket import RequestKey, Who
from fencelock.actors.bakery.wire import (
    BoundStatement,
    DropTicket,
    HoldRenewed,
    Install,
    Lead,
    Lock,
    Locked,
    Merged,
    RenewHold,
    Unlock,
    UnlockAll,
    Vouched,
)
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import NS_PER_MS, Address, Instant, address_of, ms_between
from fencelock.actors.session.event import HoldsLost
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.verification.simulation.bakery_judge_votes import (
    DropsJudge,
    ElectionJudge,
    TicketJudge,
)
from fencelock.verification.simulation.faults import promise_of
from fencelock.verification.simulation.judge import ClientView
from fencelock.verification.simulation.nemesis import LeaderNemesis, serving_leaders
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import Judge, ViolationReport, sent
from fencelock.verification.simulation.world import World, about

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
        self.requested_at: dict[RequestKey, int] = {}
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
        for release in sent(effects, Release):
            self._end(release.lock, release.fence)

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
            reply = effect.message
            boot = self.world.nodes[delivered.node].boot
            session = reply.session or effect.to
            key = (delivered.node, boot, session, reply.owner, reply.lock, reply.request)
            before = self.answers.get(key, 0)
            if reply.fence < before:
                self.violation_report(
                    "one-reply", f"{delivered.to} says {reply}, and fence {before} was sent before"
                )
            self.answers[key] = reply.fence

    def at_leader(self, delivered: Delivery, effects: Effects) -> None:
        event = delivered.event
        match event:
            case Lock():
                self.requested_at.setdefault(event.key, self.world.time)
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
                text = f"{other.client} believes in fence {fence}"
                self.violation_report(
                    "lease-outlives-belief", f"{delivered.node} grants {locked}, and {text}"
                )
        since = self.requested_at.get(key, self.world.time)
        lease_ns = (locked.hold_ms + locked.grace_ms) * NS_PER_MS
        role: Any = self.world.role_at(delivered.to)
        until = since + lease_ns * PER_MILLE // 1_000
        leases[locked.fence] = LeaseSpan(key, until, role.epoch_state.epoch, shared)

    def _prolonged(self, proxy: Address, renewed: HoldRenewed) -> None:
        """Extend a lease; its client, if there is one, reports its belief itself."""
        lock, since = self.renewals.get((proxy, renewed.number), ("", 0))
        lease = self.leases.get(lock, {}).get(renewed.fence)
        if lease is not None:
            lease_ns = (renewed.hold_ms + renewed.grace_ms) * NS_PER_MS
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
                    text = f"fence {fence} of {lease.key} at {lock!r}"
                    self.violation_report(
                        "merged-tables-complete",
                        f"{delivered.node} is ready for {merged}, without {text}",
                    )


class BoundsJudge:
    """Judges longest-lease-known.

    Whichever members promise the next epoch, they report a bound for each lease.
    """

    def __init__(
        self,
        world: World,
        violation_report: ViolationReport,
        election: ElectionJudge,
        leases: LeasesJudge,
    ) -> None:
        self.world = world
        self.violation_report = violation_report
        self.election = election
        self.leases = leases

    def at_leader(self, delivered: Delivery, effects: Effects) -> None:
        if any(sent(effects, kind) for kind in (Locked, HoldRenewed)):
            self._judge(f"{delivered.node} grants or renews")

    def at_member(self, effects: Effects) -> None:
        """Judge the effect of a statement that a member confirms."""
        if sent(effects, Vouched):
            self._judge("a member confirms a bound")

    def _judge(self, what: str) -> None:
        if not self.leases.clocks_true:
            return
        bounds: dict[int, int | None] = {}
        for lock, leases in self.leases.leases.items():
            for fence, lease in leases.items():
                if not self.leases.lives(lease):
                    continue
                epoch = lease.epoch
                if epoch not in bounds:
                    bounds[epoch] = self._least_bound_ms(epoch)
                bound_ms, left_ms = bounds[epoch], (lease.until - self.world.time) // NS_PER_MS
                if bound_ms is not None and left_ms > bound_ms:
                    self.violation_report(
                        "longest-lease-known",
                        f"{what}: {lock!r} is held for {left_ms} ms more under fence {fence}, and "
                        f"some majority knows of {bound_ms} ms at most",
                    )

    def _least_bound_ms(self, epoch: int) -> int | None:
        """Return the lowest bound that any quorum of promises would report for ``epoch``.

        None if a later epoch is known, whose tables have the leases of this one.
        """
        known = self._records()
        if not known or max(record.seating.epoch for record in known.values()) > epoch:
            return None
        electorate = self.election.electorate_of(epoch)
        names = [name for name in electorate.everyone if name in known]
        least: int | None = None
        for size in range(1, len(names) + 1):
            quorums = [one for one in combinations(names, size) if electorate.is_quorum(one)]
            for names_of in quorums:
                records = [known[name] for name in names_of if known[name].seating.epoch == epoch]
                statements: dict[str, BoundStatement] = {}
                for record in records:
                    for one in record.statements:
                        last = statements.get(one.leader, one)
                        statements[one.leader] = max(last, one, key=lambda each: each.number)
                if records:
                    seating = records[0].seating
                    bound_ms = longest_lease_ms(seating, tuple(statements.values()))
                    least = bound_ms if least is None else min(least, bound_ms)
            if quorums:
                break
        return least

    def _records(self) -> dict[str, Install]:
        """Return the last seating on the disk of each member, with what it knows of bounds."""
        found: dict[str, Install] = {}
        for name in self.world.members:
            for record in self.world.nodes[name].disk.records().get("election", ()):
                if isinstance(record, Install) and (
                    name not in found or record.seating.epoch >= found[name].seating.epoch
                ):
                    found[name] = record
        return found


REPLACED_MS = 5_000
"""Time within which leaders that do not reach each other must be replaced (ms)."""

EPOCHS_MAX = 3
"""Maximum epochs that this may take."""

POLL_MS = 100


class SeatsJudge(Judge):
    """Judges deaf-leaders-replaced, in runs without other faults.

    Locks are granted though the leaders do not receive each other's messages.
    """

    def __init__(
        self, world: World, violation_report: ViolationReport, nemesis: LeaderNemesis
    ) -> None:
        self.world = world
        self.violation_report = violation_report
        self.nemesis = nemesis
        self.granted_at = 0
        self.epochs: dict[int, int] = {}
        """The first grant in each epoch (ns)."""
        world.after(POLL_MS * NS_PER_MS, self._poll)

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        if delivered.to == leader_of(delivered.node) and sent(effects, Locked):
            self.granted_at = self.world.time
            role = self.world.role_at(delivered.to)
            self.epochs.setdefault(role.epoch_state.epoch, self.world.time)

    def _poll(self) -> None:
        if self.world.calm:
            return
        now, (since, until) = self.world.time, self.nemesis.deaf
        if since < now < until:
            waited_ms = ms_between(Instant(max(since, self.granted_at)), Instant(now))
            if waited_ms > REPLACED_MS:
                self.violation_report(
                    "deaf-leaders-replaced", f"nothing was granted for {waited_ms} ms"
                )
            begun = [epoch for epoch, at in self.epochs.items() if since < at]
            if len(begun) > EPOCHS_MAX:
                self.violation_report(
                    "deaf-leaders-replaced", f"the leaders were replaced again and again: {begun}"
                )
        self.world.after(POLL_MS * NS_PER_MS, self._poll)


WHOLE_MS = 2_000
"""Time for which all members run before some are lost (ms): each has all copies by then."""

DOWN_MS = 1_500
"""Mean time for which lost members are down (ms)."""


class MinorityLosses:
    """Loses as many members at once as leaves a majority: all leaders, if these are no more.

    It judges survivors-suffice: no new leaders begin with empty tables, and locks are granted again
    within `REPLACED_MS`. Users must ask for locks all the time.
    """

    def __init__(self, world: World, violation_report: ViolationReport) -> None:
        self.world = world
        self.violation_report = violation_report
        self.granted_at = 0
        self.whole_since = 0
        self._random = world.streams.fork("survivors")
        world.after(POLL_MS * NS_PER_MS, self._poll)

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        for effect in effects:
            if type(effect) is not Send:
                continue
            message = effect.message
            if type(message) is Locked:
                self.granted_at = self.world.time
            elif type(message) is Lead and message.empty and message.former.epoch:
                self.violation_report(
                    "survivors-suffice", f"epoch {message.epoch} is to begin with empty tables"
                )

    def crashed(self, node: str, boot: int) -> None:
        self.whole_since = self.world.time

    def _poll(self) -> None:
        world = self.world
        if world.calm:
            return
        waited_ms = ms_between(Instant(self.granted_at), Instant(world.time))
        if self.granted_at and waited_ms > REPLACED_MS:
            self.violation_report("survivors-suffice", f"nothing was granted for {waited_ms} ms")
        if not all(world.nodes[name].up for name in world.members):
            self.whole_since = world.time
        elif ms_between(Instant(self.whole_since), Instant(world.time)) > WHOLE_MS:
            self._lose_minority()
        world.after(POLL_MS * NS_PER_MS, self._poll)

    def _lose_minority(self) -> None:
        """Crash leaders first, at one moment, and let them run again later, one after the other."""
        leading = serving_leaders(self.world)
        others = [name for name in self.world.members if name not in leading]
        self._random.shuffle(leading)
        self._random.shuffle(others)
        most = len(self.world.members) - quorum(len(self.world.members))
        lost = [*leading, *others][:most]
        self.world.fault_counts[f"{len(lost)} members are lost at once"] += 1
        for name in lost:
            self.world.lose(name, about(self._random, DOWN_MS))


class BakeryJudge:
    """Judges the invariants of `bakery` one by one.

    It does not trust the counters of roles: it counts deliveries and messages itself. From tables
    and epoch states it reads only the present state.
    """

    def __init__(self, world: World, judged: frozenset[str] | None = None) -> None:
        self.world = world
        violation_report = ViolationReport(INVARIANTS, judged)
        true = promise_of("bakery", ProtocolSettings()).clocks_true(world.faults)
        self.election = ElectionJudge(world, violation_report)
        self.votes = TicketJudge(world, violation_report, self.election, clocks_true=true)
        self.drops = DropsJudge(world, violation_report)
        self.leases = LeasesJudge(world, violation_report, clocks_true=true)
        self.bounds = BoundsJudge(world, violation_report, self.election, self.leases)
        self.violation_report = violation_report
        world.disk_watchers.append(self.disk_replaced)

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        node, to = delivered.node, delivered.to
        if node not in self.world.members:
            self.leases.at_client(delivered, effects)
        elif to == leader_of(node):
            self.election.handled(delivered, effects)
            self.votes.handled(delivered, effects)
            self.leases.at_leader(delivered, effects)
            self.bounds.at_leader(delivered, effects)
            self.drops.handled(delivered, effects)
        elif to == proxy_of(node):
            self.leases.at_proxy(delivered, effects)
        elif to in (election_of(node), status_of(node)):
            self.election.handled(delivered, effects)
            self.bounds.at_member(effects)
        elif to == members_of(node):
            self.election.answers(delivered, effects)

    def crashed(self, node: str, boot: int) -> None:
        self.election.crashed(node, boot)
        self.leases.crashed(node)

    def disk_replaced(self, node: str) -> None:
        self.election.disk_replaced(node)
