"""A world with watched disks and links, in which nodes die at the worst moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fencelock.actors.message import NS_PER_MS, Address, Message
from fencelock.actors.paxos.wire import NO_BALLOT, Accept, Ballot, Pledged, SnapshotChunk
from fencelock.cluster.node.storage.record import Mark
from fencelock.verification.simulation.disk import Copy, Disk
from fencelock.verification.simulation.faults import PPM
from fencelock.verification.simulation.network import Cut
from fencelock.verification.simulation.node import SimulatedNode
from fencelock.verification.simulation.plan import LogPlan
from fencelock.verification.simulation.world import World

if TYPE_CHECKING:
    from fencelock.verification.simulation.paxos_judge import LogJudge

CRASH_NS_MAX = 40 * NS_PER_MS
"""Longest time until the crash of a leader whose proposals reached only some (ns)."""

GAP_NS_MAX = 10 * NS_PER_MS
"""Longest time for which proposals are lost that others follow (ns)."""

SILENCE_ELECTIONS = 4
"""Longest silence of such a leader, in election timeouts."""

DEAF_SHARE = 0.7
"""Share of such leaders with a slow clock that receive nothing either: none deposes them."""

Letter = tuple[Address, Address, Message]
"""Sender, receiver and message."""


class WatchedDisk(Disk):
    """A disk that reports durable records."""

    def __init__(self, node: str, watcher: LogJudge) -> None:
        super().__init__()
        self.node = node
        self.watcher = watcher
        self.unsynced: list[Sequence[Message]] = []
        """The messages in the tail, before they were encoded."""

    def append(self, role: str, record: Message) -> None:
        super().append(role, record)
        self.unsynced.append((record,))

    def checkpoint(self, role: str, records: Sequence[Message]) -> None:
        super().checkpoint(role, records)
        self.unsynced.append(records)
        self.watcher.votes.forgets(self.node, role, records)

    def checkpoint_part(self, role: str, records: Sequence[Message], *, first: bool) -> None:
        super().checkpoint_part(role, records, first=first)
        self.unsynced.append(records)

    def end_checkpoint(self, role: str) -> None:
        super().end_checkpoint(role)
        self.unsynced.append(())

    def restore(self, copy: Copy) -> None:
        super().restore(copy)
        self.unsynced = []
        records = [record for records in self.records().values() for record in records]
        self.watcher.replaced(self.node, records)

    def sync(self) -> None:
        written = list(zip(self.tail, self.unsynced, strict=False))
        self.unsynced = []
        super().sync()
        for one, records in written:
            self.watcher.votes.wrote(self.node, one.role, records, alone=one.alone)
        for role in sorted({one.role for one, _ in written if one.mark is Mark.END}):
            self.watcher.votes.kept(self.node, role, self.records()[role])


class LogWorld(World):
    """Runs watched members, and strikes them where a proof would look."""

    def __init__(self, seed: int, plan: LogPlan, watcher: LogJudge) -> None:
        super().__init__(seed, plan.faults)
        self.plan = plan
        self.watcher = watcher
        self.chance = self.streams.fork("log")
        self.last_ballot = NO_BALLOT
        """The highest ballot of any proposal."""

    def make_disk(self, name: str, *, member: bool) -> Disk:
        """Return the disk of a node; those of members are watched."""
        return WatchedDisk(name, self.watcher) if member else Disk()

    def sync_time(self, node: str, boot: int) -> int:
        """Return the time of a sync (ns); now and then a node dies while it writes what matters."""
        time = super().sync_time(node, boot)
        kinds = (Pledged, SnapshotChunk)
        disk = self.nodes[node].disk
        matters = isinstance(disk, WatchedDisk) and any(
            isinstance(record, kinds) for records in disk.unsynced for record in records
        )
        dies = self.chance.randrange(1_000) < self.plan.crash_at_ballot_per_mille
        if matters and dies and not self.calm:
            self.fault_counts["crash at a ballot"] += 1
            self.after(self.chance.randrange(time), self.kill, node, boot)
        return time

    def kill(self, name: str, boot: int) -> None:
        """Let a node die if it still lives the life ``boot``; it restarts after a while."""
        if self.nodes[name].boot == boot and self.nodes[name].up and not self.calm:
            self.lose(name, int(self.chance.expovariate(1.0) * self.faults.down_ms * NS_PER_MS))

    def departs(self, node: SimulatedNode) -> None:
        """Show the departing messages of a member to the judge, and maybe strike."""
        if not node.member:
            return
        letters = [
            (sender, to, message)
            for envelopes in node.scheduler.outgoing.values()
            for to, sender, message in envelopes
        ]
        self.watcher.leaves(node.name, node.boot, letters)
        ballots = [message.ballot for _, _, message in letters if isinstance(message, Accept)]
        if ballots and not self.calm:
            self._strike(node, ballots[-1])

    def _strike(self, node: SimulatedNode, ballot: Ballot) -> None:
        """Now and then let a leader's proposals reach only some, and let it fall silent.

        The first proposals of a leadership are struck most: two leaderships that end so leave two
        votes for one slot.
        """
        chance, plan = self.chance, self.plan
        per_mille = plan.partial_per_mille
        if ballot > self.last_ballot:
            self.last_ballot, per_mille = ballot, plan.partial_leadership_per_mille
        if chance.randrange(1_000) >= per_mille:
            return
        self.fault_counts["partial proposal"] += 1
        others = [member for member in self.members if member != node.name]
        if chance.random() < plan.gap_share:
            self._leave_gap(node, others)
            return
        spared = chance.randint(0, (len(others) - 1) // 2)
        chance.shuffle(others)
        until = self.time + chance.randrange(SILENCE_ELECTIONS * plan.election_ms) * NS_PER_MS
        self.mishap(node.name, f"reaches only {others[:spared]} until {until // NS_PER_MS} ms")
        self._silence(node.name, others[spared:], until)
        self.after(1, self._silence, node.name, others[:spared], until)
        if plan.wrong_clocks:
            self._set_clocks_wrong(node.name)
            self.links.cut([(node.name, other) for other in others])
            if chance.random() < DEAF_SHARE:
                back = [(other, node.name) for other in others]
                self.network.cut(back, Cut(until, holds=False))
        if chance.random() < plan.partial_crash_share:
            self.after(chance.randrange(CRASH_NS_MAX), self.kill, node.name, node.boot)
        if chance.random() < plan.others_crash_share:
            for other in others:
                wait = chance.randrange(CRASH_NS_MAX)
                self.after(wait, self.kill, other, self.nodes[other].boot)

    def _leave_gap(self, node: SimulatedNode, others: list[str]) -> None:
        """Let the present proposals reach no member, the next ones all, and the leader die."""
        until = self.time + 1 + self.chance.randrange(GAP_NS_MAX)
        self.mishap(node.name, f"reaches nobody until {until // NS_PER_MS} ms")
        self._silence(node.name, others, until)
        self.after(
            GAP_NS_MAX + self.chance.randrange(CRASH_NS_MAX), self.kill, node.name, node.boot
        )

    def _set_clocks_wrong(self, slow: str) -> None:
        for name in self.members:
            wrong = -self.plan.drift_ppm if name == slow else self.plan.drift_ppm
            if self.nodes[name].up:
                self.nodes[name].run_clock_at(PPM + wrong)

    def _silence(self, name: str, to: list[str], until: int) -> None:
        if not self.calm:
            self.network.cut([(name, other) for other in to], Cut(until, holds=False))
