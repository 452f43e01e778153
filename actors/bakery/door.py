"""The door of a node that runs `bakery`: it keeps a request until leaders have answered it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.actors.bakery import door_wording as words
from holdfast.actors.bakery.config import SILENT_MS, Terms, later, leader_of, quorum
from holdfast.actors.bakery.door_message import (
    Expired,
    Locked,
    LockFailed,
    NotLeading,
    Peeked,
    Prolonged,
    Unlocked,
    Unlocking,
)
from holdfast.actors.bakery.errand import Errand, Errands, Kind, Name
from holdfast.actors.bakery.event import DoorDue, Readiness
from holdfast.actors.bakery.guest import Guests
from holdfast.actors.bakery.ticket import Who
from holdfast.actors.effect import Effect, Effects, Observe, Send, Wake
from holdfast.actors.lock.backend import Report, Reported
from holdfast.actors.lock.message import (
    Abandon,
    Acquire,
    Alive,
    Cancel,
    Describe,
    Inspect,
    KeepAlive,
    Reason,
    Release,
)
from holdfast.actors.lock.session_message import End, Evict, ListLocks, Open, Opened, Renew
from holdfast.actors.message import Address, Instant, address_of, ms_between, node_of
from holdfast.actors.role import Host, Role

if TYPE_CHECKING:
    from random import Random

TICK_MS = 50
"""How exactly a door keeps deadlines (ms)."""

TRY_MS = 1_000
"""How long a request that will not wait may take to learn that it must (ms)."""

LATE_MS = 150
"""So much later the door ends a wait itself: the leader that has the ticket says more (ms)."""

ANSWER_MS = 15_000
"""A question that no leader answers is given up after this (ms)."""

DESCRIBES_MAX = 10_000

FromClient = (
    Acquire
    | Release
    | Cancel
    | Renew
    | Inspect
    | Describe
    | KeepAlive
    | Open
    | End
    | ListLocks
    | Evict
)
FromLeader = Locked | LockFailed | Unlocked | NotLeading | Unlocking | Expired | Prolonged | Peeked
Heard = (
    Acquire
    | Release
    | Cancel
    | Renew
    | Inspect
    | Describe
    | KeepAlive
    | Open
    | End
    | ListLocks
    | Evict
    | Locked
    | LockFailed
    | Unlocked
    | NotLeading
    | Unlocking
    | Expired
    | Prolonged
    | Peeked
    | Abandon
    | Readiness
    | Reported
    | DoorDue
)


class Door(Role[Heard]):
    """Serves clients. What is held is known to the leaders, so any door serves any client.

    A request is kept until it is answered, and said again under the same number when its
    leader does not answer, or leads no more. So one that comes before there are leaders
    waits for them, until its own time is over.

    Invariants: B11; see the README of this folder.

    Args:
        node: this node.
        members: all that are configured, sorted.
        terms: the durations of requests that say none.
        random: where the round robin over the leaders begins.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        node: str,
        members: tuple[str, ...],
        terms: Terms,
        random: Random,
    ) -> None:
        super().__init__(address, host)
        self.node = node
        self.members = members
        self.terms = terms
        self.errands = Errands(node, random)
        self.guests = Guests(node)
        self.own: dict[tuple[str, int], Who] = {}
        """Of callers inside the process: who holds a lock under a fence."""
        self.describing: list[tuple[Address, Describe]] = []
        self.ticking = False

    def handle(self, sender: Address, event: Heard, now: Instant) -> Effects:
        """Serve clients, hear leaders."""
        if isinstance(event, FromClient):
            effects = self._on_client(sender, event, now)
        elif isinstance(event, FromLeader):
            effects = self._on_leader(sender, event, now)
        else:
            effects = self._on_node(sender, event, now)
        return [*effects, *self._tick()]

    def _on_client(self, asker: Address, event: FromClient, now: Instant) -> list[Effect]:
        if isinstance(event, Describe):
            return self._on_describe(asker, event)
        reason, problem = words.problem_of(self.node, self.terms, asker, event)
        if problem:
            return [words.refuse(asker, event, reason, problem), Observe("proxy.refused")]
        if self.errands.full() and not isinstance(event, KeepAlive | Cancel | Release):
            text = f"node {self.node} has {len(self.errands.by_number)} requests, its limit"
            return [words.refuse(asker, event, Reason.OVERLOADED, text)]
        self.guests.hear(asker, event.session, now)
        match event:
            case Acquire():
                return self._on_acquire(asker, event, now)
            case Release():
                return self._on_release(asker, event, now)
            case Cancel():
                return self._on_cancel(asker, event, now)
            case Renew():
                return self._on_renew(asker, event, now)
            case Inspect():
                name = Name(Kind.PEEK, event.lock, Who(asker, ""), event.request)
                return self._begin(name, asker, event, now, until=later(now, ANSWER_MS))
            case KeepAlive():
                return [Send(asker, self._alive(event))]
            case Open():
                return [Send(asker, self._opened(event))]
            case End():
                return self._on_end(asker, event, now)
            case ListLocks() | Evict():
                text = "bakery keeps no table of locks to list, or to take one from"
                return [words.refuse(asker, event, Reason.UNSUPPORTED, f"{text}; paxos does")]

    def _begin(
        self,
        name: Name,
        asker: Address | None,
        asked: Acquire | Release | Cancel | Inspect | End | Renew,
        now: Instant,
        *,
        fence: int = 0,
        until: Instant | None = None,
    ) -> list[Effect]:
        """Begin an errand, unless it is under way; then its answer goes to who asked last."""
        errand = self.errands.by_name.get(name)
        if errand is not None:
            errand.asker, errand.asked = asker, asked
            return []
        return self.errands.add(name, asker, asked, now, fence=fence, until=until)

    def _on_acquire(self, asker: Address, asked: Acquire, now: Instant) -> list[Effect]:
        who = Who(asked.session or asker, asked.owner)
        name = Name(Kind.LOCK, asked.lock, who, asked.request or 1)
        effects: list[Effect] = []
        for errand in self.errands.about(asked.lock, who):
            if errand.name.kind is Kind.LOCK and errand.name.request > name.request:
                return [Observe("proxy.late_request_dropped")]
            if errand.name.kind is Kind.LOCK and errand.name.request < name.request:
                self.errands.end(errand)  # An owner is sequential: it gave the old wait up.
                if errand.asker is not None:
                    effects.append(words.given_up(errand))
        if name not in self.errands.by_name:
            asked = replace(
                asked,
                wait_ms=self.terms.wait_ms if asked.wait_ms is None else asked.wait_ms,
                hold_ms=asked.hold_ms or self.terms.hold_ms,
                grace_ms=asked.grace_ms or self.terms.grace_ms,
            )
            until = None
            if asked.wait_ms is not None:
                until = later(now, (asked.wait_ms or TRY_MS) + LATE_MS)
            return [*effects, *self.errands.add(name, asker, asked, now, until=until)]
        self.errands.by_name[name].asker = asker
        return effects

    def _on_release(self, asker: Address, asked: Release, now: Instant) -> list[Effect]:
        who = Who(asked.session, asked.owner) if asked.session else None
        who = who or self.own.get((asked.lock, asked.fence))
        if who is None or asked.fence <= 0:
            return [words.not_held(asker, asked, self.node)]
        name = Name(Kind.UNLOCK, asked.lock, who, asked.request)
        return self._begin(name, asker, asked, now, fence=asked.fence)

    def _on_renew(self, asker: Address, asked: Renew, now: Instant) -> list[Effect]:
        who = Who(asked.session, asked.owner) if asked.session else None
        who = who or self.own.get((asked.lock, asked.fence))
        if who is None or asked.fence <= 0:
            return [words.not_held(asker, asked, self.node)]
        name = Name(Kind.PROLONG, asked.lock, who, asked.request)
        until = later(now, ANSWER_MS)
        return self._begin(name, asker, asked, now, fence=asked.fence, until=until)

    def _on_cancel(self, asker: Address, asked: Cancel, now: Instant) -> list[Effect]:
        """Have a request dropped, whatever became of it; repeatable."""
        who = Who(asked.session, asked.owner)
        self._give_up_waits(asked.lock, who, asked.request)
        name = Name(Kind.UNLOCK, asked.lock, who, asked.request)
        return self._begin(name, asker, asked, now)

    def _give_up_waits(self, lock: str, who: Who, request: int) -> None:
        for errand in self.errands.about(lock, who):
            if errand.name.kind is Kind.LOCK and errand.name.request <= request:
                self.errands.end(errand)

    def _on_end(self, asker: Address, asked: End, now: Instant) -> list[Effect]:
        """Have everything of a session dropped."""
        self._drop_waits(asked.session)
        name = Name(Kind.UNLOCK_ALL, "", Who(asked.session, ""), 0)
        return self._begin(name, asker, asked, now, until=later(now, ANSWER_MS))

    def _drop_waits(self, session: str) -> int:
        waits = [
            errand
            for errand in self.errands.by_number.values()
            if errand.name.kind is Kind.LOCK and errand.name.who.session == session
        ]
        for errand in waits:
            self.errands.end(errand)
        return len(waits)

    def _on_leader(self, sender: Address, event: FromLeader, now: Instant) -> list[Effect]:
        node = node_of(sender)
        if node not in self.members or sender != leader_of(node):
            return [Observe("bakery.stranger_answers")]
        match event:
            case Locked() | LockFailed():
                name = Name(Kind.LOCK, event.lock, event.who, event.request)
                errand = self.errands.by_name.get(name)
                if errand is None:
                    return [Observe("bakery.late_answer")]
                return self._on_decided(errand, event)
            case Unlocked() | Prolonged() | Peeked():
                errand = self.errands.by_number.get(event.number)
                if errand is None:
                    return [Observe("bakery.late_answer")]
                return self._on_done(node, errand, event)
            case NotLeading():
                effects: list[Effect] = []
                for errand in self.errands.about(event.lock, event.who):
                    effects += self.errands.turn_to(errand, event.owner, now)
                return effects
            case Unlocking():
                return self._on_unlocking(event)
            case Expired():
                return self._on_expired(event)

    def _on_decided(self, errand: Errand, event: Locked | LockFailed) -> list[Effect]:
        self.errands.end(errand)
        if errand.asker is None:
            return []
        assert isinstance(errand.asked, Acquire)
        if isinstance(event, LockFailed):
            return [words.failed(errand, errand.asked, event), Observe("proxy.refused")]
        if not errand.asked.session:
            self.own[event.lock, event.fence] = event.who
        return [words.granted(errand, errand.asked, event), Observe("proxy.granted")]

    def _on_done(
        self, leader: str, errand: Errand, event: Unlocked | Prolonged | Peeked
    ) -> list[Effect]:
        asked = errand.asked
        match event:
            case Unlocked() if isinstance(asked, End):
                errand.answered[leader] = None
                if len(errand.answered) < quorum(len(self.errands.readiness.leaders)):
                    return []
            case Unlocked() if not isinstance(asked, Release | Cancel | Acquire):
                return [Observe("bakery.answer_malformed")]
            case Prolonged() if not isinstance(asked, Renew):
                return [Observe("bakery.answer_malformed")]
            case Peeked() if not isinstance(asked, Inspect):
                return [Observe("bakery.answer_malformed")]
            case _:
                pass
        self.errands.end(errand)
        if isinstance(event, Unlocked) and errand.fence:
            self.own.pop((errand.name.lock, errand.fence), None)
        return words.done(errand, event, self.node)

    def _on_unlocking(self, event: Unlocking) -> list[Effect]:
        asker = self.guests.asker_of(event.who.session)
        if asker is None:
            return [Observe("bakery.unlocking_of_stranger")]
        return [Send(asker, words.unlocking(event))]

    def _on_expired(self, event: Expired) -> list[Effect]:
        self.own.pop((event.lock, event.fence), None)
        asker = self.guests.asker_of(event.who.session)
        if asker is None:
            return [Observe("bakery.expiry_of_stranger")]
        return [Send(asker, words.expired(event))]

    def _on_node(
        self, sender: Address, event: Abandon | Readiness | Reported | DoorDue, now: Instant
    ) -> list[Effect]:
        match event:
            case Abandon():
                return self._on_abandon(sender, now)
            case Readiness():
                return self.errands.lead(event, now)
            case Reported():
                asked, self.describing = self.describing, []
                return words.describe(self.node, self.members, self.errands, event, asked, now)
            case DoorDue():
                self.ticking = False
                return self._on_due(now)

    def _on_abandon(self, asker: Address, now: Instant) -> list[Effect]:
        """Undo what a caller inside the process waited for: nobody is there any more."""
        effects: list[Effect] = []
        for errand in list(self.errands.by_number.values()):
            if errand.asker != asker:
                continue
            errand.asker = None
            if errand.name.kind is Kind.LOCK:
                self.errands.end(errand)
                effects += self._undo(errand, now)
        return effects

    def _undo(self, errand: Errand, now: Instant) -> list[Effect]:
        """Have a wait dropped that was said to a leader, though nobody waits for the answer."""
        if not errand.said:
            return []
        name = errand.name._replace(kind=Kind.UNLOCK)
        return self._begin(name, None, errand.asked, now)

    def _on_due(self, now: Instant) -> list[Effect]:
        effects: list[Effect] = []
        for session in self.guests.fall_silent(now):
            gone = self._drop_waits(session)
            if gone:
                effects.append(Observe("proxy.wait_of_silent_client_ended", gone))
        for errand in self.errands.due(now):
            if errand.until is not None and errand.until <= now:
                self.errands.end(errand)
                effects += words.over(errand, self.errands.readiness, now)
                if errand.name.kind is Kind.LOCK:
                    effects += self._undo(errand, now)
            elif errand.asker is None and ms_between(errand.since, now) >= ANSWER_MS:
                self.errands.end(errand)  # What it would drop ends by its lease.
            else:
                effects += self.errands.say(errand, now)
        return effects

    def _on_describe(self, asker: Address, asked: Describe) -> list[Effect]:
        if len(self.describing) >= DESCRIBES_MAX or not words.sound_session(asked.session):
            return [Observe("proxy.describe_dropped")]
        self.describing.append((asker, asked))
        if len(self.describing) > 1:
            return []
        return [Send(address_of(self.node, "node"), Report())]

    def _alive(self, asked: KeepAlive) -> Alive:
        leader = words.leader_for(asked.session, self.errands)
        return Alive(session=asked.session, node=self.node, request=asked.request, master=leader)

    def _opened(self, asked: Open) -> Opened:
        """Keep nothing: a session is a name, and what it holds is the leaders' to know."""
        return Opened(
            session=asked.session,
            assigned=asked.session,
            ttl_ms=max(SILENT_MS, asked.ttl_ms),
            node=self.node,
            request=asked.request,
            master=words.leader_for(asked.session, self.errands),
        )

    def _tick(self) -> list[Effect]:
        busy = self.errands.by_number or self.guests.known
        if self.ticking or not busy:
            return []
        self.ticking = True
        return [Wake(TICK_MS, DoorDue())]
