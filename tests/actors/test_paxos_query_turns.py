"""Queries wait for their turn, so that many small requests for large pages stop nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from support.effects import T0, at
from support.log_proxy_scene import REPLICA, log_proxy

from fencelock.actors.api.map import EntryList, EntrySeen, ListEntries
from fencelock.actors.api.session_message import ListLocks
from fencelock.actors.effect import Effect, Send, Wake
from fencelock.actors.message import Address, Instant, node_of
from fencelock.actors.paxos.event import MachineRead, ReadMachine
from fencelock.actors.proxy.proxy import Proxy
from fencelock.actors.proxy.queries import READ_MS, TURN_QUERIES_MAX, NextQueries
from fencelock.actors.table.report import TableRead

LISTS = 250
READERS = tuple(f"reader-{number}" for number in range(8))
PAGE = EntryList(entries=(EntrySeen("k", bytes(64 << 10), 1, None, ""),) * 2)
LATER = 1 + TURN_QUERIES_MAX


def asks(proxy: Proxy, reader: str, count: int, now: Instant = T0) -> list[Effect]:
    """Let ``reader`` request ``count`` pages at once; return the effects."""
    return [
        effect
        for number in range(1, count + 1)
        for effect in proxy.handle(
            Address(f"{reader}/x"),
            ListEntries(map="large", session=reader, request=number),
            now,
        )
    ]


def read_requests(effects: Iterable[Effect]) -> list[ReadMachine]:
    sent = (effect.message for effect in effects if isinstance(effect, Send))
    return [message for message in sent if isinstance(message, ReadMachine)]


def answered(proxy: Proxy, asked: Iterable[ReadMachine], now: Instant) -> list[Effect]:
    """Answer queries with a page; return the effects."""
    return [
        effect
        for one in asked
        for effect in proxy.handle(
            REPLICA,
            MachineRead(number=one.number, reply=TableRead(reply=PAGE), slot=1, age_ms=0),
            now,
        )
    ]


def test_of_2000_lists_a_few_are_read_at_a_time_and_each_reader_has_its_turn() -> None:
    proxy = log_proxy(Proxy)
    effects = [effect for reader in READERS for effect in asks(proxy, reader, LISTS)]
    asked = read_requests(effects)
    assert len(asked) == TURN_QUERIES_MAX
    assert effects.count(Wake(1, NextQueries())) == 1
    replies: Counter[str] = Counter()
    bytes_max, ms = 0, 0
    while asked:
        ms += 1
        done = answered(proxy, asked, at(ms))
        assert read_requests(done) == []  # Others are served before the next ones.
        pages = [
            one for one in done if isinstance(one, Send) and isinstance(one.message, EntryList)
        ]
        bytes_max = max(bytes_max, len(pages) * 2 * 64 << 10)
        replies.update(node_of(page.to) for page in pages)
        if ms == 4:
            assert min(replies[reader] for reader in READERS) > 0
        asked = read_requests(proxy.handle(proxy.address, NextQueries(), at(ms)))
        assert len(asked) <= TURN_QUERIES_MAX
    assert replies == dict.fromkeys(READERS, LISTS)
    assert bytes_max <= TURN_QUERIES_MAX * 128 << 10


def test_queries_that_wait_for_a_majority_keep_no_local_read_waiting() -> None:
    proxy = log_proxy(Proxy)
    assert len(read_requests(asks(proxy, "reader-0", LATER))) == TURN_QUERIES_MAX
    local = ListLocks(session="reader-1", request=1, age_ms=1_000)
    assert len(read_requests(proxy.handle(Address("reader-1/x"), local, T0))) == 1


def test_queries_that_time_out_make_room_for_others() -> None:
    proxy = log_proxy(Proxy)
    asks(proxy, "reader-0", TURN_QUERIES_MAX)
    later = at(READ_MS // 2)
    assert read_requests(asks(proxy, "reader-1", 1, later)) == []
    proxy.backend.tick(at(READ_MS))
    (asked,) = read_requests(proxy.handle(proxy.address, NextQueries(), at(READ_MS)))
    assert answered(proxy, [asked], at(READ_MS))
