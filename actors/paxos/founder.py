"""Members without a disk: who may vote, in a group that forgets whoever restarts."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from holdfast.actors.effect import Effect, Effects, Observe, Send, Spawn, Wake
from holdfast.actors.message import Address, Instant, Timer, address_of, node_of, timer
from holdfast.actors.paxos.event import Franchise
from holdfast.actors.paxos.founding_message import Allegiance, Charter, Life, Newborn
from holdfast.actors.role import Host, Role

ASK_MS = 250
"""How often a newborn asks whether there is a group (ms)."""

FORMER_MAX = 64
"""Lives of one member that a newborn outlives; one more, and it must be restarted itself."""

GENERATION_MAX = 4_000_000_000_000
"""Generations stay below it (ms since 1970), until the year 2096: times `SLOTS` it is below
`NUMBER_MAX`."""

SLOTS = 1 << 20
"""How many slots and rounds a generation may use for each millisecond since the one before."""

AMNESIAC = (
    "restarted without its memory: serves, but does not vote until the group is restarted "
    "(all members stopped, then started)"
)
"""What a status says of a node that came back."""


class Standing(Enum):
    """What a member is in its life."""

    NEWBORN = "newborn"
    """It has no role in the log: it neither votes nor learns."""
    VOTER = "voter"
    AMNESIAC = "amnesiac"
    """It voted in an earlier life, perhaps. It learns, serves, and never votes in this one."""


@timer
class AskAgain(Timer):
    """Ask again whether there is a group."""


class Founder(Role[Newborn | Allegiance | Charter | AskAgain]):
    """Founds the group once, by the word of all; afterwards tells newborns that it exists.

    An acceptor that forgot its promises could help to decide two batches for one slot. Here
    all is forgotten with each life, so a *life* votes, not a member, and no two lives of one
    member ever vote in the same generation of the group. Then any two majorities still share
    a life, which remembers.

    The first member by name writes the charter: the lives of all members, each of which
    said `Allegiance` to just this life of the founder. It writes one in its life.

    Why there are never two charters of which lives vote at the same time: let ``k`` have
    written ``B``, and a later life ``k'`` of the same member ``B'``. Every member's life in
    ``B'`` said `Allegiance` to ``k'`` as a newborn, so it had not become a voter by ``B``;
    nor does it later, since a life never goes back to a founder's life it left, and takes a
    charter only from the one it follows. So when ``B'`` was written all voters of ``B`` were
    dead, ``k`` among them. The new group knows nothing of what they decided, and begins
    empty: a newborn has learned nothing, for it has no replica, and an amnesiac, which has,
    never says `Allegiance`. Slots and rounds begin far above all of ``B``, so that whatever
    is still under way from there is old by its number.

    A life that is told of a charter without it came back: it is an amnesiac. Whoever has a
    charter tells it to a newborn, in answer to its own question and to no other life's.

    Args:
        members: all, sorted.
        boot: the life of this node.
        date_ms: when it began (ms since 1970); every life of a member begins later.
        seat: the roles of the log, for a first slot, a first round, and whether to vote.
        listener: a role of this node that hears `Franchise`, or None.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        members: tuple[str, ...],
        boot: int,
        date_ms: int,
        seat: Callable[[int, bool], tuple[Spawn, ...]],
        listener: Address | None,
    ) -> None:
        super().__init__(address, host)
        assert list(members) == sorted(members)
        self.node = node_of(address)
        self.members = members
        self.boot = boot
        self.date_ms = date_ms
        self.listener = listener
        self.standing = Standing.NEWBORN
        self.charter: Charter | None = None
        self.known: dict[str, int] = {self.node: boot}
        """The life that each member lives, as far as is known; of the founder: is followed."""
        self.former: dict[str, dict[int, None]] = {member: {} for member in members}
        """Lives that are over."""
        self.loyal: dict[str, int] = {}
        """Who said `Allegiance` to this life, if this is the founder."""
        self._seat = seat

    def begin(self, now: Instant) -> Effects:
        """Ask for a group; alone, be one."""
        return [*self._ask(), *self._found()]

    def handle(
        self, sender: Address, event: Newborn | Allegiance | Charter | AskAgain, now: Instant
    ) -> Effects:
        """Found the group, join it, or learn that it exists without this life."""
        if isinstance(event, AskAgain):
            return self._ask()
        member = node_of(sender)
        if sender != founder_of(member) or member not in self.members or member == self.node:
            return (Observe("paxos.stranger_founds"),)
        match event:
            case Newborn():
                return self._on_newborn(member, event.boot)
            case Allegiance():
                return self._on_allegiance(member, event)
            case Charter():
                return self._on_charter(event)

    def _ask(self) -> list[Effect]:
        if self.standing is not Standing.NEWBORN:
            return []
        others = [member for member in self.members if member != self.node]
        born = Newborn(boot=self.boot)
        return [*(Send(founder_of(other), born) for other in others), Wake(ASK_MS, AskAgain())]

    def _on_newborn(self, member: str, boot: int) -> Effects:
        """Tell a newborn of the group; or follow the founder, if it is that."""
        if self.charter is not None:
            return (Send(founder_of(member), self._charter_for(boot)),)
        if member != self.members[0] or not self._outlives(member, boot):
            return ()
        return (Send(founder_of(member), Allegiance(founder=boot, boot=self.boot)),)

    def _on_allegiance(self, member: str, word: Allegiance) -> Effects:
        if word.founder != self.boot or self.charter is not None:
            return (Observe("paxos.allegiance_ignored"),)
        if self._outlives(member, word.boot):
            self.loyal[member] = word.boot
        return self._found()

    def _outlives(self, member: str, boot: int) -> bool:
        """Turn to the life ``boot`` of ``member``; return False if that life is over."""
        former = self.former[member]
        before = self.known.get(member, boot)
        if boot in former or (before != boot and len(former) >= FORMER_MAX):
            return False
        if before != boot:
            former[before] = None
        self.known[member] = boot
        return True

    def _found(self) -> list[Effect]:
        """Write the charter, if all others follow this life of the first member."""
        others = self.members[1:]
        if self.node != self.members[0] or any(other not in self.loyal for other in others):
            return []
        assert self.standing is Standing.NEWBORN
        lives = tuple(Life(member, self.known[member]) for member in self.members)
        self.charter = Charter(to=self.boot, generation=self.date_ms, lives=lives)
        told = [Send(founder_of(one), self._charter_for(self.known[one])) for one in others]
        return [*told, *self._become(Standing.VOTER)]

    def _charter_for(self, boot: int) -> Charter:
        assert self.charter is not None
        return Charter(to=boot, generation=self.charter.generation, lives=self.charter.lives)

    def _on_charter(self, charter: Charter) -> Effects:
        names = tuple(life.member for life in charter.lives)
        sound = names == self.members and 0 <= charter.generation < GENERATION_MAX
        if self.charter is not None or charter.to != self.boot or not sound:
            return (Observe("paxos.charter_ignored"),)
        self.charter = charter
        lives = dict(charter.lives)
        first = self.members[0]
        mine = lives[self.node] == self.boot and lives[first] == self.known.get(first)
        return self._become(Standing.VOTER if mine else Standing.AMNESIAC)

    def _become(self, standing: Standing) -> list[Effect]:
        """Take up the roles of the log; until now there were none on this node."""
        assert self.standing is Standing.NEWBORN
        assert self.charter is not None
        self.standing = standing
        votes = standing is Standing.VOTER
        first = 1 + self.charter.generation * SLOTS
        told = Franchise(votes=votes, why="" if votes else AMNESIAC)
        return [
            *self._seat(first, votes),
            *([] if self.listener is None else [Send(self.listener, told)]),
            Observe("paxos.founded" if votes else "paxos.amnesiac"),
        ]


def founder_of(node: str) -> Address:
    """Return where the founder of ``node`` is."""
    return address_of(node, "founder")
