"""Bootstrap: finds the group of a node, founds one if an operator says so, and decides who votes.

A *group* is what majorities of a cluster's nodes agree in: one log (`paxos`), or one series of
epochs (`bakery`). Any two majorities of one group share a voter, so a lock has one holder.
Majorities of two groups share nothing. So a cluster has one group, however many of its nodes lose
their disks.

A voter is a member together with the random id of its *journal*: an acceptor that forgot its
promises could help to decide two batches for one slot. A node without a disk gets a new journal in
each life.

What moves. A node announces its start (`Join`) to all configured nodes, until each has replied. One
that knows a group replies with it (`GroupConfig`), be it a founder, a later member or an
observer. A node without a group also asks those that contact it. It takes a group once two nodes
have sent the same one, since one may be a rogue; `group_claims.py` has that rule, with its reasons
and exceptions. The first configured node *founds* a group, once it may, and once all others follow
its journal (`JoinAck`).

A node that runs on an old copy of its journal must not vote. Perhaps only one other member knows of
the later life, because that life voted with this member alone. So the report of one member is
enough. But it carries a proof, which can only be made with a copy of the journal (`Start`).

Why there is one group. Nothing that a node can know shows that there is none: founders that lost
their disks while they were cut off from members that joined later have the configuration of a new
cluster, and reach the same nodes. So a group is founded only by an act of an operator:

1.  Each group needs an act of its own. Only `_found` makes groups, and it needs an act: the option
    ``--found`` with which this life was started (`fencelock serve --found`), or a request to it
    (`fencelock found`), which expires `ACT_MS` after its last repetition. An act is in no journal
    and no configuration, so it ends with the life. A life founds at most one group: from then on it
    knows a group, and never forgets it. So a restart by itself founds nothing, whatever was lost.
2.  An act founds nothing if one of the configured nodes knows a group, or if a node that knows one
    reaches the first node: a node of a group announces itself to each node whose link comes up. All
    other configured nodes must follow *after* the act, over links that stayed up. Only a node that
    knows no group follows. One that knows a group replies with it, which cancels the act. A node
    that was sent a group follows nobody until it has taken that group, or until the sender has
    started empty. Each of them follows, and the first one founds, only after it has listened for
    ``greet_ms``: in that time members that joined later, which its configuration does not name,
    connect again. Only `Founding.AGAIN` ignores the groups of others. `Founding.NEW` does not
    listen, since its caller has just made all folders, so that there is no group.
3.  Groups do not mix. Each frame names its sender's group, or 0 if the sender knows none. If a node
    has a group, `FrameValidator` admits to its roles only frames of that group. If one end of a
    link has no group, only clients' requests and the messages of this role pass. A node's group
    never changes. A vote also names its voter's journal and group (`vote_id`).
4.  A founding that fails halfway leaves no second group. Let the first member found ``B`` with its
    journal ``k``, and lose it before others received ``B``. Let a second act found ``B'`` with its
    next journal ``k'``. Every journal in ``B'`` confirmed that it follows ``k'``, and wrote that
    down. It never returns to a journal that it left, and does not vote in a group of a journal that
    it does not follow. So it never votes in ``B``. All journals that may vote there were lost with
    ``k``.

A group without disks (`durability = "memory"`) ends when its voters do. The next one may found
itself without an act, because such a group keeps to its founders: it admits no node that did not
found it. So all that ever voted in ``B`` are lives of the configured nodes. ``B'`` needs all these
nodes, each in a life that knew no group when it followed. Such a life has not voted, so all lives
that voted in ``B`` have ended by then.

What remains:

- An act relies on the operator. If all configured nodes lost their disks, and no node that knows
  the group contacts them, `fencelock found` begins a second one. The command says so and asks. A
  ``--found`` in a unit file or a manifest is an act at each start, at which nobody is asked. A
  member that is cut off for longer than ``greet_ms`` names its group too late.
- A node that follows may learn of a group after it replied, and before the new one is founded or
  the break of its link is noticed. Then it stays in the former group.
- An old copy of a journal votes if the members that know of a later start do not answer for
  `GREET_MS`, and the others are a majority with it. It also votes if it was copied in the last
  `RENEW_MS` of the journal's last life.
- Two rogues can make an empty node take an invented group. One is enough if it is the only other
  node that the operator has listed, or the first one while no other knows a group. Without keys,
  one program can pose as two nodes. A rogue that names a group keeps empty nodes from founding one
  until they are started again without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from msgspec.structs import replace

from fencelock.actors.api.membership_message import ChangeMembers, MemberAction, MembersChanged
from fencelock.actors.bootstrap_message import (
    Found,
    Founding,
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
    journals_of,
    vote_id,
)
from fencelock.actors.effect import (
    Checkpoint,
    Effect,
    Effects,
    JoinGroup,
    Observe,
    Send,
    Spawn,
    Wake,
)
from fencelock.actors.group_claims import FOUNDED_MS_MAX, GroupClaims, is_same, is_sound, text_of
from fencelock.actors.message import NS_PER_MS, Address, Instant, Message, Timer, on_each
from fencelock.actors.message import node_of as node_at
from fencelock.actors.proxy.event import Relay, Relayed
from fencelock.actors.repeated import ImpossibleMessages
from fencelock.actors.role import Host, Role, Summary
from fencelock.actors.role_message import Level, LinkDown, LinkUp, notice
from fencelock.actors.timing import ROUND_TRIP_MS

GREET_MS = 1_300
"""Time for which a registered journal waits for every other member to confirm its start (ms): as
long as others may take to connect again, and a round. A member that is silent for longer does
not keep this one from voting."""

GREET_TRIPS = 5
"""Round trips in that time: a handshake with keys takes four."""

GREET_RETRY_MS = 50
"""Interval of announcements during that time (ms)."""

JOIN_RETRY_MS = 100
"""Interval of announcements to a member that has not answered, at other times (ms)."""

ACT_MS = 3_000
"""Time for which a request to found a group holds (ms). `fencelock found` repeats it several times
a second, so that nothing is founded long after the command has ended."""

RENEW_MS = 10_000
"""Interval at which a running node raises its incarnation (ms). A copy of a journal is recognised
at its start if it was made longer than this before the journal was last used, or twice this if an
announcement is lost."""

FORMER_MAX = 64
"""Maximum journals that one member may give up before the group is founded."""

GUESTS_MAX = 64
"""Maximum nodes beyond its configuration that a node without a group asks for theirs."""


Voters = Mapping[Address, int]
"""The id that each role's votes name, at present, without members that run on old copies."""


MakeGroupRoles = Callable[[GroupConfig, bool, Voters], tuple[Spawn, ...]]
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


class JoinRetry(Timer):
    """Announce the start again to members that have not answered."""


class RenewStart(Timer):
    """Raise the incarnation."""


GroupMessage = Join | JoinAck | GroupConfig | Superseded | Found
"""The messages between the `Bootstrap` roles of two nodes."""

BootstrapEvent = GroupMessage | VotersChanged | Relay | LinkUp | LinkDown | JoinRetry | RenewStart


class Bootstrap(Role[BootstrapEvent]):
    """Finds the group of this node, and lets its journal vote if it is the registered one.

    Invariants:
        one-group: a group is founded by an act of an operator, by all configured members, each of
          which follows the same journal of the first member and knows no group. The first member
          writes the group down before it sends it to any other. A group without disks needs no
          act.
        registered-votes: a node votes only under a journal id that its group has registered. A
          journal that is not registered never becomes so here: only the group can register it
          later (`VotersChanged`). A node whose journal is not registered receives `StartVoting` as
          soon as others have confirmed its start; its votes count once the journal is registered.
        latest-start-votes: a registered journal votes after every other member has confirmed that
          it knows of no later start of it, or was silent for `GREET_MS`. It stops when any member
          proves that there was one, in this life and in all later ones.

    Args:
        secret: the secret of its journal. It never leaves the journal and its copies.
        boot: the id of this life of the node.
        date_ms: the start of this life (ms since 1970).
        records: the journal of this role, oldest first.
        durable: whether there is a disk to write to.
        make_roles: returns the roles that take part in the group. They read the present ids of
            voters. These leave out a member that is known to run on an old copy.
        voter: returns the address of a member's role that votes.
        voting: the roles of this node that receive `StopVoting`.
        greet_ms: see `GREET_MS`. A group is founded by nodes that have run for as long.
        journals: the journals that the group registered later, as far as this node recovered them;
            None for the journals of the founding.
        founding: whether an operator wants a new group.
        listener: the role of this node that receives `VotingStatus`.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        members: tuple[str, ...],
        journal: int,
        secret: int,
        boot: int,
        date_ms: int,
        records: Sequence[Message],
        durable: bool,
        make_roles: MakeGroupRoles,
        voter: Callable[[str], Address],
        voting: tuple[Address, ...],
        listener: Address,
        greet_ms: int = GREET_MS,
        journals: tuple[Voter, ...] | None = None,
        founding: Founding = Founding.NO,
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
        self.secret = secret
        self.own = Start.proven(journal, 1, boot, secret)
        self.impossible = ImpossibleMessages(self.node)
        self.acked: dict[str, None] = {}
        """The members that confirmed this start."""
        self.followers: dict[str, int] = {}
        """At the first member: the journals that follow its own."""
        self.founding = founding
        self.act_until = Instant(0)
        """The end of the time for which an operator's request to found a group holds."""
        self.guests: dict[str, None] = {}
        """Nodes beyond the configuration from which a message came while no group was known."""
        self.claims = GroupClaims(self.node, members)
        """The groups that others name while this node knows none."""
        self.parted: dict[str, None] = {}
        """Former members, as far as this node knows."""
        self.refused: dict[str, int] = {}
        """The last boot of each member whose journal was refused, so that it is logged once."""
        self.greet_until = Instant(0)
        self.began_at = Instant(0)
        self.reported: VotingStatus | None = None
        self.registered: dict[Address, int] = {}
        """The id that each voter's votes name, without those that run on an old copy."""
        self._make_roles: MakeGroupRoles | None = make_roles
        self.journals = dict(journals or ())
        """The journals of the present members."""
        self.confirmed = False
        """Whether this journal may vote, if it is registered (latest-start-votes)."""
        self._recover(records)
        self.first = self.own
        """The start with which this life began. All earlier ones of this journal are before it."""

    def begin(self, now: Instant) -> Effects:
        self.greet_until = Instant(now + self.greet_ns)
        self.began_at = now
        begun = [*self._join(), *self._write(), *self._announce(self.others)]
        if self.group is not None and self.founding is Founding.AGAIN:
            text = (
                f"{self.node} has a journal of group {self.group.group:x}, so --found-again does "
                "nothing: to give the cluster up, stop all nodes and empty their folders first"
            )
            begun.append(notice(self.node, Level.ERROR, text))
        return [*begun, *self._found(now), *self._go_on(now), self._retry()]

    def handle(  # noqa: PLR0912  (a case for each message)
        self, sender: Address, event: BootstrapEvent, now: Instant
    ) -> Effects:
        match event:
            case JoinRetry():
                return self._on_retry(now)
            case RenewStart():
                return self._on_renew()
            case VotersChanged():
                return self._on_voters_changed(event, now)
            case Relay():
                return self._on_relay(sender, event, now)
            case LinkUp() | LinkDown():
                return self._on_link(event)
            case _:
                pass
        member = node_at(sender)
        if sender != bootstrap_of(member):
            return (Observe("bootstrap.stranger_ignored"),)
        if member not in self.others:
            return self._on_stranger(member, event, now)
        match event:
            case Found():
                return self._permit(now)
            case Join():
                return self._on_join(member, event, now)
            case JoinAck():
                return self._on_ack(member, event, now)
            case GroupConfig():
                return self._on_config(member, event, now)
            case Superseded():
                return self._on_superseded(sender, event, now)

    def summary(self) -> Summary:
        group = "" if self.group is None else f"{self.group.group:x}"
        return (
            ("standing", self.standing.name),
            ("group", group),
            ("members", ", ".join(self.members)),
        )

    def _recover(self, records: Sequence[Message]) -> None:
        for record in records:
            match record:
                case GroupConfig():
                    self.group = record
                case Superseded() if record.start.is_proven(self.secret):
                    self.later = record.start
                case Started() if record.member == self.node:
                    self._raise(record.start.incarnation + 1)
                case Started():
                    self._note(record.member, record.start)
                case _:
                    pass
        if self.group is not None:
            self._join_group()

    def _raise(self, incarnation: int) -> None:
        self.own = Start.proven(self.own.journal, incarnation, self.own.boot, self.secret)

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
        return self.journals.get(self.node) == self.own.journal

    @property
    def is_removed(self) -> bool:
        """Whether this node was a member of its group, no longer is, and lost its journal."""
        return self.group is not None and self.group.removed and not self.is_registered

    def may_found(self, now: Instant) -> bool:
        """Return whether this node founds a group with those that follow it (one-group)."""
        wanted = self._is_wanted(now) and self._has_listened(now) and not self.claims.knowing
        wanted = wanted or self.founding is Founding.AGAIN
        return wanted and self.group is None and self.later is None and self._is_first

    def _is_wanted(self, now: Instant) -> bool:
        """Return whether there is an act of an operator, or none is needed."""
        return self.founding is not Founding.NO or now < self.act_until or not self.durable

    def _has_listened(self, now: Instant) -> bool:
        """Return whether members that joined later had the time to name their group."""
        at_once = not self.durable or self.founding in (Founding.NEW, Founding.AGAIN)
        return at_once or now >= self.began_at + self.greet_ns

    @property
    def _is_first(self) -> bool:
        return self.node == self.members[0]

    def _write(self) -> list[Effect]:
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

    def _join(self) -> list[Effect]:
        """Let all frames name the group, once it is durable."""
        return [] if self.group is None else [JoinGroup(self.group.group)]

    def _announce(self, members: Sequence[str]) -> list[Effect]:
        join = Join(start=self.own, group=0 if self.group is None else self.group.group)
        return [Send(bootstrap_of(member), join) for member in members]

    def _retry(self) -> Wake:
        greeting = self.standing is JournalStatus.GREETING
        return Wake(GREET_RETRY_MS if greeting else JOIN_RETRY_MS, JoinRetry())

    def _on_retry(self, now: Instant) -> Effects:
        went_on = [*self._found(now), *self._go_on(now)]
        if self.group is None:
            left = (*self.others, *self.guests)
            return [*went_on, *self._announce(left), self._retry()]
        left = tuple(member for member in self.others if member not in self.acked)
        unconfirmed = self.later is None and not self.confirmed
        if not left or (self.standing is JournalStatus.NON_VOTING and not unconfirmed):
            return went_on
        return [*went_on, *self._announce(left), self._retry()]

    def _on_renew(self) -> Effects:
        if self.standing is not JournalStatus.VOTER:
            return ()
        self._raise(self.own.incarnation + 1)
        return [*self._write(), *self._announce(self.others), Wake(RENEW_MS, RenewStart())]

    def _on_link(self, event: LinkUp | LinkDown) -> Effects:
        """Let a node that lost its disk know of the group before it founds another."""
        if isinstance(event, LinkDown):
            self.followers.pop(event.node, None)  # It may learn of a group: it must follow again.
            if self.group is None:
                self.acked.pop(event.node, None)
        elif self.group is not None:
            return self._announce((event.node,))
        return ()

    def _on_join(self, member: str, join: Join, now: Instant) -> Effects:
        """Confirm the start of a peer; or name the voting journals, or call it an old copy."""
        start, to = join.start, bootstrap_of(member)
        if not start.is_sound:
            return (Observe("bootstrap.impossible_start"),)
        sent: list[Effect] = []
        self._note_group(member, join)
        if self.group is not None and join.group != self.group.group:
            sent = [Send(to, self._config_for(member, start.boot))]
        if self.group is not None and self.journals.get(member) != start.journal:
            refused = self._refuse(member, start, "with a journal that is not registered")
            return (
                *sent,
                self._confirm(to, start),
                *refused,
                Observe("bootstrap.unregistered_journal"),
            )
        known = self.starts.get(member)
        if known is not None and start.is_before(known):
            if self.group is not None:
                self.registered.pop(
                    self.voter(member), None
                )  # latest-start-votes: its votes count no more.
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
        follows = follows and (not self.claims.knowing or self.founding is Founding.AGAIN)
        follows = follows and self._has_listened(now)
        ack = JoinAck(to=start.boot, start=self.own, follows=follows)
        # The first member waits for all others to follow it.
        waits = self.group is None and self._is_first and member not in self.followers
        announced = self._announce((member,)) if waits else []
        return [*written, Send(to, ack), *sent, *announced]

    def _on_stranger(self, node: str, event: GroupMessage, now: Instant) -> Effects:
        """Exchange groups with a node that is no member, as far as this node knows.

        Without disks a group is its configured nodes, so there is nobody else to ask.
        """
        match event:
            case Join() if event.start.is_sound:
                if self.group is not None:
                    return self._welcome(node, event)
                if self.durable and (node in self.guests or len(self.guests) < GUESTS_MAX):
                    self.guests[node] = None
                    self._note_group(node, event)
                    return self._announce((node,)) if event.group else ()
            case GroupConfig() if self.group is not None or node in self.guests:
                return self._on_config(node, event, now)
            case _:
                pass
        return (Observe("bootstrap.stranger_ignored"),)

    def _welcome(self, node: str, join: Join) -> Effects:
        """Answer a node that is no member: it learns, and may become one later."""
        assert self.group is not None
        to, config = bootstrap_of(node), self._config_for(node, join.start.boot)
        known = join.group == self.group.group and not config.removed
        sent = [] if known else [Send(to, config)]
        return [*sent, self._confirm(to, join.start)]

    def _confirm(self, to: Address, start: Start) -> Send:
        """Confirm a start of a journal that may be registered later: no later start is known."""
        return Send(to, JoinAck(to=start.boot, start=self.own, follows=False))

    def _refuse(self, member: str, start: Start, how: str) -> list[Effect]:
        """Log, once for each start of ``member``, that it has no vote here."""
        if self.refused.get(member) == start.boot:
            return []
        self.refused[member] = start.boot
        text = f"{member} was started {how}: it does not vote"
        return [notice(self.node, Level.WARNING, text)]

    def _note_group(self, node: str, join: Join) -> None:
        """Note whether ``node`` belongs to a group: then none is founded before it has replied."""
        if self.group is None:
            self.claims.name(node, join.group)

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
        if ack.to != self.own.boot or not ack.start.is_sound:
            return (Observe("bootstrap.ack_ignored"),)
        effects: list[Effect] = []
        if not ack.follows:
            self.followers.pop(member, None)  # Some node has named a group to it.
        elif self.group is None and self._is_first:
            known = self.starts.get(member)
            if known is None or known.journal != ack.start.journal or known < ack.start:
                if not self._note(member, ack.start):
                    return (Observe("bootstrap.former_journal"),)
                effects = self._write()
            self.followers[member] = ack.start.journal
        self.acked[member] = None
        return [*effects, *self._found(now), *self._go_on(now)]

    def _on_relay(self, proxy: Address, relay: Relay, now: Instant) -> Effects:
        """Take an operator's wish for a new group, and report whether there is one."""
        request = relay.request
        assert isinstance(request, ChangeMembers)
        assert request.action is MemberAction.FOUND
        begun: list[Effect] = []
        if self.group is None:
            first = bootstrap_of(self.members[0])
            begun = self._permit(now) if self._is_first else [Send(first, Found())]
            begun += [*self._found(now), *self._go_on(now)]
        if self.group is None:
            detail, members = self._what_is_awaited(now), self.members
        else:
            members = tuple(sorted(self.journals))
            detail = f"the cluster is there, as group {self.group.group:x}"
        changed = MembersChanged(
            done=self.group is not None,
            detail=detail,
            view=0,
            members=members,
            session=request.session,
            request=request.request,
        )
        return [*begun, Send(proxy, Relayed(client=relay.client, reply=changed))]

    def _permit(self, now: Instant) -> list[Effect]:
        """Found a group with those that follow from now on: they may have learned of one since."""
        if self.group is not None or self.founding is not Founding.NO or not self._is_first:
            return []
        is_repeated = now < self.act_until
        self.act_until = Instant(now + ACT_MS * NS_PER_MS)
        if is_repeated:
            return []
        self.followers.clear()
        return self._announce(self.others)

    def _found(self, now: Instant) -> list[Effect]:
        """Found the group, if all others follow this journal of the first member (one-group)."""
        if not self.may_found(now) or any(member not in self.followers for member in self.others):
            return []
        journals = {**self.followers, self.node: self.own.journal}
        date_ms = self.date_ms + (now - self.began_at) // NS_PER_MS
        founded_ms = min(max(1, date_ms), FOUNDED_MS_MAX - 1)
        group = GroupConfig(
            to=0,
            group=self.own.boot,
            founded_ms=founded_ms,
            voters=tuple(Voter(member, journals[member]) for member in self.members),
        )
        self._take(group, now)
        sent = [
            Send(bootstrap_of(member), self._config_for(member, self.starts[member].boot))
            for member in self.others
        ]
        again = ", beside or after another one" if self.founding is Founding.AGAIN else ""
        text = f"{self.node} founded group {group.group:x} of {', '.join(self.members)}{again}"
        founded: list[Effect] = [Observe("bootstrap.founded"), notice(self.node, Level.INFO, text)]
        return [*self._write(), *self._join(), *sent, *founded]

    def _take(self, group: GroupConfig, now: Instant) -> None:
        self.group = group
        self._join_group()
        self.greet_until = Instant(now + self.greet_ns)

    def _config_for(self, node: str, boot: int) -> GroupConfig:
        assert self.group is not None
        known = node in self.starts or node in self.parted or node in dict(self.group.voters)
        return replace(self.group, to=boot, removed=known and node not in self.journals)

    def _on_config(self, member: str, config: GroupConfig, now: Instant) -> Effects:
        if config.to != self.own.boot:
            return (Observe("bootstrap.config_ignored"),)
        sender = bootstrap_of(member)
        if not is_sound(config):
            text = "a group that nobody can have founded"
            return self.impossible.report(sender, "bootstrap.impossible_config", text, now)
        config = replace(config, to=0)
        if self.group is not None:
            if not is_same(config, self.group):
                text = f"{text_of(config)}, but {self.node} belongs to {text_of(self.group)}"
                return self.impossible.report(sender, "bootstrap.other_group", text, now)
            return self._on_removal(member, config)
        if self.founding is Founding.AGAIN and not self._has_founded(config):
            return (Observe("bootstrap.given_up_group"),)
        witnesses = self.claims.add(member, config)
        if not self._is_believed(member, config, witnesses):
            reported = self._report_conflict(member, now)
            return [*reported, *self._go_on(now), Observe("bootstrap.group_unconfirmed")]
        wrong = [one for one in self.claims.sent if one not in witnesses]
        reported = [effect for one in wrong for effect in self._report_conflict(one, now)]
        registered, first = journals_of(config), config.voters[0].member
        if self._has_founded(config) and not self._follows(first, registered[first]):
            self.later = self.own  # It recorded the journal it followed, and this copy lacks that.
        # The configuration may list nodes that were never members: drop their reports of starts.
        self.starts = {one: start for one, start in self.starts.items() if one in registered}
        self._take(replace(config, removed=self.claims.take(witnesses)), now)
        joined = [*self._write(), *self._join(), *self._announce((member,)), *self._go_on(now)]
        return [*reported, *joined]

    def _is_believed(self, member: str, config: GroupConfig, witnesses: Sequence[str]) -> bool:
        """Return whether to take a group that all ``witnesses`` have sent (two-witnesses)."""
        is_founder = member == self.members[0] and self._has_founded(config)
        founds = is_founder and self._follows(member, journals_of(config).get(member, 0))
        return self.claims.suffice(witnesses) or (founds and self.claims.none_beside(member))

    def _has_founded(self, config: GroupConfig) -> bool:
        """Return whether this journal is registered since the founding."""
        return journals_of(config).get(self.node) == self.own.journal

    def _follows(self, member: str, journal: int) -> bool:
        return member in self.starts and self.starts[member].journal == journal

    def _report_conflict(self, member: str, now: Instant) -> list[Effect]:
        if text := self.claims.conflict(member):
            sender, counter = bootstrap_of(member), "bootstrap.conflicting_groups"
            return self.impossible.report(sender, counter, text, now)
        return []

    def _on_removal(self, member: str, config: GroupConfig) -> Effects:
        """Learn that this node was removed, if it knows the members only from the founding.

        A node with an empty journal may have its group from other such nodes.
        """
        assert self.group is not None
        removed = config.removed and not self.group.removed and not self.is_registered
        if not removed or self.journals != journals_of(self.group):
            return ()
        self.claims.removers[member] = None
        if not self.claims.suffice(self.claims.removers):
            return ()
        self.group = replace(self.group, removed=True)
        return [*self._write(), *self._report(votes=False, why=self._why_not())]

    def _on_superseded(self, sender: Address, superseded: Superseded, now: Instant) -> Effects:
        later = superseded.start
        mine = superseded.to == self.own.boot and later.journal == self.own.journal
        if not mine or self.later is not None:
            return (Observe("bootstrap.superseded_ignored"),)
        # Without a disk, the journal of each life is a new one, which has no later start.
        proven = self.durable and later.is_proven(self.secret)
        if not proven or not self.first.is_before(later):
            text = f"a later start of the journal of {self.node}, which that journal did not make"
            return self.impossible.report(sender, "bootstrap.impossible_start", text, now)
        self.later = later
        written = self._write()
        if self.standing is not JournalStatus.VOTER and not self.confirmed:
            return [*written, *self._go_on(now)]
        self.standing = JournalStatus.NON_VOTING
        stopped = [Send(role, StopVoting()) for role in self.voting]
        return [*written, *stopped, *self._report(votes=False, why=self._why_not())]

    def _go_on(self, now: Instant) -> list[Effect]:
        """Start the roles of the group, once it is known whether to vote."""
        if self.standing is JournalStatus.WAITING:
            return self._report(votes=False, why=self._what_is_awaited(now))
        greeted = all(other in self.acked for other in self.others) or now >= self.greet_until
        if self.standing is JournalStatus.NON_VOTING:
            return self._start_voting() if greeted else []
        if self.standing is not JournalStatus.GREETING:
            return []
        if not self.is_registered or self.later is not None:  # registered-votes
            return self._become(JournalStatus.NON_VOTING)
        if greeted:  # latest-start-votes
            self.confirmed = True
            return [*self._become(JournalStatus.VOTER), Wake(RENEW_MS, RenewStart())]
        return []

    def _start_voting(self) -> list[Effect]:
        """Let the roles vote as far as the group lets this journal vote (latest-start-votes)."""
        if self.later is not None or self.confirmed:
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
        reported = self._report(votes=votes, why="" if votes else self._why_not())
        if not votes:
            return reported
        return [*reported, *self._announce(self.others), Wake(RENEW_MS, RenewStart())]

    def _on_voters_changed(self, changed: VotersChanged, now: Instant) -> Effects:
        if self.group is None:
            return ()
        self.parted.update(dict.fromkeys(self.journals))
        self.journals = dict(changed.voters)
        written: list[Effect] = []
        if self.is_registered and self.group.removed:
            self.group = replace(self.group, removed=False)
            self.claims.removers.clear()
            written = self._write()
        self.others = tuple(sorted(self.journals.keys() - {self.node}))
        return [*written, *self._go_on(now), *self._stand_by()]

    def _become(self, standing: JournalStatus) -> list[Effect]:
        """Start the roles of the group; until now there were none on this node."""
        assert self.group is not None
        assert self.standing is JournalStatus.GREETING
        self.standing = standing
        votes = standing is JournalStatus.VOTER
        make_roles, self._make_roles = (
            self._make_roles,
            None,
        )  # It holds the whole recovered journal.
        assert make_roles is not None
        return [
            *make_roles(self.group, votes, self.registered),
            *self._report(votes=votes, why="" if votes else self._why_not()),
            Observe("bootstrap.votes" if votes else "bootstrap.non_voting"),
        ]

    def _why_not(self) -> str:
        if self.later is not None:
            return (
                f"{self.node} was started from an old copy of its journal: it serves, but does "
                "not vote, since it may have forgotten votes"
            )
        if self.is_removed:
            assert self.group is not None
            return (
                f"{self.node} was removed from group {self.group.group:x} of this cluster, or "
                "replaced, and has an empty journal: it serves nobody. Stop it; or make it a "
                f"member again: fencelock join {self.node}"
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
            f"other members running, and run: fencelock replace {self.node}"
        )

    def _what_is_awaited(self, now: Instant) -> str:
        if self.later is not None:
            return (
                f"{self.node} was started from an old copy of its journal, and no cluster began "
                "yet: stop it and start it with an empty folder"
            )
        if self.claims.knowing and self.founding is not Founding.AGAIN:
            return self.claims.what_is_awaited()
        waits = self.followers if self._is_first else self.acked
        left = [member for member in self.others if member not in waits]
        missing = ", ".join(left)
        if former := ", ".join(member for member in self.claims.knowing if member not in waits):
            return (
                f"the former group is known to {former}: stop all its nodes, empty the folder of "
                "each configured node, and start them again"
            )
        if left and all(member in self.acked for member in left):
            return (
                f"{missing} will not begin a cluster with {self.node} yet: just started, or heard "
                "of one that exists. Its own status says which"
            )
        if self._is_wanted(now):
            if self._is_first and not missing:
                return f"{self.node} listens whether a member is left: if not, a new cluster begins"
            return (
                f"waiting for {missing or self.members[0]}: a new cluster begins when all its "
                "members have met once"
            )
        if missing:
            return (
                f"waiting for {missing}: this node has an empty journal, and asks who knows its "
                "cluster. A new cluster begins once all its nodes run, by: fencelock found"
            )
        return (
            f"no cluster is known to {', '.join(self.members)}. If it is new, begin it: fencelock "
            "found. If it has run before, that would begin a second one without its locks: connect "
            "this node to a member that is left, or restore a backup"
        )

    def _report(self, *, votes: bool, why: str) -> list[Effect]:
        status = VotingStatus(votes=votes, why=why, serves=not self.is_removed)
        if status == self.reported:
            return []
        self.reported = status
        gone = self.node in self.journals or self.is_removed
        lost = self.standing is JournalStatus.NON_VOTING and gone
        level = Level.WARNING if lost else Level.INFO
        text = why or f"{self.node} is a voting member"
        return [Send(self.listener, status), notice(self.node, level, text)]


def greet_time_ms(round_trip_ms: int, greet_ms: int = GREET_MS) -> int:
    """Return `GREET_MS`, or ``greet_ms``, for members with these round trips (ms)."""
    return greet_ms + GREET_TRIPS * max(0, round_trip_ms - ROUND_TRIP_MS)


bootstrap_of = on_each("bootstrap")
