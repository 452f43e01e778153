"""Bootstrap: founds a group once, and decides whether the journal of this node votes in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from hashlib import blake2b

from fencelock.actors.bootstrap_message import (
    GroupConfig,
    Join,
    JoinAck,
    Start,
    Started,
    StartVoting,
    StopVoting,
    Superseded,
    Voter,
    VotersChanged,
    VotingStatus,
)
from fencelock.actors.effect import Checkpoint, Effect, Effects, Observe, Send, Spawn, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant, Message, Timer, address_of, timer
from fencelock.actors.message import node_of as node_at
from fencelock.actors.role import Host, Role, Summary
from fencelock.actors.role_message import Level, RoleNotice

GREET_MS = 1_300
"""Time for which a registered journal waits for every other member to confirm its start (ms): as
long as others may take to connect again, and a round. A member that is silent for longer does
not keep this one from voting."""

GREET_RETRY_MS = 50
"""Interval of announcements during that time (ms)."""

JOIN_RETRY_MS = 100
"""Interval of announcements to a member that has not answered, at other times (ms)."""

RENEW_MS = 10_000
"""Interval at which a running node raises its incarnation (ms). A copy of a journal is recognised
at its start if it was made longer than this before the journal was last used, or twice this if an
announcement is lost."""

FORMER_MAX = 64
"""Maximum journals that one member may give up before the group is founded."""

FOUNDED_MS_MAX = 4_000_000_000_000
"""A group is founded before this date (ms since 1970), in the year 2096."""

NUMBER_MAX = 1 << 63
"""Journal ids, incarnations and boots stay below it."""


Voters = Mapping[Address, int]
"""The id that each role's votes name, at present, without members that run on old copies."""

Seat = Callable[[GroupConfig, bool, Voters], tuple[Spawn, ...]]
"""Returns the roles of a node for the group, whether to vote, and the voters."""


class JournalStatus(Enum):
    """Status of this node's journal in the group."""

    WAITING = "waiting"
    """No group is known yet."""
    GREETING = "greeting"
    """The journal is registered; other members are asked whether they know a later start."""
    VOTER = "voter"
    NON_VOTING = "non-voting"
    """Another journal, or a later state of this one, is registered. The node learns and serves."""


@timer
class JoinRetry(Timer):
    """Announce the start again to members that have not answered."""


@timer
class RenewStart(Timer):
    """Raise the incarnation."""


BootstrapEvent = Join | JoinAck | GroupConfig | Superseded | VotersChanged | JoinRetry | RenewStart


class Bootstrap(Role[BootstrapEvent]):
    """Lets the journal of this node vote if it is the registered one and not an old copy.

    An acceptor that forgot its promises could help to decide two batches for one slot. So a
    *voter* is a member together with the random id of its journal. A node without a disk
    has a new journal in each life.

    Invariants:
        I1 A node votes only under a journal id that its group has registered.
        I2 A group is founded once, by all members, each of which follows the same journal of
          the first member and knows no group. The first member writes the group down before
          it sends it to any other.
        I3 A journal that is not registered never becomes so here: only the group itself can
          register it later (`VotersChanged`), if ``grows``.
        I4 A registered journal votes after every other member has confirmed that it knows of
          no later start of it, or was silent for `GREET_MS`. It stops when any member knows
          of one, in this life and in all later ones.

    Why two groups never vote at the same time: let ``k`` be the journal of the first member
    that founded ``B``, and a later one ``k'`` have founded ``B'``. Every journal in ``B'``
    confirmed that it follows ``k'`` and knew no group, and wrote that down. It never returns to a
    journal of the first member that it left, and takes a group only from the journal that it
    follows, so it never votes in ``B``. Hence all journals that ever voted in ``B`` were lost when
    ``B'`` was founded. If one of them comes back, it is alone: votes name the group (`vote_id`), so
    votes of ``B'`` do not count in ``B``.

    I4 cannot exclude two things: that the members that do not know of the later start form a
    majority with the old copy, while those that know do not answer for `GREET_MS`; and that the
    copy was taken in the last `RENEW_MS` of the life that the journal ended with.

    Args:
        members: all configured members, sorted.
        journal: the id of this node's journal, 1 or more.
        boot: the id of this life of the node.
        date_ms: the start of this life (ms since 1970).
        records: the journal of this role, oldest first.
        durable: whether there is a disk to write to.
        seat: returns the roles that take part in the group. They read the present ids of voters.
            These leave out a member that is known to run on an old copy.
        voter: returns the address of a member's role that votes.
        voting: the roles of this node that receive `StopVoting`.
        greet_ms: see `GREET_MS`.
        grows: whether the group changes its members. Then a node that is not a member may belong to
            it, and receives `StartVoting` as soon as others have confirmed its start; its votes
            count once the group has registered its journal.
        journals: the journals that the group registered later, as far as this node recovered them;
            None for the journals of the founding.
        listener: a role of this node that receives `VotingStatus`, or None.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        members: tuple[str, ...],
        journal: int,
        boot: int,
        date_ms: int,
        records: Sequence[Message],
        durable: bool,
        seat: Seat,
        voter: Callable[[str], Address],
        voting: tuple[Address, ...],
        listener: Address | None,
        greet_ms: int = GREET_MS,
        grows: bool = False,
        journals: tuple[Voter, ...] | None = None,
    ) -> None:
        super().__init__(address, host)
        assert list(members) == sorted(members)
        self.node = node_at(address)
        self.members = members
        self.others = tuple(member for member in members if member != self.node)
        self.date_ms = date_ms
        self.durable = durable
        self.voter = voter
        self.voting = voting
        self.listener = listener
        self.greet_ns = greet_ms * NS_PER_MS
        self.standing = JournalStatus.WAITING
        self.group: GroupConfig | None = None
        self.later: Start | None = None
        """A later start of this journal, once another member has reported one."""
        self.starts: dict[str, Start] = {}
        """The latest start of each other member, of its registered journal if there is a group."""
        self.former: dict[str, dict[int, None]] = {member: {} for member in self.others}
        """Journals that other members replaced before the group was founded."""
        self.own = Start(journal, 1, boot)
        self.acked: dict[str, None] = {}
        """The members that confirmed this start."""
        self.followers: dict[str, int] = {}
        """At the first member: the journals that follow its own."""
        self.refused: dict[str, int] = {}
        """The last boot of each member whose journal was refused, so that it is logged once."""
        self.greet_until = Instant(0)
        self.reported: VotingStatus | None = None
        self.registered: dict[Address, int] = {}
        """The id that each voter's votes name, without those that run on an old copy."""
        self._seat: Seat | None = seat
        self.grows = grows
        self.journals = dict(journals or ())
        """The journals of the present members."""
        self.confirmed = False
        """Whether this journal may vote, if it is registered (I4)."""
        self._recover(records)

    def begin(self, now: Instant) -> Effects:
        """Record this start, announce it, and take all steps that are possible now."""
        self.greet_until = Instant(now + self.greet_ns)
        begun = [*self._write(), *self._announce(self.others)]
        return [*begun, *self._found(now), *self._go_on(now), self._retry()]

    def handle(self, sender: Address, event: BootstrapEvent, now: Instant) -> Effects:
        """Found the group, join it, or learn that it exists without this journal."""
        match event:
            case JoinRetry():
                return self._on_retry(now)
            case RenewStart():
                return self._on_renew()
            case VotersChanged():
                return self._on_voters_changed(event, now)
            case _:
                pass
        member = node_at(sender)
        if sender != bootstrap_of(member) or member not in self.others:
            if not isinstance(event, Join) or not self.grows or sender != bootstrap_of(member):
                return (Observe("bootstrap.stranger_ignored"),)
            return self._welcome(member, event)
        match event:
            case Join():
                return self._on_join(member, event)
            case JoinAck():
                return self._on_ack(member, event, now)
            case GroupConfig():
                return self._on_config(member, event, now)
            case Superseded():
                return self._on_superseded(event, now)

    def summary(self) -> Summary:
        """Return whether this node votes, or why not yet."""
        return (
            ("standing", self.standing.name),
            ("members", ", ".join(self.members)),
        )

    def _recover(self, records: Sequence[Message]) -> None:
        for record in records:
            match record:
                case GroupConfig():
                    self.group = record
                case Superseded():
                    self.later = record.start
                case Started() if record.member == self.node:
                    self.own = self.own._replace(incarnation=record.start.incarnation + 1)
                case Started() if record.member in self.former or self.grows:
                    self._note(record.member, record.start)
                case _:
                    pass
        if self.group is not None:
            self._join_group()

    def _join_group(self) -> None:
        """Take the journals of the group for those that vote, unless it has changed them since."""
        group = self.group
        assert group is not None
        self.standing = JournalStatus.GREETING
        self.journals = self.journals or journals_of(group)
        self.registered.update((self.voter(name), vote_id(group, name)) for name, _ in group.voters)
        self.others = tuple(sorted(self.journals.keys() - {self.node}))

    @property
    def is_registered(self) -> bool:
        """Whether the group counts this journal."""
        return self.journals.get(self.node) == self.own.journal

    def _write(self) -> list[Effect]:
        """Write all records that must not be lost."""
        if not self.durable:
            return []
        records: list[Message] = [Started(member=self.node, start=self.own)]
        for member, journals in self.former.items():
            gone = (Start(journal, 0, 0) for journal in journals)
            records += [Started(member=member, start=start) for start in gone]
        records += [Started(member=member, start=one) for member, one in self.starts.items()]
        if self.group is not None:
            records.append(self.group)
        if self.later is not None:
            records.append(Superseded(to=0, start=self.later))
        return [Checkpoint(tuple(records))]

    def _announce(self, members: Sequence[str]) -> list[Effect]:
        founded_ms = 0 if self.group is None else self.group.founded_ms
        join = Join(start=self.own, founded_ms=founded_ms)
        return [Send(bootstrap_of(member), join) for member in members]

    def _retry(self) -> Wake:
        greeting = self.standing is JournalStatus.GREETING
        return Wake(GREET_RETRY_MS if greeting else JOIN_RETRY_MS, JoinRetry())

    def _on_retry(self, now: Instant) -> Effects:
        went_on = self._go_on(now)
        if self.group is None:
            left = self.others
        else:
            left = tuple(member for member in self.others if member not in self.acked)
        unconfirmed = self.grows and self.later is None and not self.confirmed
        if not left or (self.standing is JournalStatus.NON_VOTING and not unconfirmed):
            return went_on
        return [*went_on, *self._announce(left), self._retry()]

    def _on_renew(self) -> Effects:
        if self.standing is not JournalStatus.VOTER:
            return ()
        self.own = self.own._replace(incarnation=self.own.incarnation + 1)
        return [*self._write(), *self._announce(self.others), Wake(RENEW_MS, RenewStart())]

    def _on_join(self, member: str, join: Join) -> Effects:
        """Confirm the start of a peer; or name the voting journals, or call it an old copy."""
        start, to = join.start, bootstrap_of(member)
        if not _is_sound(start):
            return (Observe("bootstrap.impossible_start"),)
        sent: list[Effect] = []
        if self.group is not None and join.founded_ms != self.group.founded_ms:
            sent = [Send(to, self._config_for(start.boot))]
        if self.group is not None and self.journals.get(member) != start.journal:
            refused = self._refuse(member, start, "with a journal that is not registered")
            sent += self._confirm(to, start)
            return (*sent, *refused, Observe("bootstrap.unregistered_journal"))
        known = self.starts.get(member)
        if known is not None and start.is_before(known):
            if self.group is not None:
                self.registered.pop(self.voter(member), None)  # I4: its votes count no more.
            older = Superseded(to=start.boot, start=known)
            refused = self._refuse(member, start, "from an old copy of its journal")
            return (Send(to, older), *sent, *refused, Observe("bootstrap.old_copy"))
        written: list[Effect] = []
        if known is None or known.journal != start.journal or known < start:
            if not self._note(member, start):
                refused = self._refuse(member, start, "with a journal that was given up")
                return (*refused, Observe("bootstrap.former_journal"))
            written = self._write()
        if self.group is not None:
            self.registered[self.voter(member)] = vote_id(self.group, member, start.journal)
        follows = self.group is None and member == self.members[0] and self.later is None
        ack = JoinAck(to=start.boot, start=self.own, follows=follows)
        announced = self._announce((member,)) if self._lacks_follower(member) else []
        return [*written, Send(to, ack), *sent, *announced]

    def _welcome(self, node: str, join: Join) -> Effects:
        """Answer a node that is no member: it learns, and may become one later."""
        if self.group is None or not _is_sound(join.start):
            return (Observe("bootstrap.stranger_ignored"),)
        to = bootstrap_of(node)
        known = join.founded_ms == self.group.founded_ms
        sent = [] if known else [Send(to, self._config_for(join.start.boot))]
        return [*sent, *self._confirm(to, join.start)]

    def _confirm(self, to: Address, start: Start) -> list[Effect]:
        """Confirm a start from a journal that may be registered later: none is known after it."""
        if not self.grows:
            return []
        return [Send(to, JoinAck(to=start.boot, start=self.own, follows=False))]

    def _refuse(self, member: str, start: Start, how: str) -> list[Effect]:
        """Log, once for each start of ``member``, that it has no vote here."""
        if self.refused.get(member) == start.boot:
            return []
        self.refused[member] = start.boot
        text = f"{member} was started {how}: it does not vote"
        notice = RoleNotice(level=Level.WARNING, text=text)
        return [Send(address_of(self.node, "node"), notice)]

    def _lacks_follower(self, member: str) -> bool:
        """Return whether this first member waits for ``member`` to follow it."""
        founds = self.group is None and self.node == self.members[0]
        return founds and member not in self.followers

    def _note(self, member: str, start: Start) -> bool:
        """Remember ``start`` of a peer; return False if its journal was given up already."""
        former = self.former.setdefault(member, {})
        known = self.starts.get(member, start)
        if self.group is None and known.journal != start.journal:
            if start.journal in former or len(former) >= FORMER_MAX:
                return False
            former[known.journal] = None
            self.followers.pop(member, None)  # It must follow again, from its new journal.
        self.starts[member] = start
        return True

    def _on_ack(self, member: str, ack: JoinAck, now: Instant) -> Effects:
        if ack.to != self.own.boot or not _is_sound(ack.start):
            return (Observe("bootstrap.ack_ignored"),)
        effects: list[Effect] = []
        if ack.follows and self.group is None and self.node == self.members[0]:
            known = self.starts.get(member)
            if known is None or known.journal != ack.start.journal or known < ack.start:
                if not self._note(member, ack.start):
                    return (Observe("bootstrap.former_journal"),)
                effects = self._write()
            self.followers[member] = ack.start.journal
        self.acked[member] = None
        return [*effects, *self._found(now), *self._go_on(now)]

    def _found(self, now: Instant) -> list[Effect]:
        """Found the group, if all others follow this journal of the first member (I2)."""
        waits = self.group is not None or self.later is not None
        if waits or self.node != self.members[0]:
            return []
        if any(member not in self.followers for member in self.others):
            return []
        journals = {**self.followers, self.node: self.own.journal}
        voters = tuple(Voter(member, journals[member]) for member in self.members)
        founded_ms = min(max(1, self.date_ms), FOUNDED_MS_MAX - 1)
        self._take(GroupConfig(to=0, founded_ms=founded_ms, voters=voters), now)
        sent = [
            Send(bootstrap_of(member), self._config_for(self.starts[member].boot))
            for member in self.others
        ]
        return [*self._write(), *sent, Observe("bootstrap.founded")]

    def _take(self, group: GroupConfig, now: Instant) -> None:
        self.group = group
        self._join_group()
        self.greet_until = Instant(now + self.greet_ns)

    def _config_for(self, boot: int) -> GroupConfig:
        assert self.group is not None
        founded_ms, voters = self.group.founded_ms, self.group.voters
        return GroupConfig(to=boot, founded_ms=founded_ms, voters=voters)

    def _on_config(self, member: str, config: GroupConfig, now: Instant) -> Effects:
        names = tuple(voter.member for voter in config.voters)
        sound = (names == self.members or self.grows) and 0 < config.founded_ms < FOUNDED_MS_MAX
        if config.to != self.own.boot or not sound:
            return (Observe("bootstrap.config_ignored"),)
        if self.group is not None:
            same = config.voters == self.group.voters
            return () if same else (Observe("bootstrap.other_group"),)
        registered = journals_of(config)
        first = names[0] if names else ""
        mine = registered.get(self.node) == self.own.journal
        followed = self.starts.get(first)
        if mine and (followed is None or followed.journal != registered.get(first)):
            self.later = self.own  # It recorded the journal it followed, and this copy lacks that.
        self._take(GroupConfig(to=0, founded_ms=config.founded_ms, voters=config.voters), now)
        return [*self._write(), *self._announce((member,)), *self._go_on(now)]

    def _on_superseded(self, superseded: Superseded, now: Instant) -> Effects:
        mine = superseded.to == self.own.boot and superseded.start.journal == self.own.journal
        if not mine or self.later is not None:
            return (Observe("bootstrap.superseded_ignored"),)
        self.later = superseded.start
        written = self._write()
        if self.standing is not JournalStatus.VOTER and not self.confirmed:
            return [*written, *self._go_on(now)]
        self.standing = JournalStatus.NON_VOTING
        stopped = [Send(role, StopVoting()) for role in self.voting]
        return [*written, *stopped, *self._tell(votes=False, why=self._why_not())]

    def _go_on(self, now: Instant) -> list[Effect]:
        """Start the roles of the group, once it is known whether to vote."""
        if self.standing is JournalStatus.WAITING:
            return self._tell(votes=False, why=self._what_is_awaited())
        greeted = all(other in self.acked for other in self.others) or now >= self.greet_until
        if self.standing is JournalStatus.NON_VOTING:
            return self._start_voting() if greeted else []
        if self.standing is not JournalStatus.GREETING:
            return []
        if not self.is_registered or self.later is not None:  # I1, I3
            return self._become(JournalStatus.NON_VOTING)
        if greeted:  # I4
            self.confirmed = True
            return [*self._become(JournalStatus.VOTER), Wake(RENEW_MS, RenewStart())]
        return []

    def _start_voting(self) -> list[Effect]:
        """Let the roles vote as far as the group lets this journal vote (I4)."""
        if not self.grows or self.later is not None or self.confirmed:
            return []
        self.confirmed = True
        return [*(Send(role, StartVoting()) for role in self.voting), *self._stand_by()]

    def _stand_by(self) -> list[Effect]:
        """Notify others, and the log, once the group has registered this journal or dropped it."""
        votes = self.is_registered and self.confirmed
        was, self.standing = self.standing, JournalStatus.VOTER if votes else self.standing
        if not votes and was is JournalStatus.VOTER:
            self.standing = JournalStatus.NON_VOTING
        if self.standing is was:
            return []
        told = self._tell(votes=votes, why="" if votes else self._why_not())
        if not votes:
            return told
        return [*told, *self._announce(self.others), Wake(RENEW_MS, RenewStart())]

    def _on_voters_changed(self, changed: VotersChanged, now: Instant) -> Effects:
        """Exchange starts with the present members."""
        if self.group is None:
            return ()
        self.journals = dict(changed.voters)
        self.others = tuple(sorted(self.journals.keys() - {self.node}))
        return [*self._go_on(now), *self._stand_by()]

    def _become(self, standing: JournalStatus) -> list[Effect]:
        """Start the roles of the group; until now there were none on this node."""
        assert self.group is not None
        assert self.standing is JournalStatus.GREETING
        self.standing = standing
        votes = standing is JournalStatus.VOTER
        seat, self._seat = self._seat, None  # It holds the whole recovered journal.
        assert seat is not None
        return [
            *seat(self.group, votes, self.registered),
            *self._tell(votes=votes, why="" if votes else self._why_not()),
            Observe("bootstrap.votes" if votes else "bootstrap.non_voting"),
        ]

    def _why_not(self) -> str:
        if self.later is not None:
            return (
                f"{self.node} was started from an old copy of its journal: it serves, but does "
                "not vote, since it may have forgotten votes"
            )
        if not self.durable:
            return (
                f"{self.node} was restarted without its memory: it serves, but does not vote "
                "until the group is restarted (all members stopped, then started)"
            )
        if self.node not in self.journals:
            assert self.group is not None
            was = Voter(self.node, self.own.journal) in self.group.voters or self.confirmed
            state = "was removed from the cluster, and is" if was else "is"
            return (
                f"{self.node} {state} an observer: it learns and serves, but does not vote. To "
                f"make it a member: fencelock join {self.node}"
            )
        return (
            f"{self.node} lost its journal: it serves, but does not vote. Keep a majority of the "
            "other members running"
        )

    def _what_is_awaited(self) -> str:
        if self.later is not None:
            return (
                f"{self.node} was started from an old copy of its journal, and no cluster began "
                "yet: stop it and start it with an empty folder"
            )
        waits = self.followers if self.node == self.members[0] else self.acked
        missing = ", ".join(member for member in self.others if member not in waits)
        return (
            f"waiting for {missing or self.members[0]}: a new cluster begins when all its "
            "members have met once"
        )

    def _tell(self, *, votes: bool, why: str) -> list[Effect]:
        """Notify the listener and the log of a change."""
        status = VotingStatus(votes=votes, why=why)
        if status == self.reported:
            return []
        self.reported = status
        lost = self.standing is JournalStatus.NON_VOTING and self.node in self.journals
        level = Level.WARNING if lost else Level.INFO
        text = why or f"{self.node} is a voting member"
        effects: list[Effect] = [
            Send(address_of(self.node, "node"), RoleNotice(level=level, text=text))
        ]
        return effects if self.listener is None else [Send(self.listener, status), *effects]


def bootstrap_of(node: str) -> Address:
    """Return the address of the bootstrap role of ``node``."""
    return address_of(node, "bootstrap")


def vote_id(group: GroupConfig, member: str, journal: int | None = None) -> int:
    """Return the id that votes of ``member`` in ``group`` name (63 bits).

    It identifies the journal and the whole group: a founding that was lost and came back
    with its journal may have registered some of the same journals.

    Args:
        group: the group as it was founded.
        member: a member of it, now or then.
        journal: its journal; None for the journal of the founding.

    """
    voters = ",".join(f"{name}={journal:x}" for name, journal in group.voters)
    if journal is not None and (member, journal) not in group.voters:
        member = f"{member}={journal:x}"
    hashed = blake2b(f"{member} of {voters}".encode(), digest_size=8).digest()
    return int.from_bytes(hashed) >> 1


def journals_of(group: GroupConfig) -> dict[str, int]:
    """Return the registered journal of each member."""
    return dict(group.voters)


def _is_sound(start: Start) -> bool:
    return all(0 < number < NUMBER_MAX for number in (start.journal, start.incarnation, start.boot))
