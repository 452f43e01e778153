"""The trace of a node: `LogBook` by hand, and the space-time diagram of its lines."""

from __future__ import annotations

from collections import deque
from xml.etree import ElementTree

import pytest
from support.expect import checked, only
from support.role_harness import RoleHarness

from fencelock.actors.api.lock_message import Acquire, Granted, Reason, Refused, Release
from fencelock.actors.api.name import INT_MAX
from fencelock.actors.api.role_request import (
    ROLES_MAX,
    LogSetting,
    ReadTrace,
    SetLog,
    TraceLine,
    TraceLines,
)
from fencelock.actors.effect import Effects, Send
from fencelock.actors.lamport.wire import Request
from fencelock.actors.message import NS_PER_MS, Address, Instant
from fencelock.actors.trace import (
    KEPT_MAX,
    READERS_MAX,
    RECEIVES,
    SENDS,
    TRACE_PAGE_MAX,
    LogBook,
    kind_of,
)
from fencelock.cluster.diagram import ROUTINE, Event, chosen, holds_in, merged, space_time, text_of

ME, PROCESS, PROXY = Address("n1/log"), Address("n1/process"), Address("n1/proxy")
OTHER, CLIENT = Address("n2/process"), Address("c-7/session")
ASKER = Address("n1/ask-1")
SVG = "{http://www.w3.org/2000/svg}"


def book() -> LogBook:
    return RoleHarness(lambda host: LogBook(ME, host)).role


def sent(effects: Effects) -> object:
    effect = only(Send, effects)
    assert effect.to == ASKER
    return effect.message


def read(book: LogBook, after: int, *roles: str, now: int = 0) -> TraceLines:
    asked = ReadTrace(after=after, keep_ms=1_000, roles=roles)
    return checked(TraceLines, sent(book.handle(ASKER, asked, Instant(1 + now * NS_PER_MS))))


def keep(book: LogBook, time: int, lock: str = "a") -> None:
    asked = Request(lock=lock, stamp=time)
    book.keep(time, PROCESS, OTHER, asked, (Send(CLIENT, asked), Send(PROXY, asked)), "queue: n2")


def test_the_name_of_a_spawned_role_stands_without_its_number() -> None:
    names = ("n1/commander-17", "n1/lock-server", "n1/clock", "n1/17")
    assert [kind_of(Address(name)) for name in names] == [
        "commander", "lock-server", "clock", "17"
    ]  # fmt: skip


def test_a_setting_is_changed_in_part_and_an_unknown_level_is_refused() -> None:
    role = book()
    changed = sent(role.handle(ASKER, SetLog(level="TRACE", roles=("process",)), Instant(1)))
    assert changed == LogSetting(level="TRACE", roles=("process",))
    assert role.logs(PROCESS)
    assert not role.logs(PROXY)
    assert sent(role.handle(ASKER, SetLog(roles=()), Instant(2))) == LogSetting(
        level="TRACE", roles=()
    )
    assert role.logs(PROXY)
    assert isinstance(sent(role.handle(ASKER, SetLog(level="loud"), Instant(3))), Refused)
    assert role.level == "TRACE"


@pytest.mark.parametrize(
    "request_",
    [
        ReadTrace(after=0, keep_ms=-1),
        ReadTrace(after=0, keep_ms=60_001),
        ReadTrace(after=0, keep_ms=1, roles=("x",) * 51),
        ReadTrace(after=0, keep_ms=1, roles=("clock", "x" * 129)),
        SetLog(roles=("x",) * 51),
        SetLog(roles=("x" * 129,)),
    ],
)
def test_a_request_beyond_its_limits_is_refused(request_: SetLog | ReadTrace) -> None:
    role = book()
    assert isinstance(sent(role.handle(ASKER, request_, Instant(1))), Refused)
    assert not role.keeps(PROCESS)


def test_a_node_has_a_limit_of_readers_with_different_roles() -> None:
    role = book()
    for number in range(READERS_MAX):
        read(role, 0, f"process-{number}", "process")
    extra = ReadTrace(after=0, keep_ms=1_000, roles=("proxy",))
    no = checked(Refused, sent(role.handle(ASKER, extra, Instant(1))))
    assert no.reason is Reason.OVERLOADED
    assert f"n1 keeps lines for {READERS_MAX} readers with different roles, the limit" in no.detail
    assert not role.keeps(PROXY)
    assert read(role, 0, "process-0", "process", now=999).lines == ()
    assert read(role, 0, "proxy", now=1_500).lines == ()  # All but one have stopped.
    assert len(role.readers) == 2


class CountedName(str):
    """The name of a role that counts the names it is compared with."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_an_event_is_not_compared_with_all_names_of_all_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    role = book()
    for number in range(READERS_MAX):
        names = tuple(CountedName(f"r{number}.{name}") for name in range(ROLES_MAX))
        read(role, 0, *names)
    monkeypatch.setattr(CountedName, "compared", 0)
    assert not role.keeps(PROCESS)
    keep(role, 5)
    assert CountedName.compared <= 8  # Equal hashes are possible, and rare.


def test_lines_are_kept_only_while_a_client_reads_them() -> None:
    role = book()
    assert not role.keeps(PROCESS)
    assert read(role, 0).lines == ()
    assert role.keeps(PROCESS)
    assert not role.keeps(ME)
    keep(role, 5)
    assert [line.time for line in read(role, 0, now=900).lines] == [5, 5]
    keep(role, 6)
    assert not role.is_unread(Instant(1_000))
    assert role.is_unread(Instant(3_000 * NS_PER_MS))
    assert (role.keeps(PROCESS), role.kept) == (False, deque())
    # No request came in the second after the last time.
    assert read(role, 0, now=3_000).lines == ()


def test_messages_within_the_node_are_kept_of_roles_that_are_named() -> None:
    role = book()
    read(role, 0)
    keep(role, 5)
    crossing = read(role, 0).lines
    assert [(line.act, line.peer) for line in crossing] == [(RECEIVES, OTHER), (SENDS, CLIENT)]
    assert [line.state for line in crossing] == ["queue: n2", ""]
    role = book()
    read(role, 0, "process")
    assert not role.keeps(PROXY)
    keep(role, 6)
    assert [line.peer for line in read(role, 0, "process").lines] == [OTHER, CLIENT, PROXY]


def test_lines_come_in_pages_and_those_that_were_dropped_are_counted() -> None:
    role = book()
    read(role, 0)
    for time in range(KEPT_MAX // 2 + 5):  # Two lines each.
        keep(role, time)
    first = read(role, 2)
    assert len(first.lines) == TRACE_PAGE_MAX
    assert first.more
    assert (first.lost, first.lines[0].number, first.last) == (8, 11, TRACE_PAGE_MAX + 10)
    last = read(role, KEPT_MAX)
    assert (len(last.lines), last.more, last.last) == (10, False, KEPT_MAX + 10)


def test_a_page_looks_at_a_bounded_number_of_lines_even_if_it_has_few_of_them() -> None:
    role = book()
    read(role, 0, "process")
    read(role, 0, "proxy")
    for time in range(TRACE_PAGE_MAX):  # Three lines each.
        keep(role, time)
    role.keep(TRACE_PAGE_MAX, PROXY, CLIENT, Request(lock="a", stamp=6), (), "")
    pages = [read(role, 0, "proxy")]
    while pages[-1].more:
        pages.append(read(role, pages[-1].last, "proxy"))
    assert [page.last for page in pages] == [200, 400, 600, 601]
    assert [len(page.lines) for page in pages] == [0, 0, 0, 1]
    beyond = read(role, INT_MAX, "proxy")
    assert (beyond.lines, beyond.more, beyond.last) == ((), False, 601)


# The diagram


def line(number: int, time: int, act: str, peer: str, message: object, role: str) -> TraceLine:
    lock = getattr(message, "lock", "")
    return TraceLine(number, time, role, act, peer, type(message).__name__, lock, str(message), "")


REQUEST = Request(lock="a", stamp=3)
ACQUIRE = Acquire(lock="a", session="c-7", owner="o", request=1, wait_ms=None)
GRANTED = Granted(lock="a", fence=9, session="c-7", owner="o", request=1)
RELEASE = Release(lock="a", fence=9, session="c-7", owner="o", request=2)
EVENTS = [
    Event("n2", line(1, 5, RECEIVES, "n1/process", REQUEST, "process")),
    Event("n1", line(1, 2, RECEIVES, "c-7/session", ACQUIRE, "proxy")),
    Event("n1", line(2, 3, SENDS, "n2/process", REQUEST, "process")),
    Event("n1", line(3, 3, SENDS, "n3/process", REQUEST, "process")),
    Event("n1", line(4, 8, SENDS, "c-7/session", GRANTED, "proxy")),
    Event("n1", line(5, 9, RECEIVES, "c-7/session", RELEASE, "proxy")),
    Event("n3", line(1, 6, SENDS, "n3/proxy", REQUEST, "process")),
]


def test_lines_of_all_nodes_are_merged_by_logical_time() -> None:
    order = [(one.node, one.line.number) for one in merged(EVENTS)]
    assert order == [("n1", 1), ("n1", 2), ("n1", 3), ("n2", 1), ("n3", 1), ("n1", 4), ("n1", 5)]
    assert text_of(merged(EVENTS)[3]) == f"5 n2/process receives {REQUEST} from n1/process"


def test_events_are_chosen_by_lock_and_by_kind() -> None:
    assert chosen(EVENTS, "b", ()) == []
    assert chosen(EVENTS, "a", ("Request",)) == [EVENTS[1], EVENTS[4], EVENTS[5]]
    assert chosen(EVENTS, None, ROUTINE) == EVENTS


def test_a_hold_lasts_from_its_grant_to_its_release() -> None:
    (hold,) = holds_in(merged(EVENTS))
    assert (hold.node, hold.lock, hold.first, hold.last) == ("n1", "a", 5, 6)
    (lasting,) = holds_in(merged(EVENTS[:5]))
    assert lasting.last == 5


def test_the_diagram_stands_alone_with_processes_arrows_and_bars() -> None:
    text = space_time(merged(EVENTS), "a <scene>")
    root = ElementTree.fromstring(text)
    words = [one.text for one in root.iter(f"{SVG}text")]
    assert words[0] == "a <scene>"
    assert {"n1", "n2", "n3", "c-7", "Acquire", "Request", "Request …", "Granted"} <= set(words)
    arrows = [one for one in root.iter(f"{SVG}polyline") if "marker-end" in one.attrib]
    dashed = [one for one in root.iter(f"{SVG}polyline") if "stroke-dasharray" in one.attrib]
    assert (len(arrows), len(dashed)) == (4, 1)  # The request to n3 was not received.
    bars = [one for one in root.iter(f"{SVG}rect") if one.find(f"{SVG}title") is not None]
    assert [one.findtext(f"{SVG}title") for one in bars] == ["n1: a is held"]
    assert "href" not in text
    assert space_time([], "nothing")


def test_two_readers_get_their_own_roles_until_each_stops() -> None:
    role = book()
    assert read(role, 0, "process").lines == ()
    assert read(role, 0, "proxy", now=500).lines == ()
    assert (role.keeps(PROCESS), role.keeps(PROXY)) == (True, True)
    keep(role, 5)
    role.keep(6, PROXY, CLIENT, Request(lock="a", stamp=6), (), "")
    assert {line.role for line in read(role, 0, "process", now=600).lines} == {"process"}
    assert {line.role for line in read(role, 0, "proxy", now=600).lines} == {"proxy"}
    assert read(role, 0, "proxy", now=1_550).lines != ()
    assert not role.is_unread(Instant(1_700 * NS_PER_MS))
    assert (role.keeps(PROCESS), role.keeps(PROXY)) == (False, True)
