"""Messages and records by which nodes agree on the journals that vote. Tags 0xa4 to 0xa9."""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

from fencelock.actors.message import Int64, Local, Message

BOOT_NUMBER_MAX = 1 << 63
"""Journal ids, incarnations, boots, proofs and groups stay below it."""

SECRET_BYTES = 16
"""Length of the secret of a journal (bytes)."""


class Founding(Enum):
    """An operator's choice for a node that finds no group. It holds for one life of the node."""

    NO = "no"
    """Wait, and ask for a group."""
    ONCE = "found"
    """Found a group with the other configured nodes, unless any of them knows one, or a member that
    joined later names it while they listen for that."""
    NEW = "new"
    """The same without listening: no group can exist, since the caller has just made the folders of
    all nodes."""
    AGAIN = "found again"
    """The same, and take no group that others know: they are given up."""


class Start(NamedTuple):
    """One start of a node from one journal.

    ``incarnation`` rises with every start from ``journal``, and now and then in between;
    ``boot`` is drawn anew at every start. So of two copies of a journal that were both
    started, at least one has a lower incarnation, or the same one with another boot.

    Only a node with a copy of the journal can compute ``proof``, which needs the journal's secret.
    So a node believes no start of its own journal that another node has invented.
    """

    journal: Int64
    incarnation: Int64
    boot: Int64
    proof: Int64 = 0

    @classmethod
    def proven(cls, journal: int, incarnation: int, boot: int, secret: int) -> Start:
        return cls(journal, incarnation, boot, _proof_of(secret, incarnation, boot))

    def is_proven(self, secret: int) -> bool:
        """Return whether this start was made with a copy of the journal that has ``secret``."""
        return self.proof == _proof_of(secret, self.incarnation, self.boot)

    @property
    def is_sound(self) -> bool:
        journal, incarnation, boot, proof = self
        numbers = all(0 < number < BOOT_NUMBER_MAX for number in (journal, incarnation, boot))
        return numbers and 0 <= proof < BOOT_NUMBER_MAX

    def is_before(self, other: Start) -> bool:
        """Return whether ``other`` shows that this start is of an old copy of its journal."""
        if self.journal != other.journal or self.boot == other.boot:
            return False
        return self.incarnation <= other.incarnation


class Voter(NamedTuple):
    """A member, with the journal under which it votes."""

    member: str
    journal: Int64


class Join(Message, tag=0xA4):
    """Announce a start. Answered by `JoinAck` or `Superseded`, and `GroupConfig` if that helps.

    ``group`` is the id of the group that the sender knows, or 0 if it knows none.
    """

    start: Start
    group: Int64


class JoinAck(Message, tag=0xA5):
    """Confirm to the start with boot ``to`` that no later start of its journal is known.

    ``start`` is the sender's own. With ``follows`` the sender, which knows no group, will
    take a group from this journal of the first member and from no other.
    """

    to: Int64
    start: Start
    follows: bool


class GroupConfig(Message, tag=0xA6):
    """Notify the start with boot ``to`` which journals vote; also a record of the journal.

    ``group`` is the id of the group: the boot of the life that founded it. ``founded_ms`` is the
    date of that (ms since 1970), and ``voters`` founded it. ``removed``: the receiver was a member
    of it, and is none now.
    """

    to: Int64
    group: Int64
    founded_ms: Int64
    voters: tuple[Voter, ...]
    removed: bool = False


class Superseded(Message, tag=0xA7):
    """Notify the start with boot ``to`` that ``start``, of the same journal, came later.

    The receiver runs on an old copy of its journal. The receiver also records it.
    """

    to: Int64
    start: Start


class Started(Message, tag=0xA8):
    """A record: the latest ``start`` of ``member`` that is known, or a former journal of it."""

    member: str
    start: Start


class Found(Message, tag=0xA9):
    """To the first member: an operator at the sender wants a new group (`Founding.ONCE`)."""


class VotingStatus(Local):
    """Whether this node votes; if not, ``why`` in words. From `Bootstrap` to the proxy.

    A node that does not ``serve`` was removed from its group and has an empty journal.
    """

    votes: bool
    why: str
    serves: bool = True


class VotersChanged(Local):
    """To `Bootstrap`: these journals vote, as the group has decided since it was founded."""

    voters: tuple[Voter, ...]


class StartVoting(Local):
    """Vote if the group counts this journal. From `Bootstrap` to the roles that vote."""


class StopVoting(Local):
    """Do not vote or stand for election again in this life. From `Bootstrap` to roles that vote."""


def _proof_of(secret: int, incarnation: int, boot: int) -> int:
    key = secret.to_bytes(SECRET_BYTES)
    hashed = blake2b(f"{incarnation:x} {boot:x}".encode(), key=key, digest_size=8).digest()
    return int.from_bytes(hashed) >> 1


def vote_id(group: GroupConfig, member: str, journal: int | None = None) -> int:
    """Return the id that votes of ``member`` in ``group`` name (63 bits).

    It identifies the group and the ``journal``, by default that of the founding: two groups may
    have registered the same journal, if the founding of one was lost and came back.
    """
    journal = journals_of(group)[member] if journal is None else journal
    hashed = blake2b(f"{member}={journal:x} of {group.group:x}".encode(), digest_size=8).digest()
    return int.from_bytes(hashed) >> 1


def journals_of(group: GroupConfig) -> dict[str, int]:
    return dict(group.voters)
