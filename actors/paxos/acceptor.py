"""The acceptor: promises ballots and votes on slots, and writes both down before it answers.

A promise is made durable in `Acceptor._adopt`, a vote in `Acceptor._on_accept`: the `Persist`
comes before the `Send`. `Votes` holds the votes for slots that are not applied yet, `LeasePromise`
is the acceptor's side of the leader lease, and `Acceptor._refuse_stranger` drops messages that
their sender may not send.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from fencelock.actors.bootstrap_message import StartVoting, StopVoting
from fencelock.actors.effect import Checkpoint, Effect, Effects, Observe, Persist, Send, Wake
from fencelock.actors.message import NS_PER_MS, Address, Instant, ms_between, node_of
from fencelock.actors.paxos.config import (
    BALLOT_ROUND_MAX,
    GROWTH_MAX,
    LEADER_LEASE_MS,
    NEAR_SLOTS,
    ROUND_JUMP_MAX,
    TIME_JUMP_MS_MAX,
    TOO_FAR,
    VOTES_BYTES_MAX,
    VOTES_MAX,
    WINDOW,
    MemberArguments,
    MemberRole,
    acceptor_of,
    leader_of,
    monitor_of,
    why_impossible,
)
from fencelock.actors.paxos.event import (
    Applied,
    BallotSeen,
    Behind,
    Learned,
    LeaseExpired,
    LogFull,
    MinApplied,
    Trimmed,
    ViewChanged,
)
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.reads import StalenessBound
from fencelock.actors.paxos.wire import (
    FITTING_BYTES,
    NO_BALLOT,
    Accept,
    Accepted,
    Ballot,
    Batch,
    Commit,
    Heartbeat,
    HeartbeatAck,
    LeaderMessage,
    Located,
    Pledge,
    Pledged,
    Preempted,
    Prepare,
    Promise,
    Release,
    Vote,
    fits,
    page_of,
    shown_ballot,
)
from fencelock.actors.role import Facts, Host, Summary
from fencelock.actors.role_message import DiskSynced, Level
from fencelock.actors.table.wire import LOG_VERSION

SeatEvent = ViewChanged | StartVoting | StopVoting
"""Events that change on which slots the acceptor votes."""

OwnEvent = Applied | Trimmed | SeatEvent | DiskSynced | LeaseExpired
"""Events of the acceptor's own node."""

STREAM_BYTES = 32 << 20
"""An acceptor notifies its replica each time that its stream has grown by so much (bytes, 32 MiB).
While slots are decided the replica makes snapshots anyway; but votes may arrive without decisions.
"""

VERSION_HEARTBEATS = 20
"""Every so many heartbeats are answered with this node's version: once a second."""


class Acceptor(MemberRole[LeaderMessage | OwnEvent]):
    """One acceptor. Source: PMMC, section 2.2.

    Promises and votes are persisted before they are sent: an acceptor that answered and then
    forgot could help to choose two batches for one slot.

    Invariants:
        promises-kept: ``promised`` never decreases, not even over a restart.
        no-vote-below-promise: Every accepted batch was proposed under a ballot not below
            ``promised``.
        trimmed-is-durable: A vote is removed from the journal only when the replica's stream, which
            is durable by then, covers its slot.

    It also gives the leader its lease: for ``lease_ms`` after a heartbeat it adopts no
    ballot of another leader by `Prepare`. A restarted acceptor does not know when it last gave
    a lease, so it waits for a whole one; the journal says how long that may be. `Accept` and
    `Heartbeat` are never refused for a lease: their leader has a majority's promises, and one of
    that majority waited for the lease to end. The leader may give its lease back (`Release`) when
    it no longer relies on it.

    On a non-voting node it learns which votes win, and sends nothing to other nodes. It
    promises nothing: a promise that no leader receives would keep it from learning.

    Args:
        recovered: the contents of its journal.
        voter: the id that its votes name.
        votes: whether its journal is the registered one, and not an old copy.
        lease_ms: duration of the lease that a heartbeat renews (ms).
        version: the version of this software, for operators.

    """

    def __init__(
        self,
        address: Address,
        host: Host,
        *,
        recovered: Recovered,
        voter: int = 0,
        votes: bool = True,
        lease_ms: int = LEADER_LEASE_MS,
        version: str = "",
        **member: Unpack[MemberArguments],
    ) -> None:
        super().__init__(address, host, **member)
        self.voter = voter
        self.trusted = votes
        """Whether its journal is not an old copy, as far as is known."""
        self.seat = self.config.seat(self.acceptor, voter)
        """The slots on which it votes: all since this journal got its seat, also those of views
        that ended. A leader that lags behind still needs the votes on them."""
        self.is_voter = self.trusted and len(self.seat) > 0
        self.lease_ms = lease_ms
        self.version = version
        self.recorded_lease_ms = recovered.lease_ms
        """The longest lease that counts after a restart, according to the journal."""
        self.promised = recovered.promised if votes else NO_BALLOT
        self.kept = recovered.promised
        """The promise of earlier lives: nothing below it is accepted, even before it votes."""
        self.floor = recovered.led
        """A round that is known without a promise: this node led it, or its group began there."""
        self.votes = Votes(recovered.votes)
        self.applied = recovered.next
        """The first slot that this node has not applied, as its replica last reported; it reports
        every few slots. Earlier votes are dropped: a promise that began before it would hide
        them."""
        self.known = recovered.next
        """A lower bound on the first slot that is not applied, as the journal has it."""
        self.stored = recovered.next
        """The journal has the state after all slots before this one, at least."""
        self.lease = LeasePromise()
        self.commander: Address | None = None
        """Sender of the last message that a leader was entitled to send, with its ballot."""
        self.led = NO_BALLOT
        self.learned = NO_BALLOT
        """The ballot of the last `Learned` to the replica."""
        self.committed = 0
        """All slots before this one are decided, as reported in that `Learned`."""
        self.min_applied = 0
        self.released = NO_BALLOT
        """The last ballot whose leader gave its lease back."""
        self.staleness = StalenessBound(self.node, self.config)
        self.written = 0
        """Bytes written since the stream was last cut, some of them in earlier lives."""
        self.synced: DiskSynced | None = None

    def facts(self, now: Instant) -> Facts:
        """Return its promise, its lease, and the votes that a later leader would have to adopt."""
        yield from self.summary()
        yield "promised to", shown_ballot(self.promised)
        left_ms = ms_between(now, self.lease.until)
        yield "lease", f"{node_of(self.lease.leader)}, {left_ms} ms left" if left_ms else "none"
        yield "decided before slot", self.committed
        yield "slots with a vote", len(self.votes.by_slot)
        yield "bytes of votes", self.votes.size
        for slot in reversed(self.votes.slots(self.committed)):
            vote = self.votes.at(slot)
            yield f"slot {slot}", f"{vote.batch.size} bytes under {shown_ballot(vote.ballot)}"

    def begin(self, now: Instant) -> Effects:
        """Honour the lease that an earlier life may have given, perhaps of another length."""
        before_ms = self.recorded_lease_ms
        if self.kept > NO_BALLOT:
            self.lease.give(self.kept.leader, now, max(self.lease_ms, before_ms))
        if self.lease_ms > before_ms:
            return self._record_lease()
        return (Wake(before_ms, LeaseExpired()),) if self.lease_ms < before_ms else ()

    def _record_lease(self) -> Effects:
        """Record how long leases last from now on; leases of earlier lives are shorter, or over."""
        self.recorded_lease_ms = self.lease_ms
        return (Persist(self._lease_record()),)

    def _lease_record(self) -> Pledged:
        return Pledged(pledge=Pledge.LEASE, ballot=Ballot(self.recorded_lease_ms, self.address))

    def handle(self, sender: Address, event: LeaderMessage | OwnEvent, now: Instant) -> Effects:
        effects: Effects
        if not isinstance(event, LeaderMessage):
            effects = self._on_own(event)
        elif isinstance(event, Prepare) and not self.is_voter:
            effects = (Observe("paxos.non_voter_asked"), *self._correct(sender, event))
        elif (sender != self.commander or event.ballot != self.led) and (
            refused := self._refuse_stranger(sender, event)
        ):
            effects = (*refused, *self._correct(sender, event))
        else:
            self.commander, self.led = sender, event.ballot
            match event:
                case Accept():
                    effects = self._on_accept(sender, event, now)
                case Prepare():
                    effects = self._on_prepare(sender, event, now)
                case Commit():
                    effects = self._on_commit(sender, event, now)
                case Heartbeat():
                    effects = self._on_heartbeat(sender, event, now)
                case Release():
                    effects = self._on_release(event, now)
                case _:
                    effects = ()
        return effects if self.is_voter else self._without_votes(effects)

    def summary(self) -> Summary:
        return (
            ("votes", self.is_voter),
            ("promised", self.promised.round),
            ("applied", self.applied),
        )

    def _without_votes(self, effects: Effects) -> Effects:
        return [
            effect
            for effect in effects
            if not isinstance(effect, Send) or node_of(effect.to) == self.node
        ]

    def _on_seat_changed(self, event: SeatEvent) -> Effects:
        """Vote on the slots of the views that count this journal, and on no others.

        A journal that has voted without a break also keeps the slots of views that ended. A new
        journal does not get them: it lacks what the former one promised.
        """
        former = self.seat if self.is_voter else range(0)
        if isinstance(event, StopVoting):
            self.trusted, self.promised, self.kept = False, NO_BALLOT, NO_BALLOT
        elif isinstance(event, StartVoting):
            self.trusted, self.promised = True, max(self.promised, self.kept)
        seat = self.config.seat(self.acceptor, self.voter)
        if len(seat) and len(former) and former.start <= seat.start <= former.stop:
            seat = range(former.start, seat.stop)
        self.seat, self.is_voter = seat, self.trusted and len(seat) > 0
        return ()

    def _refuse_stranger(self, sender: Address, event: LeaderMessage) -> Effects:
        """Refuse what ``sender`` may not send, or a round too far away; else return nothing.

        A scout is sent the round known here, so that it can lead this acceptor up. The leader of
        this node is trusted: no other process can send under its name.
        """
        speaker, ballot, promised = node_of(sender), event.ballot, self.promised
        known = speaker in self.config.members and 1 <= ballot.round <= BALLOT_ROUND_MAX
        if not known or ballot.leader != leader_of(speaker):
            return (Observe("paxos.stranger_leads"),)
        highest = max(promised.round, self.floor, self.config.floor)
        if ballot.round - highest <= ROUND_JUMP_MAX or speaker == self.node:
            return ()
        if not isinstance(event, Prepare):
            return (TOO_FAR,)
        named = max(promised.round, self.config.base)  # Other rounds were not promised.
        return (Send(sender, Preempted(ballot=Ballot(named, promised.leader))), TOO_FAR)

    def _correct(self, sender: Address, event: LeaderMessage) -> Effects:
        """If one of two nodes knows an older view than the other, let it learn the newer one."""
        node, view = node_of(sender), self.config.newest.number
        if not isinstance(event, Prepare | Heartbeat):
            return ()
        if event.view > view:
            return (Send(self.monitor, Behind(node=node)),)
        if event.view == view or node in self.config.members:
            return ()
        located = Located(leader="", applied=self.config.applied, view=view)
        return (Send(monitor_of(node), located),)

    def _on_own(self, event: OwnEvent) -> Effects:
        match event:
            case Applied():
                assert event.slot >= self.applied
                self.votes.forget(self.applied, event.slot)
                self.applied = event.slot
            case Trimmed():
                return self._on_trimmed(event)
            case LeaseExpired():
                return self._record_lease()
            case DiskSynced():
                self.synced = event
            case ViewChanged() | StartVoting() | StopVoting():
                return self._on_seat_changed(event)
        return ()

    def _on_prepare(self, scout: Address, prepare: Prepare, now: Instant) -> Effects:
        if refused := self.bounds.refuse_slot(
            scout, "a request for votes from", prepare.first, now
        ):
            return refused
        if acceptor_of(node_of(scout)) not in self.config.newest.registered:
            return (Observe("paxos.unregistered_leads"),)
        if prepare.ballot < self.promised:
            return (Send(scout, Preempted(ballot=self.promised)),)
        if prepare.ballot == self.promised:
            return (Send(scout, self._promise(prepare)),)
        if self.lease.forbids(prepare.ballot.leader, now):
            return (Observe("paxos.lease_kept"),)
        seen = BallotSeen(ballot=prepare.ballot, leads=False)
        return (
            *self._adopt(prepare.ballot),
            Send(scout, self._promise(prepare)),
            Send(self.monitor, seen),
        )

    def _adopt(self, ballot: Ballot) -> list[Effect]:
        """Promise ``ballot``, and record which slots were decided under the previous one.

        The record holds the slot that the previous leader reported. This node may have applied
        more, but the ballot that decided it is not known, and votes under other ballots did not
        win.
        """
        assert ballot > self.promised  # promises-kept
        before, self.promised = self.promised, ballot
        effects: list[Effect] = []
        if self.learned == before and self.committed > 1:
            effects.append(Persist(Commit(ballot=before, committed=self.committed)))
        return [*effects, Persist(Pledged(pledge=Pledge.PROMISED, ballot=ballot))]

    def _promise(self, prepare: Prepare) -> Promise:
        first = max(prepare.first, self.applied)
        slots = self.votes.slots(first)
        end = page_of(self.votes.by_slot[slot].batch for slot in slots)
        return Promise(
            ballot=self.promised,
            asked=prepare.first,
            first=first,
            votes=tuple(self.votes.at(slot) for slot in slots[:end]),
            more=slots[end] if len(slots) > end else None,
            voter=self.voter,
        )

    def _on_accept(self, commander: Address, accept: Accept, now: Instant) -> Effects:
        slot, ballot, batch = accept.slot, accept.ballot, accept.batch
        config = self.config
        committed = accept.committed
        possible = 1 <= slot < committed + WINDOW and committed <= config.applied + GROWTH_MAX
        size = batch.size
        small = size <= FITTING_BYTES and batch.time_ms >= 0
        if not (possible and (small or fits(batch)) and batch.origin <= ballot):
            return self._refuse_impossible(commander, accept, now)
        if slot >= config.applied + VOTES_MAX:
            return self._refuse_far(commander, accept, now)
        if batch.time_ms > config.time_ms + TIME_JUMP_MS_MAX and (
            batch.time_ms > config.latest_ms(slot)
        ):
            return self._refuse_impossible(commander, accept, now)
        # Also while it may not vote: a lower ballot must not replace a vote in the journal.
        if ballot < (promised := max(self.promised, self.kept)):
            return (Send(commander, Preempted(ballot=promised)),)
        reply: Effects = ()
        # No vote counts on a slot that the leader knows to be decided.
        if committed <= slot and slot in self.seat:
            accepted = Accepted(ballot=ballot, slot=slot, voter=self.voter)
            reply = (Send(commander, accepted),)
        votes = self.votes
        before = votes.by_slot.get(slot)
        if before is not None and before.ballot == ballot:
            return self._on_repeated(before, accept, reply)
        if before is None and slot >= config.applied + NEAR_SLOTS and votes.is_full(size):
            return (Observe("paxos.votes_full"),)  # Nearer ones are needed to go on.
        if slot >= self.applied:  # What was applied is known to be decided.
            votes.size += size if before is None else size - before.batch.size
            votes.by_slot[slot] = accept
        effects = self._adopt(ballot) if ballot > self.promised else []
        assert ballot == self.promised  # no-vote-below-promise
        if slot >= self.known + VOTES_MAX:
            self.known = config.applied
            known = Ballot(self.known, self.address)
            effects.append(Persist(Pledged(pledge=Pledge.APPLIED, ballot=known)))
        effects += (Persist(accept), *reply)
        if ballot == self.learned and self.applied <= slot < self.committed:
            # It arrives after it was reported as decided.
            late = Learned(slots=((slot, batch),), committed=self.committed)
            effects.append(Send(self.replica, late))
        if committed > self.committed or ballot != self.learned:
            effects += self._learn(ballot, committed)
        written, self.written = self.written, self.written + size
        if written // STREAM_BYTES < self.written // STREAM_BYTES:
            effects.append(Send(self.replica, LogFull(written=self.written)))
        return effects

    def _refuse_impossible(self, commander: Address, accept: Accept, now: Instant) -> Effects:
        """Drop what no honest leader proposes; the docstring of `config` has the bounds."""
        slot = accept.slot
        if not 1 <= slot < accept.committed + WINDOW:
            text = (
                f"a proposal for slot {slot}, although slots from {accept.committed} on are "
                f"undecided and at most {WINDOW} may be"
            )
            return self.bounds.report(commander, "paxos.impossible_slot", text, now)
        if refused := self._refuse_growth(commander, accept.committed, now):
            return refused
        why = why_impossible(accept.batch, self.config.latest_ms(slot), accept.ballot)
        text = f"a proposal for slot {slot} with {why}"
        return self.bounds.report(commander, "paxos.impossible_batch", text, now)

    def _refuse_far(self, commander: Address, accept: Accept, now: Instant) -> Effects:
        """Drop a proposal that is forged, or too far ahead of what this node applied."""
        ahead = accept.slot - self.config.applied
        text = (
            f"a proposal for slot {accept.slot}, {ahead} slots ahead of this node, which votes on "
            f"{VOTES_MAX} slots at most and fetches the others first"
        )
        level = Level.ERROR if ahead >= GROWTH_MAX else Level.WARNING
        return self.bounds.report(commander, "paxos.slot_too_far", text, now, level)

    def _on_commit(self, commander: Address, commit: Commit, now: Instant) -> Effects:
        if refused := self._refuse_growth(commander, commit.committed, now):
            return refused
        return self._learn(commit.ballot, commit.committed)

    def _refuse_growth(self, commander: Address, committed: int, now: Instant) -> Effects:
        """Report a ``committed`` that no log can have reached; return nothing otherwise."""
        return self.bounds.refuse_slot(commander, "that slots are decided up to", committed, now, 0)

    def _on_repeated(self, before: Vote | Accept, accept: Accept, reply: Effects) -> Effects:
        if before.batch != accept.batch:
            return (Observe("paxos.two_batches_of_one_ballot"),)
        return (*reply, *self._learn(accept.ballot, accept.committed))

    def _learn(self, ballot: Ballot, committed: int) -> Effects:
        """Notify the replica which votes have won, as their leader reports."""
        known = self.committed if self.learned == ballot else 0
        if ballot < self.learned or not known < committed <= self.config.applied + GROWTH_MAX:
            return ()
        self.learned, self.committed = ballot, committed
        first = max(known, self.applied)
        if committed <= first or ballot.leader == self.leader:
            return ()  # The commander of this node notifies the replica itself.
        won: tuple[tuple[int, Batch], ...] = ()
        if committed - first == 1:  # As long as slots are decided one at a time.
            vote = self.votes.by_slot.get(first)
            if vote is not None and vote.ballot == ballot:
                won = ((first, vote.batch),)
        else:
            won = self.votes.won(ballot, first, committed)
        return (Send(self.replica, Learned(slots=won, committed=committed)),)

    def _on_heartbeat(self, commander: Address, beat: Heartbeat, now: Instant) -> Effects:
        if beat.ballot < self.promised:
            return (Send(commander, Preempted(ballot=self.promised)),)
        if refused := self._refuse_growth(commander, beat.committed, now):
            return refused
        adopted = self._adopt(beat.ballot) if beat.ballot > self.promised else []
        if beat.ballot == self.released:
            return [*adopted, Observe("paxos.late_heartbeat")]
        self.lease.give(beat.ballot.leader, now, self.lease_ms)
        synced = self.synced
        ack = HeartbeatAck(
            ballot=beat.ballot,
            number=beat.number,
            applied=self.applied,
            voter=self.voter,
            view=self.config.newest.number,
            sync_us=0 if synced is None else synced.mean_us,
            sync_age_ms=0 if synced is None else ms_between(synced.since, now) + 1,  # Rounded up.
            lease_ms=self.lease_ms,
            version="" if beat.number % VERSION_HEARTBEATS else self.version,
            log_version=LOG_VERSION,
            stored=self.stored,
        )
        effects = [
            *adopted,
            Send(monitor_of(node_of(commander)), ack),
            Send(self.monitor, BallotSeen(ballot=beat.ballot, leads=True, timing=beat.timing)),
            *self._learn(beat.ballot, beat.committed),
        ]
        fresh = self.staleness.take(beat, now)
        if fresh is not None:
            effects.append(Send(self.replica, fresh))
        if self.min_applied < beat.min_applied <= self.config.applied:
            self.min_applied = beat.min_applied
            effects.append(Send(self.replica, MinApplied(slot=beat.min_applied)))
        return effects

    def _on_release(self, release: Release, now: Instant) -> Effects:
        """End the lease early: the leader no longer relies on it."""
        self.released = max(self.released, release.ballot)
        if self.lease.leader != release.ballot.leader or release.ballot < self.promised:
            return (Observe("paxos.release_ignored"),)
        self.lease.end(now)
        return (Observe("paxos.lease_released"),)

    def _on_trimmed(self, trimmed: Trimmed) -> Effects:
        """Write down again what still counts: the promise, and votes from that slot on.

        The replica sends `Applied` for later slots after this. So no vote from this slot on was
        ever dropped.
        """
        assert trimmed.slot >= self.applied
        self.votes.forget(self.applied, trimmed.slot)
        self.applied = self.known = self.stored = trimmed.slot
        votes = [self.votes.by_slot[slot] for slot in self.votes.slots(0)]
        assert all(vote.slot >= trimmed.slot for vote in votes)
        self.written = self.votes.size
        records: list[Pledged | Accept] = [
            Accept(ballot=vote.ballot, slot=vote.slot, batch=vote.batch, committed=trimmed.slot)
            for vote in votes
        ]
        promised = max(self.promised, self.kept)
        if promised > NO_BALLOT:
            records.append(Pledged(pledge=Pledge.PROMISED, ballot=promised))
        if self.recorded_lease_ms != LEADER_LEASE_MS:
            records.append(self._lease_record())
        return (Checkpoint(tuple(records)),)


class Votes:
    """The last vote for each slot."""

    def __init__(self, by_slot: Mapping[int, Vote]) -> None:
        self.by_slot: dict[int, Vote | Accept] = dict(by_slot)
        """Votes by slot: a vote of this life is kept as the `Accept` that asked for it."""
        self.size = sum(vote.batch.size for vote in self.by_slot.values())
        """Total size of their batches (bytes)."""

    def is_full(self, size: int) -> bool:
        """Return whether there is no room for the vote on another slot, with ``size`` bytes."""
        return len(self.by_slot) >= VOTES_MAX or self.size + size > VOTES_BYTES_MAX

    def at(self, slot: int) -> Vote:
        vote = self.by_slot[slot]
        return Vote(slot, vote.ballot, vote.batch)

    def slots(self, first: int, end: int | None = None) -> list[int]:
        """Return in order the slots from ``first`` on, and before ``end``, that have a vote."""
        by_slot = self.by_slot
        if end is not None and end - first < len(by_slot):
            return [slot for slot in range(first, end) if slot in by_slot]
        return sorted(slot for slot in by_slot if slot >= first and (end is None or slot < end))

    def won(self, ballot: Ballot, first: int, end: int) -> tuple[tuple[int, Batch], ...]:
        by_slot = self.by_slot
        votes = [by_slot[slot] for slot in self.slots(first, end)]
        return tuple([(vote.slot, vote.batch) for vote in votes if vote.ballot == ballot])

    def forget(self, first: int, end: int) -> None:
        """Drop the votes before slot ``end``; there are none before ``first``."""
        few = end - first < len(self.by_slot)
        slots = range(first, end) if few else [slot for slot in self.by_slot if slot < end]
        for slot in slots:
            vote = self.by_slot.pop(slot, None)
            self.size -= 0 if vote is None else vote.batch.size


class LeasePromise:
    """An acceptor's side: the leader that it promised to follow, and until when."""

    def __init__(self) -> None:
        self.leader = Address("")
        self.until = Instant(0)

    def give(self, leader: Address, now: Instant, lease_ms: int) -> None:
        """Adopt only ``leader`` for ``lease_ms`` from ``now``, or longer if that was promised."""
        before = self.until if leader == self.leader else now
        self.leader, self.until = leader, max(before, Instant(now + lease_ms * NS_PER_MS))

    def end(self, now: Instant) -> None:
        self.until = now

    def forbids(self, leader: Address, now: Instant) -> bool:
        """Return whether a ballot of ``leader`` must not be adopted at ``now``."""
        return leader != self.leader and now < self.until
