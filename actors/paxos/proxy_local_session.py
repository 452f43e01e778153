"""The session of a node itself, in which callers inside its process hold locks."""

from __future__ import annotations

from fencelock.actors.api.message import (
    Acquire,
    Cancel,
    Granted,
    Reason,
    Refused,
    Release,
    Released,
)
from fencelock.actors.api.request import Command, Outcome
from fencelock.actors.api.session_message import Ended, HoldLost, Open, Opened
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant, role_of
from fencelock.actors.paxos.proxy_holding import Holding
from fencelock.actors.paxos.proxy_in_flight import (
    ERRANDS_MAX,
    NOBODY,
    InFlightRequest,
    InFlightRequests,
)
from fencelock.actors.paxos.proxy_quorum_contact import QuorumContact
from fencelock.actors.paxos.proxy_session_lease import NodeSessionLease
from fencelock.actors.paxos.proxy_waiting import Waiting
from fencelock.actors.paxos.proxy_wording import addressed, finished, lost_release, refuse
from fencelock.actors.session.message import Closed


class LocalSession:
    """Calls, waits and holds of callers inside the process, in sessions of the node.

    A call that names no owner is an owner of its own. When a session is lost, or cannot be
    confirmed to live, its holds are lost, and its waits continue in the next one.

    Args:
        node: this node.
        in_flight_requests: takes the commands.
        session_lease: the session.
        silence: measures how long the log has been silent.

    """

    def __init__(
        self,
        node: str,
        in_flight_requests: InFlightRequests,
        session_lease: NodeSessionLease,
        silence: QuorumContact,
    ) -> None:
        self.node = node
        self.in_flight_requests = in_flight_requests
        self.session_lease = session_lease
        self.silence = silence
        self.requests = 0
        self.mine: dict[int, InFlightRequest] = {}
        """Commands about locks in the session in force, by `InFlightRequest.number`."""
        self.parked: dict[Address, Waiting] = {}
        """Acquires that wait for a session."""
        self.holding = Holding()

    def is_active(self) -> bool:
        """Return whether there are holds or waits, or a session is being opened."""
        return bool(self.holding.holds or self.mine or self.parked or self.session_lease.opening)

    def acquire(self, asker: Address, acquire: Acquire, now: Instant) -> list[Effect]:
        """Let a caller wait in the log, as soon as there is a session."""
        if len(self.parked) >= ERRANDS_MAX:
            text = f"{ERRANDS_MAX} requests wait at node {self.node} for a session, its limit"
            return [refuse(asker, acquire, Reason.OVERLOADED, text)]
        effects = self._lose_if_over(now)
        if self.session_lease.is_over(now) and not self.mine:
            self.session_lease.leave()  # Nothing was held or waited for: it may end as it likes.
        if self.session_lease.session:
            return [*effects, self._claim(Waiting(asker, acquire, now), now)]
        self.parked[asker] = Waiting(asker, acquire, now)
        return [*effects, *self.session_lease.open(now)]

    def release(self, asker: Address, release: Release, now: Instant) -> list[Effect]:
        """Release one hold, which the fence proves."""
        fenced = (release.lock, release.fence)
        effects = self._lose_if_over(now)
        hold = self.holding.holds.get(fenced)
        if hold is not None:
            return [self._give_back(hold.owner, asker, release, now)]
        why = self.holding.lost.pop(fenced, None)
        if why is not None:
            return [*effects, lost_release(asker, release, why)]
        shown = f"lock {release.lock!r}: fence {release.fence} was shown"
        text = f"{shown}, which does not hold it through node {self.node}"
        return [*effects, refuse(asker, release, Reason.NOT_HELD, text)]

    def abandon(self, asker: Address, now: Instant) -> list[Effect]:
        """Undo what a caller no longer waits for, even if it was just granted."""
        if self.parked.pop(asker, None) is not None:
            return [Observe("proxy.abandoned")]
        in_flight_request = self.holding.acquires.get(asker)
        if in_flight_request is None:
            return []
        return [self._withdraw(in_flight_request, now), Observe("proxy.abandoned")]

    def close(self, asker: Address, now: Instant) -> list[Effect]:
        """End the session with all its holds, since the process stops; then send `Closed`."""
        if not self.session_lease.session:
            return [Send(asker, Closed(unanswered=0))]
        self.parked.clear()
        for in_flight_request in self.mine.values():
            self.in_flight_requests.end(in_flight_request)
        self.mine.clear()
        self.holding.lose_all("the node was stopped")
        return self.session_lease.abandon(now, asker)

    def settle(
        self, in_flight_request: InFlightRequest, outcome: Outcome, now: Instant
    ) -> list[Effect]:
        """Process the outcome of a command of this session, or of an earlier one."""
        self.in_flight_requests.end(in_flight_request)
        self.mine.pop(in_flight_request.number, None)
        self.session_lease.settle(in_flight_request)
        if isinstance(outcome, Refused) and outcome.reason is Reason.SESSION_EXPIRED:
            return self._on_expired(in_flight_request, now)
        self.session_lease.confirm(in_flight_request)
        match outcome:
            case Opened():
                return self._on_opened(in_flight_request, outcome, now)
            case Granted():
                return self._on_held(in_flight_request, outcome, now)
            case Released():
                return self._on_freed(in_flight_request, outcome, now)
            case Refused():
                return self._on_denied(in_flight_request, outcome, now)
            case Ended() if in_flight_request.asker != NOBODY:
                return [Send(in_flight_request.asker, Closed(unanswered=0))]
            case _:
                return []

    def closed(self, closed: Ended, now: Instant) -> list[Effect]:
        """Note that a session has ended, if it is this one."""
        if closed.session != self.session_lease.session:
            return []
        return self._lose(now, closed.detail)

    def taken(self, lost: HoldLost) -> list[Effect]:
        """Note that an operator evicted a hold, if it was of this session."""
        fenced = (lost.lock, lost.fence)
        if lost.session != self.session_lease.session or fenced not in self.holding.holds:
            return []
        self.holding.lose(fenced, f"{lost.detail}")
        return [Observe("proxy.hold_taken")]

    def keep_up(self, now: Instant) -> list[Effect]:
        """Keep the session alive, or note its loss; end waits that have timed out."""
        effects = self._lose_if_over(now)
        if self.holding.holds or self.mine:
            effects += self.session_lease.keep(now)
        for waiting in [one for one in self.parked.values() if one.is_over(now)]:
            del self.parked[waiting.asker]
            effects.append(waiting.unavailable(now, self.silence.in_words(now)))
        return effects

    def give_up(self, in_flight_request: InFlightRequest, now: Instant) -> list[Effect]:
        """End an acquire that timed out without an outcome, if the request is one.

        It is cancelled until the log confirms that.
        """
        if not isinstance(in_flight_request.asked, Acquire):
            return []
        waiting = Waiting(
            in_flight_request.asker, in_flight_request.asked, in_flight_request.asked_at
        )
        if not waiting.is_over(now):
            return []
        no = waiting.unavailable(now, self.silence.in_words(now))
        return [no, self._withdraw(in_flight_request, now), Observe("proxy.refused")]

    def _claim(self, waiting: Waiting, now: Instant) -> Send:
        asker, acquire = waiting.asker, waiting.acquire
        self.requests += 1
        command = Acquire(
            session=self.session_lease.session,
            owner=acquire.owner or role_of(asker),
            request=self.requests,
            lock=acquire.lock,
            wait_ms=waiting.left_ms(now),
            limit=acquire.limit,
            label=acquire.label,
        )
        in_flight_request = self._add(command, now, asker=asker, asked=acquire)
        in_flight_request.asked_at = waiting.asked_at
        self.holding.acquires[asker] = in_flight_request
        return self.in_flight_requests.propose(in_flight_request)

    def _give_back(self, owner: str, asker: Address, release: Release, now: Instant) -> Send:
        self.requests += 1
        command = Release(
            session=self.session_lease.session,
            owner=owner,
            request=self.requests,
            lock=release.lock,
            fence=release.fence,
        )
        in_flight_request = self._add(command, now, asker=asker, asked=release)
        return self.in_flight_requests.propose(in_flight_request)

    def _withdraw(self, in_flight_request: InFlightRequest, now: Instant) -> Send:
        """Undo an acquire that waits, or was granted and is held."""
        if self.mine.pop(in_flight_request.number, None) is not None:
            self.in_flight_requests.end(in_flight_request)
        self.holding.withdraw(in_flight_request)
        session, owner, lock, request = in_flight_request.key
        command = Cancel(session=session, owner=owner, request=request, lock=lock)
        undo = self._add(command, now)
        return self.in_flight_requests.propose(undo)

    def _add(
        self,
        command: Command,
        now: Instant,
        *,
        asker: Address = NOBODY,
        asked: Acquire | Release | None = None,
    ) -> InFlightRequest:
        in_flight_request = self.in_flight_requests.add(
            command, command.key, now, asker=asker, asked=asked, own=True
        )
        self.mine[in_flight_request.number] = in_flight_request
        return in_flight_request

    def _on_opened(
        self, in_flight_request: InFlightRequest, opened: Opened, now: Instant
    ) -> list[Effect]:
        if not self.session_lease.begin(in_flight_request, opened, now):
            return self.session_lease.open(now) if self.parked else []
        parked, self.parked = self.parked, {}
        return [self._claim(waiting, now) for waiting in parked.values()]

    def _on_held(
        self, in_flight_request: InFlightRequest, held: Granted, now: Instant
    ) -> list[Effect]:
        if self.session_lease.is_over(now):  # The lock may already be granted to another owner.
            self._park(in_flight_request)
            return self._lose(now, self.session_lease.why_over(now))
        self.holding.grant(in_flight_request, held)
        return [
            self._answer(in_flight_request, held),
            Observe("proxy.granted"),
        ]

    def _on_freed(
        self, in_flight_request: InFlightRequest, freed: Released, now: Instant
    ) -> list[Effect]:
        assert isinstance(in_flight_request.asked, Release)
        self.holding.release((freed.lock, in_flight_request.asked.fence), freed.count)
        return [
            self._answer(in_flight_request, freed),
            Observe("proxy.released"),
        ]

    def _on_denied(
        self, in_flight_request: InFlightRequest, denied: Refused, now: Instant
    ) -> list[Effect]:
        match in_flight_request.asked:
            case Acquire():
                self.holding.acquires.pop(in_flight_request.asker, None)
            case Release():
                self.holding.forget((denied.lock, in_flight_request.asked.fence))
            case _ if isinstance(in_flight_request.request, Open):
                parked, self.parked = self.parked, {}
                return [
                    refuse(one.asker, one.acquire, Reason.OVERLOADED, denied.detail)
                    for one in parked.values()
                ]
            case _:
                return []
        return [
            self._answer(in_flight_request, denied),
            Observe("proxy.refused"),
        ]

    def _answer(self, in_flight_request: InFlightRequest, reply: Outcome) -> Send:
        assert in_flight_request.asked is not None
        reply = finished(reply, in_flight_request.request, "", "")
        return Send(in_flight_request.asker, addressed(reply, in_flight_request.asked))

    def _on_expired(self, in_flight_request: InFlightRequest, now: Instant) -> list[Effect]:
        if in_flight_request.key[0] != self.session_lease.session:
            return []  # It belongs to a session that was given up before.
        why = f"session {self.session_lease.session!r} has expired"
        if isinstance(in_flight_request.request, Acquire):
            self._park(in_flight_request)
        effects = self._lose(now, why)
        if isinstance(in_flight_request.asked, Release):
            self.holding.lost.pop(
                (in_flight_request.asked.lock, in_flight_request.asked.fence), None
            )
            effects.append(lost_release(in_flight_request.asker, in_flight_request.asked, why))
        return effects

    def _lose_if_over(self, now: Instant) -> list[Effect]:
        """Give up a session that has holds and may have ended."""
        if not self.holding.holds or not self.session_lease.is_over(now):
            return []
        return self._lose(now, self.session_lease.why_over(now))

    def _lose(self, now: Instant, why: str) -> list[Effect]:
        """Give up the session: holds are lost, waits continue in another."""
        effects: list[Effect] = [Observe("proxy.session_lost")]
        losses = self.holding.lose_all(why)
        if losses:
            effects.append(Observe("proxy.hold_taken", losses))
        mine, self.mine = self.mine, {}
        for in_flight_request in mine.values():
            self.in_flight_requests.end(in_flight_request)
            if isinstance(in_flight_request.request, Acquire):
                self._park(in_flight_request)
            elif isinstance(in_flight_request.asked, Release):
                self.holding.lost.pop(
                    (in_flight_request.asked.lock, in_flight_request.asked.fence), None
                )
                effects.append(lost_release(in_flight_request.asker, in_flight_request.asked, why))
        effects += self.session_lease.abandon(now)
        return [*effects, *self.session_lease.open(now)] if self.parked else effects

    def _park(self, in_flight_request: InFlightRequest) -> None:
        """Let an acquire, which is no longer in flight, wait for the next session."""
        assert isinstance(in_flight_request.asked, Acquire)
        self.holding.acquires.pop(in_flight_request.asker, None)
        self.parked[in_flight_request.asker] = Waiting(
            in_flight_request.asker, in_flight_request.asked, in_flight_request.asked_at
        )
