"""Maps in the replicated table: versions, expiry, sessions, guards, limits, lists, snapshots."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from support.planted_bugs import (
    Plant,
    as_plant,
    demand_found,
    guards_are_not_checked,
    hold_of,
    instead,
    with_fields,
)
from support.table_comparison import MapComposer, entries_in
from support.table_scene import A, lines_of, restored, table_of_three

from fencelock.actors.api.counter import AddToCounter
from fencelock.actors.api.map import (
    ENTRY_VALUE_BYTES_MAX,
    DeleteEntry,
    EntryList,
    GetEntry,
    ListEntries,
    PutEntry,
)
from fencelock.actors.api.name import object_name
from fencelock.actors.api.semaphore import SEMAPHORE
from fencelock.actors.api.session_message import End
from fencelock.actors.table import map as table_map
from fencelock.actors.table import snapshot
from fencelock.actors.table.map import Entry, Maps, SortedKeys
from fencelock.actors.table.rules import RULES
from fencelock.actors.table.table import LockTable
from fencelock.transport.codec import encode


class Writer:
    """An owner that sends requests, each under a new number."""

    def __init__(self, table: LockTable, session: str = A) -> None:
        self.table, self.session, self.request = table, session, 0

    def put(self, key: str = "k", value: bytes = b"1", **fields: Any) -> Any:
        about: dict[str, Any] = {"map": "M", "entry_key": key, "value": value, **fields}
        return self.send(PutEntry(**about))

    def delete(self, key: str = "k", **fields: Any) -> Any:
        about: dict[str, Any] = {"map": "M", "entry_key": key, **fields}
        return self.send(DeleteEntry(**about))

    def send(self, command: Any) -> Any:
        self.request += 1
        sent = replace(command, session=self.session, owner="o", request=self.request)
        (outcome,) = self.table.apply(self.table.time_ms, sent)
        return outcome


@pytest.fixture
def ann(table: LockTable) -> Writer:
    return Writer(table)


def listed(table: LockTable, **fields: Any) -> EntryList:
    return table_map.read_entries(table, ListEntries(map="M", **fields))


def test_a_key_of_a_client_must_allow_the_object_and_the_guard() -> None:
    put = PutEntry(map="M", entry_key="k", value=b"", guard=object_name(SEMAPHORE, "S"), fence=1)
    assert put.reach == ("M", "S")
    assert DeleteEntry(map="M", entry_key="k").reach == ("M",)
    add = AddToCounter(counter="C", guard=object_name(SEMAPHORE, "S"), fence=1)
    assert (add.reach, AddToCounter(counter="C").reach) == (("C", "S"), ("C",))
    assert GetEntry(map="M", entry_key="k").reach == ListEntries(map="M").reach == ("M",)


def test_a_page_of_large_entries_is_short(table: LockTable, ann: Writer) -> None:
    for number in range(5):
        ann.put(f"{number}", bytes(ENTRY_VALUE_BYTES_MAX))
    page = listed(table)
    assert (len(page.entries), page.more) == (1, True)
    assert len(encode(page)) < 256 << 10
    rest = listed(table, after="3")
    assert (len(rest.entries), rest.more) == (1, False)


NUMBERS: dict[str, Callable[[random.Random, int], int]] = {
    "in any order": lambda chance, _: chance.randrange(6_000),
    "from the first on": lambda _, step: step % 6_000,
    "from the last on": lambda _, step: -step % 6_000,
}


@pytest.mark.parametrize("number_at", NUMBERS.values(), ids=NUMBERS)
def test_sorted_keys_are_as_a_sorted_list(number_at: Callable[[random.Random, int], int]) -> None:
    chance = random.Random(5)
    keys, plain = SortedKeys(), set[str]()
    for step in range(30_000):
        text = f"{number_at(chance, step):04}"
        growing = step // 6_000 % 2 == 0
        if text not in plain and growing:
            keys.add(text)
            plain.add(text)
        elif text in plain and not growing:
            keys.remove(text)
            plain.remove(text)
        if step % 500 == 0:
            ordered = sorted(plain)
            assert [one for block in keys.blocks for one in block] == ordered
            at = f"{chance.randrange(6_000):04}"
            assert list(keys.after(at)) == [one for one in ordered if one > at]
            assert list(keys.after(at, also=True)) == [one for one in ordered if one >= at]
            assert all(0 < len(block) <= table_map.BLOCK_MAX for block in keys.blocks)
            assert len(keys.blocks) <= 1 + 5 * len(plain) // table_map.BLOCK_MAX


def test_no_request_costs_more_in_a_large_map() -> None:
    def cost(entries: int) -> tuple[int, int]:
        table = table_of_three()
        ann = Writer(table)
        for number in range(entries):
            ann.put(f"{number:06}", ttl_ms=1_000 + number if number % 2 else None)
        for number in range(0, entries, 50):
            ann.put(f"{number:06}", ephemeral=True)
        changes = lines_of(
            lambda: (ann.put("000010x"), ann.put("000010x", ttl_ms=9), ann.delete("000010x"))
        )
        return changes, lines_of(lambda: listed(table, prefix="00001", most=10))

    small, large = cost(200), cost(20_000)
    assert large[0] <= 1.2 * small[0]
    assert large[1] <= 1.2 * small[1]


def filled(table: LockTable) -> Writer:
    ann = Writer(table)
    for number in range(12):
        size = ENTRY_VALUE_BYTES_MAX if number % 3 == 0 else number
        ann.put(f"{number}", bytes(size), ttl_ms=1_000 if number % 2 else None)
        ann.put(f"{number}", b"x", map="Nü", ephemeral=number % 4 == 0)
    return ann


def test_a_snapshot_has_the_maps_in_bounded_parts(table: LockTable) -> None:
    filled(table)
    parts = table.snapshot()
    assert max(len(encode(part)) for part in parts) < 256 << 10
    assert len(parts) >= 3
    copy = restored(table)
    assert entries_in(copy) == entries_in(table)
    for one in (table, copy):
        one.apply(2_000, End(session=A))
    assert (copy.digest(), copy.numbers()) == (table.digest(), table.numbers())
    assert entries_in(copy) == entries_in(table)
    assert copy.histories.version == table.histories.version


def test_sizes_of_records_are_bounds(table: LockTable) -> None:
    filled(table)
    for part in table.snapshot():
        for entry in part.entries:
            alone = replace(part, sessions=(), owner_states=(), replies=(), entries=(entry,))
            without = replace(alone, entries=())
            size = len(encode(alone)) - len(encode(without))
            assert size <= snapshot.bytes_of(entry)


def test_different_entries_have_different_numbers(table: LockTable) -> None:
    def numbers(**fields: Any) -> tuple[int, ...]:
        one = table_of_three()
        Writer(one).put(**fields)
        return one.numbers()

    seen = {
        numbers(),
        numbers(key="l"),
        numbers(value=b"2"),
        numbers(map="N"),
        numbers(ephemeral=True),
        numbers(ttl_ms=5),
        numbers(ttl_ms=6),
        table.numbers(),
    }
    assert len(seen) == 8
    assert numbers() == numbers()


@as_plant
def a_replaced_entry_is_still_counted(
    sound: Any, maps: Maps, table: LockTable, entry: Entry
) -> None:
    sound(maps, table, entry)
    maps.bytes += len(entry.value) if entry.due_ms else 0


@as_plant
def an_end_is_no_change(
    sound: Any, maps: Maps, table: LockTable, name: str, key: str, entry: Any
) -> Any:
    version = sound(maps, table, name, key, entry)
    table.histories.version -= entry is None
    return version


@as_plant
def the_lock_need_only_be_held(
    sound: Any, table: LockTable, owner_state: Any, command: Any, out: Any
) -> Any:
    hold = hold_of(table, command.guard)
    if command.guard and hold is not None:
        command = replace(command, fence=hold.fence)
    return sound(table, owner_state, command, out)


@as_plant
def an_older_version_will_do(
    sound: Any, table: LockTable, owner_state: Any, command: Any, out: Any
) -> Any:
    entry = table.maps.find(command.map, command.entry_key)
    if command.version and entry is not None and command.version < entry.version:
        command = replace(command, version=entry.version)
    return sound(table, owner_state, command, out)


@as_plant
def the_first_put_decides_the_session(sound: Any, table: LockTable, command: Any, out: Any) -> None:
    entry = table.maps.find(command.map, command.entry_key)
    if entry is not None and entry.session is not None:
        command = replace(command, ephemeral=True)
    sound(table, command, out)


@as_plant
def a_put_keeps_the_end(sound: Any, table: LockTable, command: Any, out: Any) -> None:
    entry = table.maps.find(command.map, command.entry_key)
    if entry is not None and entry.due_ms and command.ttl_ms is None:
        command = replace(command, ttl_ms=entry.due_ms - table.time_ms)
    sound(table, command, out)


def ephemeral_entries_outlive_expired_sessions(entry: Entry, table: LockTable, out: Any) -> None:
    if entry.due_ms is not None:
        table.maps.change(table, entry.name, entry.key, None)


@as_plant
def a_snapshot_without_ends(sound: Any, entry: Entry) -> Any:
    record = sound(entry)
    return record._replace(due_ms=None, ticket=record.ticket if record.session else 0)


PLANTS: dict[str, tuple[Any, Any, Plant]] = {
    "an entry that ends is still counted": (Maps, "_drop", a_replaced_entry_is_still_counted),
    "the end of an entry is no change": (Maps, "change", an_end_is_no_change),
    "any fence guards": (table_map, "_meets_conditions", guards_are_not_checked),
    "any hold guards": (table_map, "_meets_conditions", the_lock_need_only_be_held),
    "an older version is replaced": (table_map, "_meets_conditions", an_older_version_will_do),
    "an entry stays ephemeral": (RULES, PutEntry, the_first_put_decides_the_session),
    "a put keeps the end": (RULES, PutEntry, a_put_keeps_the_end),
    "ephemeral entries stay": (
        Entry,
        "end_with_session",
        instead(ephemeral_entries_outlive_expired_sessions),
    ),
    "a snapshot without ends": (Entry, "record", a_snapshot_without_ends),
    "a snapshot without the last version": (
        snapshot,
        "_head",
        with_fields(version=0, forgotten=0, origin=0),
    ),
}


@pytest.mark.parametrize("bug", PLANTS)
def test_every_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    demand_found(monkeypatch, MapComposer, *PLANTS[bug])
