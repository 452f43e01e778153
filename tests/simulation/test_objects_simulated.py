"""Each kind of object under every fault, and bugs planted in it, which its judge finds."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from support.judged import LOSSES, SEEDS, UNHELD, demand_caught, demand_clean
from support.long import with_long
from support.planted_bugs import AnyDigest, repetitions_count, serves_the_queue, taken_unchecked

from fencelock.actors.api.counter import VALUE_MAX
from fencelock.actors.api.latch import CountDown, LatchPassed
from fencelock.actors.api.map import EntryList, GetEntry, ListEntries, PutEntry
from fencelock.actors.api.message import Granted, Inspect, Reason, refused
from fencelock.actors.api.name import kind_of
from fencelock.actors.api.refusal import Why
from fencelock.actors.api.rwlock import RWLOCK, AcquireReadWrite
from fencelock.actors.api.semaphore import SEMAPHORE
from fencelock.actors.api.session_message import Renew, Renewed
from fencelock.actors.error import ConfigError, UnsupportedError
from fencelock.actors.paxos.queries import Queries
from fencelock.actors.session import holds
from fencelock.actors.table import barrier, counter, history, key, latch, requests
from fencelock.actors.table import map as maps
from fencelock.actors.table.barrier import Barrier
from fencelock.actors.table.deadline import LeasedHold
from fencelock.actors.table.history import Histories, History
from fencelock.actors.table.key import KeyHold
from fencelock.actors.table.latch import Latch
from fencelock.actors.table.map import Entry
from fencelock.actors.table.pool import Pool
from fencelock.actors.table.resource import ClaimDetails, Resource, TableHold, Wait
from fencelock.actors.table.session import OwnerState
from fencelock.actors.table.state import TableState
from fencelock.actors.table.table import LockTable
from fencelock.cluster.guarantee import OBJECTS
from fencelock.verification.simulation.barriers import BARRIERS
from fencelock.verification.simulation.counters import COUNTERS
from fencelock.verification.simulation.deadlines import DEADLINES
from fencelock.verification.simulation.elections import ELECTIONS
from fencelock.verification.simulation.handovers import HANDOVERS
from fencelock.verification.simulation.latches import LATCHES
from fencelock.verification.simulation.maps import MAPS, MapJudge, MapLog
from fencelock.verification.simulation.mixed import MixedJudge
from fencelock.verification.simulation.objects import ALL, WORKLOADS, workload_of
from fencelock.verification.simulation.pools import POOLS
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.rwlocks import RWLOCKS
from fencelock.verification.simulation.semaphores import SEMAPHORES, LogOrder
from fencelock.verification.simulation.several import LOCK_ALL, SeveralJudge

MIXED = workload_of(ALL, "paxos")

MET: dict[str, tuple[Workload, tuple[str, ...]]] = {
    "read/write locks": (
        RWLOCKS,
        (
            "contender.enters_again",
            "contender.upgrade_refused",
            "contender.downgrades",
            *LOSSES,
        ),
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
    ),
    "handovers": (HANDOVERS, ("contender.attaches", "owners.detach", *LOSSES)),
    "latches": (LATCHES, ("contender.counts_down", "contender.passes", *UNHELD)),
    "barriers": (
        BARRIERS,
        (
            "contender.passes_as_0",
            "contender.passes_as_3",
            "contender.refused_broken",
            *UNHELD,
        ),
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
    ),
    "pools": (
        POOLS,
        ("contender.takes", "contender.gives", "contender.gives_too_many", *UNHELD),
    ),
    "elections": (ELECTIONS, ("contender.sees_a_change", *LOSSES)),
}
"""Workloads, with the events that their seeds must reach."""


@pytest.mark.parametrize("kind", MET)
def test_no_seed_breaks_a_promise_and_every_fault_occurred(kind: str) -> None:
    demand_clean(*MET[kind], first={"counters": 15, "handovers": 10}.get(kind, 0))


def test_no_seed_breaks_a_promise_of_semaphores_and_claims_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[str] = []
    judge = LogOrder._judge_grant  # pyright: ignore[reportPrivateUsage]

    def counted(order: LogOrder, granted: Granted, key: object, queue: list[object]) -> None:
        waited.extend([granted.lock] * bool(queue))
        judge(order, granted, key, queue)  # type: ignore[arg-type]

    monkeypatch.setattr(LogOrder, "_judge_grant", counted)
    met = ("contender.gives_back_a_part", "contender.resizes", "contender.size_refused", *LOSSES)
    demand_clean(SEMAPHORES, met)
    assert len(waited) > SEEDS


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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: Tally[str] = Tally()
    judge_change, judge_read = MapLog._judge_change, MapJudge._judge_read  # pyright: ignore[reportPrivateUsage]
    end = MapLog._end  # pyright: ignore[reportPrivateUsage]

    def changed(log: MapLog, command: Any, *rest: Any) -> None:
        seen["changed"] += 1
        seen["guarded"] += bool(command.guard)
        seen["by version"] += bool(command.version)
        seen["ephemeral"] += isinstance(command, PutEntry) and command.ephemeral
        judge_change(log, command, *rest)

    def read(judge: MapJudge, user: Any, asked: Any, reply: EntryList) -> None:
        seen["read"] += 1
        seen["found"] += bool(reply.entries)
        judge_read(judge, user, asked, reply)

    def ended(log: MapLog, session: str, slot: int) -> None:
        seen["ended"] += any(states[-1].session == session for states in log.states.values())
        end(log, session, slot)

    monkeypatch.setattr(MapLog, "_judge_change", changed)
    monkeypatch.setattr(MapJudge, "_judge_read", read)
    monkeypatch.setattr(MapLog, "_end", ended)
    demand_clean(
        MAPS, (*LOSSES, "contender.map_not_held", "contender.map_session_expired"), first=20
    )
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
    monkeypatch.setattr(history, "KEEP_MS", 300)
    demand_clean(ELECTIONS, ("contender.resynced",))


def test_watchers_of_a_map_that_are_too_far_behind_get_another_listing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "CHANGES_MAX", 3)
    demand_clean(MAPS, ("contender.resynced", "contender.sees_a_change"))


@pytest.mark.parametrize("word", [*(guarantee.word for guarantee in WORKLOADS), ALL])
def test_a_protocol_without_the_objects_is_refused(word: str) -> None:
    with pytest.raises(UnsupportedError, match="paxos ha"):
        workload_of(word, "central")


def test_the_help_of_the_command_names_all_workloads() -> None:
    assert tuple(WORKLOADS) == OBJECTS


def test_an_unknown_word_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"semaphores.* all"):
        workload_of("tubas", "paxos")


# Bugs. The names in capitals are the right functions.

ANSWER_HOLD, ANSWER_WAIT = TableHold.answer, TableState.reply_to_wait
REMOVE, GRANT = Resource.remove, TableState.grant
END_WAIT = TableState.end_wait
ENTER_AGAIN = requests._enter_again  # pyright: ignore[reportPrivateUsage]
COUNT_FROM = holds._count_from  # pyright: ignore[reportPrivateUsage]
REFUSED, ROOM = refused, requests.has_room
LATCH_OF = latch._latch_of  # pyright: ignore[reportPrivateUsage]
BREAK = Barrier.remove
PASSED = barrier._passed  # pyright: ignore[reportPrivateUsage]
NOTE = TableState._note_leader  # pyright: ignore[reportPrivateUsage]
READ, ADD = Histories.read, Histories.add
DROP = Histories._drop_first  # pyright: ignore[reportPrivateUsage]
CONDITIONS = maps._meets_conditions  # pyright: ignore[reportPrivateUsage]
TAKE, CLOSE = Queries.take, TableState.close
HOLDS_GUARD = requests.holds_guard
MOVE = KeyHold.move
CHANGE = counter._change  # pyright: ignore[reportPrivateUsage]


# Semaphores


def overtaking(resource: Resource) -> Wait | None:
    """A smaller claim is granted while a larger one waits at the head of the queue."""
    fitting = [wait for wait in resource.waits if wait.amount <= resource.free]
    return fitting[0] if fitting else None


def one_too_many(resource: Resource, amount: int) -> bool:
    """The free permits are compared with one less than the amount."""
    return not resource.queue and amount <= resource.free + 1


def one_is_freed(resource: Resource, hold: TableHold, fence: int) -> None:
    """The end of a hold frees one permit, however many it had."""
    REMOVE(resource, hold, fence)
    resource.free -= hold.amount - 1


def a_smaller_size_takes_nothing_away(resource: Resource, capacity: int) -> None:
    """The permits that are free stay free when the number of all becomes smaller."""
    resource.free += max(0, capacity - resource.capacity)
    resource.capacity = capacity


def too_large_claims_wait_on(
    table: TableState, wait: Wait, reason: Reason, out: Any, *why: Any
) -> None:
    if reason is not Reason.INVALID:
        END_WAIT(table, wait, reason, out, *why)


def twice(hold: TableHold) -> Granted:
    """The outcome of a repeated acquire counts its permits again."""
    granted = ANSWER_HOLD(hold)
    hold.granted_count += hold.granted_count
    return granted


# Read/write locks


def readers_pass_a_waiting_writer(resource: Resource, amount: int) -> bool:
    return amount <= resource.free


def a_writer_needs_one_permit(resource: Resource, amount: int) -> bool:
    del amount
    return not resource.queue and resource.free > 0


def a_downgrade_loses_permits(table: TableState, hold: TableHold, amount: int, out: object) -> None:
    del table, out
    hold.amount -= amount


def a_reader_becomes_a_writer(
    table: TableState, owner_state: Any, hold: TableHold, command: Any, out: Any
) -> None:
    if isinstance(command, AcquireReadWrite):
        command = replace(command, write=False)
    ENTER_AGAIN(table, owner_state, hold, command, out)


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


def only_the_first_is_free(resource: Resource, hold: TableHold, fence: int) -> None:
    if fence == hold.fence:
        REMOVE(resource, hold, fence)


def one_fence_for_all(table: TableState, owner: Any, details: ClaimDetails, *how: Any) -> None:
    GRANT(table, owner, details, *how)
    table.fence -= len(details.locks[1:])


# Locks with deadlines


def the_time_without_a_leader_counts(table: LockTable, time_ms: int) -> None:
    table.sessions.extend(max(table.time_ms, time_ms))


def the_client_counts_from_the_reply(
    state: Any, claim: Any, pending: Any, granted: Any, now: Any
) -> Any:
    return COUNT_FROM(state, claim, now, granted, now)


def a_lost_hold_is_renewed(command: Any, reason: Reason, why: Why) -> Any:
    if not isinstance(command, Renew) or reason is not Reason.NOT_HELD:
        return REFUSED(command, reason, why=why)
    fence, hold_ms = command.fence, command.hold_ms or 300
    return Renewed(**command.fields(), fence=fence, hold_ms=hold_ms, grace_ms=300)


def acquiring_again_tells_the_whole(hold: LeasedHold, request: int) -> None:
    TableHold.acquire_again(hold, request)


def no_hold_is_known(state: Any, granted: Any) -> bool:
    del state, granted
    return False


def there_is_no_grace(hold: LeasedHold, table: Any) -> None:
    hold.extend(table, table.time_ms + hold.lasts_ms)


# Locks that are handed over


def ends_100_ms_early(hold: KeyHold, table: Any, deadline_ms: int | None) -> None:
    MOVE(hold, table, None if deadline_ms is None else deadline_ms - 100)


# Latches


def only_a_lone_waiter_passes(table: TableState, wait: Wait, answer: Any, out: Any) -> None:
    if not isinstance(answer, LatchPassed) or table.objects[answer.lock].waiting == 1:
        ANSWER_WAIT(table, wait, answer, out)


def a_latch_passes_at_1(table: TableState, owner_state: Any, out: Any) -> bool:
    one = table.objects[owner_state.lock]
    if isinstance(one, Latch) and one.left == 1:
        requests.conclude(table, owner_state, LatchPassed(**owner_state.fields()), out)
        return False
    return ROOM(table, owner_state, out)


def a_latch_is_gone_too_early(table: TableState, owner_state: Any, command: Any, out: Any) -> Any:
    return LATCH_OF(table, owner_state, replace(command, keep_ms=command.keep_ms // 4), out)


def a_latch_is_gone_too_late(table: TableState, owner_state: Any, command: Any, out: Any) -> Any:
    return LATCH_OF(table, owner_state, replace(command, keep_ms=command.keep_ms * 4), out)


def the_whole_count_goes(table: TableState, owner_state: Any, command: Any, out: Any) -> Any:
    found = LATCH_OF(table, owner_state, command, out)
    if found is not None and isinstance(command, CountDown) and command.amount > 1:
        table.marked -= found.mark()
        found.left = min(found.left, command.amount)
        table.marked += found.mark()
    return found


# Barriers


def a_party_leaves_without_the_others(one: Barrier, table: Any, why: Any, out: Any) -> None:
    if not one.queue:
        BREAK(one, table, why, out)


def one_more_has_arrived(one: Barrier) -> int:
    return len(one.queue or ()) + 1


def all_have_the_same_index(owner_state: Any, index: int, generation: int) -> Any:
    return replace(PASSED(owner_state, index, generation), index=0)


def generations_are_counted_down(owner_state: Any, index: int, generation: int) -> Any:
    return PASSED(owner_state, index, (1 << 40) - generation)


# Elections


def ends_are_not_noted(table: TableState, hold: Any, value: bytes | None) -> None:
    if value is not None:
        NOTE(table, hold, value)


def terms_that_are_over_are_left_out(
    histories: Histories, lock: str, after: int, prefix: str = ""
) -> Any:
    read = READ(histories, lock, after, prefix)
    if read is None:
        return None
    fences = Tally(change.fence for change in read[1])
    return read[0], tuple(change for change in read[1] if fences[change.fence] == 1)


def what_is_dropped_was_never_there(histories: Histories, lock: str, kept: History) -> int:
    DROP(histories, lock, kept)
    return 0


def a_node_that_is_behind_begins_anew(
    histories: Histories, lock: str, after: int, prefix: str = ""
) -> Any:
    """Resync a watch at a node that has not yet applied all changes that the watch has seen."""
    return READ(histories, lock, after, prefix) if after <= histories.version else None


def changes_from_the_beginning(
    histories: Histories, lock: str, after: int, prefix: str = ""
) -> Any:
    return READ(histories, lock, after - 1 if after else 0, prefix)


def all_have_the_first_value(
    histories: Histories, lock: str, key: str, value: Any, *how: Any
) -> int:
    first = histories.by_object.get(lock)
    if first and value is not None:
        value = next((one.value for one in first.changes if one.value), value)
    return ADD(histories, lock, key, value, *how)


# Maps


def no_guard(table: Any, owner_state: Any, command: Any, out: Any) -> Any:
    return CONDITIONS(table, owner_state, replace(command, guard="", fence=0), out)


def any_version(table: Any, owner_state: Any, command: Any, out: Any) -> Any:
    return CONDITIONS(table, owner_state, replace(command, version=None), out)


def stays(entry: Entry, table: Any, out: Any) -> None:
    del entry, table, out


def any_age(queries: Queries, sender: Any, request: Any, now: Any) -> Any:
    if isinstance(request, GetEntry | ListEntries):
        request = replace(request, age_ms=60_000)
    return TAKE(queries, sender, request, now)


# Counters


def no_guard_of_a_counter(table: Any, owner_state: Any, command: Any, out: Any) -> bool:
    return HOLDS_GUARD(table, owner_state, replace(command, guard="", fence=0), out)


def any_value_is_expected(table: Any, owner: Any, command: Any, after: Any, out: Any) -> None:
    CHANGE(table, owner, command, getattr(command, "value", after), out)


def a_sum_stays_at_the_limit(table: Any, owner: Any, command: Any, after: Any, out: Any) -> None:
    CHANGE(table, owner, command, VALUE_MAX if after is None else after, out)


def an_old_value(queries: Queries, sender: Any, request: Any, now: Any) -> Any:
    if isinstance(request, Inspect):
        request = replace(request, age_ms=60_000)
    return TAKE(queries, sender, request, now)


# Pools


def an_end_gives_back(table: TableState, session: Any, *how: Any) -> None:
    """The end of a session frees a permit of each pool."""
    CLOSE(table, session, *how)
    for one in [one for one in table.objects.values() if isinstance(one, Pool) and one.taken]:
        one.change(table, one.size, one.taken - 1)
        one.serve(table, how[2])


def one_permit_too_many(one: Pool) -> int:
    return max(0, one.size + 1 - one.taken)


def nobody_is_served(one: Pool, table: TableState, out: object) -> None:
    del out
    if not one.queue and not one.taken:
        table.drop(one)


# Watches of maps


def expiry_is_no_change(entry: Entry, table: TableState, out: object) -> None:
    del out
    table.maps._drop(table, entry)  # pyright: ignore[reportPrivateUsage]


def only_the_last_of_each_key(histories: Histories, lock: str, after: int, prefix: str) -> Any:
    read = READ(histories, lock, after, prefix)
    return read and (read[0], tuple({change.key: change for change in read[1]}.values()))


def the_value_before(
    histories: Histories, lock: str, key: str, value: bytes | None, *how: Any
) -> int:
    known = histories.by_object.get(lock)
    for change in known.changes if known and value is not None else ():
        value = change.value or value
    return ADD(histories, lock, key, value, *how)


# All kinds in one run


def of_kind(kind: str, bug: Any) -> Any:
    """Return a grant with a bug, for objects of one kind only."""

    def grant(table: TableState, owner_state: OwnerState, *how: Any) -> None:
        GRANT(table, owner_state, *how)
        if kind_of(owner_state.lock) == kind:
            bug(table, owner_state)

    return grant


def forgets_its_permits(table: TableState, owner_state: OwnerState) -> None:
    """Let other owners be granted the permits of this owner."""
    resource = table.resources[owner_state.lock]
    resource.free = resource.capacity


def takes_the_last_fence(table: TableState, _: OwnerState) -> None:
    table.fence -= 1


class Planted(NamedTuple):
    """Bugs planted at attributes, and a word of the violation that the seeds must show."""

    workload: Workload
    plants: Mapping[tuple[object, str], object]
    judge: str
    first: int = 0
    """The seed with which the search begins, which keeps it short."""


COUNTS_TWICE: dict[tuple[object, str], object] = {
    (requests, "begin_update"): repetitions_count(requests.begin_update)
}

PLANTED = {
    "semaphores: overtakes": Planted(SEMAPHORES, {(Resource, "next_wait"): overtaking}, "order"),
    "semaphores: one too many": Planted(
        SEMAPHORES,
        {(Resource, "admits"): one_too_many, (Resource, "grant"): taken_unchecked},
        "capacity",
        first=3,
    ),
    "semaphores: frees one": Planted(
        SEMAPHORES, {(Resource, "remove"): one_is_freed}, "progress", first=3
    ),
    "semaphores: smaller": Planted(
        SEMAPHORES,
        {
            (Resource, "resize"): a_smaller_size_takes_nothing_away,
            (Resource, "grant"): taken_unchecked,
        },
        "capacity: 2",
    ),
    "semaphores: too large": Planted(
        SEMAPHORES, {(TableState, "end_wait"): too_large_claims_wait_on}, "size"
    ),
    "semaphores: counts twice": Planted(
        SEMAPHORES, {(TableHold, "answer"): twice}, "was granted", first=7
    ),
    "read/write locks: overtakes": Planted(
        RWLOCKS, {(Resource, "admits"): readers_pass_a_waiting_writer}, "order"
    ),
    "read/write locks: writes beside readers": Planted(
        RWLOCKS,
        {(Resource, "admits"): a_writer_needs_one_permit, (Resource, "grant"): taken_unchecked},
        "capacity",
    ),
    "read/write locks: downgrade": Planted(
        RWLOCKS, {(TableState, "give_back"): a_downgrade_loses_permits}, "progress"
    ),
    "read/write locks: upgrade": Planted(
        RWLOCKS, {(requests, "_enter_again"): a_reader_becomes_a_writer}, "upgrade", first=5
    ),
    "several locks: head of one queue": Planted(
        LOCK_ALL,
        {(TableState, "serve"): granted_at_the_first_head, (Resource, "grant"): taken_unchecked},
        "mutual exclusion",
        first=5,
    ),
    "several locks: frees the first": Planted(
        LOCK_ALL, {(Resource, "remove"): only_the_first_is_free}, "progress", first=2
    ),
    "several locks: one fence": Planted(
        LOCK_ALL, {(TableState, "grant"): one_fence_for_all}, "fences", first=9
    ),
    "deadlines: new leader": Planted(
        DEADLINES,
        {(LockTable, "shift"): the_time_without_a_leader_counts},
        "early: HoldLost",
        first=4,
    ),
    "deadlines: from the reply": Planted(
        DEADLINES,
        {(holds, "begin_lease"): the_client_counts_from_the_reply},
        "relied on: HoldLost",
        first=3,
    ),
    "deadlines: lost hold": Planted(
        DEADLINES, {(requests, "refused"): a_lost_hold_is_renewed}, "lost: Renewed", first=5
    ),
    "deadlines: again": Planted(
        DEADLINES,
        {
            (LeasedHold, "acquire_again"): acquiring_again_tells_the_whole,
            (holds, "is_known"): no_hold_is_known,
        },
        "relied on: HoldLost",
        first=3,
    ),
    "deadlines: no grace": Planted(
        DEADLINES, {(LeasedHold, "restart"): there_is_no_grace}, "early: HoldLost", first=3
    ),
    "handovers: any secret": Planted(HANDOVERS, {(key, "digest_of"): AnyDigest}, "attach: "),
    "handovers: serves the queue": Planted(
        HANDOVERS,
        {
            (Resource, "kept"): serves_the_queue,
            (Resource, "grant"): taken_unchecked,
        },
        "between: ",
    ),
    "handovers: ends early": Planted(HANDOVERS, {(KeyHold, "move"): ends_100_ms_early}, "early: "),
    "latches: counts twice": Planted(LATCHES, COUNTS_TWICE, "once"),
    "latches: stays": Planted(
        LATCHES, {(TableState, "reply_to_wait"): only_a_lone_waiter_passes}, "release"
    ),
    "latches: passes at 1": Planted(LATCHES, {(latch, "has_room"): a_latch_passes_at_1}, "early"),
    "latches: gone too early": Planted(
        LATCHES, {(latch, "_latch_of"): a_latch_is_gone_too_early}, "count"
    ),
    "latches: gone too late": Planted(
        LATCHES, {(latch, "_latch_of"): a_latch_is_gone_too_late}, "count"
    ),
    "latches: amount": Planted(LATCHES, {(latch, "_latch_of"): the_whole_count_goes}, "count"),
    "barriers: not broken": Planted(
        BARRIERS, {(Barrier, "remove"): a_party_leaves_without_the_others}, "broken", 5
    ),
    "barriers: too early": Planted(
        BARRIERS, {(Barrier, "waiting"): property(one_more_has_arrived)}, "together", 2
    ),
    "barriers: counts twice": Planted(BARRIERS, COUNTS_TWICE, "once"),
    "barriers: same index": Planted(
        BARRIERS, {(barrier, "_passed"): all_have_the_same_index}, "index"
    ),
    "barriers: generations fall": Planted(
        BARRIERS, {(barrier, "_passed"): generations_are_counted_down}, "generations"
    ),
    "elections: no ends": Planted(
        ELECTIONS, {(TableState, "_note_leader"): ends_are_not_noted}, "watches"
    ),
    "elections: compacted": Planted(
        ELECTIONS, {(Histories, "read"): terms_that_are_over_are_left_out}, "gaps", first=3
    ),
    "elections: a gap is not seen": Planted(
        ELECTIONS,
        {
            (Histories, "_drop_first"): what_is_dropped_was_never_there,
            (history, "CHANGES_MAX"): 1,
        },
        "watches",
    ),
    "elections: a node is behind": Planted(
        ELECTIONS, {(Histories, "read"): a_node_that_is_behind_begins_anew}, "watches", first=2
    ),
    "elections: repeats": Planted(
        ELECTIONS, {(Histories, "read"): changes_from_the_beginning}, "watches"
    ),
    "elections: value": Planted(
        ELECTIONS, {(Histories, "add"): all_have_the_first_value}, "values"
    ),
    "maps: no guard": Planted(MAPS, {(maps, "_meets_conditions"): no_guard}, "guard", first=3),
    "maps: any version": Planted(MAPS, {(maps, "_meets_conditions"): any_version}, "versions"),
    "maps: done again": Planted(MAPS, COUNTS_TWICE, "once", first=10),
    "maps: outlives its session": Planted(MAPS, {(Entry, "end_with_session"): stays}, "reads", 2),
    "maps: old reads": Planted(MAPS, {(Queries, "take"): any_age}, "was known", 7),
    "counters: counts twice": Planted(COUNTERS, COUNTS_TWICE, "once", first=5),
    "counters: no guard": Planted(
        COUNTERS, {(counter, "holds_guard"): no_guard_of_a_counter}, "guard", first=3
    ),
    "counters: any value": Planted(
        COUNTERS, {(counter, "_change"): any_value_is_expected}, "counts"
    ),
    "counters: beyond the limits": Planted(
        COUNTERS, {(counter, "_change"): a_sum_stays_at_the_limit}, "counts"
    ),
    "counters: old reads": Planted(COUNTERS, {(Queries, "take"): an_old_value}, "reads", first=7),
    "pools: counts twice": Planted(POOLS, COUNTS_TWICE, "once"),
    "pools: end with sessions": Planted(
        POOLS, {(TableState, "close"): an_end_gives_back}, "count", first=3
    ),
    "pools: one too many": Planted(
        POOLS, {(Pool, "free"): property(one_permit_too_many)}, "capacity"
    ),
    "pools: nobody is served": Planted(POOLS, {(Pool, "serve"): nobody_is_served}, "serve"),
    "watches of maps: no expiry": Planted(
        MAPS, {(Entry, "fall_due"): expiry_is_no_change}, "watches", 29
    ),
    "watches of maps: compacted": Planted(
        MAPS, {(Histories, "read"): only_the_last_of_each_key}, "gaps", first=12
    ),
    "watches of maps: a node is behind": Planted(
        MAPS, {(Histories, "read"): a_node_that_is_behind_begins_anew}, "watches"
    ),
    "watches of maps: the value before": Planted(
        MAPS, {(Histories, "add"): the_value_before}, "watches"
    ),
    "all: permits of semaphores": Planted(
        MIXED, {(TableState, "grant"): of_kind(SEMAPHORE, forgets_its_permits)}, "capacity", first=3
    ),
    "all: permits of read/write locks": Planted(
        MIXED, {(TableState, "grant"): of_kind(RWLOCK, forgets_its_permits)}, "capacity"
    ),
    "all: fences of semaphores": Planted(
        MIXED, {(TableState, "grant"): of_kind(SEMAPHORE, takes_the_last_fence)}, "fences", 3
    ),
}


@pytest.mark.parametrize(
    "bug",
    with_long(
        PLANTED,
        "several locks: frees the first",
        "semaphores: frees one",
        "read/write locks: downgrade",
    ),
)
def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    workload, plants, judge, first = PLANTED[bug]
    demand_caught(monkeypatch, workload, plants, judge, first)
