"""The members that are connected both ways, found by beats that echo each other's numbers."""

from __future__ import annotations

from dataclasses import dataclass

from fencelock.actors.bakery.config import (
    BEAT_MS,
    OFF,
    SILENT_MS,
    VoterRegistry,
    election_of,
    leader_of,
    majority,
    status_of,
)
from fencelock.actors.bakery.epochs import TOO_FAR, EpochLimit, sound_seating
from fencelock.actors.bakery.event import BeatDue, Member, Seen, Serving, Standing, Trust
from fencelock.actors.bakery.message import EPOCH_MAX, NOBODY, Beat
from fencelock.actors.bootstrap_message import StopVoting
from fencelock.actors.effect import Effect, Effects, Observe, Send, Wake
from fencelock.actors.link import LinkDown
from fencelock.actors.message import Address, Instant, ms_between, node_of
from fencelock.actors.role import Host, Role, Summary

NEVER = Instant(0)
"""An instant before every clock reading."""

SAID_MAX = 64
"""Maximum beats whose echoes still count: older ones are far beyond `SILENT_MS`."""


@dataclass(slots=True)
class Peer:
    """Another member, according to its beats."""

    heard_life: int = 0
    heard: int = 0
    """The last beat that came, of any life, which the next beat echoes."""
    beat: Beat | None = None
    """The last one that echoed ours, so it is of a life that runs, and not of one that ended."""
    heard_at: Instant = NEVER
    said_at: Instant = NEVER
    """The time at which the beat was sent that ``beat`` echoes."""
    down: bool = False
    """Whether its link broke, and no beat came since."""

    def connected(self, now: Instant) -> bool:
        """Return whether each of the two received a beat of the other lately."""
        late = max(ms_between(self.heard_at, now), ms_between(self.said_at, now))
        return self.beat is not None and not self.down and late < SILENT_MS


Heard = Beat | BeatDue | LinkDown | Standing | Serving | StopVoting


class ClusterStatus(Role[Heard]):
    """Tells the coordinator of its node the connected members, and the leader its trust.

    Only configured members count, and only those that receive our beats, too: with a link that
    carries one way, a node would be elected that cannot answer. A non-voting member is
    connected like any other, and counts in no majority.

    Args:
        node: this node.
        members: all configured members, sorted.
        life: id of this node's life.
        priority: 1 to 14, or `OFF`.
        pid: id of its process.
        voting: the journals that vote.
        limit: the epochs that are plausible.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        node: str,
        members: tuple[str, ...],
        life: int,
        priority: int,
        pid: int,
        voting: VoterRegistry,
        limit: EpochLimit | None = None,
    ) -> None:
        super().__init__(address, host)
        self.node = node
        self.members = members
        self.life = life
        self.priority = priority
        self.pid = pid
        self.voting = voting
        self.limit = limit or EpochLimit()
        self.is_voter = voting.votes
        self.number = 0
        self.said: dict[int, Instant] = {}
        self.peers = {member: Peer() for member in members if member != node}
        self.standing = Standing(promised=0, seating=NOBODY, waiting_ms=0)
        self.serving = 0
        self.seen: tuple[Member, ...] = ()

    def begin(self, now: Instant) -> Effects:
        """Wait for the coordinator of this node, which gives beats their contents."""
        del now
        return [Wake(BEAT_MS, BeatDue())]

    def handle(self, sender: Address, event: Heard, now: Instant) -> Effects:
        """Process a beat, or new contents for the next ones."""
        match event:
            case Beat():
                return self._on_beat(sender, event, now)
            case BeatDue():
                return [*self._beat(now), Wake(BEAT_MS, BeatDue()), *self._tell(now)]
            case LinkDown():
                if event.node in self.peers:
                    self.peers[event.node].down = True
                return self._tell(now)
            case Standing():
                self.standing = event
                return [*self._beat(now), *self._tell(now)]
            case Serving():
                self.serving = event.epoch
                return [*self._beat(now), *self._tell(now)]
            case StopVoting():
                self.is_voter = False
                return [*self._beat(now), *self._tell(now)]

    def summary(self) -> Summary:
        """Return how many members are connected."""
        return (
            ("connected", len(self.seen)),
            ("priority", self.priority),
            ("votes", self.is_voter),
        )

    def _beat(self, now: Instant) -> list[Effect]:
        self.number += 1
        self.said[self.number] = now
        if len(self.said) > SAID_MAX:
            del self.said[next(iter(self.said))]
        return [
            Send(
                status_of(name),
                Beat(
                    life=self.life,
                    number=self.number,
                    echo_life=peer.heard_life,
                    echo=peer.heard,
                    priority=self.priority,
                    pid=self.pid,
                    promised=self.standing.promised,
                    seating=self.standing.seating,
                    serving=self.serving,
                    waiting_ms=self.standing.waiting_ms,
                    voter=self.voting.voter if self.is_voter else 0,
                ),
            )
            for name, peer in self.peers.items()
        ]

    def _on_beat(self, sender: Address, beat: Beat, now: Instant) -> Effects:
        peer = self.peers.get(node_of(sender))
        if peer is None or sender != status_of(node_of(sender)) or not _sound(beat, self.members):
            return (Observe("bakery.beat_malformed"),)
        if not self.limit.allows(max(beat.promised, beat.seating.epoch, beat.serving), now):
            return (TOO_FAR,)
        if (beat.life, beat.number) == (peer.heard_life, peer.heard):
            return (Observe("bakery.beat_repeated"),)
        peer.heard_life, peer.heard = beat.life, beat.number
        said_at = self.said.get(beat.echo) if beat.echo_life == self.life else None
        if said_at is None:
            return ()
        before = peer.beat
        if before is not None:
            same = before.life == beat.life
            late = beat.number <= before.number if same else beat.echo <= before.echo
            if late:
                return (Observe("bakery.late_beat"),)
        peer.beat, peer.heard_at, peer.said_at, peer.down = beat, now, said_at, False
        if beat.voter and not self._votes(node_of(sender), beat):
            return [Observe("bakery.unregistered_vote"), *self._tell(now)]
        return self._tell(now)

    def _votes(self, member: str, beat: Beat) -> bool:
        """Return whether ``member`` votes, under the journal that is registered for it."""
        return beat.voter != 0 and self.voting.registers(member, beat.voter)

    def _tell(self, now: Instant) -> list[Effect]:
        """Notify the coordinator of changes, and send the leader its trust."""
        effects: list[Effect] = []
        seen = self._connected(now)
        if seen != self.seen:
            self.seen = seen
            word = Seen(members=seen)
            effects += [Send(election_of(self.node), word), Send(leader_of(self.node), word)]
        if self.serving:
            effects += self._trust(now)
        return effects

    def _trust(self, now: Instant) -> list[Effect]:
        """Report since when a majority, none of which had promised more, has answered.

        Only voters count: the promise of another node does not bind it in its next life.
        """
        said = [now] if self.is_voter and self.standing.promised <= self.serving else []
        for name, peer in self.peers.items():
            beat = peer.beat
            if beat is not None and beat.promised <= self.serving and self._votes(name, beat):
                said.append(peer.said_at)
        enough = majority(len(self.members))
        if len(said) < enough:
            return []
        at = sorted(said, reverse=True)[enough - 1]
        return [Send(leader_of(self.node), Trust(epoch=self.serving, at=at))]

    def _connected(self, now: Instant) -> tuple[Member, ...]:
        own = self.standing
        mine = Member(
            self.node,
            self.life,
            self.priority,
            self.pid,
            own.promised,
            own.seating,
            self.serving,
            own.waiting_ms,
            self.is_voter,
        )
        others = [
            Member(
                name,
                peer.beat.life,
                peer.beat.priority,
                peer.beat.pid,
                peer.beat.promised,
                peer.beat.seating,
                peer.beat.serving,
                peer.beat.waiting_ms,
                self._votes(name, peer.beat),
            )
            for name, peer in self.peers.items()
            if peer.beat is not None and peer.connected(now)
        ]
        return tuple(sorted([mine, *others]))


def _sound(beat: Beat, members: tuple[str, ...]) -> bool:
    """Return whether every field of ``beat`` is within its limits."""
    numbers = beat.number > 0 and beat.echo >= 0 and 1 <= beat.priority <= OFF
    epochs = 0 <= beat.promised <= EPOCH_MAX and 0 <= beat.serving <= EPOCH_MAX
    return numbers and epochs and beat.waiting_ms >= 0 and sound_seating(beat.seating, members)
