"""Releases and renewals that a leader has sent to a quorum. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fencelock.actors.bakery.config import RESEND_MS, later
from fencelock.actors.bakery.entry import Entry, Phase
from fencelock.actors.bakery.epoch_state import EpochState
from fencelock.actors.bakery.proxy_message import HoldRenewed, RenewHold, Unlock, Unlocked
from fencelock.actors.bakery.step_message import DropTicket, Extend, Extended, TicketDropped
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.message import Address, Instant

TRIES_MAX = 20
"""Maximum times that a drop is sent to a leader that does not answer; a lease ends by itself."""


@dataclass(slots=True, eq=False)
class PendingRelease:
    """A request that a quorum must forget, or a lease that a quorum must begin anew.

    Attributes:
        answered: other leaders that did; ``refused``: those that do not begin the lease anew.
        found: whether any of them knew the request.

    """

    door: Address
    word: DropTicket | Extend
    number: int
    """The proxy's number, for the reply."""
    due: Instant
    entry: Entry | None = None
    """The entry whose lease begins anew."""
    answered: dict[str, None] = field(default_factory=dict[str, None])
    refused: dict[str, None] = field(default_factory=dict[str, None])
    found: bool = False
    tries: int = 1
    told: bool = False


class PendingReleases:
    """All pending releases and renewals, by this leader's own numbers.

    Args:
        epoch_state: this leader's state in its epoch.

    """

    def __init__(self, epoch_state: EpochState) -> None:
        self.epoch_state = epoch_state
        self.by_number: dict[int, PendingRelease] = {}
        self.numbers: dict[tuple[Address, int], int] = {}
        self.count = 0

    def known(self, door: Address, number: int) -> bool:
        """Return whether the proxy's request of that number is in flight."""
        return (door, number) in self.numbers

    def drop(self, door: Address, unlock: Unlock, now: Instant, *, found: bool) -> list[Effect]:
        """Have the others forget what this leader has just forgotten."""
        self.count += 1
        word = DropTicket(
            epoch=self.epoch_state.epoch,
            lock=unlock.lock,
            who=unlock.who,
            request=unlock.request,
            fence=unlock.fence,
            number=self.count,
            mine=False,
        )
        ending = PendingRelease(door, word, unlock.number, later(now, RESEND_MS), found=found)
        return self._begin(ending, now)

    def extend(self, door: Address, prolong: RenewHold, entry: Entry, now: Instant) -> list[Effect]:
        """Have the others begin the lease of ``entry`` anew, as this leader has."""
        self.count += 1
        word = Extend(
            epoch=self.epoch_state.epoch, ticket=entry.ticket, fence=entry.fence, number=self.count
        )
        ending = PendingRelease(door, word, prolong.number, later(now, RESEND_MS), entry)
        return self._begin(ending, now)

    def _begin(self, ending: PendingRelease, now: Instant) -> list[Effect]:
        self.by_number[self.count] = ending
        self.numbers[ending.door, ending.number] = self.count
        return [*self.epoch_state.tell(ending.word), *self._settle(self.count, ending, now)]

    def on_dropped(self, leader: str, said: TicketDropped, now: Instant) -> list[Effect]:
        """Count a leader that has forgotten a request."""
        ending = self.by_number.get(said.number)
        if ending is None or not isinstance(ending.word, DropTicket):
            return [Observe("bakery.late_answer")]
        ending.answered[leader] = None
        ending.found = ending.found or said.found
        return self._settle(said.number, ending, now)

    def named(self, leader: str, said: TicketDropped) -> DropTicket | None:
        """Return a drop whose request number is new here; the others must receive it again."""
        ending = self.by_number.get(said.number)
        if ending is None or not isinstance(ending.word, DropTicket):
            return None
        if ending.word.request or said.request <= 0:
            return None
        word = ending.word = replace(ending.word, request=said.request)
        ending.answered = {leader: None}
        return word

    def on_extended(self, leader: str, said: Extended, now: Instant) -> list[Effect]:
        """Count a leader that has begun a lease anew, or refused to."""
        ending = self.by_number.get(said.number)
        if ending is None or not isinstance(ending.word, Extend):
            return [Observe("bakery.late_answer")]
        (ending.answered if said.kept else ending.refused)[leader] = None
        return self._settle(said.number, ending, now)

    def _settle(self, number: int, ending: PendingRelease, now: Instant) -> list[Effect]:
        """Reply to the proxy once a quorum has done it; go on until all have, or none will."""
        effects: list[Effect] = []
        epoch_state = self.epoch_state
        if not ending.told and 1 + len(ending.answered) >= epoch_state.quorum:
            effects += self._answer(ending, now)
        if not ending.told and not epoch_state.can_win(len(ending.refused)):
            ending.told = True  # Too many have ended it, or voted for another: no quorum has it.
            effects.append(Send(ending.door, not_held_here(ending.number)))
        heard = len(ending.answered) + len(ending.refused)
        if heard >= len(epoch_state.others) and (ending.told or ending.refused):
            self._forget(number)
        return effects

    def _answer(self, ending: PendingRelease, now: Instant) -> list[Effect]:
        if isinstance(ending.word, DropTicket):
            ending.told = True
            return [Send(ending.door, Unlocked(number=ending.number, found=ending.found))]
        entry = ending.entry
        assert entry is not None
        if (
            not self.epoch_state.trusted(now)
            or entry.phase is not Phase.HOLDING
            or entry.is_over(now)
        ):
            return [Observe("bakery.untrusted")]
        ending.told = True
        ticket = entry.ticket
        word = HoldRenewed(
            number=ending.number,
            fence=entry.fence,
            hold_ms=ticket.hold_ms,
            grace_ms=ticket.grace_ms,
        )
        return [Send(ending.door, word), Observe("bakery.prolonged")]

    def _forget(self, number: int) -> None:
        ending = self.by_number.pop(number)
        del self.numbers[ending.door, ending.number]

    def next_due(self) -> Instant | None:
        """Return when a message is to be sent again; the oldest is due first."""
        return next((ending.due for ending in self.by_number.values()), None)

    def tick(self, now: Instant) -> list[Effect]:
        """Send again what some leaders have not answered."""
        effects: list[Effect] = []
        while (found := next(iter(self.by_number.items()), None)) and found[1].due <= now:
            number, ending = found
            ending.tries += 1
            if ending.tries > TRIES_MAX:
                self._forget(number)
                continue
            ending.due = later(now, RESEND_MS)
            self.by_number[number] = self.by_number.pop(number)  # Keeps the order of deadlines.
            heard = frozenset(ending.answered) | frozenset(ending.refused)
            effects += self.epoch_state.tell(ending.word, heard)
            effects += self._settle(number, ending, now)
        return effects

    def clear(self) -> None:
        """Drop all: the epoch is over, and proxies repeat their requests."""
        self.by_number.clear()
        self.numbers.clear()


def not_held_here(number: int) -> HoldRenewed:
    """Return the reply for a proxy whose renewal this leader cannot perform."""
    return HoldRenewed(number=number, fence=0, hold_ms=0, grace_ms=0)
