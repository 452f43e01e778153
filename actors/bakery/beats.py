"""Beats of members, which echo each other: those connected both ways, and a leader's majority."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fencelock.actors.api.membership_message import NODE_ID
from fencelock.actors.bakery.bounds import WAITING_MS_MAX, is_known_seating
from fencelock.actors.bakery.config import (
    BAKERY_TIMING,
    BEAT_MS,
    OFF,
    BakeryTiming,
    election_of,
    leader_of,
    proxy_of,
    status_of,
)
from fencelock.actors.bakery.electorate import FOUNDERS, is_sound
from fencelock.actors.bakery.epochs import VoterRegistry, VotingRole
from fencelock.actors.bakery.event import BeatContents, BeatDue, Connected, Serving, Trust
from fencelock.actors.bakery.wire import EPOCH_MAX, NO_SEATING, Beat, Chosen, Member
from fencelock.actors.bootstrap_message import StartVoting, StopVoting
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.membership import MEMBERS_MAX
from fencelock.actors.message import NS_PER_MS, Address, Instant, ms_between, node_of
from fencelock.actors.proxy.event import TimesUnfit
from fencelock.actors.role import Host, Summary
from fencelock.actors.role_message import Level, LinkDown, notice
from fencelock.actors.round_trips import RoundTrips

NEVER = Instant(0)
"""An instant before every clock reading."""

GUESTS_MAX = 64
"""Maximum nodes that are neither configured nor members, and are answered."""

GUEST_MS = 10_000
"""A guest that was silent for so long is forgotten (ms)."""

BEATS_MAX = 64
"""Maximum beats whose echoes still count: older ones are far beyond `BakeryTiming.silent_ms`."""


@dataclass(slots=True)
class PeerBeats:
    """Another member, according to its beats."""

    last_life: int = 0
    last_number: int = 0
    """The last beat that came, of any life, which the next beat echoes."""
    last_at: Instant = NEVER
    """The time at which it came."""
    member: Member | None = None
    """According to the last beat that echoed ours, so it is of a life that runs, and not of one
    that ended."""
    number: int = 0
    echo: int = 0
    """The numbers of that beat."""
    received_at: Instant = NEVER
    sent_at: Instant = NEVER
    """The time at which the beat was sent that this one echoes."""
    down: bool = False
    """Whether its link broke, and no beat came since."""

    def connected(self, now: Instant, silent_ms: int) -> bool:
        """Return whether each of the two received a beat of the other within ``silent_ms``."""
        late = max(ms_between(self.received_at, now), ms_between(self.sent_at, now))
        return self.member is not None and not self.down and late < silent_ms


Received = Beat | BeatDue | LinkDown | BeatContents | Serving | StartVoting | StopVoting


class ClusterStatus(VotingRole[Received]):
    """Reports the connected members to the coordinator of its node, and trust to the leader.

    Only members count that also receive our beats. With a link that carries only one way, a node
    could be elected that cannot reply. A non-voting member is connected like any other, and counts
    in no majority. Neither does a *guest*: a node that is neither configured nor a member, and may
    become one. What its beats say of leaders is ignored.

    The echoes also show how long round trips to the members are. A warning is reported if they are
    longer than the times of this node allow.
    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        life: int,
        priority: int,
        pid: int,
        voting: VoterRegistry,
        timing: BakeryTiming = BAKERY_TIMING,
    ) -> None:
        super().__init__(address, host, voting)
        self.silent_ms = timing.silent_ms
        self.round_trips = RoundTrips("bakery", timing.round_trip_ms)
        self.times_warning = ""
        """The warning about times that was last reported; empty if nothing is wrong."""
        self.life = life
        self.priority = priority
        self.pid = pid
        self.number = 0
        self.sent_at: dict[int, Instant] = {}
        self.peers = {member: PeerBeats() for member in voting.nodes if member != self.node}
        self.contents = BeatContents(promised=0, seating=NO_SEATING, waiting_ms=0)
        self.serving = 0
        self.seen: tuple[Member, ...] = ()
        self.reaches: tuple[Chosen, ...] = ()
        """The members that are connected, for this node's beats."""

    def begin(self, now: Instant) -> Effects:
        """Wait for the coordinator of this node, which gives beats their contents."""
        return [Wake(BEAT_MS, BeatDue())]

    def handle(self, sender: Address, event: Received, now: Instant) -> Effects:
        match event:
            case Beat():
                return self._on_beat(sender, event, now)
            case BeatDue():
                return [*self._beat(now), Wake(BEAT_MS, BeatDue()), *self._report(now)]
            case LinkDown():
                if event.node in self.peers:
                    self.peers[event.node].down = True
                return self._report(now)
            case BeatContents():
                self.contents = event
                self._follow(event, now)
                return [*self._beat(now), *self._report_times(), *self._report(now)]
            case Serving():
                self.serving = event.epoch
                return [*self._beat(now), *self._report(now)]
            case StartVoting() | StopVoting():
                self.may_vote = isinstance(event, StartVoting)
                return [*self._beat(now), *self._report(now)]

    def summary(self) -> Summary:
        return (
            ("connected", len(self.seen)),
            ("priority", self.priority),
            ("votes", self.is_voter),
        )

    def _follow(self, contents: BeatContents, now: Instant) -> None:
        """Send beats to the members of the electorate, and to guests no longer than they last."""
        self.electorate = self.voting.electorate(contents.electorate)
        for member in self.electorate.everyone:
            if member != self.node:
                self.peers.setdefault(member, PeerBeats())
        for name, peer in list(self.peers.items()):
            if not self.is_known(name) and ms_between(peer.received_at, now) >= GUEST_MS:
                del self.peers[name]
        self.round_trips.keep([name for name in self.peers if self.is_known(name)])

    def _beat(self, now: Instant) -> list[Effect]:
        self.number += 1
        self.sent_at[self.number] = now
        if len(self.sent_at) > BEATS_MAX:
            del self.sent_at[next(iter(self.sent_at))]
        own = self._own()
        return [
            Send(
                status_of(name),
                Beat(
                    number=self.number,
                    echo_life=peer.last_life,
                    echo=peer.last_number,
                    member=own,
                    echo_age_ms=1 + ms_between(peer.last_at, now) if peer.last_number else None,
                ),
            )
            for name, peer in self.peers.items()
        ]

    def _own(self) -> Member:
        contents, votes = self.contents, self.is_voter
        return Member(
            self.node,
            self.life,
            self.priority,
            self.pid,
            contents.promised,
            contents.seating,
            self.serving,
            contents.waiting_ms,
            votes,
            contents.electorate,
            self.voting.voter if votes else 0,
            self.reaches,
        )

    def _on_beat(self, sender: Address, beat: Beat, now: Instant) -> Effects:
        node = node_of(sender)
        if sender != status_of(node) or node == self.node:
            return (Observe("bakery.beat_of_stranger"),)
        member = beat.member
        if not is_sound(member.electorate) or not _sound(beat, self.names_with(member.electorate)):
            return self.refusals.malformed(sender, "bakery.beat_malformed", beat, now)
        known, epoch = self.contents.seating.epoch, member.seating.epoch
        refused = (
            self.refusals.epoch(sender, max(member.promised, epoch, member.serving), now)
            or self.refusals.lease(sender, now, member.seating.bound_ms)
            or self.refuse_electorate(sender, member.electorate, epoch, known, now)
        )
        if refused:
            return refused
        named = self.voting.names(node, member.voter, member.electorate)
        if not self.is_known(node, member.electorate if named else FOUNDERS):
            # What a guest says of leaders and members is ignored.
            member = Member(
                node, member.life, member.priority, member.pid, 0, NO_SEATING, 0, 0, reaches=()
            )
        peer = self._peer(node, now)
        if peer is None:
            return (Observe("bakery.guest_ignored"),)
        if (member.life, beat.number) == (peer.last_life, peer.last_number):
            return (Observe("bakery.beat_repeated"),)
        peer.last_life, peer.last_number, peer.last_at = member.life, beat.number, now
        sent_at = self.sent_at.get(beat.echo) if beat.echo_life == self.life else None
        if sent_at is None:
            return ()
        before = peer.member
        if before is not None:
            same = before.life == member.life
            if beat.number <= peer.number if same else beat.echo <= peer.echo:
                return (Observe("bakery.late_beat"),)
        peer.member, peer.number, peer.echo = member._replace(node=node), beat.number, beat.echo
        peer.received_at, peer.sent_at, peer.down = now, sent_at, False
        effects = [*self._measure(node, beat.echo_age_ms, now - sent_at), *self._report(now)]
        if member.voter and not self._votes(peer.member):
            return [Observe("bakery.unregistered_vote"), *effects]
        return effects

    def _measure(self, node: str, echo_age_ms: int | None, since_ns: int) -> list[Effect]:
        """Note a round trip: ``since_ns`` ago this node sent the beat that ``node`` echoed."""
        if echo_age_ms is None or not self.is_known(node):
            return []
        took_ns = max(0, since_ns - echo_age_ms * NS_PER_MS)
        return self._report_times() if self.round_trips.measure(node, took_ns) else []

    def _report_times(self) -> list[Effect]:
        why = self.round_trips.warning()
        if why == self.times_warning:
            return []
        self.times_warning = why
        text = why or "round trips to the members fit the times again"
        line = notice(self.node, Level.WARNING if why else Level.INFO, text)
        return [line, Send(proxy_of(self.node), TimesUnfit(why=why))]

    def _votes(self, member: Member) -> bool:
        registered = self.voting.registers(member.node, member.voter, self.electorate)
        return member.voter != 0 and registered

    def _peer(self, node: str, now: Instant) -> PeerBeats | None:
        """Return what is known of ``node``; None for a guest for which there is no room."""
        if node not in self.peers:
            self._follow(self.contents, now)
            guests = sum(not self.is_known(one) for one in self.peers)
            if NODE_ID.fullmatch(node[:33]) is None or guests >= GUESTS_MAX:
                return None
            self.peers[node] = PeerBeats(received_at=now)
        return self.peers[node]

    def _report(self, now: Instant) -> list[Effect]:
        """Notify the coordinator of changes, and send the leader its trust."""
        effects: list[Effect] = []
        reaches, seen = self.reaches, self._connected(now)
        if self.reaches != reaches:
            effects += self._beat(now)
        if seen != self.seen:
            self.seen = seen
            connected = Connected(members=seen)
            effects += [
                Send(election_of(self.node), connected),
                Send(leader_of(self.node), connected),
            ]
        if self.serving:
            effects += self._trust(now)
        return effects

    def _trust(self, now: Instant) -> list[Effect]:
        """Report since when a majority, none of which had promised more, has answered.

        Only voters count: the promise of another node does not bind it in its next life.
        """
        if self.contents.seating.epoch > self.serving:
            return []
        own = self.is_voter and self.contents.promised <= self.serving
        times: dict[str, int] = {self.node: now} if own else {}
        for name, peer in self.peers.items():
            member = peer.member
            if member is not None and member.promised <= self.serving and self._votes(member):
                times[name] = peer.sent_at
        at = self.electorate.reached(times)
        if at is None:
            return []
        return [Send(leader_of(self.node), Trust(epoch=self.serving, at=Instant(at)))]

    def _connected(self, now: Instant) -> tuple[Member, ...]:
        others = [
            peer.member._replace(votes=self._votes(peer.member))
            for peer in self.peers.values()
            if peer.member is not None and peer.connected(now, self.silent_ms)
        ]
        members = self.electorate.everyone
        self.reaches = tuple(one.chosen for one in others if one.node in members)
        return tuple(sorted([self._own(), *others], key=lambda member: member.node))


def _sound(beat: Beat, members: Collection[str]) -> bool:
    member, reaches = beat.member, beat.member.reaches
    return (
        beat.number > 0
        and min(beat.echo, beat.echo_age_ms or 0, member.pid) >= 0
        and 1 <= member.priority <= OFF
        and max(member.promised, member.serving, member.seating.epoch) <= EPOCH_MAX
        and min(member.promised, member.serving) >= 0
        and len(reaches) <= MEMBERS_MAX + 1
        and all(NODE_ID.fullmatch(one.node[:33]) for one in reaches)
        and 0 <= member.waiting_ms <= WAITING_MS_MAX
        and is_known_seating(member.seating, members)
    )
