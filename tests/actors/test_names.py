"""The accepted names, character by character, in clients, in proxies and in the table."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from fencelock.actors.api.election import Lead
from fencelock.actors.api.latch import CountDown
from fencelock.actors.api.lock_message import Acquire, Granted, Release
from fencelock.actors.api.map import GetEntry, PutEntry
from fencelock.actors.api.name import (
    DEFAULT_IGNORABLE,
    UNICODE,
    WHITE_SPACE,
    check_lock_name,
    check_new_lock_name,
    check_owner,
    is_invisible,
)
from fencelock.actors.api.session_message import Open
from fencelock.actors.error import InvalidRequestError
from fencelock.actors.table.table import LockTable
from fencelock.transport.frame import check_node

FORBIDDEN = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0x61C,
    *range(0x200E, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
    0xD800,
    0xDBFF,
    0xDC00,
    0xDFFF,
)
BESIDE = (0x20, 0x7E, 0xA0, 0x61B, 0x61D, 0x200D, 0x2010, 0x2027, 0x202F, 0x2065, 0x206A, 0xD7FF)
UNASSIGNED = (0x378, 0x1FAE8, 0x1FAE9, 0x2FFC, 0xE000, 0xF0000, 0x10FFFF)
INVISIBLE = (
    " \u00a0\u00ad\u034f\u115f\u1160\u17b4\u180b\u180e\u2000\u200b\u200d\u202f\u205f\u2060\u2064"
)
BLANK = "\u206a\ufff9\ufffc\U00013430\U00013441\U00016fe4\U0001d159\U0001d173"
MORE = "\u2800\u3000\u3164\ufe00\ufe0f\ufeff\uffa0\U000e0001\U000e0041\U000e01ef\U000e0fff"


def test_the_tables_have_as_many_characters_as_unicode_lists() -> None:
    """Each of Unicode's files ends a property with its number of code points."""
    assert (UNICODE, len(WHITE_SPACE), len(DEFAULT_IGNORABLE)) == ("16.0", 25, 4174)


@pytest.mark.parametrize("number", FORBIDDEN)
@pytest.mark.parametrize("beside", ["a", "\u00e9"], ids=["ascii", "other"])
def test_a_forbidden_character_is_refused_by_number_everywhere(number: int, beside: str) -> None:
    text = f"{beside}{chr(number)}{beside}"
    for check in (check_lock_name, check_owner):
        with pytest.raises(InvalidRequestError, match=rf"U\+{number:04X}"):
            check(text)
    with pytest.raises(ValueError, match=rf"U\+{number:04X}"):
        check_node(text)
    about: dict[str, Any] = {"session": "s.1", "owner": "o", "request": 1}
    for command in (
        Acquire(**about, lock=text),
        Acquire(session="s.1", owner=text, request=1, lock="x", limit=0),
        Acquire(**about, lock="x", label=text),
        Open(session=text, ttl_ms=1_000),
    ):
        with pytest.raises(InvalidRequestError):
            command.check()


@pytest.mark.parametrize("number", [*BESIDE, *UNASSIGNED])
def test_all_other_characters_are_accepted_whether_unicode_has_them_yet_or_not(number: int) -> None:
    text = f"a{chr(number)}"
    check_new_lock_name(text)
    check_owner(text)
    Acquire(session="s.1", owner=text, request=1, lock=text, label=text, limit=0).check()


def test_the_refusal_of_a_name_names_the_kind_of_the_object() -> None:
    too_long = "x" * 257
    about: dict[str, Any] = {"session": "s.1", "owner": "o", "request": 1}
    for request, kind in (
        (Acquire(**about, lock=too_long), "lock"),
        (PutEntry(**about, map=too_long, entry_key="k", value=b""), "map"),
        (GetEntry(map=too_long, entry_key="k", session="s.1", request=1), "map"),
        (Lead(**about, election=too_long), "election"),
        (CountDown(**about, latch=too_long, count=1), "latch"),
    ):
        with pytest.raises(InvalidRequestError, match=f"^{kind} name of 257 bytes"):
            request.check()
    with pytest.raises(InvalidRequestError, match=r"^latch name .* has no visible character"):
        CountDown(**about, latch=" ", count=1).check_new()


def test_a_refusal_does_not_depend_on_how_a_text_is_stored() -> None:
    """ASCII, Latin-1 and wider texts take different ways through the check."""
    chance = Random(1)
    for _ in range(3_000):
        numbers = [chance.choice((0x61, 0x7F, 0xE9, 0x85, 0x1F600, 0x202E)) for _ in range(3)]
        text = "".join(map(chr, numbers))
        allowed = set(numbers).isdisjoint(FORBIDDEN)
        try:
            check_owner(text)
        except InvalidRequestError:
            assert not allowed
        else:
            assert allowed


def why_refused(lock: str) -> str:
    try:
        Acquire(lock=lock, session="s.1", owner="o", request=1).check_new()
    except InvalidRequestError as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize("lock", [*INVISIBLE, *BLANK, *MORE, INVISIBLE, "  "])
def test_a_proxy_refuses_to_acquire_a_lock_with_an_invisible_name(lock: str) -> None:
    assert is_invisible(lock)
    assert "no visible character" in why_refused(lock)
    assert why_refused(f"{lock[:60]}a") == ""


def test_the_table_still_decides_about_invisible_names_as_earlier_versions_did() -> None:
    """A member that replays an old log must come to the same table (`check_new_lock_name`)."""
    table = LockTable()
    table.apply(0, Open(session="s", ttl_ms=1_000))
    (held,) = table.apply(1, Acquire(session="s.1", owner="o", request=1, lock="\u3164", limit=0))
    assert isinstance(held, Granted)
    Release(lock="\u3164", session="s.1", owner="o", request=2, fence=held.fence).check_new()
