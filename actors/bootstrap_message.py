"""Messages and records by which nodes agree on the journals that vote. Tags 0xa4 to 0xa8."""

from __future__ import annotations

from typing import NamedTuple

from fencelock.actors.message import Local, Message, local, message


class Start(NamedTuple):
    """One start of a node from one journal.

    ``incarnation`` rises with every start from ``journal``, and now and then in between;
    ``boot`` is drawn anew at every start. So of two copies of a journal that were both
    started, at least one has a lower incarnation, or the same one with another boot.
    """

    journal: int
    incarnation: int
    boot: int

    def is_before(self, other: Start) -> bool:
        """Return whether ``other`` shows that this start is of an old copy of its journal."""
        if self.journal != other.journal or self.boot == other.boot:
            return False
        return self.incarnation <= other.incarnation


class Voter(NamedTuple):
    """A member, with the journal under which it votes."""

    member: str
    journal: int


@message(0xA4)
class Join(Message):
    """Announce a start. Answered by `JoinAck` or `Superseded`, and `GroupConfig` if that helps.

    ``founded_ms`` names the group that the sender knows, or 0 if it knows none.
    """

    start: Start
    founded_ms: int


@message(0xA5)
class JoinAck(Message):
    """Confirm to the start with boot ``to`` that no later start of its journal is known.

    ``start`` is the sender's own. With ``follows`` the sender, which knows no group, will
    take a group from this journal of the first member and from no other.
    """

    to: int
    start: Start
    follows: bool


@message(0xA6)
class GroupConfig(Message):
    """Notify the start with boot ``to`` which journals vote; also a record of the journal.

    ``founded_ms`` is the date on which the group was founded (ms since 1970).
    """

    to: int
    founded_ms: int
    voters: tuple[Voter, ...]


@message(0xA7)
class Superseded(Message):
    """Notify the start with boot ``to`` that ``start``, of the same journal, came later.

    The receiver runs on an old copy of its journal. The receiver also records it.
    """

    to: int
    start: Start


@message(0xA8)
class Started(Message):
    """A record: the latest ``start`` of ``member`` that is known, or a former journal of it."""

    member: str
    start: Start


@local
class VotingStatus(Local):
    """Whether this node votes; if not, ``why`` in words. From `Bootstrap` to the proxy."""

    votes: bool
    why: str


@local
class VotersChanged(Local):
    """To `Bootstrap`: these journals vote, as the group has decided since it was founded."""

    voters: tuple[Voter, ...]


@local
class StartVoting(Local):
    """Vote if the group counts this journal. From `Bootstrap` to the roles that vote."""


@local
class StopVoting(Local):
    """Do not vote or stand for election again in this life. From `Bootstrap` to roles that vote."""
