"""Reads of changes: how they wait at a node, and how a client sends them again."""

from __future__ import annotations

from random import Random

import pytest
from support.expect import present
from support.log_proxy_scene import ANN, REPLICA, log_proxy, messages_to, read_request
from support.role_harness import T0, at, sends, sent
from support.session_harness import SessionHarness, of
from support.table_scene import config_of, restored

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.changes import (
    CHANGES_BYTES_MAX,
    CHANGES_WATCH_MS,
    WATCH_AGE_MS,
    Change,
    ChangesRead,
    ReadChanges,
)
from fencelock.actors.api.election import Lead
from fencelock.actors.api.map import PutEntry
from fencelock.actors.api.session_message import Open
from fencelock.actors.effect import Effects, Wake
from fencelock.actors.message import Address, Event, address_of
from fencelock.actors.paxos import event as events
from fencelock.actors.paxos.config import LogBounds
from fencelock.actors.paxos.reads import DUE_MAX, READS_CHECK_MS, Reads
from fencelock.actors.proxy.proxy import Proxy
from fencelock.actors.quota import Quotas
from fencelock.actors.session.endpoints import ENDPOINT_SILENCE_MS
from fencelock.actors.session.requests import RETRY_MS_MAX, UNANSWERED_MS
from fencelock.actors.table import history
from fencelock.actors.table.history import Histories
from fencelock.actors.table.report import read_changes
from fencelock.actors.table.table import LockTable
from fencelock.actors.table.wire import ExtendSessions
from fencelock.cluster.node.lock_machine import LockMachine

S, T, M = "election\x1fs", "election\x1ft", "map\x1fm"
ASKER = address_of("a", "proxy")
A, B, ME, USER = Address("a/proxy"), Address("b/proxy"), Address("c/session"), Address("c/ask-1")


class CountedMachine(LockMachine):
    """A table that counts the queries that it answers."""

    queries = 0

    def read(self, query: Event) -> Event:
        self.queries += 1
        return super().read(query)


class ReadsHarness:
    """The reads of a node whose table the test changes. At 0 ms its state is 0 ms old."""

    def __init__(self, *, changed: bool = True) -> None:
        self.machine = CountedMachine()
        self.config = config_of()
        self.reads = Reads("a", self.machine, LogBounds("a", self.config), 100)
        self.config.applied = 5
        self.fresh(0)
        if changed:
            self.change(T, 0)

    def fresh(self, ms: int) -> None:
        self.reads.handle(REPLICA, events.Fresh(since=at(ms), slot=self.config.applied), at(ms))

    def change(self, lock: str, ms: int, value: bytes | None = b"v") -> Effects:
        self.machine.table.histories.add(lock, "", value, 1, ms)
        return self.apply(ms)

    def apply(self, ms: int) -> Effects:
        self.config.applied += 1
        return self.reads.progress(at(ms)) if self.reads.waiting else []

    def watch(
        self, after: int, ms: int = 0, number: int = 1, lock: str = S, prefix: str = ""
    ) -> Effects:
        query = ReadChanges(lock=lock, after=after, prefix=prefix)
        request = events.ReadMachine(number=number, query=query, age_ms=None, watched=lock)
        return self.reads.handle(ASKER, request, at(ms))

    def put(self, *keys: str, ms: int = 0) -> Effects:
        """Change entries of a map within one slot."""
        for key in keys:
            self.machine.table.histories.add(M, key, b"v", 0, ms)
        return self.apply(ms)

    def serve(self, ms: int = 0) -> Effects:
        return self.reads.handle(ASKER, events.ServeDue(), at(ms))

    def check(self, ms: int) -> Effects:
        return self.reads.handle(ASKER, events.WatchCheck(), at(ms))


@pytest.fixture
def reads() -> ReadsHarness:
    return ReadsHarness()


def answers(effects: Effects) -> list[tuple[int, list[int] | None]]:
    """Return the number of each answer, and the versions of its changes; None for a refusal."""
    found: list[tuple[int, list[int] | None]] = []
    for one in sent(effects, events.MachineRead, ASKER):
        changes = one.reply.changes if isinstance(one.reply, ChangesRead) else None
        versions = None if changes is None else [change.version for change in changes]
        found.append((one.number, versions))
    return found


def test_a_read_waits_for_a_change_of_its_own_object(reads: ReadsHarness) -> None:
    assert reads.watch(after=1) == [Wake(READS_CHECK_MS, events.WatchCheck())]
    assert reads.watch(after=1, number=2) == ()
    assert reads.change(T, 10) == []
    assert answers(reads.change(S, 20)) == [(1, [3]), (2, [3])]
    assert reads.change(S, 30) == []


def test_changes_that_are_there_are_sent_at_once(reads: ReadsHarness) -> None:
    reads.change(S, 0)
    reads.change(S, 0)
    assert answers(reads.watch(after=1)) == [(1, [2, 3])]
    assert answers(reads.watch(after=2)) == [(1, [3])]


def test_a_node_that_is_behind_sends_only_what_the_client_has_not_seen(reads: ReadsHarness) -> None:
    reads.watch(after=3)
    assert reads.change(S, 10) == []
    assert reads.change(S, 10) == []
    assert answers(reads.change(S, 10)) == [(1, [4])]


def test_a_wait_without_a_change_ends_with_the_newest_version(reads: ReadsHarness) -> None:
    reads.watch(after=1)
    reads.watch(after=0, ms=1_000, number=2)
    reads.change(T, 10)
    reads.fresh(CHANGES_WATCH_MS)
    effects = reads.check(CHANGES_WATCH_MS)
    (over,) = sent(effects, events.MachineRead, ASKER)
    assert over.reply == ChangesRead(lock=S, version=2, changes=())
    assert effects[-1] == Wake(READS_CHECK_MS, events.WatchCheck())
    reads.fresh(CHANGES_WATCH_MS + 1_000)
    assert answers(reads.check(CHANGES_WATCH_MS + 1_000)) == [(2, [])]
    assert reads.check(CHANGES_WATCH_MS + 2_000) == []


def test_no_client_waits_at_a_node_whose_state_is_too_old(reads: ReadsHarness) -> None:
    reads.watch(after=1)
    assert answers(reads.check(WATCH_AGE_MS)) == []
    assert answers(reads.check(WATCH_AGE_MS + 1)) == [(1, None)]


def test_every_waiting_read_is_examined_again_after_a_snapshot(reads: ReadsHarness) -> None:
    reads.watch(after=1)
    ahead = LockMachine()
    for lock in (T, S, T):
        ahead.table.histories.add(lock, "", b"v", 1, 0)
    parts = [part.encoded() for part in ahead.snapshot() if part is not None]
    reads.machine.restore(parts)
    assert answers(reads.apply(10)) == [(1, [2])]


def test_a_read_of_some_keys_waits_on_for_what_comes_after_the_others(
    reads: ReadsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the changes of other keys may be dropped."""
    monkeypatch.setattr(history, "CHANGES_MAX", 2)
    for number in (1, 2):
        reads.watch(1, number=number, lock=M, prefix="a")
    for key in "bcdef":
        assert reads.put(key) == []
    assert answers(reads.put("a1")) == [(1, [7]), (2, [7])]
    assert reads.check(CHANGES_WATCH_MS) == []


def test_a_change_looks_up_no_read_of_other_keys(reads: ReadsHarness) -> None:
    for number in range(1_000):
        reads.watch(1, number=number, lock=M, prefix=f"other{number}")
    reads.watch(1, number=1_000, lock=M, prefix="k")
    reads.machine.queries = 0
    assert answers(reads.put("k1", "k2", "l")) == [(1_000, [2, 3])]
    assert reads.put("l") == []
    assert reads.machine.queries == 1
    assert answers(reads.put("other77x")) == [(7, [6]), (77, [6])]


def test_a_step_looks_up_a_bounded_number_of_reads_and_none_misses_a_change(
    reads: ReadsHarness,
) -> None:
    many = 3 * DUE_MAX
    for number in range(many):
        reads.watch(1, number=number, lock=M, prefix="a" * (number % 7))
    reads.machine.queries = 0
    effects = reads.put("a" * 7)
    assert effects[-1] == Wake(1, events.ServeDue())
    found = answers(effects)
    assert reads.put("a" * 8) == [], "the rest waits for its turn"
    assert reads.machine.queries <= DUE_MAX
    while Wake(1, events.ServeDue()) in effects:
        effects = reads.serve()
        assert len(answers(effects)) <= DUE_MAX
        found += answers(effects)
    assert sorted(number for number, _ in found) == [*range(many)]
    assert [versions for _, versions in found] == [[2]] * DUE_MAX + [[2, 3]] * (many - DUE_MAX)
    assert not reads.reads.parked
    assert reads.put("a") == []


def test_reads_that_have_waited_long_enough_are_answered_in_bounded_steps(
    reads: ReadsHarness,
) -> None:
    for number in range(DUE_MAX + 1):
        reads.watch(1, number=number, lock=M, prefix=f"x{number}")
    reads.fresh(CHANGES_WATCH_MS)
    effects = reads.check(CHANGES_WATCH_MS)
    assert answers(effects) == [(number, []) for number in range(DUE_MAX)]
    assert Wake(1, events.ServeDue()) in effects
    assert answers(reads.serve(CHANGES_WATCH_MS + 1)) == [(DUE_MAX, [])]
    assert not reads.reads.parked


def test_a_read_that_was_looked_up_in_vain_keeps_its_place(reads: ReadsHarness) -> None:
    reads.watch(9, number=1, lock=M, prefix="k")  # It is ahead of this node.
    reads.watch(1, number=2, ms=20_000, lock=M, prefix="z")
    assert reads.put("k", ms=20_000) == []
    reads.fresh(CHANGES_WATCH_MS)
    assert answers(reads.check(CHANGES_WATCH_MS)) == [(1, [])]
    reads.fresh(CHANGES_WATCH_MS + 20_000)
    assert answers(reads.check(CHANGES_WATCH_MS + 20_000)) == [(2, [])]


def test_a_read_that_is_sent_again_waits_once(reads: ReadsHarness) -> None:
    for prefix in ("a", "b", "b"):
        reads.watch(1, lock=M, prefix=prefix)
    assert len(reads.reads.parked) == 1
    assert reads.put("a") == []
    assert answers(reads.put("b")) == [(1, [3])]
    assert reads.put("a", "b") == []


def test_a_read_from_before_a_loss_of_everything_is_answered_at_the_first_change() -> None:
    """It may come before the node learns of the versions that were lost."""
    reads = ReadsHarness(changed=False)
    assert reads.watch(after=1_000, lock=M, prefix="a") != ()
    reads.machine.table.apply(1, ExtendSessions(leader="a", fence_floor=2_000))
    reads.machine.table.histories.add(S, "", b"v", 1, 0, above=2_000)
    (answer,) = sent(reads.apply(10), events.MachineRead, ASKER)
    assert isinstance(answer.reply, ChangesRead)
    assert answer.reply.resync


@pytest.mark.parametrize("seed", range(20))
def test_each_watch_gets_each_change_of_its_keys_once_and_in_order(
    seed: int, reads: ReadsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """no-gap, as clients see it: each sends its next read with the version of the last reply."""
    monkeypatch.setattr("fencelock.actors.paxos.reads.DUE_MAX", 2)
    rng = Random(seed)
    keys = ["", "a", "ab", "abc", "b", "ba"]
    prefixes = {number: rng.choice(keys) for number in range(12)}
    wanted: dict[int, list[int]] = {number: [] for number in prefixes}
    found: dict[int, list[int]] = {number: [] for number in prefixes}

    def take(effects: Effects) -> None:
        for one in sent(effects, events.MachineRead, ASKER):
            assert isinstance(one.reply, ChangesRead)
            assert not one.reply.resync
            found[one.number] += [change.version for change in one.reply.changes]
            number, prefix = one.number, prefixes[one.number]
            take(reads.watch(one.reply.version, ms, number=number, lock=M, prefix=prefix))

    ms = 0
    for number, prefix in prefixes.items():
        take(reads.watch(1, number=number, lock=M, prefix=prefix))
    for _ in range(300):
        ms += rng.choice((1, 1, 700))
        reads.fresh(ms)
        changed = rng.choices(keys, k=rng.choice((0, 0, 1, 1, 5)))
        first = reads.machine.table.histories.version + 1
        for version, key in enumerate(changed, first):
            for number, prefix in prefixes.items():
                wanted[number] += [version] * key.startswith(prefix)
        take(reads.put(*changed, ms=ms))
        take(rng.choice((reads.serve, reads.check))(ms) if rng.random() < 0.7 else ())
    while reads.reads.parked.due:
        take(reads.serve(ms))
    assert found == wanted


def test_a_reply_has_so_many_changes_as_fit_and_at_least_one() -> None:
    histories = Histories()
    for size in (CHANGES_BYTES_MAX // 2, CHANGES_BYTES_MAX // 3, CHANGES_BYTES_MAX, 1):
        histories.add(S, "", b"x" * size, 1, 0)
    read = present(histories.read(S, 0))
    assert (read[0], [one.version for one in read[1]]) == (2, [1, 2])
    read = present(histories.read(S, 2))
    assert (read[0], [one.version for one in read[1]]) == (3, [3])


def test_memory_of_changes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    histories = Histories()
    for number in range(1, 3_001):
        histories.add(S, "", b"x", number, 0)
    assert len(histories.by_object[S].changes) == history.CHANGES_MAX
    assert histories.read(S, 1_999) is None
    assert histories.read(S, 2_000) is not None
    monkeypatch.setattr(history, "HISTORIES_MAX", 3)
    for number in range(10):
        histories.add(f"{T}{number}", "", b"x", number, 0)
    assert len(histories.by_object) == 3
    assert histories.changed_since(3_008) == [f"{T}8", f"{T}9"]
    assert histories.changed_since(2_999) is None  # Some of them are not known any more.
    assert histories.read(S, 2_999) is None
    histories.add(T, "", None, 1, history.HISTORY_KEEP_MS)
    assert list(histories.by_object) == [T]
    assert histories.size == 64


def test_what_is_due_at_once_is_forgotten_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "FORGOTTEN_MAX", 4)
    histories = Histories()
    for number in range(10):
        histories.add(f"{T}{number}", "", None, 0, 0)
        histories.add(f"{T}{number}", "", None, 0, 0)
    left: list[int] = []
    for step in range(6):
        histories.add(S, "", None, 0, history.HISTORY_KEEP_MS + step)
        left.append(len(histories.by_object) - 1)
        assert histories.read(f"{T}{9 - left[-1]}", 20) is not None
        assert histories.forgotten == 2 * (10 - left[-1])
    assert left == [8, 6, 4, 2, 0, 0]


@pytest.fixture
def proxy() -> Proxy:
    return log_proxy(Proxy)


def watch(proxy: Proxy, request: int = 3, after: int | None = 4) -> Effects:
    query = ReadChanges(lock=S, after=after, session="ann", request=request)
    return proxy.handle(ANN, query, T0)


def test_a_proxy_lets_the_replica_wait_and_replies(proxy: Proxy) -> None:
    asked = read_request(watch(proxy))
    assert (asked.query, asked.watched) == (ReadChanges(lock=S, after=4), S)
    assert asked.age_ms == WATCH_AGE_MS
    assert sends(watch(proxy)) == []  # This is a repetition.
    changes = (Change(5, "", None, 2),)
    changed = ChangesRead(lock=S, version=6, changes=changes)
    machine_read = events.MachineRead(number=asked.number, reply=changed, slot=9, age_ms=3)
    assert messages_to(proxy.handle(REPLICA, machine_read, T0), ChangesRead) == [
        ChangesRead(lock=S, version=6, changes=changes, session="ann", request=3, slot=9, age_ms=3)
    ]
    listing = read_request(watch(proxy, 4, after=None))
    assert (listing.query, listing.watched, listing.age_ms) == (ReadChanges(lock=S), "", None)


def test_a_proxy_refuses_what_its_replica_is_too_old_for(proxy: Proxy) -> None:
    asked = read_request(watch(proxy))
    stale = events.MachineRead(number=asked.number, reply=None, slot=9, age_ms=6_000)
    (refused,) = messages_to(proxy.handle(REPLICA, stale, T0), api.Refused)
    assert (refused.reason, refused.lock) == (api.Reason.STALE, S)
    assert "6000 ms old, at most 5000 ms" in refused.detail


def test_a_client_may_wait_for_few_changes(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.clients.quotas = Quotas(watches=2, queries=1)
    for request in (1, 2):
        assert not messages_to(watch(proxy, request), api.Refused)
    (refused,) = messages_to(watch(proxy, 3), api.Refused)
    assert refused.reason is api.Reason.OVERLOADED
    assert "2 queries of client 'ann' wait for a change" in refused.detail
    assert "quota watches is 2" in refused.detail
    assert not messages_to(watch(proxy, 4, after=None), api.Refused)
    monkeypatch.setattr("fencelock.actors.proxy.queries.WATCHES_MAX", 2)
    proxy.clients.quotas = Quotas()
    (refused,) = messages_to(watch(proxy, 5), api.Refused)
    assert "2 unanswered queries, its limit" in refused.detail


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (ReadChanges(lock="s", session="ann"), "lock 's' cannot be watched"),
        (ReadChanges(lock=S, after=-1, session="ann"), "after is -1"),
        (ReadChanges(lock=S, age_ms=-1, session="ann"), "age_ms is -1"),
        (ReadChanges(lock="election\x1f", session="ann"), "election name of 0 bytes"),
    ],
)
def test_a_wrong_read_of_changes_is_refused(proxy: Proxy, query: ReadChanges, text: str) -> None:
    (refused,) = messages_to(proxy.handle(ANN, query, T0), api.Refused)
    assert refused.reason is api.Reason.INVALID
    assert text in refused.detail


def test_a_node_may_take_long_to_report_a_change(harness: SessionHarness) -> None:
    (asked,) = of(ReadChanges, harness.receive(USER, ReadChanges(lock=S, after=4)), A)
    sends = harness.run_kept(CHANGES_WATCH_MS, A, B)
    again = of(ReadChanges, sends)
    assert set(again) == {asked}
    assert 2 <= len(again) <= CHANGES_WATCH_MS // RETRY_MS_MAX
    read = ChangesRead(lock=S, version=5, changes=(), session="c", request=asked.request)
    (reply,) = of(ChangesRead, harness.receive(A, read), USER)
    assert reply.version == 5


def test_a_silent_node_is_left_by_who_waits_for_a_change(harness: SessionHarness) -> None:
    harness.receive(USER, ReadChanges(lock=S, after=4))
    sends = harness.run_kept(2 * ENDPOINT_SILENCE_MS, B)
    (moved,) = set(of(ReadChanges, sends, B))
    assert moved.after == 4
    assert not of(api.Refused, sends, USER)


def test_a_node_that_is_too_old_is_left_for_that_read(harness: SessionHarness) -> None:
    (asked,) = of(ReadChanges, harness.receive(USER, ReadChanges(lock=S, after=4)), A)
    stale = api.Refused(
        lock=S, reason=api.Reason.STALE, detail="old", session="c", request=asked.request
    )
    (moved,) = of(ReadChanges, harness.receive(A, stale), B)
    assert moved.after == 4
    assert moved.request != asked.request


def test_a_read_of_changes_without_any_reply_ends(harness: SessionHarness) -> None:
    harness.receive(USER, ReadChanges(lock=S, after=4))
    (refused,) = of(api.Refused, harness.run(CHANGES_WATCH_MS + UNANSWERED_MS + 200), USER)
    assert refused.reason is api.Reason.UNAVAILABLE
    assert "no node answered within" in refused.detail


def test_versions_rise_over_the_loss_of_everything_that_a_group_in_memory_knew() -> None:
    lost, table = LockTable(), LockTable()
    for one, floor in ((lost, 1_000), (table, 2_000)):
        one.apply(1, ExtendSessions(leader="a", fence_floor=floor))
    seen = lead(lost)

    before = changes_of(table, seen)  # No candidate leads: the old term ended without a change.
    assert (before.resync, before.changes) == (True, ())
    table.apply(1, Open(session="ann", ttl_ms=9_000))
    for number in range(1, 5):
        table.apply(
            1, PutEntry(map="m", entry_key="k", value=b"v", session="ann.1", request=number)
        )
    assert present(table.maps.find("m", "k")).version > seen
    assert changes_of(table, seen).resync
    assert not changes_of(table, before.version).changes
    assert not changes_of(table, table.histories.version).resync
    assert changes_of(restored(table), seen).resync


def changes_of(table: LockTable, after: int | None) -> ChangesRead:
    return read_changes(table, ReadChanges(lock=S, after=after))


def lead(table: LockTable) -> int:
    """Let a client lead; return the version up to which a watcher then has all changes."""
    table.apply(1, Open(session="ann", ttl_ms=9_000))
    table.apply(1, Lead(election="s", value="v", session="ann.1", request=1))
    read = changes_of(table, None)
    assert len(read.changes) == 1
    return read.version


def test_reads_answered_leave_nothing_while_an_older_one_waits(reads: ReadsHarness) -> None:
    reads.watch(1, lock=T)
    for number in range(2, 1_000):
        reads.watch(number - 1, number=number)
        reads.change(S, 0)
    assert len(reads.reads.parked) == 1
