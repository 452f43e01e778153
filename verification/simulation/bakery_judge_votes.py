"""The judge of tickets in `bakery`: answers, votes, fences, and dropped requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fencelock.actors.bakery.config import BAKERY_TIMING, later, quorum
from fencelock.actors.bakery.message import (
    AddTicket,
    Collected,
    DropTicket,
    Entering,
    Extend,
    Extended,
    Lead,
    Lock,
    Locked,
    MaxTicket,
    Merged,
    Unlock,
    UnlockAll,
    Yield,
)
from fencelock.actors.bakery.table import TicketPhase
from fencelock.actors.bakery.ticket import RequestKey, Turn, Who
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import Instant, Message, node_of
from fencelock.verification.simulation.bakery_judge_election import ElectionJudge
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationReport
from fencelock.verification.simulation.world import World

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
        said: Message | Any,
        now: Instant,
    ) -> None:
        event = delivered.event
        match said:
            case MaxTicket():
                self.election.obeys(node, said.epoch, "MaxTicket")
                self._takes_up(node, life, said.key)
            case Collected():
                self.election.obeys(node, said.epoch, "Collected")
                self._takes_up(node, life, said.key)
                if said.voted and isinstance(event, AddTicket):
                    self._keeps(node, role, event)
                    if role.epoch_state.leads:
                        self._votes(node, life, role, node_of(delivered.sender), event, now)
            case Extended():
                self.election.obeys(node, said.epoch, "Extended")
                if said.kept and isinstance(event, Extend) and role.epoch_state.leads:
                    self._extends(life, event, node_of(delivered.sender), now)
            case Entering():
                self._takes_up(node, life, said.ticket.key)
            case AddTicket():
                self._asks(node, life, role, said, now)
            case Yield():
                self._give_back(life, role, said, node)
            case DropTicket() if said.mine:
                self._give_back(life, role, said, node)
            case DropTicket():
                self._drop(life, said)
            case Locked():
                self._grants(node, life, role, said)
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
                told = f"request {ticket.request} of {ticket.who} at {ticket.lock!r}"
                self.violation_report(
                    "dropped-stays-dropped",
                    f"{node} is ready to lead with {told}, which a quorum dropped",
                )
