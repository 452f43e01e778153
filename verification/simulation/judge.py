"""The judges of locks, also of retained ones. They know true time, and see every grant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from fencelock.actors.api.lock_message import AcquireRequest, Granted, Refused, Release
from fencelock.actors.api.retained import RETAINERS, AcquireRetained, Recall
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import (
    NS_PER_MS,
    Address,
    Instant,
    address_of,
    later,
    node_of,
    role_of,
)
from fencelock.actors.session.event import HoldsLost, ReleaseUnawaited
from fencelock.actors.session.holds import ClientHold, HoldState
from fencelock.actors.session.requests import LockKey
from fencelock.actors.session.retained import COHORT_MS, RETAINED_INVARIANTS, Admit
from fencelock.actors.session.retainer import Decided
from fencelock.verification.simulation.replay import TableReplay
from fencelock.verification.simulation.retaining import OWNERS_ROLE, RETAINER_ROLE, LocalHold
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError, sent
from fencelock.verification.simulation.workload import (
    UNAWAITED,
    ContenderPhase,
    LockUser,
    release_in,
)
from fencelock.verification.simulation.world import World


class ClientView:
    """Reads the session roles of the clients in a world, and the local owners of retained locks."""

    def __init__(self, world: World) -> None:
        self.world = world

    def now(self, client: str) -> Instant:
        return self.world.nodes[client].now()

    def hold_of(self, client: str, lock: str, owner: str) -> ClientHold | None:
        """Return the hold that the threads of a client read, or None if there is none."""
        lock_key = LockKey(lock, owner)
        owners = self.world.nodes[client].scheduler.roles.get(address_of(client, OWNERS_ROLE))
        if owners is not None:
            local: LocalHold | None = cast("Any", owners.role).inside.get(lock_key)
            if local is not None:
                return local.hold
        hold: ClientHold | None = self._session(client).holds.get(lock_key)
        return hold

    def relied_on(self, client: str) -> tuple[str, Instant] | None:
        """Return the session of a client, and until when it relies on it; None without one.

        The node of a client that died has no session when it starts again.
        """
        node = self.world.nodes[client]
        if not node.up or address_of(client, "session") not in node.scheduler.roles:
            return None
        lease = self._session(client).session_lease
        return (lease.assigned, lease.until) if lease.kept else None

    def _session(self, client: str) -> Any:
        return self.world.role_at(address_of(client, "session")).session_state


@dataclass(slots=True)
class JudgedHold:
    """A contender in its section: from handling its grant until it sends the release."""

    contender: Address
    lock: str
    fence: int
    since: int
    node: str
    """The node through which it was granted, empty if none is known."""
    boot: int
    """The boot of that node when it granted."""
    believed: ClientHold | None = None
    """The hold of the client, from which its threads learn of a loss; None without sessions."""


class LockJudge:
    """Judges one run.

    - Exclusion: at most one contender is inside a lock at any true time.
    - Fences: a contender that enters a lock shows a higher fence than all before it.
    - Wants: no contender is granted what it did not ask for, was refused, or already has.
    - Belief: a contender that enters a lock in a session of the cluster may rely on it.

    If ``holds_end_with_node``, a hold counts only until the node that granted it dies:
    the protocol gives the lock to others then, and only the fence stops the former
    holder. Its fence is still judged: no other may get the same, nor a lower one after it.
    A grant that arrives when its node has already died is not a hold at all, and may be late
    with its fence, as it may at any resource that checks it.

    With ``clients``, a contender counts as inside while it may believe that it is: until it
    sends the release, until its client's session reports the hold as lost, or until the
    hold that its client's threads read is lost by its client's own clock. If
    ``clocks_true`` is false, clocks went further from true than the protocol declares.
    Then two may believe so, and a lower fence may come after a higher one. Only a fence
    that is shown twice is an error: storage refuses the lower one.

    Args:
        contenders: the roles whose grants count; sessions and members send the same messages.
        clients: the clocks and holds of clients, where the cluster keeps sessions; None where it
            does not.
        replay: the judge of the table, where the log has one; it says what the table was.

    """

    def __init__(
        self,
        members: tuple[str, ...],
        contenders: tuple[Address, ...],
        *,
        holds_end_with_node: bool = False,
        clients: ClientView | None = None,
        clocks_true: bool = True,
        replay: TableReplay | None = None,
    ) -> None:
        self.replay = replay or TableReplay()
        self.members = frozenset(members)
        self.contenders = frozenset(contenders)
        self.holds_end_with_node = holds_end_with_node
        self.clients = clients
        self.clocks_true = clocks_true
        self.grants: int = 0
        self.losses = 0
        self.inside: dict[str, JudgedHold] = {}
        self.wants: dict[Address, AcquireRequest] = {}
        """The request of each contender that waits."""
        self.fences: dict[str, dict[int, Address]] = {}
        """All fences ever shown at a lock, and their contenders."""
        self.highest: dict[str, int] = {}
        self._granted_by: dict[tuple[str, str, str, int], tuple[str, int]] = {}
        self._given: dict[Address, ClientHold | None] = {}
        """The hold of the last grant that each contender's session passed on."""
        self._dead: set[tuple[str, int]] = set()

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event = delivered.event
        self._note_holds(delivered, effects)
        if type(event) is Granted and node_of(delivered.sender) in self.members:
            node = (node_of(delivered.sender), delivered.boot)
            key = (delivered.node, event.owner, event.lock, event.fence)
            self._granted_by.setdefault(key, node)
        if type(event) is HoldsLost:
            self._lose(delivered.node, event)
        if delivered.to not in self.contenders:
            return
        if type(event) is Granted:
            self._enter(delivered, event)
        elif type(event) is Refused and event.request != UNAWAITED:
            self.wants.pop(delivered.to, None)
        for effect in effects:
            if type(effect) is Send and isinstance(effect.message, AcquireRequest):
                self.wants[delivered.to] = effect.message
            elif (release := release_in(effect)) is not None:
                self._leave(delivered.to, release.lock)

    def crashed(self, node: str, boot: int) -> None:
        """End the holds of ``node``, and holds granted through it if the protocol says so."""
        self.left(node)
        if self.holds_end_with_node:
            self._dead.add((node, boot))
            gone = [hold for hold in self.inside.values() if (hold.node, hold.boot) == (node, boot)]
            for hold in gone:
                del self.inside[hold.lock]

    def left(self, client: str) -> None:
        """End all waits and holds of ``client``, which died or closes."""
        for user in [user for user in self.wants if node_of(user) == client]:
            del self.wants[user]
        for hold in [hold for hold in self.inside.values() if node_of(hold.contender) == client]:
            del self.inside[hold.lock]

    def waiting_for(self, lock: str) -> list[Address]:
        return [user for user, wanted in self.wants.items() if wanted.lock == lock]

    def _enter(self, delivered: Delivery, granted: Granted) -> None:
        contender = delivered.to
        wanted = self.wants.pop(contender, None)
        if wanted is None or wanted.lock != granted.lock:
            raise ViolationError(f"{contender} was granted {granted!r} and did not wait for it")
        self.grants += 1
        key = (delivered.node, granted.owner, granted.lock, granted.fence)
        node, boot = self._granted_by.get(key, ("", 0))
        believed = self._given.get(contender)
        hold = JudgedHold(
            contender, granted.lock, granted.fence, delivered.time, node, boot, believed
        )
        dead_on_arrival = (node, boot) in self._dead
        before = self.fences.get(hold.lock, {}).get(hold.fence)
        if granted.count <= 1 or before != contender:
            self._judge_fence(hold, may_be_late=dead_on_arrival or not self.clocks_true)
        if dead_on_arrival:
            return
        other = self.inside.get(hold.lock)
        if other is not None and (other.contender, other.fence) == (contender, hold.fence):
            return  # It enters a lock again that it holds.
        if not self._believes(hold):
            raise ViolationError(f"belief: {_shown(hold)}, which it cannot rely on")
        if other is not None and self.clocks_true and self.may_be_inside(other):
            raise ViolationError(f"mutual exclusion: {_shown(hold)} while {_shown(other)}")
        self.inside[hold.lock] = hold

    def _note_holds(self, delivered: Delivery, effects: Effects) -> None:
        """Note the hold that belongs to each grant of a session, for the contender it is for.

        A client that retains locks passes the grant on; the hold may be lost by then.
        """
        if self.clients is None or delivered.node in self.members:
            return
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Granted:
                lock, owner = effect.message.lock, effect.message.owner or role_of(effect.to)
                hold = self.clients.hold_of(delivered.node, lock, owner)
                user = address_of(delivered.node, owner)
                if hold is not None or role_of(delivered.to) != OWNERS_ROLE:
                    self._given[user] = hold

    def _believes(self, hold: JudgedHold) -> bool:
        """Return whether the holder may rely on its grant by its own clock.

        Its session may have lost it already: then the message about it is on its way.
        """
        if self.clients is None:
            return True
        believed, now = hold.believed, self.clients.now(node_of(hold.contender))
        until = None if believed is None else believed.until()
        return believed is not None and (until is None or now < until)

    def may_be_inside(self, hold: JudgedHold) -> bool:
        """Return whether the holder may still believe that it holds the lock."""
        if self.clients is None:
            return True
        believed, now = hold.believed, self.clients.now(node_of(hold.contender))
        return believed is not None and believed.state_at(now) is not HoldState.LOST

    def _lose(self, client: str, lost: HoldsLost) -> None:
        for loss in lost.losses:
            self.losses += 1
            hold = self.inside.get(loss.lock)
            if hold is not None and (node_of(hold.contender), hold.fence) == (client, loss.fence):
                del self.inside[loss.lock]

    def _judge_fence(self, hold: JudgedHold, *, may_be_late: bool) -> None:
        shown = self.fences.setdefault(hold.lock, {})
        if hold.fence in shown:
            raise ViolationError(f"fences: {_shown(hold)}, a fence {shown[hold.fence]} had before")
        highest = self.highest.get(hold.lock, 0)
        if hold.fence <= highest and not may_be_late:
            raise ViolationError(f"fences: {_shown(hold)} after fence {highest} was shown")
        shown[hold.fence] = hold.contender
        self.highest[hold.lock] = max(highest, hold.fence)

    def _leave(self, contender: Address, lock: str) -> None:
        hold = self.inside.get(lock)
        if hold is not None and hold.contender == contender:
            del self.inside[lock]


def _shown(hold: JudgedHold) -> str:
    since = f"{hold.since / NS_PER_MS:.3f} ms"
    through = f" through {hold.node}" if hold.node else ""
    return f"{hold.contender} is in {hold.lock!r} with fence {hold.fence}{through} since {since}"


def unserved(contenders: Mapping[Address, LockUser]) -> list[str]:
    return [
        f"{address} {role.phase.value} ({role.lock!r})"
        for address, role in contenders.items()
        if role.phase is not ContenderPhase.DONE
    ]


def judge_progress(contenders: Mapping[Address, LockUser], bound_ms: int) -> None:
    """Check that every contender was served."""
    if waiting := unserved(contenders):
        raise ViolationError(f"progress: {bound_ms} ms after all faults ended {', '.join(waiting)}")


RECALL_MS = 10_000
"""Time within which a hold goes back that others wait for, once all faults are over and no local
owner has it (ms). It has room for an election, for a new session, and for a keep-alive that repeats
the recall."""

LOOK_MS = 100
"""Interval at which the judge looks for holds that should have gone back (ms)."""

RECALLS_ANSWERED = "recalls-answered"
"""The name of the rule that a retained hold goes back within `RECALL_MS`."""


@dataclass(slots=True)
class RetainedHold:
    """A hold that a client retains, from its grant until it is given back or lost."""

    client: str
    key: LockKey
    fence: int
    end_fence: int
    """The first fence after its span."""
    session: ClientHold | None
    """The session's own hold, whose times say whether the session is trusted."""
    first_is_free: bool
    """Whether its recall came before its grant, so that the first local owner overtakes nobody."""
    recalled_at: Instant | None = None
    """The time of its recall, by the client's clock."""
    followers: int = 0
    """The local owners that were admitted after the recall."""
    owed_since: int | None = None
    """The true time since when it should go back."""

    def has(self, fence: int) -> bool:
        return self.fence <= fence < self.end_fence

    def __str__(self) -> str:
        return f"{self.key.lock!r} retained by {self.client} under fence {self.fence}"


class RetainedJudge:
    """Judges the retained locks of one run.

    - admitted-in-trust, strict-recall, released-unused: see `RETAINED_INVARIANTS`.
    - recalls-answered: see `RECALL_MS`.
    """

    def __init__(self, view: ClientView, locks: LockJudge, cohort: int) -> None:
        self.view, self.locks, self.cohort = view, locks, cohort
        self.holds: dict[tuple[str, LockKey], RetainedHold] = {}
        self._spans: dict[tuple[str, LockKey], int] = {}
        """The number of fences that each client requested last."""
        self._early: dict[tuple[str, LockKey], int] = {}
        """The fences of recalls that came before their grants."""
        self._looked_at = 0

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        role = role_of(delivered.to)
        if role == RETAINER_ROLE:
            self._note_event(delivered)
            for effect in effects:
                match effect:
                    case Send(message=Decided(acts=acts)):
                        for act in acts:
                            if isinstance(act, Admit):
                                self._admitted(delivered, act.fence)
                    case Send(message=ReleaseUnawaited(release=release)):
                        self._given_back(delivered, release)
                    case Send(message=AcquireRetained(lock=lock, owner=owner, span=span)):
                        self._spans[delivered.node, LockKey(lock, owner)] = span
                    case _:
                        pass
        elif role == OWNERS_ROLE and type(delivered.event) not in (Decided, Granted):
            for granted in sent(effects, Granted):
                if granted.count == 1:
                    self._admitted(delivered, granted.fence)
        if delivered.time - self._looked_at >= LOOK_MS * NS_PER_MS:
            self._looked_at = delivered.time
            self._look(delivered.time)

    def crashed(self, node: str, boot: int) -> None:
        for place in [place for place in self.holds if place[0] == node]:
            del self.holds[place]

    def _note_event(self, delivered: Delivery) -> None:
        client, event = delivered.node, delivered.event
        if isinstance(event, Granted):
            place = client, LockKey(event.lock, event.owner)
            early = self._early.pop(place, 0) == event.fence
            hold = self.view.hold_of(client, event.lock, event.owner)
            known = hold if hold is not None and hold.fence == event.fence else None
            end_fence = event.fence + self._spans[place]
            self.holds[place] = RetainedHold(*place, event.fence, end_fence, known, early)
            if early:
                self.holds[place].recalled_at = self.view.now(client)
        elif isinstance(event, Recall):
            place = client, LockKey(event.lock, event.owner)
            held = self.holds.get(place)
            if held is None or held.fence != event.fence:
                self._early[place] = event.fence
            elif held.recalled_at is None:
                held.recalled_at = self.view.now(client)
        elif isinstance(event, HoldsLost):
            for loss in event.losses:
                if loss.owner in RETAINERS:
                    self.holds.pop((client, LockKey(loss.lock, loss.owner)), None)

    def _given_back(self, delivered: Delivery, release: Release) -> None:
        place = delivered.node, LockKey(release.lock, release.owner)
        hold = self.holds.get(place)
        if hold is None or hold.fence != release.fence:
            return  # A grant that was not wanted any more, or a repetition.
        if user := self._user(hold):
            raise ViolationError(
                _broken("released-unused", f"{hold} is released while {user} has it")
            )
        del self.holds[place]

    def _admitted(self, delivered: Delivery, fence: int) -> None:
        client = delivered.node
        now = self.view.now(client)
        hold = next(
            (one for (name, _), one in self.holds.items() if name == client and one.has(fence)),
            None,
        )
        admitted = f"{client} admits a local owner under fence {fence}"
        if hold is None:
            raise ViolationError(_broken("admitted-in-trust", f"{admitted} of no retained hold"))
        trust = None if hold.session is None else hold.session.trust
        if trust is None or now >= trust.suspect_at or now >= trust.until:
            raise ViolationError(_broken("admitted-in-trust", f"{admitted} of {hold}: {trust}"))
        if hold.recalled_at is None:
            return
        if hold.first_is_free:
            hold.first_is_free = False
            return
        hold.followers += 1
        late = now >= later(hold.recalled_at, COHORT_MS)
        if hold.followers > self.cohort or late:
            raise ViolationError(
                _broken(
                    "strict-recall", f"{admitted}, the {hold.followers}. after {hold} was recalled"
                )
            )

    def _user(self, hold: RetainedHold) -> str | None:
        """Return a local owner that may believe that it has the lock."""
        for inside in self.locks.inside.values():
            its = node_of(inside.contender) == hold.client and inside.lock == hold.key.lock
            if its and hold.has(inside.fence) and self.locks.may_be_inside(inside):
                return inside.contender
        return None

    def _look(self, time: int) -> None:
        """Find the holds that others wait for, and that should have gone back."""
        world = self.view.world
        calm = world.calm and time >= world.network.clear_at
        for hold in self.holds.values():
            waiting = self.locks.waiting_for(hold.key.lock) if calm else ()
            waits = any(node_of(user) != hold.client for user in waiting)
            if not waits or self._user(hold) is not None:
                hold.owed_since = None
            elif hold.owed_since is None:
                hold.owed_since = time
            elif time - hold.owed_since > RECALL_MS * NS_PER_MS:
                raise ViolationError(
                    f"{RECALLS_ANSWERED}: {hold} is not given back for {RECALL_MS} ms while others "
                    "wait"
                )


def _broken(name: str, text: str) -> str:
    return f"{name}: {text} ({RETAINED_INVARIANTS[name]})"
