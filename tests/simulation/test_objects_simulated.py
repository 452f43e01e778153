"""Each kind of object under every fault, and bugs planted in it, which its judge finds.

Clients of Redis doors are beside native users of the same locks.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from support import planted_bugs as bugs
from support.expect import with_long
from support.judged import LOSSES, SEEDS, UNHELD, demand_caught, demand_clean
from support.planted_bugs import UNREPLAYED, Patch, Plant, as_plant, instead, nothing, returning

from fencelock.actors.api.counter import CounterChanged, CounterRequest
from fencelock.actors.api.latch import CountDown
from fencelock.actors.api.lock_message import Inspect, Reason, Renew, Renewed
from fencelock.actors.api.map import EntryList, EntryRequest, GetEntry, ListEntries, PutEntry
from fencelock.actors.api.name import kind_of
from fencelock.actors.api.redis import ChangeKeys, KeyState, ReadKeys
from fencelock.actors.api.refusal import Why
from fencelock.actors.api.rwlock import RWLOCK
from fencelock.actors.api.semaphore import SEMAPHORE
from fencelock.actors.effect import Send
from fencelock.actors.error import ConfigError, UnsupportedError
from fencelock.actors.message import Message
from fencelock.actors.paxos.queries import Queries
from fencelock.actors.redis import command, script
from fencelock.actors.session import holds
from fencelock.actors.session.requests import SessionRequests
from fencelock.actors.session.state import SessionState
from fencelock.actors.table import barrier, counter, history, key, latch, lock_rules, redis
from fencelock.actors.table import map as maps
from fencelock.actors.table.barrier import Barrier
from fencelock.actors.table.deadline import LeasedHold
from fencelock.actors.table.history import Histories
from fencelock.actors.table.key import KeyHold
from fencelock.actors.table.map import Entry
from fencelock.actors.table.pool import Pool
from fencelock.actors.table.resource import Resource, TableHold, Wait
from fencelock.actors.table.session import OwnerState
from fencelock.actors.table.state import TableState
from fencelock.actors.table.table import LockTable
from fencelock.verification.model import maps as model_maps
from fencelock.verification.model.table import Model
from fencelock.verification.simulation.counters import COUNTERS
from fencelock.verification.simulation.deadlines import DEADLINES, HANDOVERS
from fencelock.verification.simulation.elections import ELECTIONS
from fencelock.verification.simulation.maps import MAPS, MapJudge
from fencelock.verification.simulation.objects import (
    ALL,
    LOCK_ALL,
    WORKLOADS,
    MixedJudge,
    SeveralJudge,
    workload_of,
)
from fencelock.verification.simulation.passing import BARRIERS, LATCHES, POOLS
from fencelock.verification.simulation.redis_doors import REDIS_DOORS
from fencelock.verification.simulation.replay import TableReplay
from fencelock.verification.simulation.run import Workload, run_seed
from fencelock.verification.simulation.semaphores import RWLOCKS, SEMAPHORES

MIXED = workload_of(ALL, "paxos")

MET: dict[str, tuple[Workload, tuple[str, ...], tuple[str, ...]]] = {
    "semaphores": (
        SEMAPHORES,
        ("contender.gives_back_a_part", "contender.resizes", "contender.size_refused", *LOSSES),
        ("Granted", "Queued", "Refused", "Released", "Resized"),
    ),
    "read/write locks": (
        RWLOCKS,
        ("contender.enters_again", "contender.upgrade_refused", "contender.downgrades", *LOSSES),
        ("Granted", "Queued", "Refused", "Released"),
    ),
    "deadlines": (
        DEADLINES,
        (
            "contender.enters_again",
            "contender.renewed",
            "contender.not_renewed",
            "client.lease_over",
            "client.unlocking",
            "client.wait_renewed",
            *LOSSES,
        ),
        ("Granted", "HoldLost", "Queued", "Renewed"),
    ),
    "handovers": (
        HANDOVERS,
        ("contender.attaches", "owners.detach", *LOSSES),
        ("Granted", "HoldLost", "Queued", "Released"),
    ),
    "latches": (
        LATCHES,
        ("contender.counts_down", "contender.passes", *UNHELD),
        ("CountedDown", "LatchPassed", "Queued", "Refused"),
    ),
    "barriers": (
        BARRIERS,
        ("contender.passes_as_0", "contender.passes_as_3", "contender.refused_broken", *UNHELD),
        ("BarrierPassed", "Queued", "Refused"),
    ),
    "counters": (
        COUNTERS,
        (
            "contender.counter_changed",
            "contender.counter_unchanged",
            "contender.counter_read",
            "contender.counter_not_held",
            "contender.counter_session_expired",
            "contender.counter_unavailable",
            *LOSSES,
        ),
        ("CounterChanged", "Granted", "Refused"),
    ),
    "pools": (
        POOLS,
        ("contender.takes", "contender.gives", "contender.gives_too_many", *UNHELD),
        ("PermitsGiven", "PermitsTaken", "Queued", "Refused"),
    ),
    "elections": (
        ELECTIONS,
        ("contender.sees_a_change", *LOSSES),
        ("Granted", "Queued", "Released"),
    ),
    "Redis doors": (
        REDIS_DOORS,
        (
            "door.enters",
            "door.granted",
            "door.again",
            "door.leaves",
            "door.notified",
            "door.refused",
            "redis.connected",
            "redis.notified",
            *LOSSES,
        ),
        ("Evicted", "Granted", "HoldLost", "KeysChanged", "Queued"),
    ),
}
"""Workloads, with the events that their seeds must reach, and the outcomes that must occur."""


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Tally[str]:
    """Return the numbers of outcomes that the judge compares with those of the model, by type."""
    tally: Tally[str] = Tally()
    compare = TableReplay._compare  # pyright: ignore[reportPrivateUsage]

    def counted(replay: TableReplay, slot: int, outcomes: Sequence[Message]) -> None:
        before = replay.compared
        compare(replay, slot, outcomes)
        assert replay.compared - before == len(outcomes)
        tally.update(type(one).__name__ for one in outcomes)

    monkeypatch.setattr(TableReplay, "_compare", counted)
    return tally


@pytest.mark.parametrize("kind", MET)
def test_no_seed_breaks_a_promise_and_every_fault_occurred(kind: str, compared: Tally[str]) -> None:
    workload, met, outcomes = MET[kind]
    demand_clean(workload, met, first={"counters": 15, "handovers": 10}.get(kind, 0))
    assert [name for name in outcomes if not compared[name]] == []
    assert compared.total() > 50 * SEEDS


def test_no_seed_breaks_a_promise_of_several_locks_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together: Tally[int] = Tally()
    enter_all = SeveralJudge._enter_all  # pyright: ignore[reportPrivateUsage]

    def counted(judge: SeveralJudge, delivered: Any, granted: Any) -> None:
        together[granted.count] += 1
        enter_all(judge, delivered, granted)

    monkeypatch.setattr(SeveralJudge, "_enter_all", counted)
    demand_clean(LOCK_ALL, LOSSES, seeds=6)
    assert together[1] > SEEDS
    assert together[2] > SEEDS


def test_no_seed_breaks_a_promise_of_maps_and_all_changes_occurred(
    monkeypatch: pytest.MonkeyPatch, compared: Tally[str]
) -> None:
    seen: Tally[str] = Tally()
    change, end, values = model_maps.change, model_maps.end, MapJudge.values

    def changed(model: Model, command: EntryRequest) -> None:
        seen["changed"] += 1
        seen["guarded"] += bool(command.guard)
        seen["by version"] += bool(command.version)
        seen["ephemeral"] += isinstance(command, PutEntry) and command.ephemeral
        change(model, command)

    def ended(model: Model, entries: list[model_maps.ModelEntry]) -> None:
        seen["ended"] += any(one.session for one in entries)
        end(model, entries)

    def read(judge: MapJudge, query: Any, reply: EntryList) -> dict[tuple[str, str], Any]:
        seen["found"] += bool(reply.entries)
        return values(judge, query, reply)

    monkeypatch.setattr(model_maps, "change", changed)
    monkeypatch.setattr(model_maps, "end", ended)
    monkeypatch.setattr(MapJudge, "values", read)
    demand_clean(
        MAPS, (*LOSSES, "contender.map_not_held", "contender.map_session_expired"), first=30
    )
    assert compared["EntryChanged"] > 20 * SEEDS
    assert seen["changed"] > 20 * SEEDS
    assert seen["found"] > 10 * SEEDS
    assert min(seen["guarded"], seen["by version"], seen["ephemeral"]) > SEEDS
    assert seen["ended"] >= 3  # One session in thirty ends with an entry of its own.


def test_no_seed_with_all_kinds_breaks_a_promise_and_each_kind_is_granted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judges: list[MixedJudge] = []
    crashed = MixedJudge.crashed

    def known(judge: MixedJudge, node: str, boot: int) -> None:
        judges.append(judge)
        crashed(judge, node, boot)

    monkeypatch.setattr(MixedJudge, "crashed", known)
    demand_clean(MIXED, LOSSES, seeds=3, first=2)  # A run with all kinds takes long.
    assert len(judges[0].parts) == len(WORKLOADS)
    assert all(part.grants for judge in judges for part in judge.parts)


def test_watchers_of_an_election_that_are_too_far_behind_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "CHANGES_MAX", 2)
    monkeypatch.setattr(history, "HISTORY_KEEP_MS", 300)
    demand_clean(ELECTIONS, ("contender.resynced",))


def test_watchers_of_a_map_that_are_too_far_behind_get_another_listing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "CHANGES_MAX", 3)
    demand_clean(MAPS, ("contender.resynced", "contender.sees_a_change"))


def test_an_unlock_by_a_client_that_counts_a_hold_that_was_over_ends_all_that_it_holds() -> None:
    assert run_seed("paxos", 830137, workload=REDIS_DOORS).violation is None


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(9_400_155, id="sessions that expire leave a key to the next log time"),
        pytest.param(9_400_686, id="sessions that expire leave a latch to the next log time"),
        pytest.param(9_400_161, id="the first of two releases is not confirmed"),
        pytest.param(9_400_676, id="a writer loses its hold while it asks to read, too"),
        pytest.param(9_500_332, id="an overdue key has no time left, rather than less than none"),
        pytest.param(9_500_846, id="the end of a session serves what can be held first"),
        pytest.param(9_500_877, id="all that is free is asked for when fewer than none are"),
        pytest.param(9_500_670, id="the notice of a loss is repeated when another one holds"),
    ],
)
@pytest.mark.long
def test_a_seed_with_all_kinds_at_which_a_judge_or_a_user_was_wrong_is_clean(seed: int) -> None:
    assert run_seed("paxos", seed, workload=MIXED).violation is None


@pytest.mark.parametrize("kind", [*(guarantee.word for guarantee in WORKLOADS), ALL])
def test_a_protocol_without_the_objects_is_refused(kind: str) -> None:
    with pytest.raises(UnsupportedError, match="paxos ha"):
        workload_of(kind, "central")


def test_an_unknown_workload_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"semaphores.* all"):
        workload_of("tubas", "paxos")


# Bugs


# Semaphores


def one_too_many(resource: Resource, amount: int) -> bool:
    """The free permits are compared with one less than the amount."""
    return not resource.queue and amount <= resource.free + 1


@as_plant
def too_large_claims_wait_on(
    sound: Any, table: TableState, wait: Wait, reason: Reason, out: Any, *why: Any
) -> None:
    if reason is not Reason.INVALID:
        sound(table, wait, reason, out, *why)


@as_plant
def twice(sound: Any, hold: TableHold) -> Any:
    """The outcome of a repeated acquire counts its permits again."""
    granted = sound(hold)
    hold.granted_count += hold.granted_count
    return granted


# Read/write locks


def a_writer_needs_one_permit(resource: Resource, amount: int) -> bool:
    return not resource.queue and resource.free > 0


def a_downgrade_loses_permits(table: TableState, hold: TableHold, amount: int, out: object) -> None:
    hold.amount -= amount


# Several locks at once


def granted_at_the_first_head(table: TableState, objects: tuple[str, ...], out: Any) -> None:
    """It is enough to be at the head of one queue whose lock is free."""
    for name in objects:
        resource = table.resources.get(name)
        while resource is not None and (wait := resource.next_wait()) is not None:
            for one in wait.objects:
                table.resources[one].withdraw(wait)
            next_owner = table._leave_queue(wait)  # pyright: ignore[reportPrivateUsage]
            table.grant(next_owner, wait.details, wait.amount, 1, wait.granted_count, out)
        if resource is not None and not resource.holds and not resource.queue:
            del table.resources[name]


# Locks with deadlines


def the_client_counts_from_the_reply(
    state: Any, claim: Any, pending: Any, granted: Any, now: Any
) -> Any:
    return holds._count_from(state, claim, now, granted, now)  # pyright: ignore[reportPrivateUsage]


@as_plant
def a_lost_hold_is_renewed(sound: Any, command: Any, reason: Reason, why: Why) -> Any:
    if not isinstance(command, Renew) or reason is not Reason.NOT_HELD:
        return sound(command, reason, why=why)
    fence, hold_ms = command.fence, command.hold_ms or 300
    return Renewed(**command.fields(), fence=fence, hold_ms=hold_ms, grace_ms=300)


def there_is_no_grace(hold: LeasedHold, table: Any) -> None:
    hold.extend(table, table.time_ms + hold.lasts_ms)


# Locks that are handed over


def deadlines_are_early(ms: int) -> Plant:
    @as_plant
    def plant(
        sound: Any, hold: KeyHold, table: Any, deadline_ms: int | None, *watched: Any
    ) -> None:
        sound(hold, table, None if deadline_ms is None else deadline_ms - ms, *watched)

    return plant


@as_plant
def keys_end_late(sound: Any, table: TableState) -> Any:
    due = sound(table)
    late = due is not None and isinstance(due[1], KeyHold) and due[0] + 20 > table.time_ms
    return None if late else due


# Latches


@as_plant
def the_whole_count_goes(
    sound: Any, table: TableState, owner_state: Any, command: Any, out: Any
) -> Any:
    found = sound(table, owner_state, command, out)
    if found is not None and isinstance(command, CountDown) and command.amount > 1:
        table.marked -= found.mark()
        found.left = min(found.left, command.amount)
        table.marked += found.mark()
    return found


# Barriers


def one_more_has_arrived(one: Barrier) -> int:
    return len(one.queue or ()) + 1


@as_plant
def all_have_the_same_index(sound: Any, owner_state: Any, index: int, generation: int) -> Any:
    return replace(sound(owner_state, index, generation), index=0)


@as_plant
def generations_are_counted_down(sound: Any, owner_state: Any, index: int, generation: int) -> Any:
    return sound(owner_state, index, (1 << 40) - generation)


# Elections


@as_plant
def expired_durations_are_left_out(
    sound: Any, histories: Histories, lock: str, after: int, prefix: str = ""
) -> Any:
    read = sound(histories, lock, after, prefix)
    if read is None:
        return None
    fences = Tally(change.fence for change in read[1])
    return read[0], tuple(change for change in read[1] if fences[change.fence] == 1)


@as_plant
def a_node_that_is_behind_begins_anew(
    sound: Any, histories: Histories, lock: str, after: int, prefix: str = ""
) -> Any:
    """Resync a watch at a node that has not yet applied all changes that the watch has seen."""
    return sound(histories, lock, after, prefix) if after <= histories.version else None


@as_plant
def changes_from_the_beginning(
    sound: Any, histories: Histories, lock: str, after: int, prefix: str = ""
) -> Any:
    return sound(histories, lock, after - 1 if after else 0, prefix)


@as_plant
def all_have_the_first_value(
    sound: Any, histories: Histories, lock: str, key: str, value: Any, *how: Any
) -> Any:
    first = histories.by_object.get(lock)
    if first and value is not None:
        value = next((one.value for one in first.changes if one.value), value)
    return sound(histories, lock, key, value, *how)


# Maps


@as_plant
def any_version(sound: Any, table: Any, owner_state: Any, command: Any, out: Any) -> Any:
    return sound(table, owner_state, replace(command, version=None), out)


@as_plant
def old_reads(sound: Any, queries: Queries, sender: Any, request: Any, now: Any) -> Any:
    """Let a state of the last minute answer any read."""
    if isinstance(request, GetEntry | ListEntries | Inspect | ReadKeys):
        request = replace(request, age_ms=60_000)
    return sound(queries, sender, request, now)


# Counters


@as_plant
def sent_twice(sound: Any, in_flight: SessionRequests, pending: Any, now: Any) -> Any:
    """Send each request once more, under another number."""
    effects = sound(in_flight, pending, now)
    if not isinstance(pending.request, CounterRequest):
        return effects
    sends = [one for one in effects if isinstance(one, Send)]
    in_flight.number += len(sends)
    again = [Send(one.to, replace(one.message, request=in_flight.number)) for one in sends]
    return [*effects, *again]


@as_plant
def every_change_is_done(sound: Any, state: SessionState, pending: Any, reply: Any) -> Any:
    if isinstance(reply, CounterChanged):
        reply = replace(reply, changed=True)
    return sound(state, pending, reply)


# Pools


@as_plant
def an_end_gives_back(sound: Any, table: TableState, session: Any, *how: Any) -> int:
    """The end of a session frees a permit of each pool."""
    ended: int = sound(table, session, *how)
    for one in [one for one in table.objects.values() if isinstance(one, Pool) and one.taken]:
        one.change(table, one.size, one.taken - 1)
        one.serve(table, how[2])
    return ended


def one_permit_too_many(one: Pool) -> int:
    return max(0, one.size + 1 - one.taken)


def no_waiter_is_served(one: Pool, table: TableState, out: object) -> None:
    if not one.queue and not one.taken:
        table.drop(one)


# Watches of maps


def expiry_is_no_change(entry: Entry, table: TableState, out: object) -> None:
    table.maps._drop(table, entry)  # pyright: ignore[reportPrivateUsage]


@as_plant
def only_the_last_of_each_key(
    sound: Any, histories: Histories, lock: str, after: int, prefix: str
) -> Any:
    read = sound(histories, lock, after, prefix)
    return read and (read[0], tuple({change.key: change for change in read[1]}.values()))


@as_plant
def the_value_before(
    sound: Any, histories: Histories, lock: str, key: str, value: bytes | None, *how: Any
) -> Any:
    known = histories.by_object.get(lock)
    for change in known.changes if known and value is not None else ():
        value = change.value or value
    return sound(histories, lock, key, value, *how)


# Redis doors


Setting = Generator[Any, Any, tuple[bool, bytes | None]]


@as_plant
def the_door_replies_ok(sound: Callable[..., Setting], *how: Any, **more: Any) -> Setting:
    _, before = yield from sound(*how, **more)
    return True, before


def the_door_names_no_receipt(request: Any, **fields: Any) -> Any:
    fields.pop("receipt", None)
    return replace(request, **fields)


@as_plant
def re_entries_do_not_count(
    sound: Any,
    table: Any,
    owner_state: Any,
    name: str,
    state: KeyState,
    change: ChangeKeys,
    out: Any,
) -> Any:
    return sound(table, owner_state, name, state, replace(change, counts=False), out)


# All kinds in one run


def of_kind(kind: str, change: Callable[[TableState, OwnerState], None]) -> Plant:
    """Return a grant with a bug, for objects of one kind only."""

    @as_plant
    def grant(sound: Any, table: TableState, owner_state: OwnerState, *how: Any) -> None:
        sound(table, owner_state, *how)
        if kind_of(owner_state.lock) == kind:
            change(table, owner_state)

    return grant


def forgets_its_permits(table: TableState, owner_state: OwnerState) -> None:
    """Let other owners be granted the permits of this owner."""
    resource = table.resources[owner_state.lock]
    resource.free = resource.capacity


def takes_the_last_fence(table: TableState, _: OwnerState) -> None:
    table.fence -= 1


COUNTS_TWICE: Patch = (lock_rules, "begin_update", bugs.repetitions_count)

UNCHECKED: Patch = (Resource, "grant", instead(bugs.taken_unchecked))
NO_GAP_OF_LEADERS: Patch = (LockTable, "shift", instead(bugs.the_time_without_a_leader_counts))
OLD_READS: Patch = (Queries, "take", old_reads)

PLANTED: dict[tuple[str, Workload], dict[str, tuple[Any, ...]]] = {
    ("semaphores", SEMAPHORES): {
        "overtakes": (
            "queue-in-log-order, ",
            0,
            (Resource, "next_wait", instead(bugs.smaller_claims_overtake)),
        ),
        "one too many": (
            ("capacity: 3", "capacity, "),
            3,
            (Resource, "admits", instead(one_too_many)),
            UNCHECKED,
        ),
        "frees one": (
            ("progress: ", "size, "),
            3,
            (Resource, "remove", bugs.a_hold_frees_one_permit),
        ),
        "smaller": (
            ("capacity: 2", "size, "),
            0,
            (Resource, "resize", bugs.a_smaller_size_is_not_counted),
            UNCHECKED,
        ),
        "too large": ("size, ", 0, (TableState, "end_wait", too_large_claims_wait_on)),
        "counts twice": (("was granted", "one-outcome, "), 7, (TableHold, "answer", twice)),
    },
    ("read/write locks", RWLOCKS): {
        "overtakes": (
            "queue-in-log-order, ",
            0,
            (Resource, "admits", instead(bugs.a_try_overtakes_the_queue)),
        ),
        "writes beside readers": (
            ("capacity: 2", "capacity, "),
            0,
            (Resource, "admits", instead(a_writer_needs_one_permit)),
            UNCHECKED,
        ),
        "downgrade": (
            ("progress: ", "served, "),
            0,
            (TableState, "give_back", instead(a_downgrade_loses_permits)),
        ),
        "upgrade": (
            ("upgrade: ", "same-fence-again, "),
            5,
            (lock_rules, "_enter_again", bugs.an_upgrade_is_counted),
        ),
    },
    ("several locks", LOCK_ALL): {
        "head of one queue": (
            ("mutual exclusion: ", "all-at-once, "),
            5,
            (TableState, "serve", instead(granted_at_the_first_head)),
            UNCHECKED,
        ),
        "frees the first": (
            ("progress: ", "served, "),
            2,
            (Resource, "remove", bugs.only_the_first_is_freed),
        ),
        "one fence": (
            ("fences: ", "fences-rise, "),
            9,
            (TableState, "grant", bugs.one_fence_for_all),
        ),
    },
    ("deadlines", DEADLINES): {
        "new leader": ("early, ", 4, NO_GAP_OF_LEADERS),
        "from the reply": (
            "relied on: HoldLost",
            3,
            (holds, "begin_lease", instead(the_client_counts_from_the_reply)),
        ),
        "lost hold": ("lost, ", 5, (lock_rules, "refused", a_lost_hold_is_renewed)),
        "again": (
            ("relied on: HoldLost", "deadline, "),
            3,
            (LeasedHold, "acquire_again", instead(bugs.acquiring_again_reports_the_whole)),
            (holds, "is_known", returning(False)),
        ),
        "no grace": ("early, ", 3, (LeasedHold, "restart", instead(there_is_no_grace))),
    },
    ("handovers", HANDOVERS): {
        "detached locks end late": ("late, ", 1, (TableState, "first_due", keys_end_late)),
        "any secret": ("attach, ", 0, (key, "digest_of", instead(bugs.AnyDigest))),
        "serves the queue": (
            "between, ",
            0,
            (Resource, "kept", instead(bugs.serves_the_queue)),
            UNCHECKED,
        ),
        "ends early": ("early, ", 0, (KeyHold, "move", deadlines_are_early(100))),
    },
    ("latches", LATCHES): {
        "counts twice": ("one-outcome, ", 0, COUNTS_TWICE),
        "stays": ("release, ", 0, (TableState, "reply_to_wait", bugs.only_a_lone_waiter_passes)),
        "passes at 1": ("early, ", 0, (latch, "has_room", bugs.a_latch_passes_at_1)),
        "gone too early": ("count, ", 0, (latch, "_latch_of", bugs.a_latch_is_kept(1 / 4))),
        "gone too late": ("count, ", 0, (latch, "_latch_of", bugs.a_latch_is_kept(4))),
        "amount": ("count, ", 0, (latch, "_latch_of", the_whole_count_goes)),
    },
    ("barriers", BARRIERS): {
        "not broken": ("broken, ", 5, (Barrier, "remove", bugs.a_party_leaves_without_the_others)),
        "too early": (
            "together, ",
            2,
            (Barrier, "waiting", instead(property(one_more_has_arrived))),
        ),
        "counts twice": ("one-outcome, ", 0, COUNTS_TWICE),
        "same index": ("index, ", 0, (barrier, "_passed", all_have_the_same_index)),
        "generations fall": ("generations", 0, (barrier, "_passed", generations_are_counted_down)),
    },
    ("elections", ELECTIONS): {
        "no ends": ("watches", 0, (TableState, "_note_leader", bugs.ends_are_not_noted)),
        "compacted": ("gaps", 3, (Histories, "read", expired_durations_are_left_out)),
        "a gap is not seen": (
            "gaps",
            0,
            (Histories, "_drop_first", bugs.a_gap_is_not_seen),
            (history, "CHANGES_MAX", instead(1)),
        ),
        "a node is behind": ("watches", 2, (Histories, "read", a_node_that_is_behind_begins_anew)),
        "repeats": ("watches", 0, (Histories, "read", changes_from_the_beginning)),
        "value": ("values", 0, (Histories, "add", all_have_the_first_value)),
    },
    ("maps", MAPS): {
        "no guard": ("guard, ", 3, (maps, "_meets_conditions", bugs.guards_are_not_checked)),
        "any version": ("versions, ", 0, (maps, "_meets_conditions", any_version)),
        "done again": ("one-outcome, ", 10, COUNTS_TWICE),
        "outlives its session": ("reads", 2, (Entry, "end_with_session", instead(nothing))),
        "old reads": ("was known", 7, OLD_READS),
    },
    ("counters", COUNTERS): {
        "counts twice": ("one-outcome, ", 5, COUNTS_TWICE),
        "no guard": ("guard, ", 3, (counter, "holds_guard", bugs.guards_are_not_checked)),
        "any value": ("values, ", 0, (counter, "_change", bugs.any_value_is_the_expected_one)),
        "beyond the limits": ("values, ", 0, (counter, "_change", bugs.a_sum_stays_at_the_limit)),
        "old reads": ("reads", 7, OLD_READS),
        "sent twice": ("once: ", 0, (SessionRequests, "_send", sent_twice)),
        "all are done": ("replies: ", 0, (SessionState, "reply", every_change_is_done)),
    },
    ("pools", POOLS): {
        "counts twice": ("one-outcome, ", 0, COUNTS_TWICE),
        "end with sessions": ("count, ", 3, (TableState, "close", an_end_gives_back)),
        "one too many": ("capacity, ", 0, (Pool, "free", instead(property(one_permit_too_many)))),
        "no waiter is served": ("served, ", 0, (Pool, "serve", instead(no_waiter_is_served))),
    },
    ("watches of maps", MAPS): {
        "no expiry": (
            ("watches: ", "versions, "),
            29,
            (Entry, "fall_due", instead(expiry_is_no_change)),
        ),
        "compacted": ("gaps", 12, (Histories, "read", only_the_last_of_each_key)),
        "a node is behind": ("watches", 0, (Histories, "read", a_node_that_is_behind_begins_anew)),
        "the value before": ("values", 0, (Histories, "add", the_value_before)),
    },
    ("Redis doors", REDIS_DOORS): {
        "any value is expected": ("state, ", 1, (redis, "_state_of", bugs.any_value_is_expected)),
        "any value is reserved": ("state, ", 1, (redis, "_state_of", bugs.any_value_is_reserved)),
        "force keeps the fence": (
            "fences-rise, ",
            1,
            (redis, "_is_new", bugs.force_keeps_the_fence),
        ),
        "deadlines are early": ("deadline, ", 1, (KeyHold, "move", deadlines_are_early(5))),
        "keys end late": ("late, ", 1, (TableState, "first_due", keys_end_late)),
        "deadlines only rise": (
            "deadline, ",
            1,
            (KeyHold, "move", bugs.a_deadline_never_becomes_earlier),
        ),
        "a new leader": ("early, ", 1, NO_GAP_OF_LEADERS),
        "a repetition counts": ("one-outcome, ", 1, COUNTS_TWICE),
        "the door replies OK": (
            "mutual exclusion: ",
            1,
            (command, "_setting", the_door_replies_ok),
        ),
        "no receipt is named": (
            "once: ",
            1,
            (script, "replace", instead(the_door_names_no_receipt)),
        ),
        "nothing is remembered": ("one-outcome, ", 1, (redis, "_remember", instead(nothing))),
        "re-entries do not count": ("holds, ", 1, (redis, "_change", re_entries_do_not_count)),
        "reads are old": ("reads: ", 1, OLD_READS),
    },
    ("all", MIXED): {
        "permits of semaphores": (
            ("capacity: 3", "same-fence-again, "),
            3,
            (TableState, "grant", of_kind(SEMAPHORE, forgets_its_permits)),
        ),
        "permits of read/write locks": (
            ("capacity: 2", "capacity, "),
            0,
            (TableState, "grant", of_kind(RWLOCK, forgets_its_permits)),
        ),
        "fences of semaphores": (
            ("fences: ", "fences-rise, "),
            3,
            (TableState, "grant", of_kind(SEMAPHORE, takes_the_last_fence)),
        ),
    },
}
"""Bugs of each kind: a part of the violation that the seeds must show, the seed with which the
search begins, which keeps it short, and what is planted at which attributes.

Where two violations are named, the judge of the clients must see the first one, while nothing
compares the table with the model, and the comparison the second one."""


BUGS: dict[str, tuple[Any, ...]] = {}
for (kind, workload), planted in PLANTED.items():
    for bug, (judge, *how) in planted.items():
        if isinstance(judge, str):
            BUGS[f"{kind}: {bug}"] = (workload, judge, *how)
        else:
            BUGS[f"{kind}: {bug}"] = (workload, judge[0], *how, UNREPLAYED)
            BUGS[f"{kind}: {bug}, in the log"] = (workload, judge[1], *how)


def test_bugs_are_planted_in_each_workload() -> None:
    planted = {workload for _, workload in PLANTED}
    without = {one.word for one, workload in WORKLOADS.items() if workload not in planted}
    assert without == set(), "PLANTED has no bugs of these"


@pytest.mark.parametrize(
    "bug",
    with_long(
        BUGS,
        "several locks: frees the first",
        "semaphores: frees one",
        "read/write locks: downgrade",
    ),
)
def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    workload, judge, first, *patches = BUGS[bug]
    demand_caught(monkeypatch, workload, patches, judge, first)
