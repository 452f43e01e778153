"""A leader's state in an epoch: the other leaders, and whether it may grant. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.bakery.config import TRUST_MS, leader_of, quorum
from fencelock.actors.bakery.message import Chosen
from fencelock.actors.effect import Observe, Send
from fencelock.actors.message import Address, Instant, Message, ms_between, node_of


@dataclass(slots=True)
class EpochState:
    """One leader's state in an epoch.

    Attributes:
        epoch: the epoch for which its table is complete, 0 for none; only its steps are heeded.
        leaders: the leaders of that epoch, this one too, in order of rank.
        barred: no epoch below it is heeded: the table was handed over to one that is as high.
        serving: whether clients are served, in ``epoch``.
        bound_ms: the longest lease (ms).
        trusted_at: send time of the oldest beat that a majority answered.

    """

    node: str
    life: int
    epoch: int = 0
    leaders: tuple[Chosen, ...] = ()
    others: tuple[str, ...] = ()
    quorum: int = 1
    barred: int = 0
    serving: bool = False
    bound_ms: int = 0
    trusted_at: Instant | None = None

    @property
    def me(self) -> Chosen:
        """This leader, in this life."""
        return Chosen(self.node, self.life)

    def take(self, epoch: int, leaders: tuple[Chosen, ...]) -> None:
        """Become a leader of ``epoch``, with a complete table, but not serving yet."""
        assert epoch >= self.barred  # B4
        assert self.me in leaders
        self.epoch, self.barred, self.leaders = epoch, epoch, leaders
        self.others = tuple(one.node for one in leaders if one.node != self.node)
        self.quorum = quorum(len(leaders))
        self.serving, self.trusted_at = False, None

    def leave(self, barred: int) -> None:
        """Heed no epoch below ``barred`` any more; stop serving a lower one."""
        self.barred = max(self.barred, barred)
        if self.epoch < self.barred:
            self.epoch, self.serving, self.trusted_at = 0, False, None
            self.leaders, self.others = (), ()

    def heeds(self, sender: Address, epoch: int) -> bool:
        """Return whether a step comes from another leader of the epoch (B4)."""
        node = node_of(sender)
        return bool(self.epoch) and epoch == self.epoch and node in self.others

    def ranks_before(self, other: str) -> bool:
        """Return whether this leader ranks before ``other``, of the same epoch."""
        names = [leader.node for leader in self.leaders]
        return names.index(self.node) < names.index(other)

    def trusted(self, now: Instant) -> bool:
        """Return whether a grant made now ends before any member considers it impossible."""
        at = self.trusted_at
        return self.serving and at is not None and ms_between(at, now) < TRUST_MS

    def can_win(self, refused: int) -> bool:
        """Return whether a quorum is left, when so many have refused."""
        return 1 + len(self.others) - refused >= self.quorum

    def tell(self, message: Message, but: frozenset[str] = frozenset()) -> list[Send | Observe]:
        """Send ``message`` to the other leaders, except those in ``but``; counted by its name."""
        sends = [Send(leader_of(name), message) for name in self.others if name not in but]
        if not sends:
            return []
        name = f"bakery.{type(message).__name__}".lower()
        return [*sends, Observe(name, len(sends))]
