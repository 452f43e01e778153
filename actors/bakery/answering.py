"""What leaders say to a door, passed on to whom it concerns. Pure."""

from __future__ import annotations

from fencelock.actors.bakery import door_wording as words
from fencelock.actors.bakery import telling
from fencelock.actors.bakery.asking import Asking
from fencelock.actors.bakery.config import leader_of, quorum
from fencelock.actors.bakery.door_message import (
    Expired,
    Locked,
    LockFailed,
    NotLeading,
    Peeked,
    Prolonged,
    Unlocked,
    Unlocking,
)
from fencelock.actors.bakery.errand import Errand, Errands, Kind, Name
from fencelock.actors.bakery.guest import Guests
from fencelock.actors.effect import Effect, Observe, Send
from fencelock.actors.lock.message import Acquire, Cancel, Inspect, Release
from fencelock.actors.lock.session_message import End, Renew
from fencelock.actors.message import Address, Instant, node_of

FromLeader = Locked | LockFailed | Unlocked | NotLeading | Unlocking | Expired | Prolonged | Peeked


class Answering:
    """Ends errands by what leaders answer; tells of deadlines.

    Args:
        node: this node.
        members: all that are configured.
        errands: what waits for an answer.
        guests: the clients of other processes.
        asking: what a door begins by itself; it knows what callers inside this process hold.

    """

    def __init__(
        self,
        node: str,
        members: tuple[str, ...],
        errands: Errands,
        guests: Guests,
        asking: Asking,
    ) -> None:
        self.node = node
        self.members = members
        self.errands = errands
        self.guests = guests
        self.asking = asking
        self.own = asking.own

    def hear(self, sender: Address, event: FromLeader, now: Instant) -> list[Effect]:
        """Take in what a role says that is, perhaps, a leader."""
        node = node_of(sender)
        if node not in self.members or sender != leader_of(node):
            return [Observe("bakery.stranger_answers")]
        match event:
            case Locked() | LockFailed():
                name = Name(Kind.LOCK, event.lock, event.who, event.request)
                errand = self.errands.by_name.get(name)
                if errand is None:
                    return self._on_late(event, now)
                return self._on_decided(errand, event)
            case Unlocked() | Prolonged() | Peeked():
                errand = self.errands.by_number.get(event.number)
                if errand is None:
                    return [Observe("bakery.late_answer")]
                return self._on_done(node, errand, event, now)
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
        return [telling.granted(errand, errand.asked, event), Observe("proxy.granted")]

    def _on_late(self, event: Locked | LockFailed, now: Instant) -> list[Effect]:
        if isinstance(event, LockFailed):
            return [Observe("bakery.late_answer")]
        effects = self.asking.return_stray(event, now)
        asker = self.guests.asker_of(event.who.session)
        if asker is not None:
            effects.append(Send(asker, telling.stray(event)))
        return effects

    def _on_done(
        self, leader: str, errand: Errand, event: Unlocked | Prolonged | Peeked, now: Instant
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
            case Prolonged() if not event.fence:
                asked_on = self.errands.pass_on(errand, leader, now)
                if asked_on is not None:
                    return asked_on
            case Peeked() if not isinstance(asked, Inspect):
                return [Observe("bakery.answer_malformed")]
            case _:
                pass
        self.errands.end(errand)
        if isinstance(event, Unlocked) and errand.fence:
            self.own.pop((errand.name.lock, errand.fence), None)
        return telling.done(errand, event, self.node)

    def _on_unlocking(self, event: Unlocking) -> list[Effect]:
        asker = self.guests.asker_of(event.who.session)
        if asker is None:
            return [Observe("bakery.unlocking_of_stranger")]
        return [Send(asker, telling.unlocking(event))]

    def _on_expired(self, event: Expired) -> list[Effect]:
        self.own.pop((event.lock, event.fence), None)
        asker = self.guests.asker_of(event.who.session)
        if asker is None:
            return [Observe("bakery.expiry_of_stranger")]
        return [Send(asker, telling.expired(event))]
