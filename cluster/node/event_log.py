"""The log lines of elections and of other rare events, and the trace of all messages.

Roles have no log. Here the host derives lines from the events and effects of a role.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from fencelock.actors.bakery.election import ElectionCoordinator
from fencelock.actors.bakery.leader_selection import names_of
from fencelock.actors.bootstrap import Bootstrap
from fencelock.actors.bootstrap_message import GroupConfig, JoinAck, StopVoting, Superseded
from fencelock.actors.central.server_watch import ServerWatch
from fencelock.actors.clock import Clock
from fencelock.actors.effect import Effects, Observe, Send
from fencelock.actors.message import Address, Event, Instant, node_of
from fencelock.actors.paxos.event import (
    Drained,
    HandOverLate,
    LeaderChanged,
    SteppedDown,
    Succeed,
    Suspect,
    ViewChanged,
)
from fencelock.actors.paxos.failure_detector import FailureDetector
from fencelock.actors.paxos.leader import Leader
from fencelock.actors.paxos.reconfigurer import Reconfigurer
from fencelock.actors.paxos.wire import Preempted
from fencelock.actors.repeated import Repetitions, times_text
from fencelock.actors.role import Role
from fencelock.actors.trace import LogBook, shown, state_after
from fencelock.cluster.host.role_set import Handle, RoleSlot
from fencelock.cluster.host.scheduler import READ_CLOCK
from fencelock.cluster.log import set_level
from fencelock.transport.log import note

WATCHED = (Leader, FailureDetector, Reconfigurer, ElectionCoordinator, ServerWatch, Bootstrap)
"""Roles whose events are logged; they rarely have something to do."""

MARKS = {
    "paxos.isolated": (
        "WARNING",
        "leads, but no majority answers: its clients are sent to other nodes. If this lasts, look "
        "at its links to the other nodes",
    ),
    "paxos.rounds_exhausted": (
        "ERROR",
        "cannot stand for election, since no ballot is left: back the cluster up and restore it",
    ),
    "paxos.link_suspected": (
        "DEBUG",
        "waits for the end of the lease of the leader, to which the link broke",
    ),
    "central.server_silent": (
        "WARNING",
        "gets no answer from the lock server: nothing is granted until it answers. Is it running?",
    ),
    "bakery.election_begun": ("INFO", "begins an election"),
    "bakery.outbid": ("DEBUG", "gave up its election: another member has a higher epoch"),
}
"""Levels and texts of lines about what roles count, by the name of the count."""


TWIN_NS = 10_000_000_000
"""Time after a start in which replies to an earlier life of the node may come (ns, 10 s)."""

TWIN = (
    "{node} gets replies to another process that runs as {node}{times}: two processes under one id "
    "disturb each other. Stop the other one, or give it another id"
)


class EventLog:
    """Watches the roles of one node.

    Only roles that rarely have something to do are watched, and those that the node's `LogBook`
    traces. A name of a traced role stands for all roles that have it before a number:
    ``commander`` for ``commander-4``.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self._book: LogBook | None = None
        self._clock: Clock | None = None
        self._handles: dict[Address, tuple[RoleSlot, Handle]] = {}
        """The roles of the node, and their handlers without a trace."""
        self._pruned_at = 64
        self.leader = ""
        """The node that led last, as far as this node knows."""
        self.leads = False
        self.silent = False
        """Whether the leadership ends because no majority answers."""
        self._began = READ_CLOCK()
        self._twins = Repetitions()
        self.epoch = 0
        """The epoch of `bakery` that was logged last."""

    def watch(self, role_slot: RoleSlot) -> None:
        role = role_slot.role
        if isinstance(role, Clock):
            self._clock = role
        if isinstance(role, LogBook):
            self._watch_book(role_slot, role)
            return
        if isinstance(role, WATCHED):
            self._watch_events(role_slot)
        self._handles[role_slot.address] = role_slot, role_slot.handle
        if len(self._handles) > self._pruned_at:
            self._handles = {at: one for at, one in self._handles.items() if not one[0].dead}
            self._pruned_at = 2 * len(self._handles) + 64
        self._trace(role_slot, role_slot.handle)

    def _watch_book(self, role_slot: RoleSlot, book: LogBook) -> None:
        self._book, handle = book, role_slot.handle

        def watched(sender: Address, event: Any, now: Instant) -> Effects:
            level = book.level
            effects: Effects = handle(sender, event, now)
            if book.level != level:
                set_level(book.level)
            self._trace_all()
            return effects

        role_slot.handle = watched
        self._trace_all()

    def _trace_all(self) -> None:
        for role_slot, handle in self._handles.values():
            self._trace(role_slot, handle)

    def _trace(self, role_slot: RoleSlot, handle: Handle) -> None:
        book, address = self._book, role_slot.address
        traced = book is not None and (book.logs(address) or book.keeps(address))
        role_slot.handle = self._traced(handle, role_slot.role) if traced else handle

    def _watch_events(self, role_slot: RoleSlot) -> None:
        role = role_slot.role
        handle = role_slot.handle

        def watched(sender: Address, event: Any, now: Instant) -> Effects:
            effects = handle(sender, event, now)
            for effect in effects:
                if type(effect) is Observe and effect.name in MARKS:
                    level, text = MARKS[effect.name]
                    self._note(level, text, effect.name.partition(".")[2])
            match role:
                case Leader():
                    self._note_leader(role, event, effects)
                case FailureDetector():
                    self._note_detector(role, effects)
                case Reconfigurer() if isinstance(event, ViewChanged):
                    self._note_members(role)
                case Bootstrap():
                    self._note_twin(role, event, now)
                case ElectionCoordinator():
                    self._note_epoch(role)
                case _:
                    pass
            return effects

        role_slot.handle = watched

    def _traced(self, handle: Handle, role: Role[Any]) -> Handle:
        book, address = self._book, role.address
        assert book is not None
        log = partial(note, self.node, "TRACE")

        def traced(sender: Address, event: Event, now: Instant) -> Effects:
            effects = handle(sender, event, now)
            if book.is_unread(now):
                self._trace_all()
            time = 0 if self._clock is None else self._clock.time
            state = state_after(role, event, now)
            if book.keeps(address):
                book.keep(time, address, sender, event, effects, state)
            if not book.logs(address):
                return effects
            log(f"{address} at {time} receives {shown(event)} from {sender}")
            if state:
                log(f"{address} has {state}")
            for effect in effects:
                if type(effect) is Send:
                    log(f"{address} sends {shown(effect.message)} to {effect.to}")
                else:
                    log(f"{address} asks for {shown(effect)}")
            return effects

        return traced

    def _note(self, level: str, text: str, what: str, **fields: object) -> None:
        note(self.node, level, f"{self.node} {text}", event=what, **fields)

    def _note_leader(self, role: Leader, event: Any, effects: Effects) -> None:
        """Log the elections in which this node stands, and the leaderships it gains and loses."""
        ballot = role.ballot.round
        for effect in effects:
            if type(effect) is Send and type(effect.message) is SteppedDown:
                if effect.to == role.monitor:
                    self._note_end(role, event)
            elif type(effect) is not Observe:
                continue
            elif effect.name == "paxos.ballot_begun":
                text = f"stands for election under ballot {ballot}: {self._why_stands(event)}"
                self._note("INFO", text, "election", ballot=ballot)
            elif effect.name == "paxos.leadership_begun":
                self.leads, self.leader, self.silent = True, self.node, False
                text = f"leads now: it won the election under ballot {ballot}"
                self._note("INFO", text, "leadership_begun", ballot=ballot)

    def _why_stands(self, event: Any) -> str:
        match event:
            case Suspect() if self.leader and self.leader != self.node:
                return f"nothing comes from {self.leader}, which led"
            case Suspect():
                return "no node leads"
            case Succeed():
                return f"{self.leader} hands over to it"
            case Preempted():
                return "another candidate was faster"
            case _:
                return "it continues in the new membership"

    def _note_end(self, role: Leader, event: Any) -> None:
        ballot, led = role.ballot.round, self.leads
        self.leads = False
        match event:
            case Preempted(ballot=by):
                why = f"{node_of(by.leader)} stands under a higher ballot (round {by.round})"
            case Drained() | HandOverLate():
                why = f"it handed over to {role.handover.successor}"
            case StopVoting():
                why = "its journal has no vote any more"
            case ViewChanged():
                why = "it is no member any more"
            case _ if self.silent:
                why = "no majority answers it. Look at its links to the other nodes"
            case _:
                why = "another node leads"
        self.silent = False
        if led:
            level = "INFO" if isinstance(event, Drained) else "WARNING"
            self._note(level, f"leads no more: {why}", "leadership_lost", ballot=ballot)
        else:
            self._note("DEBUG", f"lost the election: {why}", "election_lost", ballot=ballot)

    def _note_detector(self, role: FailureDetector, effects: Effects) -> None:
        for effect in effects:
            if type(effect) is Observe and effect.name == "paxos.majority_silent":
                self.silent = True
            elif (
                type(effect) is Send
                and type(effect.message) is LeaderChanged
                and effect.to == role.leader
                and (leader := effect.message.leader)
                and leader != self.node
            ):
                self.leader = leader
                self._note("INFO", f"follows {leader}, which leads", "follows", leader=leader)

    def _note_members(self, role: Reconfigurer) -> None:
        view = role.config.newest
        text = f"knows new members: {', '.join(view.members)} (change {view.number})"
        self._note("INFO", text, "members_changed", view=view.number)

    def _note_twin(self, role: Bootstrap, event: Any, now: Instant) -> None:
        """Log replies to another process that runs under this node's id.

        Replies to an earlier life of this node come soon after its start, and not for long.
        """
        if not isinstance(event, JoinAck | GroupConfig | Superseded):
            return
        if event.to in (0, role.own.boot) or now <= self._began + TWIN_NS:
            return
        if count := self._twins.add("", now):
            text = TWIN.format(node=self.node, times=times_text(count))
            note(self.node, "WARNING", text, event="twin", count=count)

    def _note_epoch(self, role: ElectionCoordinator) -> None:
        seating = role.promises.seating
        if seating.epoch != self.epoch:
            self.epoch = seating.epoch
            text = f"follows {names_of(seating.leaders)}, which lead in epoch {seating.epoch}"
            self._note("INFO", text, "leaders_changed", epoch=seating.epoch)
