"""Holds and waits of callers inside a node's process. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencelock.actors.api.message import Granted
from fencelock.actors.message import Address
from fencelock.actors.paxos.proxy_in_flight import InFlightRequest

LOSSES_MAX = 10_000
"""Lost holds that are remembered for a later release."""

Fenced = tuple[str, int]
"""A lock and the fence of a hold: inside the process that is enough proof of holding."""


@dataclass(slots=True, eq=False)
class Hold:
    """One hold: its owner in the log, how often it is held, and the calls that got it."""

    owner: str
    count: int = 0
    asks: list[Address] = field(default_factory=list[Address])


class Holding:
    """Acquires that wait or were granted, holds, and lost holds."""

    def __init__(self) -> None:
        self.holds: dict[Fenced, Hold] = {}
        self.acquires: dict[Address, InFlightRequest] = {}
        """Acquires that wait or were granted and are held, by caller."""
        self.granted: dict[Address, Fenced] = {}
        self.lost: dict[Fenced, str] = {}
        """Reasons of losses that no release has reported yet."""

    def grant(self, in_flight_request: InFlightRequest, held: Granted) -> None:
        """Enter a hold that ``in_flight_request`` acquired, or count it once more."""
        fenced = (held.lock, held.fence)
        hold = self.holds.setdefault(fenced, Hold(held.owner))
        hold.count = held.count
        hold.asks.append(in_flight_request.asker)
        self.granted[in_flight_request.asker] = fenced

    def withdraw(self, in_flight_request: InFlightRequest) -> None:
        """Drop an acquire, whether it waits or was granted."""
        self.acquires.pop(in_flight_request.asker, None)
        fenced = self.granted.pop(in_flight_request.asker, None)
        if fenced is None:
            return
        hold = self.holds[fenced]
        hold.asks.remove(in_flight_request.asker)
        hold.count -= 1
        if hold.count <= 0:
            self.forget(fenced)

    def release(self, fenced: Fenced, count: int) -> None:
        """Set how often a lock is still held after one release."""
        hold = self.holds.get(fenced)
        if hold is not None:
            hold.count = count
            if count <= 0:
                self.forget(fenced)

    def forget(self, fenced: Fenced) -> None:
        """Drop a hold, if it exists."""
        hold = self.holds.pop(fenced, None)
        for asker in hold.asks if hold is not None else ():
            self.granted.pop(asker, None)
            self.acquires.pop(asker, None)

    def lose(self, fenced: Fenced, why: str) -> None:
        """Drop a hold that was not released, and remember the loss."""
        self.forget(fenced)
        self.lost[fenced] = why
        if len(self.lost) > LOSSES_MAX:
            del self.lost[next(iter(self.lost))]

    def lose_all(self, why: str) -> int:
        """Lose every hold; return how many there were."""
        all_held = list(self.holds)
        for fenced in all_held:
            self.lose(fenced, why)
        return len(all_held)
