"""The memory of Paxos: what was promised and what was accepted, kept across crashes."""

from __future__ import annotations

from holdfast.actors.effect import Effect, Effects, Observe, Persist, Send
from holdfast.actors.message import Address, Instant, node_of
from holdfast.actors.paxos.config import (
    LEASE_MS,
    VOTES_MAX,
    Config,
    leader_of,
    monitor_of,
    replica_of,
)
from holdfast.actors.paxos.event import Applied, Everywhere, Heard, Learned
from holdfast.actors.paxos.journal import Recovered
from holdfast.actors.paxos.lease import LeasePromise
from holdfast.actors.paxos.message import (
    BATCH_BYTES_MAX,
    BATCH_COMMANDS_MAX,
    COMMAND_BYTES_MAX,
    NO_BALLOT,
    NUMBER_MAX,
    PAGE,
    Accept,
    Accepted,
    Ballot,
    Batch,
    Commit,
    Heartbeat,
    HeartbeatAck,
    Pledge,
    Pledged,
    Preempted,
    Prepare,
    Promise,
    Vote,
)
from holdfast.actors.role import Host, Role


class Acceptor(Role[Prepare | Accept | Commit | Heartbeat | Applied]):
    """One acceptor. Source: PMMC, section 2.2.

    Both its promise and its votes are persisted before they are spoken of: an acceptor
    that answered and then forgot could help to choose two batches for one slot.

    Invariants:
        P5  ``promised`` never decreases, not over a restart either.
        P6  Whatever is accepted was proposed under a ballot not below ``promised``.

    It also gives the master its lease: for ``lease_ms`` after a heartbeat it adopts no
    ballot of another leader by `Prepare`. A restarted acceptor has forgotten when that was,
    so it waits a whole lease. `Accept` and `Heartbeat` are never refused for a lease: a
    leader that says them was promised a majority, one of which waited for the lease.

    Args:
        node: where it is.
        config: who is a member.
        recovered: what its journal holds.
        lease_ms: what a heartbeat is promised (ms).

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        node: str,
        config: Config,
        recovered: Recovered,
        lease_ms: int = LEASE_MS,
    ) -> None:
        super().__init__(address, host)
        self.node = node
        self.config = config
        self.lease_ms = lease_ms
        self.promised = recovered.promised
        self.votes = dict(recovered.votes)
        self.applied = 1
        """The first slot that this node has not applied. No votes are kept from before."""
        self.lease = LeasePromise()
        self.told = (NO_BALLOT, 0)
        """Under which ballot, up to which slot, the replica was told what is decided."""
        self.everywhere = 0

    def begin(self, now: Instant) -> Effects:
        """Keep whatever lease an earlier life may have given."""
        if self.promised > NO_BALLOT:
            self.lease.give(self.promised.leader, now, self.lease_ms)
        return ()

    def handle(
        self, sender: Address, event: Prepare | Accept | Commit | Heartbeat | Applied, now: Instant
    ) -> Effects:
        """Judge one ballot."""
        if isinstance(event, Applied):
            return self._on_applied(event)
        if not self._is_led(sender, event.ballot):
            return (Observe("paxos.stranger_leads"),)
        match event:
            case Prepare():
                return self._on_prepare(sender, event, now)
            case Accept():
                return self._on_accept(sender, event)
            case Commit():
                return self._learn(event.ballot, event.committed)
            case Heartbeat():
                return self._on_heartbeat(sender, event, now)

    def _is_led(self, sender: Address, ballot: Ballot) -> bool:
        """Return whether ``sender`` may speak for ``ballot``: its leader's node, a member."""
        node = node_of(sender)
        known = node in self.config.view.members and 1 <= ballot.round < NUMBER_MAX
        return known and ballot.leader == leader_of(node)

    def _on_prepare(self, scout: Address, prepare: Prepare, now: Instant) -> Effects:
        if not 1 <= prepare.first < NUMBER_MAX:
            return (Observe("paxos.impossible_slot"),)
        if prepare.ballot < self.promised:
            return (Send(scout, Preempted(ballot=self.promised)),)
        if prepare.ballot == self.promised:
            return (Send(scout, self._promise(prepare)),)
        if self.lease.forbids(prepare.ballot.leader, now):
            return (Observe("paxos.lease_kept"),)
        heard = Heard(ballot=prepare.ballot, leads=False)
        return (
            *self._adopt(prepare.ballot),
            Send(scout, self._promise(prepare)),
            Send(monitor_of(self.node), heard),
        )

    def _adopt(self, ballot: Ballot) -> list[Effect]:
        """Heed nothing below ``ballot`` from now on, and note what had won before it."""
        assert ballot > self.promised  # P5
        before, self.promised = self.promised, ballot
        effects: list[Effect] = []
        if self.applied > 1 and before > NO_BALLOT:
            effects.append(Persist(Commit(ballot=before, committed=self.applied)))
        return [*effects, Persist(Pledged(pledge=Pledge.PROMISED, ballot=ballot))]

    def _promise(self, prepare: Prepare) -> Promise:
        first = max(prepare.first, self.applied)
        slots = sorted(slot for slot in self.votes if slot >= first)
        return Promise(
            ballot=self.promised,
            asked=prepare.first,
            first=first,
            votes=tuple(self.votes[slot] for slot in slots[:PAGE]),
            more=slots[PAGE] if len(slots) > PAGE else None,
        )

    def _on_accept(self, commander: Address, accept: Accept) -> Effects:
        if not 1 <= accept.slot < NUMBER_MAX or not fits(accept.batch):
            return (Observe("paxos.impossible_batch"),)
        if accept.ballot < self.promised:
            return (Send(commander, Preempted(ballot=self.promised)),)
        answer = Send(commander, Accepted(ballot=accept.ballot, slot=accept.slot))
        before = self.votes.get(accept.slot)
        if before is not None and before.ballot == accept.ballot:
            return self._on_repeated(before, accept, answer)
        if len(self.votes) >= VOTES_MAX and before is None:
            return (Observe("paxos.votes_full"),)
        effects = self._adopt(accept.ballot) if accept.ballot > self.promised else []
        assert accept.ballot == self.promised  # P6
        effects += [Persist(accept), answer]
        if accept.slot >= self.applied:  # What was applied is known to be decided.
            self.votes[accept.slot] = Vote(accept.slot, accept.ballot, accept.batch)
        learned = self._learn(accept.ballot, accept.committed)
        return [*effects, *learned, *self._learn_late(accept)]

    def _on_repeated(self, before: Vote, accept: Accept, answer: Send) -> Effects:
        if before.batch != accept.batch:
            return (Observe("paxos.two_batches_of_one_ballot"),)
        return (answer, *self._learn(accept.ballot, accept.committed))

    def _learn(self, ballot: Ballot, committed: int) -> Effects:
        """Tell the replica which votes have won, now that their leader says so."""
        if node_of(ballot.leader) == self.node or not 1 <= committed < NUMBER_MAX:
            return ()  # The commander of this node tells the replica itself.
        first = max(self.told[1] if self.told[0] == ballot else 0, self.applied)
        if committed <= first:
            return ()
        self.told = (ballot, committed)
        slots = [slot for slot in self.votes if first <= slot < committed]
        votes = (self.votes[slot] for slot in sorted(slots))
        won = tuple((vote.slot, vote.batch) for vote in votes if vote.ballot == ballot)
        return (Send(replica_of(self.node), Learned(slots=won, committed=committed)),)

    def _learn_late(self, accept: Accept) -> Effects:
        """Tell the replica of a vote whose winning was heard of before it was asked for."""
        ballot, told = self.told
        if accept.ballot != ballot or not accept.committed <= accept.slot < told:
            return ()
        won = ((accept.slot, accept.batch),)
        return (Send(replica_of(self.node), Learned(slots=won, committed=told)),)

    def _on_heartbeat(self, commander: Address, beat: Heartbeat, now: Instant) -> Effects:
        if beat.ballot < self.promised:
            return (Send(commander, Preempted(ballot=self.promised)),)
        adopted = self._adopt(beat.ballot) if beat.ballot > self.promised else []
        self.lease.give(beat.ballot.leader, now, self.lease_ms)
        ack = HeartbeatAck(ballot=beat.ballot, number=beat.number, applied=self.applied)
        effects = [
            *adopted,
            Send(monitor_of(node_of(commander)), ack),
            Send(monitor_of(self.node), Heard(ballot=beat.ballot, leads=True)),
            *self._learn(beat.ballot, beat.committed),
        ]
        if beat.everywhere > self.everywhere:
            self.everywhere = beat.everywhere
            effects.append(Send(replica_of(self.node), Everywhere(slot=beat.everywhere)))
        return effects

    def _on_applied(self, applied: Applied) -> Effects:
        assert applied.slot >= self.applied
        if applied.slot - self.applied < len(self.votes):
            for slot in range(self.applied, applied.slot):
                self.votes.pop(slot, None)
        else:
            self.votes = {s: vote for s, vote in self.votes.items() if s >= applied.slot}
        self.applied = applied.slot
        return ()


def fits(batch: Batch) -> bool:
    """Return whether ``batch`` is within the limits of a slot."""
    sizes = [len(command) for command in batch.commands]
    return (
        len(sizes) <= BATCH_COMMANDS_MAX
        and sum(sizes) <= BATCH_BYTES_MAX
        and max(sizes, default=0) <= COMMAND_BYTES_MAX
        and 0 <= batch.time_ms < NUMBER_MAX
    )
