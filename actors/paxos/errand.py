"""What a node's broker has under way in the log for each ticket of its proxy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from holdfast.actors.lock.command import AcquireLock, CancelWait, ReleaseLock
from holdfast.actors.message import Instant, ms_between

ASK_AGAIN_MS = 500
"""A command without an outcome is proposed again after this: a master may have died with it."""

LOOK_AGAIN_MS = 5_000
"""A wait that the log knows is asked for again this seldom: a snapshot may have hidden its end."""


class Stage(Enum):
    """What was last asked for a ticket."""

    WANTED = "wanted"
    """The lock; the log does not know of it for sure."""
    QUEUED = "queued"
    """The lock; the log knows."""
    HELD = "held"
    """Nothing: the lock is held."""
    GIVEN = "given"
    """That the wait, or the hold, end."""


@dataclass(slots=True)
class Errand:
    """One ticket. It is an owner of its own in the node's session, so it never meets itself.

    Attributes:
        request: the number of its acquire.
        asked_at: when its last command was proposed, None if that is still to come.
        given: the number of its release, 0 where a wait was withdrawn instead.

    """

    ticket: int
    lock: str
    label: str
    request: int
    stage: Stage = Stage.WANTED
    fence: int = 0
    asked_at: Instant | None = None
    given: int = 0

    def command(self, session: str) -> AcquireLock | ReleaseLock | CancelWait | None:
        """Return what has to be in the log for this ticket, None if nothing is missing."""
        owner = str(self.ticket)
        match self.stage:
            case Stage.WANTED | Stage.QUEUED:
                return AcquireLock(
                    session=session,
                    owner=owner,
                    request=self.request,
                    lock=self.lock,
                    limit=1,
                    label=self.label,
                )
            case Stage.HELD:
                return None
            case Stage.GIVEN if self.given:
                return ReleaseLock(
                    session=session,
                    owner=owner,
                    request=self.given,
                    lock=self.lock,
                    fence=self.fence,
                )
            case Stage.GIVEN:
                return CancelWait(
                    session=session, owner=owner, request=self.request, lock=self.lock
                )

    def is_due(self, now: Instant) -> bool:
        """Return whether its command should be proposed, for the first time or again."""
        if self.stage is Stage.HELD:
            return False
        again_ms = LOOK_AGAIN_MS if self.stage is Stage.QUEUED else ASK_AGAIN_MS
        return self.asked_at is None or ms_between(self.asked_at, now) >= again_ms


class Errands:
    """All tickets of a node's broker, and what its clients call their owners."""

    def __init__(self) -> None:
        self.by_ticket: dict[int, Errand] = {}
        self.names: dict[tuple[str, str], tuple[str, str]] = {}
        """Session and owner as the proxy's clients say them, by session and owner in the log."""

    def add(self, errand: Errand, session: str, named: tuple[str, str]) -> None:
        """Enter a ticket that ``named`` wants, under the log's ``session`` ("" for none yet)."""
        self.by_ticket[errand.ticket] = errand
        self.names[session, str(errand.ticket)] = named

    def drop(self, errand: Errand, session: str) -> None:
        """Forget a ticket."""
        del self.by_ticket[errand.ticket]
        self.names.pop((session, str(errand.ticket)), None)

    def owned_by(self, owner: str) -> Errand | None:
        """Return the ticket that is ``owner`` in the log, None if it is none of ours."""
        return self.by_ticket.get(int(owner)) if owner.isascii() and owner.isdecimal() else None

    def move(self, old: str, new: str) -> list[Errand]:
        """Carry what waits over to another session; return what is held or given, forgotten."""
        gone: list[Errand] = []
        for errand in list(self.by_ticket.values()):
            if errand.stage in (Stage.HELD, Stage.GIVEN):
                self.drop(errand, old)
                gone.append(errand)
                continue
            errand.stage, errand.asked_at = Stage.WANTED, None
            owner = str(errand.ticket)
            self.names[new, owner] = self.names.pop((old, owner), ("", ""))
        return gone
