"""Requests in flight of a proxy, and the leaders to which they are sent. Pure."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from fencelock.actors.api.message import Acquire, Cancel, Inspect, Release
from fencelock.actors.api.session_message import End, Renew
from fencelock.actors.bakery.config import exports_needed, later, leader_of, quorum
from fencelock.actors.bakery.event import Readiness
from fencelock.actors.bakery.poll import Poll
from fencelock.actors.bakery.proxy_message import (
    Lock,
    Query,
    QueryResult,
    RenewHold,
    Unlock,
    UnlockAll,
)
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant, ms_between

if TYPE_CHECKING:
    from random import Random

ERRANDS_MAX = 100_000
"""Maximum unanswered requests of one proxy; further ones are refused, to bound memory."""

REPEAT_MS = 200
"""First pause before a leader is asked again (ms); it doubles from there."""

REPEAT_MS_MAX = 1_000
"""Longest such pause (ms): it shows the leader that the request is still wanted."""

NONCE_BITS = 62
"""Number of a round of a read, so that a reply to a former life of the proxy never counts."""

Asked = Acquire | Release | Cancel | Inspect | End | Renew
Word = Lock | Unlock | UnlockAll | RenewHold | Query


class Kind(Enum):
    """Kind of a request to the leaders."""

    LOCK = "lock"
    UNLOCK = "unlock"
    UNLOCK_ALL = "unlock all"
    PROLONG = "prolong"
    PEEK = "peek"


class Name(NamedTuple):
    """Identity of a request: one that is sent again has the same."""

    kind: Kind
    lock: str
    who: Who
    request: int


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One request in flight.

    Attributes:
        asker: receiver of the reply, None if none waits for it any more.
        asked: the request as it was received.
        fence: the fence of the hold that is meant, 0 for none.
        until: the time at which the proxy ends it, None for never.
        leader: the leader to which it was sent last, empty if to none.
        said: number of times that it was sent.
        note: text that is added when it times out.

    """

    name: Name
    number: int
    asker: Address | None
    asked: Asked
    since: Instant
    fence: int
    until: Instant | None
    leader: str = ""
    note: str = ""
    said: int = 0
    pause_ms: int = REPEAT_MS
    due: Instant | None = None
    turned: bool = False
    """Whether it was sent to another leader at once, which is known to have the request."""
    answered: dict[str, None] = field(default_factory=dict[str, None])
    """Leaders that replied to a request to all, or that do not hold what is to be renewed."""
    poll: Poll | None = None
    """The replies to the current round of a read."""


class InFlightRequests:
    """All requests in flight of a proxy, by name and by number.

    Args:
        node: this node: if it leads, it is asked first.
        random: chooses where the round robin begins.

    """

    def __init__(self, node: str, random: Random) -> None:
        self.node = node
        self.readiness = Readiness(
            epoch=0, leaders=(), reachable=(), ready=False, detail="starting", members=()
        )
        self.by_name: dict[Name, InFlightRequest] = {}
        self.by_number: dict[int, InFlightRequest] = {}
        self.of: dict[tuple[str, Who], dict[int, None]] = {}
        """The numbers of an owner's requests about a lock."""
        self.count = 0
        self._random = random
        self._turn = 0
        self._due: list[tuple[Instant, int]] = []

    def full(self) -> bool:
        """Return whether no further request is accepted."""
        return len(self.by_number) >= ERRANDS_MAX

    def add(
        self,
        name: Name,
        asker: Address | None,
        asked: Asked,
        now: Instant,
        *,
        fence: int = 0,
        until: Instant | None = None,
        leader: str = "",
        note: str = "",
    ) -> list[Effect]:
        """Add a request, and send it if there are leaders: to ``leader`` first, if that leads."""
        self.count += 1
        in_flight_request = InFlightRequest(
            name, self.count, asker, asked, now, fence, until, leader, note
        )
        self.by_name[name] = in_flight_request
        self.by_number[in_flight_request.number] = in_flight_request
        self.of.setdefault((name.lock, name.who), {})[in_flight_request.number] = None
        return self.say(in_flight_request, now)

    def end(self, in_flight_request: InFlightRequest) -> None:
        """Drop a request that was answered."""
        del self.by_name[in_flight_request.name]
        del self.by_number[in_flight_request.number]
        owner = (in_flight_request.name.lock, in_flight_request.name.who)
        numbers = self.of[owner]
        del numbers[in_flight_request.number]
        if not numbers:
            del self.of[owner]
        in_flight_request.due = None

    def about(self, lock: str, who: Who) -> list[InFlightRequest]:
        """Return the requests in flight of an owner about a lock."""
        return [self.by_number[number] for number in self.of.get((lock, who), ())]

    def leaders(self) -> list[str]:
        """Return the leaders that can be reached, in order of rank.

        A node that has restarted does not lead, although its name is among the leaders. If it
        votes,
        it is elected anew at once; if it does not, it would be asked for ever.
        """
        reachable = self.readiness.reachable
        lives = {member.node: member.life for member in self.readiness.members}
        return [
            node
            for node, life in self.readiness.leaders
            if node in reachable and lives.get(node, life) == life
        ]

    def say(self, in_flight_request: InFlightRequest, now: Instant) -> list[Effect]:
        """Send a request to its leader, or to the next one if that is gone."""
        self._later(in_flight_request, now)
        leaders = self.leaders()
        if not leaders:
            return []
        if in_flight_request.leader not in leaders:
            in_flight_request.leader = self._next(leaders)
        in_flight_request.said += 1
        word = _word(in_flight_request, now)
        if in_flight_request.name.kind is Kind.UNLOCK_ALL:
            left = [name for name in leaders if name not in in_flight_request.answered]
            return [Send(leader_of(name), word) for name in left]
        if isinstance(word, Query):
            word = replace(word, nonce=self._random.getrandbits(NONCE_BITS))
            in_flight_request.poll = Poll(word.nonce, now)
            sends = [Send(leader_of(name), word) for name in leaders]
            return [*sends, Observe("bakery.peek", len(sends))]
        return [
            Send(leader_of(in_flight_request.leader), word),
            Observe(f"bakery.{in_flight_request.name.kind.name}".lower()),
        ]

    def turn_to(self, in_flight_request: InFlightRequest, owner: str, now: Instant) -> list[Effect]:
        """Send a request to the leader that has it, according to another one."""
        if (
            in_flight_request.turned
            or owner == in_flight_request.leader
            or owner not in self.leaders()
        ):
            return []
        in_flight_request.leader, in_flight_request.turned = owner, True
        return self.say(in_flight_request, now)

    def pass_on(
        self, in_flight_request: InFlightRequest, leader: str, now: Instant
    ) -> list[Effect] | None:
        """Send a renewal to the next leader, since ``leader`` does not have the hold.

        One of three may have missed the vote, or a renewal, while the others have it.

        Returns:
            None once no quorum can have the hold: all leaders that can be reached replied that
            they do not, and the others are too few.

        """
        led = [one.node for one in self.readiness.leaders]
        if leader not in led or (
            leader in in_flight_request.answered and leader != in_flight_request.leader
        ):
            return []
        in_flight_request.answered[leader] = None
        left = [name for name in self.leaders() if name not in in_flight_request.answered]
        if left:
            in_flight_request.leader = left[0]
            return self.say(in_flight_request, now)
        return None if len(in_flight_request.answered) >= exports_needed(len(led)) else []

    def read(
        self, in_flight_request: InFlightRequest, leader: str, said: QueryResult, now: Instant
    ) -> QueryResult | None:
        """Count what a leader says of a lock; return the answer once a quorum agrees on it."""
        poll, readiness = in_flight_request.poll, self.readiness
        seated = leader in [one.node for one in readiness.leaders]
        if (
            poll is None
            or said.nonce != poll.nonce
            or said.lock != in_flight_request.name.lock
            or not seated
        ):
            return None
        if said.epoch == readiness.epoch:
            poll.answers[leader] = said
        return poll.decide(quorum(len(readiness.leaders)), now)

    def lead(self, readiness: Readiness, now: Instant) -> list[Effect]:
        """Store the leaders; send requests again at once whose leader does not lead any more."""
        before = self.readiness
        self.readiness = readiness
        leaders = self.leaders()
        began = readiness.epoch != before.epoch or (readiness.ready and not before.ready)
        if began and readiness.leaders:
            self._turn = self._random.randrange(len(readiness.leaders))
        effects: list[Effect] = []
        for in_flight_request in list(self.by_number.values()):
            if began and in_flight_request.name.kind is Kind.PROLONG:
                in_flight_request.answered.clear()  # The new leaders may have learned of it.
            if began or in_flight_request.leader not in leaders:
                in_flight_request.pause_ms = REPEAT_MS
                effects += self.say(in_flight_request, now)
        return effects

    def due(self, now: Instant) -> list[InFlightRequest]:
        """Return the requests that are due now."""
        found: list[InFlightRequest] = []
        while self._due and self._due[0][0] <= now:
            at, number = heapq.heappop(self._due)
            in_flight_request = self.by_number.get(number)
            if in_flight_request is not None and in_flight_request.due == at:
                in_flight_request.due, in_flight_request.turned = None, False
                found.append(in_flight_request)
        return found

    def _later(self, in_flight_request: InFlightRequest, now: Instant) -> None:
        pause_ms = in_flight_request.pause_ms
        if (
            in_flight_request.name.kind is not Kind.PEEK
        ):  # A read waits for no lock, only for agreement.
            in_flight_request.pause_ms = min(2 * pause_ms, REPEAT_MS_MAX)
        at = later(now, pause_ms)
        in_flight_request.due = (
            at
            if in_flight_request.until is None
            else max(later(now, 1), min(at, in_flight_request.until))
        )
        heapq.heappush(self._due, (in_flight_request.due, in_flight_request.number))

    def _next(self, leaders: list[str]) -> str:
        """Return this node, if it leads; else the next in the round robin."""
        if self.node in leaders:
            return self.node
        self._turn += 1
        return leaders[self._turn % len(leaders)]


def _word(in_flight_request: InFlightRequest, now: Instant) -> Word:
    """Return a request as it is sent to a leader now."""
    name, asked = in_flight_request.name, in_flight_request.asked
    match name.kind:
        case Kind.LOCK:
            assert isinstance(asked, Acquire)
            wait_ms = asked.wait_ms
            if wait_ms:
                wait_ms = max(1, wait_ms - ms_between(in_flight_request.since, now))
            return Lock(
                lock=name.lock,
                who=name.who,
                request=name.request,
                wait_ms=wait_ms,
                hold_ms=asked.hold_ms,
                grace_ms=asked.grace_ms,
                label=asked.label,
            )
        case Kind.UNLOCK:
            request = 0 if in_flight_request.fence else name.request
            return Unlock(
                lock=name.lock,
                who=name.who,
                request=request,
                fence=in_flight_request.fence,
                number=in_flight_request.number,
                waiting=isinstance(asked, Acquire) and bool(asked.session),
            )
        case Kind.UNLOCK_ALL:
            return UnlockAll(session=name.who.session, number=in_flight_request.number)
        case Kind.PROLONG:
            assert isinstance(asked, Renew)
            return RenewHold(
                lock=name.lock,
                who=name.who,
                fence=in_flight_request.fence,
                hold_ms=asked.hold_ms,
                number=in_flight_request.number,
                missed=tuple(in_flight_request.answered),
            )
        case Kind.PEEK:
            return Query(lock=name.lock, number=in_flight_request.number)
