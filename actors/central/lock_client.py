"""The lock client: requests one lock from the server for one session, while an owner wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencelock.actors.api.lock_message import Contender
from fencelock.actors.api.name import quoted
from fencelock.actors.api.role_request import Queues, ReadQueues, queue_of
from fencelock.actors.central.wire import (
    CENTRAL_NUMBER_MAX,
    ClientRetransmit,
    Grant,
    Idle,
    Mode,
    Release,
    ReleaseAck,
    Request,
    Revoke,
    Revoked,
    ServerFull,
    names_fit,
)
from fencelock.actors.effect import Effects, Observe, Send, Wake
from fencelock.actors.message import Address, Instant, address_of, node_of
from fencelock.actors.proxy.event import (
    AcquireLock,
    HoldReleased,
    LockGranted,
    LockRevoked,
    QueueFull,
    ReleaseLock,
    ReleaseOutcome,
    eviction_notice,
)
from fencelock.actors.role import Host, Role, Summary

if TYPE_CHECKING:
    from random import Random

RETRANSMIT_MS = 50
"""Mean interval between requests (ms). The server does not announce that a lock is free, so a
contested lock is idle for as long; a thousand waiting clients send 20,000 messages a second."""


LockClientEvent = (
    AcquireLock
    | ReleaseLock
    | Grant
    | ReleaseAck
    | ServerFull
    | Revoke
    | ClientRetransmit
    | ReadQueues
)


class LockClient(Role[LockClientEvent]):
    """The protocol between one session and the server about one lock. Lives beside its broker.

    | mode | newer `Grant` | its `ReleaseAck` | `ClientRetransmit` | owner is done |
    | --- | --- | --- | --- | --- |
    | ``NONE`` | ``HELD`` | (cannot be) | send `Request` | |
    | ``HELD`` | (cannot be) | (cannot be) | nothing | send `Release`: ``RELEASING`` |
    | ``RELEASING`` | ``HELD`` | ``RELEASED`` | send `Release` | |
    | ``RELEASED`` | ``HELD`` | ``RELEASED`` | send `Request` | |

    A `Grant` that is not newer is ignored, and so is a `ReleaseAck` of another number. A `Revoke`
    of the current number, or a newer one, has the effect of a release and its `ReleaseAck`.

    Source: the CSE 452 design page "Distributed mutual exclusion". Differences:

    *It sends requests only while an owner wants the lock*, so ``NONE`` and ``RELEASED`` send
    `Request` only then. A grant that comes when no owner wants it, caused by a late or
    repeated request, is released at once (``HELD`` lasts no time).

    *The acknowledgement must name ``sequence_num`` itself*; `LockServer` explains how the page's
    comparison can lose a lock.

    *It need not wait for a timeout before the next request.* The page's client does, after
    it released. The wait matters for fairness, not for safety (a grant is judged by its number,
    whenever it was requested): without it a client that releases and requests at once shuts the
    others out. So this one waits if it learned while holding that another client requests the
    lock (``contested``), and does not if it is alone.

    Owners of the session that want the lock are served first come, first served. Between
    two of them the lock goes back to the server: a new ownership needs a new number.

    Only one `ClientRetransmit` is ever under way (``armed``), so no timer is ever out of date. Its
    handler acts according to the mode.

    Invariants:
        numbers-never-fall: ``sequence_num`` never decreases.
        held-means-ticket: ``holding`` is a ticket exactly in ``HELD``.
        unsettled-means-timer: While a release is unacknowledged, or a ticket waits and none holds,
            a timer is under way.

    Args:
        lock: its name.
        session: the session whose owners it serves.
        broker: the role of this node that spawned it; receives `LockGranted`, `QueueFull`,
            `Idle`.
        server: the address of the `LockServer`.
        random: spreads the retransmissions, so that clients do not send in step.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        lock: str,
        session: str,
        broker: Address,
        server: Address,
        random: Random,
    ) -> None:
        super().__init__(address, host)
        self.lock, self.session = lock, session
        self.broker, self.server = broker, server
        self.mode = Mode.NONE
        self.sequence_num = 0
        self.tickets: dict[int, str] = {}
        self.holding: int | None = None
        self.wants = 0
        self.armed = False
        self.contested = False
        self._random = random

    def handle(self, sender: Address, event: LockClientEvent, now: Instant) -> Effects:
        effects = self._step(sender, event)
        assert (self.holding is not None) == (self.mode is Mode.HELD)  # held-means-ticket
        unsettled = self.mode is Mode.RELEASING or (self._is_free() and bool(self.tickets))
        assert self.armed or not unsettled  # unsettled-means-timer
        return effects

    def summary(self) -> Summary:
        return (
            ("lock", self.lock),
            ("session", self.session),
            ("mode", self.mode.name),
            ("owners", len(self.tickets)),
        )

    def _step(self, sender: Address, event: LockClientEvent) -> Effects:
        match event:
            case AcquireLock():
                self.wants += 1
                self.tickets[event.ticket] = event.owner
                if len(self.tickets) > 1 or not self._is_free():
                    return ()  # The first ticket has sent a request already, or holds, or releases.
                return self._ask_in_turn()
            case ReleaseLock():
                return self._on_release_lock(event)
            case Grant():
                return self._on_grant(sender, event)
            case ReleaseAck():
                return self._on_release_ack(sender, event)
            case ServerFull():
                return self._on_crowded(sender, event)
            case Revoke():
                return self._on_revoke(sender, event)
            case ClientRetransmit():
                return self._on_retransmit()
            case ReadQueues():
                queue = queue_of(self.lock, list(self.tickets.values()))
                return (Send(sender, Queues(queues=(queue,), locks=1)),)

    def _on_release_lock(self, release: ReleaseLock) -> Effects:
        if self.tickets.pop(release.ticket, None) is None:
            return ()  # It crossed with our `QueueFull`.
        if release.ticket == self.holding:
            self.holding = None
            return self._release()
        return self._rest()

    def _on_grant(self, sender: Address, grant: Grant) -> Effects:
        if sender != self.broker or grant.lock != self.lock:
            return (Observe("central.grant_malformed"),)
        if not self._is_newer(grant):
            if self.mode is Mode.HELD and grant.number == self.sequence_num:
                self.contested = True
            return (Observe("central.grant_not_newer"),)
        if self.mode is Mode.HELD:
            # Only a server that lost its memory grants a held lock again. It will
            # remind us when we have released, and then we give that one back.
            return (Observe("central.granted_while_held"),)
        # The server grants a lock again only once it knows of the release.
        settled = (self._settled(),) if self.mode is Mode.RELEASING else ()
        self.sequence_num = grant.number  # numbers-never-fall, by `_is_newer`
        self.contested = False
        if not self.tickets:
            return (*settled, Observe("central.granted_unwanted"), *self._release())
        self.mode = Mode.HELD
        self.holding = next(iter(self.tickets))
        got = LockGranted(lock=self.lock, ticket=self.holding, fence=grant.number)
        return (*settled, Send(self.broker, got))

    def _is_newer(self, grant: Grant) -> bool:
        return self.sequence_num < grant.number <= CENTRAL_NUMBER_MAX

    def _on_release_ack(self, sender: Address, ack: ReleaseAck) -> Effects:
        if sender != self.server or ack.lock != self.lock:
            return (Observe("central.ack_malformed"),)
        if not self._is_mine(ack):
            return (Observe("central.ack_old"),)
        if self.mode is not Mode.RELEASING:
            return ()
        return self._released()

    def _released(self) -> Effects:
        """Note that the server has our release, and send a request for the next owner."""
        self.mode = Mode.RELEASED
        further = self._ask_in_turn() if self.tickets else self._rest()
        return (self._settled(), *further)

    def _settled(self) -> Send:
        released = HoldReleased(
            lock=self.lock,
            fence=self.sequence_num,
            session=self.session,
            outcome=ReleaseOutcome.FREED,
        )
        return Send(self.broker, released)

    def _on_revoke(self, sender: Address, revoke: Revoke) -> Effects:
        """Note that a hold has ended at the server, and confirm that."""
        fits = names_fit(revoke.operator)
        if sender != self.broker or revoke.lock != self.lock or not fits:
            return (Observe("central.revoke_malformed"),)
        effects: Effects = ()
        if revoke.number == self.sequence_num and self.mode is Mode.HELD:
            assert self.holding is not None  # held-means-ticket
            by, here = revoke.operator, node_of(self.address)
            detail = f"{quoted(by)} took it by force" if by else "its session has ended"
            taken = LockRevoked(lock=self.lock, ticket=self.holding, detail=detail)
            owner = self.tickets.pop(self.holding)
            self.holding = None
            effects = (Send(self.broker, taken), *self._released())
            if by and here != node_of(self.server):  # The server has written a line there.
                holder = Contender(here, self.session, owner, revoke.number, 0)
                notice = eviction_notice(self.lock, revoke.number, holder, by)
                effects = (*effects, Send(address_of(here, "node"), notice))
        elif revoke.number >= self.sequence_num and self.mode is Mode.RELEASING:
            effects = self._released()
        if self.mode is not Mode.HELD:
            self.sequence_num = max(self.sequence_num, revoke.number)
        done = Revoked(lock=revoke.lock, client=revoke.client, number=revoke.number)
        return (*effects, Send(self.broker, done))

    def _is_mine(self, ack: ReleaseAck) -> bool:
        return ack.sequence == self.sequence_num

    def _on_crowded(self, sender: Address, crowded: ServerFull) -> Effects:
        if sender != self.server or crowded.lock != self.lock:
            return (Observe("central.crowded_malformed"),)
        if not self._is_free() or not self.tickets:
            return ()
        # It may answer a request that is long forgotten. Refusing one wait too many is
        # allowed: nothing is held, and a grant requested meanwhile will be given back.
        detail = f"the server holds {crowded.locks_max} locks, its limit"
        refusals = [
            Send(self.broker, QueueFull(lock=self.lock, ticket=ticket, detail=detail))
            for ticket in self.tickets
        ]
        self.tickets.clear()
        return (*refusals, *self._rest())

    def _on_retransmit(self) -> Effects:
        self.armed = False
        match self.mode:
            case Mode.NONE | Mode.RELEASED:
                return self._ask() if self.tickets else ()
            case Mode.RELEASING:
                return self._release()
            case Mode.HELD:
                return ()

    def _is_free(self) -> bool:
        return self.mode in (Mode.NONE, Mode.RELEASED)

    def _ask_in_turn(self) -> Effects:
        if self.contested and self.armed:
            return ()  # The timer sends it; clients that waited while we held go first.
        return self._ask()

    def _ask(self) -> Effects:
        self.contested = False
        request = Request(
            lock=self.lock,
            client=self.address,
            session=self.session,
            owner=next(iter(self.tickets.values())),
        )
        return (Send(self.server, request), *self._arm())

    def _release(self) -> Effects:
        self.mode = Mode.RELEASING
        release = Release(lock=self.lock, client=self.address, sequence=self.sequence_num)
        return (Send(self.server, release), *self._arm())

    def _arm(self) -> Effects:
        if self.armed:
            return ()
        self.armed = True
        after_ms = self._random.randint(RETRANSMIT_MS // 2, RETRANSMIT_MS * 3 // 2)
        return (Wake(after_ms, ClientRetransmit()),)

    def _rest(self) -> Effects:
        if self.tickets or not self._is_free():
            return ()
        return (Send(self.broker, Idle(wants=self.wants)),)
