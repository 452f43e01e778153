"""The judges of elections and tickets in `bakery`: promises, seatings, votes, and fences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fencelock.actors.api.membership_message import MembersChanged
from fencelock.actors.bakery.config import BAKERY_TIMING, leader_of, members_of, quorum
from fencelock.actors.bakery.electorate import FOUNDERS, Electorate
from fencelock.actors.bakery.event import Serve
from fencelock.actors.bakery.table import TicketPhase
from fencelock.actors.bakery.ticket import RequestKey, Turn, Who
from fencelock.actors.bakery.wire import (
    AddTicket,
    Beat,
    Chosen,
    Collected,
    DropTicket,
    Entering,
    Export,
    Extend,
    Extended,
    Install,
    Lead,
    Lock,
    Locked,
    MaxTicket,
    Merged,
    Promised,
    Propose,
    Seating,
    Table,
    Unlock,
    UnlockAll,
    Yield,
)
from fencelock.actors.bootstrap_message import GroupConfig
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.membership import Member
from fencelock.actors.message import NS_PER_MS, Instant, Message, later, node_of
from fencelock.actors.proxy.event import Relayed
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationReport
from fencelock.verification.simulation.world import World


class ElectionJudge:
    """Judges elections by messages and by the content of disks.

    The invariants are one-seating-an-epoch, seating-known-by-majority, no-lower-epoch and, for
    leaders that restart, merged-tables-complete.
    """

    def __init__(self, world: World, violation_report: ViolationReport) -> None:
        self.world = world
        self.violation_report = violation_report
        self.seatings: dict[int, tuple[Chosen, ...]] = {}
        """The keepers of each epoch, as soon as a message says that it is installed."""
        self.given: dict[tuple[str, int, int], tuple[Chosen, ...]] = {}
        """By member, life and epoch: the keepers it promised, the leaders first."""
        self.kept: dict[str, tuple[int, tuple[Chosen, ...]]] = {}
        """For each member, its highest promise that was received."""
        self.left_at: dict[tuple[str, int], int] = {}
        """By member and epoch: the true time at which it had promised a higher one."""
        self.exported: dict[tuple[str, int], int] = {}
        """By leader and life: the highest epoch for which it gave its table away."""
        self.voted: dict[str, int] = {}
        """The journal under which each member first promised. It never votes under another one."""
        self.lives: dict[str, list[int]] = {}
        """For each member, the lives that ended."""
        self.shown: dict[tuple[str, int], tuple[int, int]] = {}
        """By member and life: the highest seating in its beats."""
        self.gone: dict[str, list[int]] = {}
        """For each member with a replaced disk, the lives before that."""
        self.replaced_at: dict[str, int] = {}
        """The true time at which the disk of a member was last replaced."""
        self.changes = MembersJudge(violation_report, self._knows)
        self.founders = FOUNDERS

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event = delivered.event
        match event:
            case Beat(member=sender):
                seating = sender.seating
                self.changes.hear(seating.epoch, self._resolved(sender.electorate))
                self._seated(seating.epoch, seating.keepers)
                self._note_seating(node_of(delivered.sender), delivered.boot, seating)
            case Promised():
                self._note_promise(node_of(delivered.sender), delivered.boot, event)
            case Serve() if delivered.to == leader_of(delivered.node):
                self._serves(delivered.node, event)
                self._is_the_chosen_one(delivered.node, event)
            case _:
                pass
        boot = self.world.nodes[delivered.node].boot
        for effect in effects:
            if type(effect) is not Send:
                continue
            if type(effect.message) is Propose:
                self._registers(effect.message)
            elif type(effect.message) is Promised:
                self._promises(delivered, boot, effect.message)
            elif type(effect.message) is Table:
                assert type(event) is Export
                key = (delivered.node, boot)
                self.exported[key] = max(self.exported.get(key, 0), event.epoch)

    def crashed(self, node: str, boot: int) -> None:
        self.lives.setdefault(node, []).append(boot)

    def disk_replaced(self, node: str) -> None:
        """Record that the disk of ``node``, which is off, was lost or replaced by an old copy.

        The seatings in its earlier messages still count as known: that member votes for nothing
        else any more.
        """
        self.gone[node] = list(self.lives.get(node, ()))
        self.replaced_at[node] = self.world.time

    def _note_seating(self, node: str, boot: int, seating: Seating) -> None:
        self.shown[node, boot] = max(_height(seating), self.shown.get((node, boot), (0, 0)))

    def _resolved(self, electorate: Electorate) -> Electorate:
        """Return ``electorate``, or that of the founders, according to any disk."""
        if electorate.number:
            return electorate
        for name in () if self.founders.members else self.world.members:
            for record in self.world.nodes[name].disk.records().get("bootstrap", ()):
                if isinstance(record, GroupConfig):
                    seats = tuple(Member(one, "", journal) for one, journal in record.voters)
                    self.founders = Electorate(0, seats)
        return self.founders

    def _registers(self, proposal: Propose) -> None:
        """Let a member that lost its journal vote under the one that replaces it."""
        for seat in proposal.electorate.members:
            if self.voted.get(seat.name, seat.journal) != seat.journal:
                self.voted[seat.name] = seat.journal
                self.kept.pop(seat.name, None)

    def _is_another(self, node: str) -> bool:
        """Return whether the journal of ``node`` is not the one under which it voted."""
        journal = self.world.nodes[node].disk.journal_id
        return self.voted.get(node, journal) != journal

    def _promises(self, delivered: Delivery, boot: int, promised: Promised) -> None:
        node, epoch = delivered.node, promised.epoch
        self.voted.setdefault(node, self.world.nodes[node].disk.journal_id)
        if self._is_another(node):
            self.violation_report(
                "one-seating-an-epoch", f"{node} promises epoch {epoch}, and has lost its journal"
            )
        role: Any = self.world.role_at(delivered.to)
        proposal = role.promises.proposal
        keepers = (*proposal.leaders, *proposal.copies) if proposal.epoch == epoch else ()
        before, chosen = self.kept.get(node, (0, ()))
        if epoch < before:
            self.violation_report(
                "one-seating-an-epoch", f"{node} promises epoch {epoch}, and had promised {before}"
            )
        # An installed seating was promised by a majority: another promise decides nothing.
        installed = role.promises.seating
        decided = (installed.epoch, installed.keepers) == (epoch, keepers)
        if epoch == before and keepers != chosen and not decided:
            self.violation_report(
                "one-seating-an-epoch",
                f"{node} promises {keepers} in {epoch}, and had promised {chosen}",
            )
        self.given[node, boot, epoch] = keepers
        for lower in range(epoch - 1, -1, -1):
            if (node, lower) in self.left_at:
                break
            self.left_at[node, lower] = self.world.time

    def _note_promise(self, node: str, boot: int, promised: Promised) -> None:
        keepers = self.given.get((node, boot, promised.epoch), ())
        before = self.kept.get(node, (0, ()))
        if promised.epoch > before[0]:
            self.kept[node] = (promised.epoch, keepers)

    def _seated(self, epoch: int, keepers: tuple[Chosen, ...]) -> None:
        known = self.seatings.setdefault(epoch, keepers)
        if known != keepers:
            self.violation_report(
                "one-seating-an-epoch", f"epoch {epoch} is kept by {keepers}, and by {known}"
            )

    def _serves(self, node: str, serve: Serve) -> None:
        seating = serve.seating
        self._seated(seating.epoch, seating.keepers)
        electorate = self._resolved(self._installed(node, seating.epoch))
        self.changes.hear(seating.epoch, electorate)
        for group in electorate.groups:
            know = [seat.name for seat in group if self._knows(seat, _height(seating))]
            if len(know) < quorum(len(group)):
                text = f"leases of {seating.bound_ms} ms in epoch {seating.epoch}"
                self.violation_report(
                    "seating-known-by-majority",
                    f"{node} is let serve, with {text}, and only {know} know, durably",
                )

    def electorate_of(self, epoch: int) -> Electorate:
        """Return the electorate of ``epoch``, as far as messages named it."""
        return self._resolved(self.changes.of_epoch.get(epoch, FOUNDERS))

    def _installed(self, node: str, epoch: int) -> Electorate:
        """Return the electorate of ``epoch``, as ``node`` knows it."""
        records = self.world.nodes[node].disk.records().get("election", ())
        known = [
            record.electorate
            for record in records
            if isinstance(record, Install) and record.seating.epoch == epoch
        ]
        return known[-1] if known else FOUNDERS

    def answers(self, delivered: Delivery, effects: Effects) -> None:
        """Judge answers that a change is done by the disks of the members after it."""
        if isinstance(delivered.event, MembersChanged):
            return  # Another node decided that.
        for effect in effects:
            message = effect.message if isinstance(effect, Send) else None
            answer = message.reply if isinstance(message, Relayed) else message
            if isinstance(answer, MembersChanged) and answer.done and answer.view:
                self._is_stored(delivered.node, answer)

    def _is_stored(self, node: str, answer: MembersChanged) -> None:
        """Judge changes-stored; a member whose disk was lost may have stored it before."""
        role: Any = self.world.role_at(members_of(node))
        stored: list[str] = []
        for seat in role.electorate.members:
            disk = self.world.nodes[seat.name].disk
            records = disk.records().get("election", ())
            known = [one.electorate for one in records if isinstance(one, Install)]
            settled = known and known[-1].number >= answer.view and not known[-1].former
            if settled or disk.journal_id != seat.journal:
                stored.append(seat.name)
        if len(stored) < quorum(len(role.electorate.members)):
            self.violation_report("changes-stored", f"{node} answers {answer}, and has {stored}")

    def _is_the_chosen_one(self, node: str, serve: Serve) -> None:
        """Check that a serving leader has not restarted since it was chosen: it lost its table."""
        role: Any = self.world.role_at(leader_of(node))
        lives = [chosen.life for chosen in serve.seating.leaders if chosen.node == node]
        if role.epoch_state.serving and lives != [self.world.nodes[node].boot]:
            self.violation_report(
                "merged-tables-complete",
                f"{node} serves in epoch {serve.seating.epoch}, and lives anew",
            )

    def _knows(self, seat: Member, wanted: tuple[int, int]) -> bool:
        """Return whether a voter knows an epoch with its bound, or a higher one, durably."""
        member = seat.name
        past = [self.shown.get((member, life), (0, 0)) for life in self.gone.get(member, ())]
        if max(past, default=(0, 0)) >= wanted:
            return True
        if self.world.nodes[member].disk.journal_id != seat.journal:
            return False
        records = self.world.nodes[member].disk.records().get("election", ())
        known = [record.seating for record in records if isinstance(record, Install)]
        best = max(known, key=_height, default=None)
        return best is not None and _height(best) >= wanted

    def obeys(self, node: str, epoch: int, what: str) -> None:
        """Judge that a leader sends a message in an epoch."""
        boot = self.world.nodes[node].boot
        barred = self.exported.get((node, boot), 0)
        if epoch < barred:
            self.violation_report(
                "no-lower-epoch", f"{node} says {what} in epoch {epoch}, its table went to {barred}"
            )

    def may_be_trusted(self, epoch: int, trust_ms: int) -> bool:
        """Return whether a majority had promised nothing above ``epoch`` so long ago."""
        then = self.world.time - trust_ms * NS_PER_MS
        members = self.world.members
        late = {name for name in members if self.left_at.get((name, epoch), then) < then}
        lost = {
            name
            for name in members
            if self._is_another(name) and self.replaced_at.get(name, then) < then
        }
        electorate = self.electorate_of(epoch)
        return electorate.is_quorum(set(electorate.everyone) - late - lost)


def _height(seating: Seating) -> tuple[int, int]:
    return (seating.epoch, seating.bound_ms)


Knows = Callable[[Member, tuple[int, int]], bool]
"""Returns whether a voter knows an epoch with its bound, or a higher one, durably."""


class MembersJudge:
    """Judges one-change-at-a-time by the electorates that beats and served epochs have."""

    def __init__(self, violation_report: ViolationReport, knows: Knows) -> None:
        self.violation_report = violation_report
        self.knows = knows
        self.of_epoch: dict[int, Electorate] = {}
        """The electorate of each epoch, as it was heard last."""
        self.began: dict[Electorate, int] = {}
        """The lowest epoch of each change that was heard of, without its ``former``."""
        self.in_force: dict[int, Electorate] = {}
        """By number: the members that are in force, or were."""
        self.numbers: dict[int, int] = {}
        """By epoch: the number of changes in force then."""

    @property
    def voters(self) -> tuple[tuple[str, int], ...]:
        newest = self.in_force[max(self.in_force)].members if self.in_force else ()
        return tuple((member.name, member.journal) for member in newest)

    @property
    def may_lose_disk(self) -> bool:
        return not self.of_epoch[max(self.of_epoch)].former

    def hear(self, epoch: int, electorate: Electorate) -> None:
        """Judge the electorate of ``epoch``; without ``former`` it is said to be in force."""
        if epoch and not electorate.former:
            self._judge_order(epoch, electorate.number)
        if not electorate.members or not epoch or self.of_epoch.get(epoch) == electorate:
            return
        self.of_epoch[epoch] = electorate
        settled = electorate.settled()
        began = self.began.setdefault(settled, epoch)
        number = electorate.number
        if electorate.former or self.in_force.get(number) == settled:
            return
        if number and self.in_force.setdefault(number, settled) != settled:
            self.violation_report(
                "one-change-at-a-time", f"change {number} is {settled}, and another one"
            )
        before = self.in_force.get(number - 1)
        groups = [electorate.members, *([before.members] if before is not None else [])]
        for group in groups if number else ():
            know = [seat.name for seat in group if self.knows(seat, (began, 0))]
            if len(know) < quorum(len(group)):
                self.violation_report(
                    "one-change-at-a-time",
                    f"change {number} is in force in epoch {epoch}, and of {list(group)} only "
                    f"{know} know it, durably",
                )
        self.in_force[number] = settled

    def _judge_order(self, epoch: int, number: int) -> None:
        """Judge that no epoch brings back the members of before a change."""
        if self.numbers.get(epoch) == number:
            return
        self.numbers[epoch] = number
        in_order = [self.numbers[one] for one in sorted(self.numbers)]
        if in_order != sorted(in_order):
            self.violation_report(
                "one-change-at-a-time",
                f"epoch {epoch} has the members of change {number}: {self.numbers}",
            )


REFUSED = Observe("bakery.stranger_asks")
"""A leader that returns this has ignored a request: the proxy's node is no member it knows."""

SLACK_MS = 5
"""Upper bound of the difference of two clocks after the time of trust (ms)."""


Hold = tuple[int, RequestKey, int]
"""An epoch, a request and its fence."""


class VoteStanding(NamedTuple):
    """A vote that was not given back."""

    owner: str
    fence: int
    until: Instant
    """The end of its lease, on the voter's clock."""
    shared: bool


@dataclass(slots=True)
class Life:
    """The messages of one leader in one life."""

    epoch: int = -1
    entered: dict[RequestKey, dict[str, None]] = field(
        default_factory=dict[RequestKey, dict[str, None]]
    )
    """For each of its own requests: the leaders that confirmed its entering in this epoch."""
    votes: dict[tuple[RequestKey, int], dict[str, None]] = field(
        default_factory=dict[tuple[RequestKey, int], dict[str, None]]
    )
    """For each of its own requests and round: the leaders that voted for it in this epoch."""
    standing: dict[str, dict[RequestKey, VoteStanding]] = field(
        default_factory=dict[str, dict[RequestKey, VoteStanding]]
    )
    """By lock: its own votes."""
    dropped: dict[tuple[str, Who], int] = field(default_factory=dict[tuple[str, Who], int])
    """By owner: the last request that it dropped for a client."""
    locked: set[tuple[RequestKey, int]] = field(default_factory=set[tuple[RequestKey, int]])


@dataclass
class TicketJudge:
    """Judges tickets and their votes.

    The invariants are no-conflicting-votes, answers-count-once, quorum-before-grant, fences-rise,
    kept-by-quorum, dropped-stays-dropped and modes-kept.
    """

    world: World
    violation_report: ViolationReport
    election: ElectionJudge
    clocks_true: bool = field(kw_only=True)
    lives: dict[tuple[str, int], Life] = field(default_factory=dict[tuple[str, int], Life])
    turns: set[tuple[str, Turn]] = field(default_factory=set[tuple[str, Turn]])
    """All turns that were drawn."""
    fences: dict[str, dict[int, RequestKey]] = field(
        default_factory=dict[str, dict[int, RequestKey]]
    )
    """By lock: the request to which each fence was granted."""
    highest: dict[str, int] = field(default_factory=dict[str, int])
    """The highest fence that was granted, by lock."""
    written: dict[str, int] = field(default_factory=dict[str, int])
    """The highest fence that was granted to an exclusive request, by lock."""
    shared: set[RequestKey] = field(default_factory=set[RequestKey])
    """The requests that their proxies sent as shared."""
    kept: dict[Hold, set[tuple[str, int]]] = field(default_factory=dict[Hold, set[tuple[str, int]]])
    """The keepers, each in one life, that confirmed a hold and had it in their tables."""
    granted: set[tuple[RequestKey, int]] = field(default_factory=set[tuple[RequestKey, int]])
    """The holds that a quorum of the keepers had when they were granted."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        node = delivered.node
        role: Any = self.world.role_at(delivered.to)
        life = self.lives.setdefault((node, self.world.nodes[node].boot), Life())
        now = self.world.nodes[node].now()
        self._take_epoch(life, role)
        self._notes_turns_drawn_alone(node, role)
        if REFUSED not in effects:
            self._hears(life, role, delivered)
        for effect in effects:
            if type(effect) is Send:
                self._says(node, life, role, delivered, effect.message, now)

    def _take_epoch(self, life: Life, role: Any) -> None:
        """Start anew in a new epoch, with only the content of the table."""
        if role.epoch_state.epoch == life.epoch:
            return
        life.epoch = role.epoch_state.epoch
        life.entered, life.votes, life.standing = {}, {}, {}
        for entry in role.tickets.entries():
            if entry.phase is TicketPhase.HOLDING:
                stands = life.standing.setdefault(entry.ticket.lock, {})
                stands[entry.key] = VoteStanding(
                    entry.owner, entry.fence, entry.until, entry.ticket.shared
                )

    def _notes_turns_drawn_alone(self, node: str, role: Any) -> None:
        """Note the turns of a leader without others, which needs no answers and sends no step."""
        if len(role.epoch_state.leaders) == 1:
            for entry in role.tickets.entries():
                if entry.ticket.turn.number and entry.ticket.turn.leader == node:
                    self.turns.add((entry.ticket.lock, entry.ticket.turn))

    def _hears(self, life: Life, role: Any, delivered: Delivery) -> None:
        event, sender = delivered.event, node_of(delivered.sender)
        if getattr(event, "epoch", life.epoch) != life.epoch:
            return
        match event:
            case Lock() if event.shared:
                self.shared.add(event.key)
            case MaxTicket():
                life.entered.setdefault(event.key, {})[sender] = None
            case Collected() if event.voted:
                life.votes.setdefault((event.key, event.round), {})[sender] = None
            case Yield():
                self._give_back(life, role, event, sender)
            case DropTicket() if event.mine:
                self._give_back(life, role, event, sender)
            case UnlockAll() if role.epoch_state.serving:
                self._drop_all(life, event.session)
            case DropTicket():
                self._drop(life, event)
            case Unlock() if role.epoch_state.serving and not event.waiting:
                self._drop(life, event)
            case _:
                pass

    def _give_back(self, life: Life, role: Any, word: Yield | DropTicket, owner: str) -> None:
        """Forget a vote when its owner gives it back, or when a later owner of the request does."""
        key, stands = word.key, life.standing.get(word.lock, {})
        others = {leader.node for leader in role.epoch_state.leaders} - {owner}
        if key not in stands or stands[key].owner in others:
            return
        entry = role.tickets.get(key)
        kept = entry is not None and entry.fence == stands[key].fence
        if not kept:  # Of an earlier round; or this leader also has the request.
            del stands[key]

    def _drop_all(self, life: Life, session: str) -> None:
        for stands in life.standing.values():
            for key in [key for key in stands if key.who.session == session]:
                del stands[key]

    def _drop(self, life: Life, word: DropTicket | Unlock) -> None:
        stands = life.standing.get(word.lock, {})
        request = word.request
        for key, vote in list(stands.items()):
            if key.who == word.who and (key.request <= word.request or vote.fence == word.fence):
                request = max(request, key.request)
                del stands[key]
        owner = (word.lock, word.who)
        life.dropped[owner] = max(request, life.dropped.get(owner, 0))

    def _says(  # noqa: PLR0912  (a case for each message)
        self,
        node: str,
        life: Life,
        role: Any,
        delivered: Delivery,
        message: Message | Any,
        now: Instant,
    ) -> None:
        event = delivered.event
        match message:
            case MaxTicket():
                self.election.obeys(node, message.epoch, "MaxTicket")
                self._takes_up(node, life, message.key)
            case Collected():
                self.election.obeys(node, message.epoch, "Collected")
                self._takes_up(node, life, message.key)
                if message.voted and isinstance(event, AddTicket):
                    self._keeps(node, role, event)
                    if role.epoch_state.leads:
                        self._votes(node, life, role, node_of(delivered.sender), event, now)
            case Extended():
                self.election.obeys(node, message.epoch, "Extended")
                if message.kept and isinstance(event, Extend) and role.epoch_state.leads:
                    self._extends(life, event, node_of(delivered.sender), now)
            case Entering():
                self._takes_up(node, life, message.ticket.key)
            case AddTicket():
                self._asks(node, life, role, message, now)
            case Yield():
                self._give_back(life, role, message, node)
            case DropTicket() if message.mine:
                self._give_back(life, role, message, node)
            case DropTicket():
                self._drop(life, message)
            case Locked():
                self._grants(node, life, role, message)
            case _:
                pass

    def _takes_up(self, node: str, life: Life, key: RequestKey) -> None:
        if life.dropped.get((key.lock, key.who), 0) >= key.request:
            self.violation_report(
                "dropped-stays-dropped", f"{node} takes {key} up, which it dropped"
            )

    def _asks(self, node: str, life: Life, role: Any, add: AddTicket, now: Instant) -> None:
        """Judge a ticket's number, and the vote of its owner."""
        ticket = add.ticket
        key = ticket.key
        self._takes_up(node, life, key)
        if (ticket.lock, ticket.turn) not in self.turns:
            self.turns.add((ticket.lock, ticket.turn))
            known = life.entered.get(key, {})
            if ticket.turn.leader == node and 1 + len(known) < quorum(
                len(role.epoch_state.leaders)
            ):
                self.violation_report(
                    "answers-count-once",
                    f"{node} draws {ticket.turn}, and only {list(known)} answered",
                )
        before = life.standing.get(ticket.lock, {}).pop(key, None)
        others = {leader.node for leader in role.epoch_state.leaders} - {node}
        if before is not None and before.fence != add.fence and before.until > now:
            if before.owner in others:
                self.violation_report(
                    "no-conflicting-votes",
                    f"{node} takes {before} of {key} at {ticket.lock!r} back",
                )
        elif before is not None:
            life.standing[ticket.lock][key] = before
        if add.fence:
            self._votes(node, life, role, node, add, now)

    def _votes(
        self, node: str, life: Life, role: Any, owner: str, add: AddTicket, now: Instant
    ) -> None:
        lock, key = add.ticket.lock, add.ticket.key
        stands = life.standing.setdefault(lock, {})
        before = stands.get(key)
        shared = key in self.shared
        if shared != add.ticket.shared:
            self.violation_report(
                "modes-kept", f"{node} votes for {add}, which was sent with {shared=}"
            )
        if shared and not add.taken and (before is None or before.fence != add.fence):
            self._passes_nobody(node, role, add, now)
        for other, vote in stands.items():
            if other != key and vote.until > now and not add.taken and not (shared and vote.shared):
                self.violation_report(
                    "no-conflicting-votes",
                    f"{node} votes for {key} at {lock!r}, and {vote} of {other} stands",
                )
        until = later(now, add.ticket.lease_ms)
        if before is not None and before.fence == add.fence:
            until = before.until
        stands[key] = VoteStanding(owner, add.fence, until, shared)

    def _passes_nobody(self, node: str, role: Any, add: AddTicket, now: Instant) -> None:
        """Check that no exclusive ticket waits ahead of a shared one that ``node`` votes for."""
        for entry in role.tickets.entries():
            waits = entry.phase is TicketPhase.WAITING and not entry.is_over(now)
            same = entry.ticket.lock == add.ticket.lock
            ahead = same and entry.ticket.turn < add.ticket.turn
            if waits and ahead and entry.key not in self.shared:
                self.violation_report(
                    "modes-kept", f"{node} votes for {add} while {entry.ticket} waits"
                )

    def _extends(self, life: Life, word: Extend, owner: str, now: Instant) -> None:
        """Record a renewal: if it arrives before the request for a vote, it is the vote."""
        ticket = word.ticket
        stands = life.standing.setdefault(ticket.lock, {})
        until = later(now, ticket.lease_ms)
        before = stands.get(ticket.key)
        if before is not None and before.fence == word.fence:
            until = max(until, before.until)
        key = ticket.key
        shared = key in self.shared
        stands[key] = VoteStanding(owner, word.fence, until, shared)

    def _grants(self, node: str, life: Life, role: Any, locked: Locked) -> None:
        key, epoch_state = locked.key, role.epoch_state
        self.election.obeys(node, epoch_state.epoch, "Locked")
        self._is_kept(node, role, locked)
        if (key, locked.fence) in life.locked:
            return
        life.locked.add((key, locked.fence))
        self._takes_up(node, life, key)
        entry = role.tickets.get(key)
        attempt = role.attempts.own.get(key)
        if entry is None or entry.phase is not TicketPhase.HOLDING:
            self.violation_report(
                "quorum-before-grant", f"{node} grants {locked}, and votes for it no more itself"
            )
            return
        confirmed = life.votes.get((key, entry.round), {})
        votes = {name: None for name in epoch_state.others if name in confirmed}
        counted = [name for name in attempt.votes if name != node and name not in confirmed]
        if counted:
            self.violation_report(
                "answers-count-once",
                f"{node} grants {locked} with votes of {counted}, who gave none",
            )
        if 1 + len(votes) < quorum(len(epoch_state.leaders)):
            self.violation_report(
                "quorum-before-grant",
                f"{node} grants {locked} with the votes of {list(votes)} only",
            )
        trust_ms = BAKERY_TIMING.trust_ms + SLACK_MS
        if self.clocks_true and not self.election.may_be_trusted(epoch_state.epoch, trust_ms):
            self.violation_report(
                "quorum-before-grant",
                f"{node} grants {locked} in epoch {epoch_state.epoch}, which is over",
            )
        self._judge_fence(node, locked, key)

    def _keeps(self, node: str, role: Any, add: AddTicket) -> None:
        """Note that ``node`` has a hold in its table, when it confirms it."""
        key = add.ticket.key
        entry = role.tickets.get(key)
        if entry is not None and entry.phase is TicketPhase.HOLDING and entry.fence == add.fence:
            hold = (add.epoch, key, add.fence)
            self.kept.setdefault(hold, set()).add((node, role.epoch_state.life))

    def _is_kept(self, node: str, role: Any, locked: Locked) -> None:
        """Check that a quorum of the keepers has had the hold, in this epoch or one before."""
        key, keepers = locked.key, role.epoch_state.keepers
        kept = self.kept.get((role.epoch_state.epoch, key, locked.fence), set())
        names = {name for name, _ in kept} - {node}
        if (key, locked.fence) in self.granted or 1 + len(names) >= quorum(keepers):
            self.granted.add((key, locked.fence))
            return
        self.violation_report(
            "kept-by-quorum",
            f"{node} grants {locked}, and of {keepers} keepers only {sorted(names)} have it",
        )

    def _judge_fence(self, node: str, locked: Locked, key: RequestKey) -> None:
        known = self.fences.setdefault(locked.lock, {})
        before = known.setdefault(locked.fence, key)
        if before != key:
            self.violation_report(
                "fences-rise", f"{node} grants {locked}, a fence that {before} had"
            )
        shared = key in self.shared
        highest = (self.written if shared else self.highest).get(locked.lock, 0)
        if locked.fence < highest and len(known) > 1 and before is key:
            self.violation_report("fences-rise", f"{node} grants {locked} after fence {highest}")
        for known_fences in (self.highest, self.written)[: 1 + (not shared)]:
            known_fences[locked.lock] = max(known_fences.get(locked.lock, 0), locked.fence)


class DropsJudge:
    """Judges dropped-stays-dropped where tables are merged."""

    def __init__(self, world: World, violation_report: ViolationReport) -> None:
        self.world = world
        self.violation_report = violation_report
        self.dropped: dict[tuple[str, Who], dict[int, dict[str, int]]] = {}
        """By owner and epoch: the last request that each leader dropped for its client."""
        self.gone: dict[tuple[str, Who], dict[int, int]] = {}
        """By owner and epoch: the last request that a quorum dropped."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        role: Any = self.world.role_at(delivered.to)
        event = delivered.event
        if isinstance(event, DropTicket) and role.epoch_state.epoch == event.epoch:
            self._note(delivered.node, role, event)
        if isinstance(event, Lead) and event.empty:  # Two were lost, and all that they knew.
            self.dropped.clear()
            self.gone.clear()
        for effect in effects:
            if type(effect) is not Send:
                continue
            if type(effect.message) is DropTicket:
                self._note(delivered.node, role, effect.message)
            elif type(effect.message) is Merged:
                self._judge(delivered.node, role, effect.message.epoch)

    def _note(self, node: str, role: Any, word: DropTicket) -> None:
        if word.mine:
            return
        owner = (word.lock, word.who)
        known = self.dropped.setdefault(owner, {}).setdefault(word.epoch, {})
        known[node] = role.tickets.tombstones.of(*owner).dropped
        enough = quorum(role.epoch_state.keepers)
        if len(known) >= enough:
            agreed = sorted(known.values(), reverse=True)[enough - 1]
            gone = self.gone.setdefault(owner, {})
            gone[word.epoch] = max(agreed, gone.get(word.epoch, 0))

    def _judge(self, node: str, role: Any, ready_for: int) -> None:
        """Check that requests dropped in earlier epochs stay dropped.

        A leader that becomes ready late, after a quorum without it has begun to serve, learns of
        that quorum's drops as any leader does.
        """
        for entry in role.tickets.entries():
            ticket = entry.ticket
            gone = self.gone.get((ticket.lock, ticket.who), {})
            if any(ticket.request <= gone[epoch] for epoch in gone if epoch < ready_for):
                text = f"request {ticket.request} of {ticket.who} at {ticket.lock!r}"
                self.violation_report(
                    "dropped-stays-dropped",
                    f"{node} is ready to lead with {text}, which a quorum dropped",
                )
