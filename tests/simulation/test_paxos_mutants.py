"""Bugs planted in the log, each to be seen by the judge named for it while all others look away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from support.expect import with_long
from support.judged import LogMutant, assert_bug_seen, with_role

from fencelock.actors.effect import Checkpoint, Effect, Effects, Persist, Send, Spawn
from fencelock.actors.message import Address, Event, Instant
from fencelock.actors.paxos.acceptor import Acceptor
from fencelock.actors.paxos.commander import Commander
from fencelock.actors.paxos.config import LogConfig, View, replica_of
from fencelock.actors.paxos.event import Adopted, Learned
from fencelock.actors.paxos.journal import Recovered
from fencelock.actors.paxos.leader import Leader
from fencelock.actors.paxos.message import (
    NO_OP,
    Accept,
    Accepted,
    Ballot,
    Commit,
    Heartbeat,
    Preempted,
    Prepare,
    Promise,
)
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.scout import Scout
from fencelock.actors.role import Role
from fencelock.verification.simulation.paxos_run import LogSubject
from fencelock.verification.simulation.plan import Focus, LogPlan

Handle = Callable[[Any, Address, Any, Instant], Effects]
Broken = Callable[[Handle], Handle]
"""From a role's handler to a wrong one."""


def instead(role: type[Role[Any]], broken: Broken) -> LogSubject:
    """Run a role with another `handle` in the place of ``role``."""
    return with_role(with_handle(role, broken))


def with_handle(role: Any, broken: Broken) -> type[Role[Any]]:
    return type(f"Broken{role.__name__}", (role,), {"handle": broken(role.handle)})


def hears(alter: Callable[[Any, Any], Any]) -> Broken:
    """Let a role receive something else."""
    return lambda sound: (
        lambda role, sender, event, now: sound(role, sender, alter(role, event), now)
    )


def says(alter: Callable[[Any, Any, Effects], Sequence[Effect]]) -> Broken:
    """Let a role say something else."""
    return lambda sound: (
        lambda role, sender, event, now: alter(role, event, sound(role, sender, event, now))
    )


def too_late(*kinds: type[Event]) -> Broken:
    """Write after everything else, and let nothing wait for it."""

    def alter(role: Any, event: Event, effects: Effects) -> Sequence[Effect]:
        if not isinstance(event, kinds):
            return effects
        return sorted(effects, key=lambda effect: isinstance(effect, Persist | Checkpoint))

    return says(alter)


def no_votes(scout: Scout, event: Event) -> Event:
    return replace(event, votes=()) if isinstance(event, Promise) else event


def lowest_first(scout: Scout, event: Event) -> Event:
    """Turn the order of the ballots of all votes round."""
    if not isinstance(event, Promise):
        return event
    last = scout.ballot.round - 1
    votes = (v._replace(ballot=Ballot(last - v.ballot.round, v.ballot.leader)) for v in event.votes)
    return replace(event, votes=tuple(votes))


class HalfView(View):
    """Calls half of the members a majority."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "majority", (len(self.members) + 1) // 2)


def half_is_enough(spawn: Spawn) -> Spawn:
    if "config" not in spawn.arguments:
        return spawn
    config = spawn.arguments["config"]
    view = config.newest
    half = LogConfig(HalfView(view.number, view.members, view.registered))
    return replace(spawn, arguments={**spawn.arguments, "config": half})


def obeys_the_past(acceptor: Acceptor, event: Event, effects: Effects) -> Sequence[Effect]:
    """Also accept batches below the promise."""
    refused = [e for e in effects if isinstance(e, Send) and isinstance(e.message, Preempted)]
    if not isinstance(event, Accept) or not refused:
        return effects
    accepted = Accepted(ballot=event.ballot, slot=event.slot)
    return (Persist(event), Send(refused[0].to, accepted))


def only_rounds_count(acceptor: Acceptor, event: Event) -> Event:
    """Take every ballot of the promised round for the promised one."""
    ballot = getattr(event, "ballot", acceptor.promised)
    if ballot.round == acceptor.promised.round:
        acceptor.promised = ballot
    return event


def counts_messages(kind: type[Promise] | type[Accepted]) -> Broken:
    """Take each reply for that of another acceptor."""

    def broken(sound: Handle) -> Handle:
        def handle(role: Any, sender: Address, event: Event, now: Instant) -> Effects:
            if not isinstance(event, kind):
                return sound(role, sender, event, now)
            role._taken = getattr(role, "_taken", 0) + 1
            view = role.config.newest
            other = view.acceptors[role._taken % len(view.acceptors)]
            return sound(role, other, replace(event, voter=view.registered.get(other, 0)), now)

        return handle

    return broken


def closes_gaps(replica: Replica, event: Event) -> Event:
    """Take a batch decided behind a gap for the next one."""
    if not isinstance(event, Learned) or not event.slots:
        return event
    gap = max(0, event.slots[0][0] - replica.decided.next)
    return replace(event, slots=tuple((slot - gap, batch) for slot, batch in event.slots))


def one_page(acceptor: Acceptor, event: Event, effects: Effects) -> Sequence[Effect]:
    """Report the first vote only, and say that this is all."""
    return [
        Send(e.to, replace(e.message, votes=e.message.votes[:1], more=None))
        if isinstance(e, Send) and isinstance(e.message, Promise)
        else e
        for e in effects
    ]


def any_vote_has_won(acceptor: Acceptor, event: Event, effects: Effects) -> Sequence[Effect]:
    """Take one's own vote for the decision, in any ballot."""
    if not isinstance(event, Commit | Heartbeat):
        return effects
    votes = acceptor.votes
    slots = tuple((slot, votes.by_slot[slot].batch) for slot in votes.slots(0, event.committed))
    learned = Learned(slots=slots, committed=event.committed)
    return [*effects, Send(replica_of(acceptor.node), learned)]


def votes_are_decisions(spawn: Spawn) -> Spawn:
    """Recover one's own votes as decisions."""
    known = spawn.arguments.get("recovered", Recovered())
    decided = list(known.decided)
    while (slot := len(decided) + 1) in known.votes:
        decided.append(known.votes[slot].batch)
    votes = {slot: vote for slot, vote in known.votes.items() if slot > len(decided)}
    recovered = dataclasses.replace(known, decided=tuple(decided), votes=votes)
    if "recovered" not in spawn.arguments:
        return spawn
    return replace(spawn, arguments={**spawn.arguments, "recovered": recovered})


def never_learns(lead: Leader, event: Event) -> Event:
    """Propose from the first slot that is not applied here, whatever others have decided."""
    if not isinstance(event, Adopted) or event.floor <= lead.applied:
        return event
    return replace(event, floor=lead.applied)


def no_holes(scout: Scout, event: Event, effects: Effects) -> Sequence[Effect]:
    """Leave out the slots for which no acceptor reported anything."""
    return [
        Send(e.to, replace(e.message, batches=tuple(b for b in e.message.batches if b != NO_OP)))
        if isinstance(e, Send) and isinstance(e.message, Adopted)
        else e
        for e in effects
    ]


def dies_in_syncs(plan: LogPlan) -> LogPlan:
    """Let nodes lose what they did not sync, most often a promise or a ballot, and return soon."""
    faults = dataclasses.replace(plan.faults, sync_us=2_000, tail_lost=True, down_ms=5)
    return dataclasses.replace(plan, crash_at_ballot_per_mille=300, faults=faults)


def scout(broken: Broken) -> type[Role[Any]]:
    return with_handle(Scout, broken)


DUELS = Focus.DUELS
PROMISES_LATE = instead(Acceptor, too_late(Prepare))
VOTES_LATE = instead(Acceptor, too_late(Accept, Prepare))
LEADS_LATE = instead(Leader, too_late(Event))
LOWEST = scout(hears(lowest_first))
ONLY_ROUNDS = instead(Acceptor, hears(only_rounds_count))
MUTANTS = {
    "promise before it is durable": LogMutant("durable-before-sent", 3, PROMISES_LATE),
    "promise before it is durable, forgotten": LogMutant(
        "promises-kept", 30, PROMISES_LATE, focus=DUELS, provoke=dies_in_syncs
    ),
    "vote before it is durable": LogMutant("durable-before-sent", 3, VOTES_LATE),
    "vote before it is durable, forgotten": LogMutant("one-batch-a-slot", 30, VOTES_LATE),
    "ballot before it is durable": LogMutant("durable-before-sent", 3, LEADS_LATE),
    "ballot before it is durable, twice": LogMutant(
        "one-life-a-ballot", 30, LEADS_LATE, focus=DUELS, provoke=dies_in_syncs
    ),
    "votes are ignored": LogMutant("highest-vote-proposed", 10, spawned=scout(hears(no_votes))),
    "votes are ignored, two chosen": LogMutant(
        "one-batch-a-slot", 10, spawned=scout(hears(no_votes))
    ),
    "the lowest ballot": LogMutant("highest-vote-proposed", 20, spawned=LOWEST, focus=DUELS),
    "the lowest ballot, two chosen": LogMutant(
        "one-batch-a-slot", 40, spawned=LOWEST, focus=DUELS, first=8
    ),
    "half is a majority": LogMutant(
        "distinct-majority", 20, LogSubject(change=half_is_enough), first=7
    ),
    "accepts below the promise": LogMutant(
        "no-vote-below-promise", 20, instead(Acceptor, says(obeys_the_past)), first=6
    ),
    "ballots without a node": LogMutant("no-vote-below-promise", 20, ONLY_ROUNDS, first=1),
    "ballots without a node, promise": LogMutant("promises-kept", 20, ONLY_ROUNDS, first=1),
    "counts votes, not voters": LogMutant(
        "distinct-majority", 20, spawned=with_handle(Commander, counts_messages(Accepted))
    ),
    "counts promises, not acceptors": LogMutant(
        "distinct-majority", 30, spawned=scout(counts_messages(Promise))
    ),
    "applies past a gap": LogMutant("slots-in-order", 20, instead(Replica, hears(closes_gaps))),
    "a promise of one page": LogMutant(
        "promises-report-votes", 10, instead(Acceptor, says(one_page))
    ),
    "any vote has won": LogMutant(
        "decisions-stay", 30, instead(Acceptor, says(any_vote_has_won)), focus=DUELS, first=7
    ),
    "votes recovered as decisions": LogMutant(
        "slots-in-order", 20, LogSubject(change=votes_are_decisions)
    ),
    "leads without catching up": LogMutant(
        "highest-vote-proposed", 20, instead(Leader, hears(never_learns)), focus=DUELS, first=10
    ),
    "holes are closed": LogMutant(
        "highest-vote-proposed", 60, spawned=scout(says(no_holes)), focus=DUELS, first=2
    ),
}


@pytest.mark.parametrize("bug", with_long(MUTANTS, "accepts below the promise"))
def test_every_planted_bug_is_seen_by_the_judge_named_for_it(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    assert_bug_seen(monkeypatch, MUTANTS[bug])
