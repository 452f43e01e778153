"""Requests in flight of a proxy, the leaders to which they are sent, and rounds of reads. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from fencelock.actors.api.lock_message import (
    Acquire,
    Cancel,
    Contender,
    Inspect,
    Reason,
    Release,
    Renew,
    refused,
)
from fencelock.actors.api.rwlock import AcquireReadWrite
from fencelock.actors.api.session_message import End
from fencelock.actors.bakery.config import HOLDERS_SHOWN_MAX, exports_needed, leader_of, quorum
from fencelock.actors.bakery.event import Readiness
from fencelock.actors.bakery.ticket import Who
from fencelock.actors.bakery.wire import (
    NO_SEATING,
    Lock,
    LockFailed,
    Query,
    QueryResult,
    RenewHold,
    ToLeader,
    Unlock,
    UnlockAll,
)
from fencelock.actors.deadline_queue import QUEUE_ENDS_MAX, DeadlineQueue
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.lease import surely_over
from fencelock.actors.message import Address, Instant, Message, later, ms_between
from fencelock.actors.proxy.queries import QueryTurns

if TYPE_CHECKING:
    from random import Random


REPEAT_MS_MAX = 1_000
"""Longest pause between two repetitions of a request (ms): they show that it is still wanted."""

NUMBER_BITS = 62
"""Random bits of the first number of a request, and of the nonce of each round of a read."""

LEADER_READS_MAX = 16
"""Reads that leaders are asked for at a time. If many hold the lock, a read takes a quarter of a
millisecond at each leader and almost one at the proxy, and other clients wait meanwhile."""

LockAcquire = Acquire | AcquireReadWrite

LeaderRequest = LockAcquire | Release | Cancel | Inspect | End | Renew
"""Requests of clients that leaders decide."""


class Kind(Enum):
    """Kind of a request to the leaders."""

    LOCK = "lock"
    UNLOCK = "unlock"
    UNLOCK_ALL = "unlock all"
    RENEW = "renew"
    QUERY = "query"


class Name(NamedTuple):
    """Identity of a request: one that is sent again has the same."""

    kind: Kind
    lock: str
    who: Who
    number: int
    """The number of the request, or of the acquire that is cancelled."""


@dataclass(slots=True)
class Poll:
    """The replies of all leaders to one round of a read.

    A quorum has to agree. A leader that did not vote for a grant knows of no holder, so one
    answer proves nothing. Two of three that know of none prove that no quorum holds the lock,
    unless the votes for a hold moved meanwhile: one leader answers, then it takes part in a
    renewal, then the lease ends at another one, which missed that renewal, and that one
    answers. So a leader's "no holder" does not count if a lease ended there since the round began.
    """

    nonce: int
    began: Instant
    answers: dict[str, QueryResult] = field(default_factory=dict[str, QueryResult])

    def decide(self, quorum: int, now: Instant) -> QueryResult | None:
        """Return the state on which ``quorum`` leaders agree, or None if there is none yet.

        A holder is certain if ``quorum`` leaders name it, and excluded if as many do not.
        """
        round_ms = surely_over(ms_between(self.began, now) + 1)
        answers = list(self.answers.values())
        if len(answers) < quorum:
            return None
        shown = [(one, {_identity(holder): holder for holder in one.holders}) for one in answers]
        proofs = [
            (one, held)
            for one, held in shown
            if one.expired_ms is None or one.expired_ms >= round_ms
        ]
        if len(proofs) < quorum:
            return None
        named = {identity: holder for _, held in shown for identity, holder in held.items()}
        holders: list[Contender] = []
        for identity, holder in sorted(named.items()):
            known = sum(identity in held for _, held in shown)
            without = [answer for answer, held in proofs if identity not in held]
            if any(_is_beyond(one, holder) for one in without):
                break
            if known >= quorum:
                holders.append(holder)
            elif len(without) < quorum:
                return None
        longest = max(answers, key=lambda answer: answer.waiting)
        return replace(longest, holders=tuple(holders))


def _identity(holder: Contender) -> tuple[int, str, str]:
    """Return a key that identifies a hold and sorts by fence."""
    return holder.fence or 0, holder.session, holder.owner


def _is_beyond(answer: QueryResult, holder: Contender) -> bool:
    """Return whether ``answer`` lists its maximum of holders, all with lower fences."""
    shown = answer.holders
    return len(shown) >= HOLDERS_SHOWN_MAX and _identity(shown[-1]) < _identity(holder)


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One request in flight.

    Attributes:
        sender: receiver of the reply, or None if none waits for it any more.
        request: the request as it was received.
        fence: the fence of the hold that is meant, or 0 for none.
        until: the time at which the proxy ends it, or None for never.
        leader: the leader to which it was sent last, or empty if it was not sent.
        sent: number of times that it was sent.
        note: text that is added when it times out.
        reader: the client, or the key, among whose reads it has its turn.
        waits_turn: whether it is a read that waits until the leaders may be asked.

    """

    name: Name
    sender: Address | None
    request: LeaderRequest
    since: Instant
    fence: int = 0
    until: Instant | None = None
    leader: str = ""
    note: str = ""
    reader: str = ""
    waits_turn: bool = False
    number: int = 0
    sent: int = 0
    pause_ms: int = 0
    redirected: bool = False
    """Whether it was sent to another leader at once, which is known to have the request."""
    answered: dict[str, None] = field(default_factory=dict[str, None])
    """Leaders that replied to a request to all, or that do not have the hold to renew."""
    poll: Poll | None = None
    """The replies to the current round of a read."""
    refusal: LockFailed | None = None
    """A leader's reply to an acquire, while a quorum is asked whether it is true."""

    def reply(self, message: Message, *counters: str) -> list[Effect]:
        """Send the client its reply, if one waits for it."""
        if self.sender is None:
            return []
        return [Send(self.sender, message), *map(Observe, counters)]

    def refuse(self, reason: Reason, detail: str, *counters: str) -> list[Effect]:
        return self.reply(refused(self.request, reason, detail), *counters)


class InFlightRequests:
    """All requests in flight of a proxy, by name and by number.

    A request without a reply is first sent again after ``repeat_ms``.
    """

    def __init__(self, node: str, random: Random, repeat_ms: int) -> None:
        self.node = node
        self.repeat_ms = repeat_ms
        self.readiness = Readiness(seating=NO_SEATING, members=(), ready=False, detail="starting")
        self.by_name: dict[Name, InFlightRequest] = {}
        self.by_number: dict[int, InFlightRequest] = {}
        self.of: dict[tuple[str, Who], dict[InFlightRequest, None]] = {}
        """An owner's requests about a lock."""
        self.count = random.getrandbits(NUMBER_BITS)
        """The last number of a request. Numbers begin at random in each life, so that no reply to
        an earlier life is taken for one to this."""
        self._random = random
        self._turn = 0
        self._due: DeadlineQueue[InFlightRequest] = DeadlineQueue()
        self.reads = QueryTurns(LEADER_READS_MAX)

    def add(self, pending: InFlightRequest, now: Instant) -> list[Effect]:
        """Add a request, and send it if there are leaders: to ``leader`` first, if that leads."""
        self.count += 1
        pending.number, pending.pause_ms = self.count, self.repeat_ms
        self.by_name[pending.name] = pending
        self.by_number[pending.number] = pending
        self.of.setdefault((pending.name.lock, pending.name.who), {})[pending] = None
        return self.send(pending, now)

    def end(self, pending: InFlightRequest) -> None:
        del self.by_name[pending.name]
        del self.by_number[pending.number]
        owner = (pending.name.lock, pending.name.who)
        del self.of[owner][pending]
        if not self.of[owner]:
            del self.of[owner]
        self._due.set(pending, None)
        self.reads.end(pending.number)

    def about(self, lock: str, who: Who) -> list[InFlightRequest]:
        return list(self.of.get((lock, who), ()))

    def leaders(self) -> list[str]:
        """Return the leaders that can be reached, in order of rank.

        A node that has restarted does not lead, although its name is among the leaders. If it
        votes, it is elected anew at once; if it does not, it would be asked forever.
        """
        here = {member.chosen for member in self.readiness.members}
        return [leader.node for leader in self.readiness.seating.leaders if leader in here]

    def send(self, pending: InFlightRequest, now: Instant) -> list[Effect]:
        """Send a request to its leader, or to the next one if that is gone.

        A read is sent when it has its turn. If it was sent before, and the leaders have not agreed,
        it goes last, so that it does not keep others from theirs.
        """
        self._later(pending, now)
        if pending.name.kind is Kind.QUERY:
            self.reads.end(pending.number)
            if pending.waits_turn:
                return []
            pending.waits_turn = not self.reads.enter(pending.number, pending.reader, now)
            return [] if pending.waits_turn else self._ask(pending, now)
        leaders = self.leaders()
        if not leaders:
            return []
        if pending.leader not in leaders:
            pending.leader = self._next(leaders)
        pending.sent += 1
        message = _message(pending, now)
        if pending.name.kind is Kind.UNLOCK_ALL:
            left = [name for name in leaders if name not in pending.answered]
            return [Send(leader_of(name), message) for name in left]
        return [
            Send(leader_of(pending.leader), message),
            Observe(f"bakery.{pending.name.kind.name}".lower()),
        ]

    def send_reads(self, now: Instant) -> list[Effect]:
        effects: list[Effect] = []
        for number in self.reads.next(now):
            read = self.by_number.get(number)
            if read is None:  # It has ended.
                self.reads.end(number)
                continue
            read.waits_turn = False
            self._later(read, now)
            effects += self._ask(read, now)
        return effects

    def _ask(self, read: InFlightRequest, now: Instant) -> list[Effect]:
        """Begin a round of a read: ask all leaders."""
        leaders = self.leaders()
        if not leaders:
            return []
        read.sent += 1
        read.poll = Poll(self._random.getrandbits(NUMBER_BITS), now)
        query = _message(read, now)
        sends = [Send(leader_of(name), query) for name in leaders]
        return [*sends, Observe("bakery.query", len(sends))]

    def redirect(self, pending: InFlightRequest, owner: str, now: Instant) -> list[Effect]:
        """Send a request to the leader that has it, according to another one."""
        if pending.redirected or owner == pending.leader or owner not in self.leaders():
            return []
        pending.leader, pending.redirected = owner, True
        return self.send(pending, now)

    def pass_on(self, pending: InFlightRequest, leader: str, now: Instant) -> list[Effect] | None:
        """Send a renewal to the next leader, since ``leader`` does not have the hold.

        One of three may have missed the vote, or a renewal, while the others have it.

        Returns:
            None once no quorum can have the hold: all leaders that can be reached replied that
            they do not, and the others are too few.

        """
        led = [one.node for one in self.readiness.seating.leaders]
        if leader not in led or (leader in pending.answered and leader != pending.leader):
            return []
        pending.answered[leader] = None
        left = [name for name in self.leaders() if name not in pending.answered]
        if left:
            pending.leader = left[0]
            return self.send(pending, now)
        return None if len(pending.answered) >= exports_needed(len(led)) else []

    def avoid(self, pending: InFlightRequest) -> None:
        """Send a request to another leader than the last, if there is one, when it is due again."""
        others = [name for name in self.leaders() if name != pending.leader]
        if others:
            pending.leader = others[0]

    def read(
        self, pending: InFlightRequest, leader: str, answer: QueryResult, now: Instant
    ) -> QueryResult | None:
        """Count a leader's answer; return the answer once a quorum agrees on it."""
        poll, seating = pending.poll, self.readiness.seating
        asked = poll is not None and (answer.nonce, answer.lock) == (poll.nonce, pending.name.lock)
        if poll is None or not asked or leader not in [one.node for one in seating.leaders]:
            return None
        if answer.epoch == seating.epoch:
            poll.answers[leader] = answer
        return poll.decide(quorum(len(seating.leaders)), now)

    def lead(self, readiness: Readiness, now: Instant) -> None:
        """Store the leaders; requests whose leader does not lead any more are due at once."""
        before, self.readiness = self.readiness, readiness
        leaders, seating = self.leaders(), readiness.seating
        began = seating.epoch != before.seating.epoch or (readiness.ready and not before.ready)
        if began and seating.leaders:
            self._turn = self._random.randrange(len(seating.leaders))
        for pending in self.by_number.values():
            if began and pending.name.kind is Kind.RENEW:
                pending.answered.clear()  # The new leaders may have learned of it.
            is_read = pending.name.kind is Kind.QUERY  # It is sent to all leaders, again and again.
            if began or (pending.leader not in leaders and not is_read):
                pending.pause_ms = self.repeat_ms
                self._due.set(pending, now)

    def due(self, now: Instant) -> list[InFlightRequest]:
        """Remove and return the requests that are due, in order, `QUEUE_ENDS_MAX` at most."""
        found = list(self._due.each_due(now, QUEUE_ENDS_MAX))
        for pending in found:
            pending.redirected = False
        return found

    def is_due(self, now: Instant) -> bool:
        """Return whether a request may be due."""
        return self._due.is_due(now)

    def _later(self, pending: InFlightRequest, now: Instant) -> None:
        pause_ms = pending.pause_ms
        if pending.name.kind is not Kind.QUERY:  # A read waits for no lock, only for agreement.
            pending.pause_ms = min(2 * pause_ms, max(REPEAT_MS_MAX, self.repeat_ms))
        at = later(now, pause_ms)
        if pending.until is not None:
            at = max(later(now, 1), min(at, pending.until))
        self._due.set(pending, at)

    def _next(self, leaders: list[str]) -> str:
        """Return this node, if it leads; else the next in the round robin."""
        if self.node in leaders:
            return self.node
        self._turn += 1
        return leaders[self._turn % len(leaders)]


def _message(pending: InFlightRequest, now: Instant) -> ToLeader:
    name, asked = pending.name, pending.request
    match name.kind:
        case Kind.LOCK:
            assert isinstance(asked, LockAcquire)
            wait_ms = asked.wait_ms
            if wait_ms:
                wait_ms = max(1, wait_ms - ms_between(pending.since, now))
            return Lock(
                lock=name.lock,
                who=name.who,
                request=name.number,
                wait_ms=wait_ms,
                hold_ms=asked.hold_ms,
                grace_ms=asked.grace_ms,
                label=asked.label,
                shared=isinstance(asked, AcquireReadWrite) and not asked.write,
            )
        case Kind.UNLOCK:
            request = 0 if pending.fence else name.number
            return Unlock(
                lock=name.lock,
                who=name.who,
                request=request,
                fence=pending.fence,
                number=pending.number,
                waiting=isinstance(asked, LockAcquire) and bool(asked.session),
            )
        case Kind.UNLOCK_ALL:
            return UnlockAll(session=name.who.session, number=pending.number)
        case Kind.RENEW:
            assert isinstance(asked, Renew)
            return RenewHold(
                lock=name.lock,
                who=name.who,
                fence=pending.fence,
                hold_ms=asked.hold_ms,
                number=pending.number,
                missed=tuple(pending.answered),
            )
        case Kind.QUERY:
            assert pending.poll is not None
            return Query(lock=name.lock, number=pending.number, nonce=pending.poll.nonce)
