"""The judge of retained locks: it sees each local grant, each recall, and each release of a hold.

`LockJudge` sees local owners as it sees all others: there is one at a time, and fences rise. This
judge adds the rules of `RETAINED_INVARIANTS` that a client could break without that showing, and
one of its own, `RECALLS_ANSWERED`. It reads the session's own hold and messages, never the state
of a `RetainedLock`.
"""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.api.message import Granted, Release
from fencelock.actors.api.retained import RETAINERS, AcquireRetained, Recall
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import NS_PER_MS, Instant, node_of, role_of
from fencelock.actors.session.holds import ClientHold
from fencelock.actors.session.message import HoldsLost, ReleaseUnawaited
from fencelock.actors.session.requests import LockKey, later
from fencelock.actors.session.retained import COHORT_MS, RETAINED_INVARIANTS
from fencelock.actors.session.retainer import Admitted
from fencelock.verification.simulation.judge import ClientView, LockJudge
from fencelock.verification.simulation.retaining import OWNERS_ROLE, RETAINER_ROLE
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError

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
        """Return whether ``fence`` is one of its span."""
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
                if type(effect) is not Send:
                    continue
                match effect.message:
                    case Admitted(fence=fence):
                        self._admitted(delivered, fence)
                    case ReleaseUnawaited(release=release):
                        self._given_back(delivered, release)
                    case AcquireRetained(lock=lock, owner=owner, span=span):
                        self._spans[delivered.node, LockKey(lock, owner)] = span
                    case _:
                        pass
        elif role == OWNERS_ROLE and type(delivered.event) not in (Admitted, Granted):
            for effect in effects:
                granted = effect.message if type(effect) is Send else None
                if type(granted) is Granted and granted.count == 1:
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


def _broken(name: str, told: str) -> str:
    return f"{name}: {told} ({RETAINED_INVARIANTS[name]})"
