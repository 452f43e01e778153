"""The session of a node itself, in which callers inside its process hold locks."""

from __future__ import annotations

from fencelock.actors.client.message import Closed
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.lock.command import AcquireLock, CancelWait, Command, ReleaseLock
from fencelock.actors.lock.message import Acquire, Reason, Release
from fencelock.actors.lock.outcome import (
    Denial,
    Denied,
    Freed,
    Held,
    Lost,
    SessionClosed,
    SessionOpened,
)
from fencelock.actors.message import Address, Instant, role_of
from fencelock.actors.paxos.proxy_errand import (
    ERRANDS_MAX,
    NOBODY,
    Errand,
    Errands,
    Key,
    Kind,
    key_of_cancel,
)
from fencelock.actors.paxos.proxy_event import Ending
from fencelock.actors.paxos.proxy_holding import Holding
from fencelock.actors.paxos.proxy_silence import Silence
from fencelock.actors.paxos.proxy_tenure import Tenure
from fencelock.actors.paxos.proxy_waiting import Waiting
from fencelock.actors.paxos.proxy_wording import answer, lost_release, refuse, why_closed


class OwnSession:
    """Asks, waits and holds of callers inside the process, in sessions of the node.

    Each ask that names no owner is one by itself. When a session is lost, or cannot be
    confirmed to live, what was held in it is lost, and what waited goes on in the next.

    Args:
        node: this node.
        errands: where commands go.
        tenure: the session.
        silence: of the log.

    """

    def __init__(self, node: str, errands: Errands, tenure: Tenure, silence: Silence) -> None:
        self.node = node
        self.errands = errands
        self.tenure = tenure
        self.silence = silence
        self.requests = 0
        self.mine: dict[int, Errand] = {}
        """Commands about locks in the session in force, by `Errand.number`."""
        self.parked: dict[Address, Waiting] = {}
        """What waits for a session."""
        self.holding = Holding()

    def is_active(self) -> bool:
        """Return whether anybody holds or waits, or a session is being opened."""
        return bool(self.holding.holds or self.mine or self.parked or self.tenure.opening)

    def acquire(self, asker: Address, acquire: Acquire, now: Instant) -> list[Effect]:
        """Let a caller wait in the log, as soon as there is a session."""
        if len(self.parked) >= ERRANDS_MAX:
            text = f"{ERRANDS_MAX} requests wait at node {self.node} for a session, its limit"
            return [refuse(asker, acquire, Reason.OVERLOADED, text)]
        effects = self._lose_if_over(now)
        if self.tenure.is_over(now) and not self.mine:
            self.tenure.leave()  # Nothing was held or waited for: it may end as it likes.
        if self.tenure.session:
            return [*effects, self._claim(Waiting(asker, acquire, now), now)]
        self.parked[asker] = Waiting(asker, acquire, now)
        return [*effects, *self.tenure.open(now)]

    def release(self, asker: Address, release: Release, now: Instant) -> list[Effect]:
        """Give back one hold, which the fence proves."""
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
        """Undo what nobody waits for any more, also if it has just been granted."""
        if self.parked.pop(asker, None) is not None:
            return [Observe("proxy.abandoned")]
        errand = self.holding.acquires.get(asker)
        if errand is None:
            return []
        return [self._withdraw(errand, now), Observe("proxy.abandoned")]

    def close(self, asker: Address, now: Instant) -> list[Effect]:
        """End the session with all that is held in it: the process goes. `Closed` when it is."""
        if not self.tenure.session:
            return [Send(asker, Closed(unanswered=0))]
        self.parked.clear()
        for errand in self.mine.values():
            self.errands.end(errand)
        self.mine.clear()
        self.holding.lose_all("the node was stopped")
        return self.tenure.abandon(now, asker)

    def settle(self, errand: Errand, outcome: Ending, now: Instant) -> list[Effect]:
        """Take in the outcome of a command of this session, or of one before."""
        self.errands.end(errand)
        self.mine.pop(errand.number, None)
        self.tenure.settle(errand)
        if isinstance(outcome, Denied) and outcome.reason is Denial.SESSION_EXPIRED:
            return self._on_expired(errand, now)
        self.tenure.confirm(errand)
        match outcome:
            case SessionOpened():
                return self._on_opened(errand, outcome, now)
            case Held():
                return self._on_held(errand, outcome, now)
            case Freed():
                return self._on_freed(errand, outcome, now)
            case Denied():
                return self._on_denied(errand, outcome, now)
            case SessionClosed() if errand.asker != NOBODY:
                return [Send(errand.asker, Closed(unanswered=0))]
            case _:
                return []

    def closed(self, closed: SessionClosed, now: Instant) -> list[Effect]:
        """Take in that a session has ended, if it is this one."""
        if closed.session != self.tenure.session:
            return []
        return self._lose(now, why_closed(closed))

    def taken(self, lost: Lost) -> list[Effect]:
        """Take in that an operator took a hold, if it was of this session."""
        fenced = (lost.lock, lost.fence)
        if lost.session != self.tenure.session or fenced not in self.holding.holds:
            return []
        self.holding.lose(fenced, f"it was taken by {lost.operator!r}")
        return [Observe("proxy.hold_taken")]

    def keep_up(self, now: Instant) -> list[Effect]:
        """Keep the session, or see that it is lost; end waits that nothing was heard of."""
        effects = self._lose_if_over(now)
        if self.holding.holds or self.mine:
            effects += self.tenure.keep(now)
        for waiting in [one for one in self.parked.values() if one.is_over(now)]:
            del self.parked[waiting.asker]
            effects.append(waiting.unavailable(now, self.silence.in_words(now)))
        return effects

    def give_up(self, errand: Errand, now: Instant) -> list[Effect]:
        """End an acquire whose time ran out without a word of the log, if ``errand`` is one.

        It is withdrawn until the log confirms that.
        """
        if not isinstance(errand.asked, Acquire):
            return []
        waiting = Waiting(errand.asker, errand.asked, errand.asked_at)
        if not waiting.is_over(now):
            return []
        no = waiting.unavailable(now, self.silence.in_words(now))
        return [no, self._withdraw(errand, now), Observe("proxy.refused")]

    def _claim(self, waiting: Waiting, now: Instant) -> Send:
        asker, acquire = waiting.asker, waiting.acquire
        self.requests += 1
        command = AcquireLock(
            session=self.tenure.session,
            owner=acquire.owner or role_of(asker),
            request=self.requests,
            lock=acquire.lock,
            wait_ms=waiting.left_ms(now),
            limit=acquire.limit,
            label=acquire.label,
        )
        key = (command.session, command.owner, command.lock, command.request)
        errand = self._add(Kind.ACQUIRE, key, command, now, asker=asker, asked=acquire)
        errand.asked_at = waiting.asked_at
        self.holding.acquires[asker] = errand
        return self.errands.propose(errand)

    def _give_back(self, owner: str, asker: Address, release: Release, now: Instant) -> Send:
        self.requests += 1
        command = ReleaseLock(
            session=self.tenure.session,
            owner=owner,
            request=self.requests,
            lock=release.lock,
            fence=release.fence,
        )
        key = (command.session, command.owner, command.lock, command.request)
        errand = self._add(Kind.RELEASE, key, command, now, asker=asker, asked=release)
        return self.errands.propose(errand)

    def _withdraw(self, errand: Errand, now: Instant) -> Send:
        """Undo an acquire that waits, or was granted and is held."""
        if self.mine.pop(errand.number, None) is not None:
            self.errands.end(errand)
        self.holding.withdraw(errand)
        session, owner, lock, request = errand.key
        command = CancelWait(session=session, owner=owner, request=request, lock=lock)
        undo = self._add(Kind.CANCEL, key_of_cancel(*errand.key), command, now)
        return self.errands.propose(undo)

    def _add(
        self,
        kind: Kind,
        key: Key,
        command: Command,
        now: Instant,
        *,
        asker: Address = NOBODY,
        asked: Acquire | Release | None = None,
    ) -> Errand:
        errand = self.errands.add(kind, key, command, now, asker=asker, asked=asked, own=True)
        self.mine[errand.number] = errand
        return errand

    def _on_opened(self, errand: Errand, opened: SessionOpened, now: Instant) -> list[Effect]:
        if not self.tenure.begin(errand, opened, now):
            return self.tenure.open(now) if self.parked else []
        parked, self.parked = self.parked, {}
        return [self._claim(waiting, now) for waiting in parked.values()]

    def _on_held(self, errand: Errand, held: Held, now: Instant) -> list[Effect]:
        if self.tenure.is_over(now):  # It may have been granted to the next already.
            self._park(errand)
            return self._lose(now, self.tenure.why_over(now))
        self.holding.grant(errand, held)
        return [Send(errand.asker, answer(errand, held, now)), Observe("proxy.granted")]

    def _on_freed(self, errand: Errand, freed: Freed, now: Instant) -> list[Effect]:
        assert isinstance(errand.asked, Release)
        self.holding.release((freed.lock, errand.asked.fence), freed.count)
        return [Send(errand.asker, answer(errand, freed, now)), Observe("proxy.released")]

    def _on_denied(self, errand: Errand, denied: Denied, now: Instant) -> list[Effect]:
        match errand.asked:
            case Acquire():
                self.holding.acquires.pop(errand.asker, None)
            case Release():
                self.holding.forget((denied.lock, errand.asked.fence))
            case _ if errand.kind is Kind.OPEN:
                parked, self.parked = self.parked, {}
                return [
                    refuse(one.asker, one.acquire, Reason.OVERLOADED, denied.detail)
                    for one in parked.values()
                ]
            case _:
                return []
        return [Send(errand.asker, answer(errand, denied, now)), Observe("proxy.refused")]

    def _on_expired(self, errand: Errand, now: Instant) -> list[Effect]:
        if errand.key[0] != self.tenure.session:
            return []  # Of a session that was given up before.
        why = f"session {self.tenure.session!r} has expired"
        if errand.kind is Kind.ACQUIRE:
            self._park(errand)
        effects = self._lose(now, why)
        if isinstance(errand.asked, Release):
            self.holding.lost.pop((errand.asked.lock, errand.asked.fence), None)
            effects.append(lost_release(errand.asker, errand.asked, why))
        return effects

    def _lose_if_over(self, now: Instant) -> list[Effect]:
        """Give up a session in which something is held and that may not live any more."""
        if not self.holding.holds or not self.tenure.is_over(now):
            return []
        return self._lose(now, self.tenure.why_over(now))

    def _lose(self, now: Instant, why: str) -> list[Effect]:
        """Give up the session: holds are lost, waits go on in another."""
        effects: list[Effect] = [Observe("proxy.session_lost")]
        losses = self.holding.lose_all(why)
        if losses:
            effects.append(Observe("proxy.hold_taken", losses))
        mine, self.mine = self.mine, {}
        for errand in mine.values():
            self.errands.end(errand)
            if errand.kind is Kind.ACQUIRE:
                self._park(errand)
            elif isinstance(errand.asked, Release):
                self.holding.lost.pop((errand.asked.lock, errand.asked.fence), None)
                effects.append(lost_release(errand.asker, errand.asked, why))
        effects += self.tenure.abandon(now)
        return [*effects, *self.tenure.open(now)] if self.parked else effects

    def _park(self, errand: Errand) -> None:
        """Let an acquire, whose errand is over, wait for the next session."""
        assert isinstance(errand.asked, Acquire)
        self.holding.acquires.pop(errand.asker, None)
        self.parked[errand.asker] = Waiting(errand.asker, errand.asked, errand.asked_at)
