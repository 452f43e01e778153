"""One turn of a proxy of `bakery`: it is short, however many requests of clients are in flight."""

from __future__ import annotations

from support.proxy_scene import LEADERS, BakeryProxyHarness, acquire, reply_to
from support.session_harness import of

from fencelock.actors.api.lock_message import Inspect, LockStatus, Refused
from fencelock.actors.bakery.config import BAKERY_TIMING, Terms, leader_of
from fencelock.actors.bakery.in_flight import LEADER_READS_MAX
from fencelock.actors.bakery.wire import Lock, Query, Unlock
from fencelock.actors.deadline_queue import QUEUE_ENDS_MAX
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Address

WAITS = 5 * QUEUE_ENDS_MAX
READS = 200
LONG_MS = 60_000
SOON_MS = 50
"""The rest of what is due follows within this time, tick or not."""


class TurnsHarness(BakeryProxyHarness):
    """The proxy of n4, and what it sends in each turn."""

    def __init__(self) -> None:
        self.turns: list[list[Send]] = []
        super().__init__(Terms(wait_ms=LONG_MS))
        self.learn()

    def _take(self, effects: Effects) -> list[Send]:
        sends = super()._take(effects)
        self.turns.append(sends)
        return sends

    def wait_for(self, locks: list[str], wait_ms: int | None = None) -> None:
        """Let a client wait for these locks; then forget the turns so far."""
        for number, lock in enumerate(locks, 1):
            asked = acquire(lock, f"c{number}", wait_ms=wait_ms)
            self.receive(Address(f"c{number}/session"), asked)
        self.turns.clear()

    def most(self) -> int:
        return max(map(len, self.turns))


LOCKS = [f"lock-{number:04}" for number in range(WAITS)]


def test_waits_that_are_due_together_are_sent_again_some_in_each_turn() -> None:
    proxy = TurnsHarness()
    proxy.wait_for(LOCKS)
    again = of(Lock, proxy.run(BAKERY_TIMING.repeat_ms + SOON_MS))
    assert [one.lock for one in again] == LOCKS
    assert proxy.most() <= QUEUE_ENDS_MAX


def test_all_requests_are_sent_to_new_leaders_some_in_each_turn() -> None:
    proxy = TurnsHarness()
    proxy.wait_for(LOCKS)
    sends = [*proxy.learn(2, ("n2", "n3")), *proxy.run(SOON_MS)]
    assert [one.lock for one in of(Lock, sends)] == LOCKS
    assert proxy.most() <= QUEUE_ENDS_MAX


def test_waits_that_time_out_together_end_some_in_each_turn() -> None:
    proxy = TurnsHarness()
    proxy.wait_for(LOCKS, wait_ms=2_000)
    dropped = of(Unlock, proxy.run(2_000 + 2 * BAKERY_TIMING.repeat_ms))
    assert [one.lock for one in dropped[:WAITS]] == LOCKS
    assert proxy.most() <= 2 * QUEUE_ENDS_MAX, "a refusal and a drop for each"


def read(proxy: TurnsHarness, client: str, number: int, lock: str = "x") -> list[Query]:
    """Let a client ask who holds a lock; return what leaders are asked."""
    inspect = Inspect(lock=lock, session=client, request=number)
    return of(Query, proxy.receive(Address(f"{client}/session"), inspect))


def answer(proxy: TurnsHarness, query: Query) -> list[Send]:
    """Let two leaders reply that the lock is free; return what follows, also soon after."""
    leaders = map(leader_of, LEADERS[:2])
    sends = [send for leader in leaders for send in proxy.receive(leader, reply_to(query))]
    return [*sends, *proxy.run(1)]


def each(queries: list[Query]) -> list[Query]:
    """Return one query of each read: all leaders get the same."""
    return list({query.number: query for query in queries}.values())


def test_leaders_are_asked_for_some_reads_at_a_time_and_for_the_others_as_they_answer() -> None:
    proxy = TurnsHarness()
    asked = [query for number in range(1, READS + 1) for query in read(proxy, "c", number)]
    asked, statuses = each(asked), list[LockStatus]()
    most = len(asked)
    while asked:
        sends = answer(proxy, asked.pop(0))
        statuses += of(LockStatus, sends)
        asked += each(of(Query, sends))
        most = max(most, len(asked))
    assert [one.request for one in statuses] == [*range(1, READS + 1)]
    assert most == LEADER_READS_MAX


def test_a_client_with_one_read_is_not_behind_all_reads_of_another() -> None:
    proxy = TurnsHarness()
    asked = each([query for number in range(1, READS) for query in read(proxy, "c", number)])
    assert read(proxy, "other", 1, "y") == []
    sends = [send for query in asked[:2] for send in answer(proxy, query)]
    assert [query.lock for query in each(of(Query, sends))] == ["x", "y"]


def test_reads_that_leaders_do_not_answer_go_last() -> None:
    proxy = TurnsHarness()
    for number in range(1, LEADER_READS_MAX + 1):
        assert read(proxy, "c", number)
    assert read(proxy, "c", LEADER_READS_MAX + 1, "y") == []
    again = each(of(Query, proxy.run(BAKERY_TIMING.repeat_ms + SOON_MS)))
    assert [query.lock for query in again][:1] == ["y"]
    assert len(again) == LEADER_READS_MAX


def test_a_read_that_ended_while_it_waited_takes_no_turn() -> None:
    proxy = TurnsHarness()
    for number in range(1, 2 * LEADER_READS_MAX + 1):
        read(proxy, "c", number)
    refused = of(Refused, proxy.run(20_000))
    assert [one.request for one in refused] == [*range(1, 2 * LEADER_READS_MAX + 1)]
    assert read(proxy, "c", 2 * LEADER_READS_MAX + 1)
