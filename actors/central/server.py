"""The lock server: one role that keeps the holder of each lock, and numbers every grant."""

from __future__ import annotations

from heapq import nsmallest
from itertools import islice
from typing import NamedTuple, TypeVar

from fencelock.actors.api.lock_message import Contender
from fencelock.actors.api.role_request import QUEUES_MAX, Queues, ReadQueues, queue_of
from fencelock.actors.central.wire import (
    CENTRAL_NUMBER_MAX,
    EndsDue,
    EndSession,
    Free,
    Freed,
    FreeReply,
    Grant,
    Held,
    Numbered,
    Peek,
    Peeked,
    Probe,
    Probed,
    Release,
    ReleaseAck,
    Request,
    Revoke,
    Revoked,
    ServerFull,
    SessionEnded,
    client_fits,
    lock_fits,
    names_fit,
)
from fencelock.actors.effect import Checkpoint, Effect, Effects, Fault, Observe, Persist, Send
from fencelock.actors.fault import reading
from fencelock.actors.message import Address, Instant, Message, address_of, ms_between, node_of
from fencelock.actors.proxy.event import ReleaseOutcome, eviction_notice
from fencelock.actors.role import Host, Role, Summary
from fencelock.actors.turn_budget import TurnBudget

HELD_LOCKS_MAX = 100_000
"""Maximum locks held at one time. An entry is under a kilobyte, so the table is below 100 MB."""

ENDED_HOLDS_MAX = 10_000
"""Ended holds, and ended sessions, that are remembered, for requests that are repeated or very
late. The oldest is dropped first; a release repeated after that is refused as not held."""

HOLDS_ENDED_MAX = 50
"""Maximum holds that end in one turn because their session ended. Each takes two records, and
messages to its node and back; other clients are served between turns."""

HOLDS_ENDED_MS = 20
"""Interval at which further holds end, if there are more (ms)."""

SERVER_RECORDS_MAX = 1_000
"""Records after which the journal is compacted, or four times as many as locks are held: compaction
adds less than a quarter to the bytes written."""

BROKER = "clients"
"""The role of every node that receives grants."""


FromNode = Request | Release | Peek | Probe | Free | EndSession | Revoked


LockServerEvent = FromNode | ReadQueues | EndsDue


class LockServer(Role[LockServerEvent]):
    """Grants each lock to one client at a time. It has no queue, and its only timer ends sessions.

    | arrives | while | then |
    | --- | --- | --- |
    | `Request` | the lock is free | count up, note the holder, `Grant` |
    | `Request` | the requester holds it | `Grant` again, same number |
    | `Request` | another holds it | not answered; the holder is reminded (see below) |
    | `Release` | it names holder and number | the lock is free; `ReleaseAck` |
    | `Release` | anything else: it is old | only `ReleaseAck` |
    | `Free` | its session holds under its number, or an operator asks | the lock is free |
    | `EndSession` | the session holds locks | its later requests are ignored; they become free |

    Source: the CSE 452 design page "Distributed mutual exclusion". Differences:

    *The acknowledgement names the release that it acknowledges.* The page acknowledges every
    release with the current ``num_granted``, and that can lose a lock forever: the README of this
    folder explains how, and ``tests/simulation/test_explore.py`` finds it.

    *One counter for all locks.* So a free lock leaves no state, and numbers still rise.

    *Reminding the holder.* Here a client requests a lock only while an owner wants it, so a late
    request can win a lock for a client that has stopped requesting it, or is gone. A request that
    cannot be granted also repeats the grant to the holder: its broker gives back a lock that no
    owner wants, and a client that does hold it lets others go first (see `LockClient`).

    *A hold belongs to a session.* In the page it belongs to the lock client, which here dies
    with its node. So `Free` and `EndSession` end holds for a session, through any node. The node
    of the lock client must know before the server grants the lock through that node again: it is
    sent `Revoke` at each such request until it confirms.

    Invariants:
        numbers-never-fall: ``granted`` never decreases, and every number in ``held`` is at most
            ``granted``.
        ended-then-freed: Once a session has ended it is granted nothing, and `SessionEnded` is
            sent when it holds nothing. A server that restarts between goes on.
        freed-by-its-own-number: A lock's entry is removed only by a release with its client and its
            number, by its session with its number, by the end of its session, or by an operator.

    Args:
        granted: the number to count from, 0 to `CENTRAL_NUMBER_MAX`. A server without a journal
            must be given more than any number it has ever granted, or clients ignore it.
        journal: whether to persist every change before a message reveals it.
        records: the contents of this role's journal, oldest first.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        granted: int = 0,
        journal: bool = False,
        records: tuple[Message, ...] = (),
    ) -> None:
        super().__init__(address, host)
        self.granted = granted
        self.held: dict[str, Holding] = {}
        self.held_by: dict[str, dict[str, None]] = {}
        """The locks that each session holds."""
        self.freed: dict[int, EndedHold] = {}  # By number.
        self.ended: dict[str, None] = {}  # Sessions.
        self.ending: dict[str, Address | None] = {}
        """Those of them that may hold locks still, and the broker that gets the reply."""
        self.ends_budget = TurnBudget(HOLDS_ENDED_MAX, HOLDS_ENDED_MS, EndsDue())
        self.revoked: dict[tuple[str, str], Revoke] = {}
        """Holds that have ended without their lock clients' knowledge, by lock and node."""
        self.journal = journal
        self.refused = 0
        self.recorded = len(records)
        """Records in the journal since the whole table was last written."""
        for record in records:
            self._replay(record)

    def begin(self, now: Instant) -> Effects:
        """Count the durations of recovered holds from this moment on; end those that must end."""
        if not self.held:
            return ()
        self.held = {lock: holding._replace(since=now) for lock, holding in self.held.items()}
        replayed = Observe("central.holdings_replayed", len(self.held))
        self.ending = {session: None for session in self.held_by if session in self.ended}
        if self.ending:
            self.ends_budget.left = 0  # A role that begins writes nothing: the timer goes on.
        return (replayed, *self.ends_budget.wake())

    def handle(self, sender: Address, event: LockServerEvent, now: Instant) -> Effects:
        """Answer one message. Time is only noted, for status."""
        match event:
            case Request():
                return self._on_request(sender, event, now)
            case Release():
                return self._on_release(sender, event)
            case Peek():
                return self._on_peek(sender, event, now)
            case Probe():
                return (Send(sender, Probed()),)
            case Free():
                return self._on_free(sender, event, now)
            case EndSession():
                return self._on_end_session(sender, event, now)
            case EndsDue():
                self.ends_budget.renew()
                return self._end_holds()
            case Revoked():
                return self._on_revoked(sender, event)
            case ReadQueues():
                return (Send(sender, self._queues()),)

    def summary(self) -> Summary:
        return (("held", len(self.held)), ("last grant", self.granted))

    def _queues(self) -> Queues:
        """Return the holder of each lock: a server keeps no queue of those who wait."""
        names = nsmallest(QUEUES_MAX, self.held)
        queues = tuple(queue_of(name, [_in_words(self.held[name])]) for name in names)
        return Queues(queues=queues, locks=len(self.held))

    def _on_request(self, sender: Address, request: Request, now: Instant) -> Effects:
        fits = lock_fits(request.lock) and names_fit(request.session, request.owner)
        if not (fits and client_fits(request.client, sender)):
            return (Observe("central.request_malformed"),)
        if request.session in self.ended:
            ended = SessionEnded(session=request.session)
            return (
                Observe("central.request_of_ended_session"),
                Send(_broker(request.client), ended),
            )
        holding = self.held.get(request.lock)
        if holding is None:
            revoke = self.revoked.get((request.lock, node_of(request.client)))
            if revoke is not None:
                return (Observe("central.revoke_repeated"), Send(_broker(revoke.client), revoke))
            if len(self.held) >= HELD_LOCKS_MAX:
                return self._refuse(request)
            return self._grant(request, now)
        if holding.client == request.client:
            return (Observe("central.grant_repeated"), self._grant_of(request.lock, holding))
        return (Observe("central.holder_reminded"), self._grant_of(request.lock, holding))

    def _grant(self, request: Request, now: Instant) -> Effects:
        assert self.granted < CENTRAL_NUMBER_MAX
        self.granted += 1  # numbers-never-fall
        holding = Holding(request.client, self.granted, request.session, request.owner, now)
        self._hold(request.lock, holding)
        record = _held_record(request.lock, holding)
        return (*self._record(record), self._grant_of(request.lock, holding))

    def _hold(self, lock: str, holding: Holding) -> None:
        self._drop(lock)
        self.held[lock] = holding
        self.held_by.setdefault(holding.session, {})[lock] = None

    def _drop(self, lock: str) -> Holding | None:
        """Remove the entry of ``lock``, and return it if there was one."""
        holding = self.held.pop(lock, None)
        if holding is not None:
            of_session = self.held_by[holding.session]
            del of_session[lock]
            if not of_session:
                del self.held_by[holding.session]
        return holding

    def _refuse(self, request: Request) -> Effects:
        # A table full of locks that no owner wants must not stay full: each refusal
        # reminds another of the holders, in turn. Slow, but only when refusing.
        self.refused += 1
        lock = list(self.held)[self.refused % len(self.held)]
        return (
            Observe("central.crowded_out"),
            Send(request.client, ServerFull(lock=request.lock, locks_max=HELD_LOCKS_MAX)),
            self._grant_of(lock, self.held[lock]),
        )

    def _on_release(self, sender: Address, release: Release) -> Effects:
        fits = lock_fits(release.lock) and 1 <= release.sequence <= CENTRAL_NUMBER_MAX
        if not (fits and client_fits(release.client, sender)):
            return (Observe("central.release_malformed"),)
        ack = self._acknowledged(release)
        holding = self.held.get(release.lock)
        if holding is None or not self._matches(holding, release):
            return (Observe("central.release_old"), ack)
        return (*self._free(release.lock, holding), ack)

    def _matches(self, holding: Holding, release: Release) -> bool:
        return (holding.client, holding.number) == (release.client, release.sequence)

    def _acknowledged(self, release: Release) -> Send:
        return Send(release.client, ReleaseAck(lock=release.lock, sequence=release.sequence))

    def _free(self, lock: str, holding: Holding, taken_from: Contender | None = None) -> Effects:
        """Free ``lock``, and remember how its hold ended (freed-by-its-own-number)."""
        self._drop(lock)
        ended = EndedHold(holding.session, taken_from)
        _remember(self.freed, holding.number, ended, ENDED_HOLDS_MAX)
        return self._record(Freed(lock=lock, number=holding.number))

    def _on_free(self, sender: Address, free: Free, now: Instant) -> Effects:
        fits = lock_fits(free.lock) and names_fit(free.session, free.operator)
        if not (fits and 1 <= free.number <= CENTRAL_NUMBER_MAX):
            return (Observe("central.free_malformed"),)
        effects: Effects = ()
        holding = self.held.get(free.lock)
        if (
            holding is not None
            and holding.number == free.number
            and free.session in ("", holding.session)  # An operator names none.
        ):
            taken_from = None if free.session else _contender_of(holding, now)
            effects = self._free_for_session(free.lock, holding, taken_from, free.operator)
            if taken_from is not None:
                notice = eviction_notice(free.lock, free.number, taken_from, free.operator)
                effects = (*effects, Send(address_of(node_of(self.address), "node"), notice))
        reply = _reply_to(free, self.freed.get(free.number))
        return (*effects, Observe("central.freed"), Send(sender, reply))

    def _free_for_session(
        self, lock: str, holding: Holding, taken_from: Contender | None, operator: str
    ) -> Effects:
        """End a hold without its lock client; its node is notified until it confirms."""
        freed = self._free(lock, holding, taken_from)
        revoke = Revoke(lock=lock, client=holding.client, number=holding.number, operator=operator)
        _remember(self.revoked, (lock, node_of(holding.client)), revoke, HELD_LOCKS_MAX)
        return (*freed, *self._record(revoke), Send(_broker(holding.client), revoke))

    def _on_end_session(self, sender: Address, end: EndSession, now: Instant) -> Effects:
        if not (end.session and names_fit(end.session)):
            return (Observe("central.end_session_malformed"),)
        effects: list[Effect] = []
        if end.session not in self.ended:
            _remember(self.ended, end.session, None, ENDED_HOLDS_MAX)
            effects += self._record(SessionEnded(session=end.session))
        self.ending[end.session] = sender
        return (*effects, *self._end_holds())

    def _end_holds(self) -> list[Effect]:
        """End holds of sessions that end, as many as this turn may; each session has its turn."""
        budget, effects = self.ends_budget, list[Effect]()
        while self.ending and budget.left:
            session = next(iter(self.ending))
            sender = self.ending.pop(session)
            for lock in list(islice(self.held_by.get(session, ()), budget.left)):
                budget.left -= 1
                effects += self._free_for_session(lock, self.held[lock], None, "")
            if session in self.held_by:
                self.ending[session] = sender
            elif sender is not None:
                effects.append(Send(sender, SessionEnded(session=session)))
        return [*budget.wake(), *effects]

    def _on_revoked(self, sender: Address, revoked: Revoked) -> Effects:
        key = (revoked.lock, node_of(revoked.client))
        revoke = self.revoked.get(key)
        if (
            revoke is None
            or node_of(sender) != key[1]
            or (revoked.client, revoked.number) != (revoke.client, revoke.number)
        ):
            return (Observe("central.revoked_old"),)
        del self.revoked[key]
        return self._record(revoked)

    def _on_peek(self, sender: Address, peek: Peek, now: Instant) -> Effects:
        if not lock_fits(peek.lock):
            return (Observe("central.peek_malformed"),)
        found = reading(repr(peek), lambda: self._peeked(peek, now))
        return (found if isinstance(found, Fault) else Send(sender, found),)

    def _peeked(self, peek: Peek, now: Instant) -> Peeked:
        holding = self.held.get(peek.lock)
        holder = None if holding is None else _contender_of(holding, now)
        return Peeked(lock=peek.lock, query=peek.query, holder=holder)

    def _grant_of(self, lock: str, holding: Holding) -> Send:
        grant = Grant(lock=lock, client=holding.client, number=holding.number)
        return Send(_broker(holding.client), grant)

    def _record(self, record: Message) -> Effects:
        """Return the effects that journal ``record``, which is in the table already."""
        if not self.journal:
            return ()
        self.recorded += 1
        whole = len(self.held) + len(self.revoked) + len(self.ended)
        if self.recorded <= max(SERVER_RECORDS_MAX, 4 * whole):
            return (Persist(record),)
        self.recorded = 0
        table: tuple[Message, ...] = (
            Numbered(number=self.granted),
            *(_held_record(lock, holding) for lock, holding in self.held.items()),
            *self.revoked.values(),
            *(SessionEnded(session=session) for session in self.ended),
        )
        return (Observe("central.journal_begun_anew"), Checkpoint(table))

    def _replay(self, record: Message) -> None:
        match record:
            case Held(lock=lock, client=client, number=number, session=session, owner=owner):
                self.granted = max(self.granted, number)  # numbers-never-fall
                self._hold(lock, Holding(client, number, session, owner, Instant(0)))
            case Freed(lock=lock, number=number):
                holding = self._drop(lock)
                if holding is not None:
                    _remember(self.freed, number, EndedHold(holding.session), ENDED_HOLDS_MAX)
            case Numbered(number=number):
                self.granted = max(self.granted, number)  # numbers-never-fall
            case Revoke(lock=lock, client=client):
                _remember(self.revoked, (lock, node_of(client)), record, HELD_LOCKS_MAX)
            case Revoked(lock=lock, client=client):
                self.revoked.pop((lock, node_of(client)), None)
            case SessionEnded(session=session):
                _remember(self.ended, session, None, ENDED_HOLDS_MAX)
            case _:
                raise AssertionError(f"{record} is none of the server's records")


def _broker(client: Address) -> Address:
    return address_of(node_of(client), BROKER)


K = TypeVar("K")
V = TypeVar("V")


class Holding(NamedTuple):
    """The holder of one lock, with the time and number of its grant."""

    client: Address
    number: int
    session: str
    owner: str
    since: Instant


class EndedHold(NamedTuple):
    """A hold that has ended: its session, and its holder if an operator took it."""

    session: str
    taken_from: Contender | None = None


def _contender_of(holding: Holding, now: Instant) -> Contender:
    return Contender(
        node=node_of(holding.client),
        session=holding.session,
        owner=holding.owner,
        fence=holding.number,
        since_ms=ms_between(holding.since, now),
    )


def _in_words(holding: Holding) -> str:
    """Return the holder as ``node/session/owner``, without the parts that it does not have."""
    parts = (node_of(holding.client), holding.session, holding.owner)
    return "/".join(part for part in parts if part)


def _reply_to(free: Free, ended: EndedHold | None) -> FreeReply:
    """Return the reply to ``free``, the same for each repetition of it.

    Args:
        free: the request, which has been performed if possible.
        ended: the end of the hold, or None if no such hold is known.

    """
    outcome, holder = ReleaseOutcome.NOT_HELD, None
    if ended is not None and free.session == ended.session:
        outcome = ReleaseOutcome.FREED if ended.taken_from is None else ReleaseOutcome.TAKEN
    elif ended is not None and not free.session and ended.taken_from is not None:
        outcome, holder = ReleaseOutcome.FREED, ended.taken_from
    return FreeReply(
        lock=free.lock, number=free.number, session=free.session, outcome=outcome, holder=holder
    )


def _remember(memory: dict[K, V], key: K, value: V, most: int) -> None:
    """Add an entry to a bounded dict, which drops its oldest."""
    memory[key] = value
    if len(memory) > most:
        del memory[next(iter(memory))]


def _held_record(lock: str, holding: Holding) -> Held:
    return Held(
        lock=lock,
        client=holding.client,
        number=holding.number,
        session=holding.session,
        owner=holding.owner,
    )
