"""A rogue member sends proposals that no honest one can: the group goes on without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.expect import checked
from support.log_workload import CounterJudge, logbook
from support.rogue_roles import ROGUE, with_rogue_leader

from fencelock.actors.effect import Effects
from fencelock.actors.message import Instant, Message, address_of
from fencelock.actors.paxos import acceptor, config, leader
from fencelock.actors.paxos.config import GROWTH_MAX, VOTES_MAX
from fencelock.actors.paxos.leader import Scout
from fencelock.actors.paxos.replica import Replica
from fencelock.actors.paxos.wire import Accept, Ballot, Batch, Commit, Heartbeat
from fencelock.verification.simulation.world import World

NAMES = ("n1", "n2", "n3")
ROGUE_MS = 150
SERVED_MS = 1_000
DAY_MS = 86_400_000
FULL_BYTES = 64 << 10

Forged = Callable[[Ballot, int], list[Message]]
"""Returns what the rogue sends under a ballot, given the first slot that is not applied."""


def accept(ballot: Ballot, slot: int, committed: int, time_ms: int = 0) -> Message:
    batch = Batch(time_ms=time_ms, commands=())
    return Accept(ballot=ballot, slot=slot, batch=batch, committed=committed)


def fills(ballot: Ballot, free: int) -> list[Message]:
    """Fill all room for votes behind the slots that the group needs next."""
    batch = Batch(time_ms=0, commands=(b"x" * (FULL_BYTES // 2 - 128),))
    return [
        Accept(ballot=ballot, slot=slot, batch=batch, committed=slot)
        for slot in range(free + 1_000, free + 1_003)
    ]


def forge_slots(ballot: Ballot, free: int) -> list[Message]:
    return [
        accept(ballot, 1 << 61, free),
        accept(ballot, 1 << 61, 1 << 61),
        accept(ballot, free + 200_000, free),
        accept(ballot, free + 200_000, free + 200_000),
        accept(ballot, free + VOTES_MAX // 2, free + VOTES_MAX // 2),
    ]


def forge_times(ballot: Ballot, free: int) -> list[Message]:
    return [accept(ballot, free, free, time_ms) for time_ms in ((1 << 62) - 1, 20 * DAY_MS)]


def forge_decisions(ballot: Ballot, free: int) -> list[Message]:
    return [
        Commit(ballot=ballot, committed=1 << 61),
        Heartbeat(ballot=ballot, number=1, committed=1 << 61, min_applied=1 << 61),
        Commit(ballot=ballot, committed=free + GROWTH_MAX),
    ]


ENDLESS = 1 << 70


def outcome_after(*forged: Forged, memory: bool = False) -> tuple[int, int]:
    """Let a rogue member act, stop it, restart the others, and then it as an honest one.

    Return the number of slots that were decided then, and the log time (ms).
    """
    world = World(1)
    honest = logbook(every_ms=10, memory=memory)
    for name in NAMES:
        world.add(name, honest, member=True)
    judge = CounterJudge(drift_ppm=1_000)
    world.judges.append(judge)

    def forge(ballot: Ballot) -> list[Message]:
        free = max(judge.slots, default=0) + 1
        return [message for each in forged for message in each(ballot, free)]

    world.nodes[ROGUE].make_roles = with_rogue_leader(honest, forge)
    world.power_on_all()
    world.run_for(600 + ROGUE_MS)
    world.crash(ROGUE)
    if not memory:
        for name in NAMES[:2]:
            world.crash(name)
    world.nodes[ROGUE].make_roles = honest
    world.run_for(10)
    world.power_on_all()
    world.run_for(1_500)
    before = len(judge.slots)
    world.run_for(SERVED_MS)
    replica = checked(Replica, world.role_at(address_of("n1", "replica")))
    return len(judge.slots) - before, replica.config.time_ms


@pytest.mark.parametrize("memory", [False, True])
def test_the_group_goes_on_once_the_rogue_is_gone(memory: bool) -> None:
    slots, time_ms = outcome_after(forge_slots, forge_times, forge_decisions, memory=memory)
    assert slots > 20
    assert time_ms < DAY_MS


def test_votes_that_fill_all_room_do_not_keep_the_group_from_going_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor, "VOTES_BYTES_MAX", FULL_BYTES)
    assert outcome_after(fills)[0] > 20
    monkeypatch.setattr(acceptor, "NEAR_SLOTS", 0)
    assert outcome_after(fills)[0] == 0


class StrictScout(Scout):
    """A planted bug: one vote that no honest member can have keeps it from adopting anything."""

    def _adopt(self, now: Instant) -> Effects:
        first = self.floors[next(iter(self.complete))]
        if any(slot >= first + VOTES_MAX for slot in self.votes):
            return ()
        return super()._adopt(now)


def test_no_node_ever_leads_without_the_bounds_on_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "VOTES_MAX", ENDLESS)
    assert outcome_after(forge_slots)[0] > 20  # Scouts leave out what no leader can propose.
    monkeypatch.setattr(leader, "Scout", StrictScout)
    assert outcome_after(forge_slots)[0] == 0


def test_the_log_is_moved_to_its_end_without_the_bound_on_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config, "TIME_JUMP_MS_MAX", ENDLESS)
    assert outcome_after(forge_times)[1] > DAY_MS
