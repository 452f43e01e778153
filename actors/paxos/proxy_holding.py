"""Who inside a node's process holds what, and which of its asks waits or got it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencelock.actors.lock.outcome import Held
from fencelock.actors.message import Address
from fencelock.actors.paxos.proxy_in_flight import InFlightRequest

LOSSES_MAX = 10_000
"""Lost holds that are remembered for the release that is still to come."""

Fenced = tuple[str, int]
"""A lock and the fence of a hold: inside the process that is proof enough of holding."""


@dataclass(slots=True, eq=False)
class Hold:
    """What somebody holds: as whom in the log, how often, and which asks got it."""

    owner: str
    count: int = 0
    asks: list[Address] = field(default_factory=list[Address])


class Holding:
    """Acquires that wait or were granted, holds, and holds that were lost."""

    def __init__(self) -> None:
        self.holds: dict[Fenced, Hold] = {}
        self.acquires: dict[Address, InFlightRequest] = {}
        """By ask: what waits, and what was granted and is held."""
        self.granted: dict[Address, Fenced] = {}
        self.lost: dict[Fenced, str] = {}
        """Why a hold was lost that nobody has released since."""

    def grant(self, in_flight_request: InFlightRequest, held: Held) -> None:
        """Enter a hold, or one more time of it, that ``errand`` asked for."""
        fenced = (held.lock, held.fence)
        hold = self.holds.setdefault(fenced, Hold(held.owner))
        hold.count = held.count
        hold.asks.append(in_flight_request.asker)
        self.granted[in_flight_request.asker] = fenced

    def withdraw(self, in_flight_request: InFlightRequest) -> None:
        """Forget an acquire, whether it waits or was granted."""
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
        """Note how often a hold is left, after it was given back once."""
        hold = self.holds.get(fenced)
        if hold is not None:
            hold.count = count
            if count <= 0:
                self.forget(fenced)

    def forget(self, fenced: Fenced) -> None:
        """Drop a hold, if there is such."""
        hold = self.holds.pop(fenced, None)
        for asker in hold.asks if hold is not None else ():
            self.granted.pop(asker, None)
            self.acquires.pop(asker, None)

    def lose(self, fenced: Fenced, why: str) -> None:
        """Drop a hold that was not given back, and remember that."""
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
