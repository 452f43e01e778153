"""A judge of objects at which contenders pass."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fencelock.actors.api.name import client_of, titled
from fencelock.actors.api.object_request import UpdateReply
from fencelock.actors.api.request import Key
from fencelock.actors.effect import Effects
from fencelock.actors.message import Address, address_of
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.session.message import HoldsLost
from fencelock.verification.simulation.log_judge import LogJudge
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError


class PassJudge(LogJudge):
    """Judges one run of objects at which contenders pass.

    - Wants: a contender passes at most as often as the log has let it pass.
    """

    passed: type[UpdateReply]
    """The reply that lets a contender pass."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.let_pass: Counter[tuple[Address, str]] = Counter()
        """The passes of each contender and object that are in the log and not yet received."""
        self.known: set[Key] = set()

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event = delivered.event
        match event:
            case SlotOutcomes():
                for outcome in event.outcomes:
                    if isinstance(outcome, self.passed) and outcome.key not in self.known:
                        self.known.add(outcome.key)
                        contender = address_of(client_of(outcome.session), outcome.owner)
                        self.let_pass[contender, outcome.lock] += 1
            case HoldsLost():
                self.losses += len(event.losses)
            case UpdateReply() if (
                isinstance(event, self.passed) and delivered.to in self.contenders
            ):
                self.grants += 1
                self.let_pass[delivered.to, event.lock] -= 1
                if self.let_pass[delivered.to, event.lock] < 0:
                    raise ViolationError(f"wants: {delivered.to} passes {titled(event.lock)}")
            case _:
                pass
        self.follow(delivered)
