"""Transcripts: cases of commands, each with its outcomes, as text in `tests/actors/transcripts`.

A file begins with its subject. A case begins with ``--- its title``, which says what holds. The
case ``--- before each`` precedes every other one of its file. Each line of a case is a command, and
after each `ARROW` is an outcome, as the player of the file (`Player`) returns it. A line that
begins with ``#`` or ``Rule`` is a comment.

    s.1/p#3 Acquire L wait_ms=0 -> TIMED_OUT: lock 'L': held by 'o' of 't.2' under fence 1

A message is written as its class, the name of its object, and those fields that do not have their
default. The separator of kinds in names (U+001F) is ``|``, ``x*257`` is a long text, and ``0..64``
are as many names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from itertools import groupby
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from msgspec import convert

# These declare the messages of clients about the cluster, and the commands of the log.
import fencelock.actors.api.cluster_message  # pyright: ignore[reportUnusedImport]
import fencelock.actors.table.table  # noqa: F401  # pyright: ignore[reportUnusedImport]
from fencelock.actors.api.handover import digest_of
from fencelock.actors.api.lock_message import Contender
from fencelock.actors.api.name import client_of
from fencelock.actors.message import REGISTRY, Event
from support.paths import TESTS

FOLDER = TESTS / "actors" / "transcripts"
ARROW = " -> "
WIDTH = 140
"""The longest line with more than a command."""
FIRST = "before each"

SUBJECTS = ("lock", "locks", "keys", "map", "handle", "kind", "account")
"""Fields with the name of what a message is about, beside the one that its `KIND` names."""

WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")


class Notation(NamedTuple):
    """The way in which values of one type are written."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]


NOTATIONS: dict[Any, Notation] = {}
"""The types whose values are not written field by field. A scene adds those of its protocol."""

Player = Callable[[str], Iterable[str]]
"""Plays one line of a case after the other, and returns what came of it, in order."""


class Case(NamedTuple):
    """A part of a file under a title."""

    file: str
    """The name of the file, without its end."""
    title: str
    before: tuple[str, ...] | None
    """The lines that precede it, None if its file has no `FIRST`."""
    lines: tuple[str, ...]
    """Its lines, without what came of the commands."""
    text: str
    """Its lines as the file has them."""

    def played(self, player: Player) -> str:
        """Return its lines as they are now."""
        for line in self.before or ():
            _come_of(line, player)
        return "\n".join(_written(line, _come_of(line, player)) for line in self.lines)


def _come_of(line: str, player: Player) -> list[str]:
    """Return the outcomes of a line; equal ones in a row are one, with their number."""
    if not line or line.startswith(("#", "Rule")):
        return []
    runs = [(one, len([*same])) for one, same in groupby(player(line))]
    return [one if number == 1 else f"{one} ({number} times)" for one, number in runs]


def _written(command: str, outcomes: list[str]) -> str:
    """Return the command and its outcomes, in as few lines as have room for them."""
    lines = [command]
    for outcome in outcomes:
        if len(lines[-1]) + len(ARROW) + len(outcome) <= WIDTH:
            lines[-1] += ARROW + outcome
        else:
            lines.append(f"   {ARROW}{outcome}")
    return "\n".join(lines)


def cases_of(file: Path) -> list[Case]:
    """Return the cases of a file."""
    before: tuple[str, ...] | None = None
    cases: list[Case] = []
    for part in _parts(file)[1:]:
        title, _, text = part.partition("\n")
        commands = [one for one in text.strip().splitlines() if not one.startswith(" ")]
        lines = tuple(line.partition(ARROW)[0] for line in commands)
        cases.append(Case(file.stem, title, () if title == FIRST else before, lines, text.strip()))
        before = lines if title == FIRST else before
    return cases


def _parts(file: Path) -> list[str]:
    return re.split(r"^--- ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)


def rewrite(file: Path, play: Callable[[Case], str]) -> None:
    """Write what comes of all commands of a file anew."""
    parts = [_parts(file)[0].strip()]
    parts += [f"--- {case.title}\n{play(case)}" for case in cases_of(file)]
    file.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in REGISTRY.values()
    if kind.__module__.startswith(("fencelock.actors.api.", "fencelock.actors.table."))
}
"""The messages of clients, and the commands of the log, by their names."""


def message_of(line: str, kinds: Mapping[str, Any] = KINDS, **given: Any) -> Any:
    """Return the message that a line names: its class, and its fields beside those ``given``.

    The name of what the message is about stands without the name of its field.
    """
    name, *words = WORD.findall(line)
    kind = kinds[name]
    hints, known = _hints(kind), kind.__struct_fields__
    about = (one for one in (getattr(kind, "KIND", ""), *SUBJECTS) if one in known)
    subject = next(about, "lock")
    fields = dict(word.split("=", 1) if "=" in word else (subject, word) for word in words)
    for field in fields.keys() - set(known):
        raise ValueError(f"{line!r}: {name} has no field {field}, only {', '.join(known)}")
    rest = {field: value for field, value in given.items() if field in known}
    return kind(**rest | {field: _value(text, hints[field]) for field, text in fields.items()})


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(text: str, hint: Any) -> Any:
    if hint in NOTATIONS:
        return NOTATIONS[hint].read(text)
    if NoneType in get_args(hint):
        return None if text == "None" else _value(text, get_args(hint)[0])
    if getattr(hint, "__origin__", None) is tuple:
        if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", text):
            return tuple(map(str, range(int(numbers[1]), int(numbers[2]) + 1)))
        item = get_args(hint)[0]
        separator = ";" if hasattr(item, "_fields") else ","
        return tuple(_value(part, item) for part in text.split(separator) if part)
    if hint == Contender and ":" not in text:
        session, _, owner = text.rpartition("/")
        return Contender(client_of(session), session, owner, None, 0)
    if hasattr(hint, "_fields"):
        hints = _hints(hint)
        parts = (part.split(":", 1) for part in text.split(",") if part)
        return hint(**{name: _value(value, hints[name]) for name, value in parts})
    if text in getattr(hint, "__members__", ()):
        return hint[text]
    if text[:1] in ("'", '"'):
        text = text[1:-1].encode().decode("unicode_escape")
    if many := re.fullmatch(r"(.*)(.)\*(\d+)", text):
        text = many[1] + many[2] * int(many[3])
    if hint is bytes and text.startswith("digest-of:"):
        return digest_of(text.partition(":")[2].encode())
    if hint is bytes:
        return text.encode("latin-1")
    return convert(text.replace("|", "\x1f"), hint, strict=False)


def written(value: Any, /, **known: Any) -> str:
    """Return a value in short: a message without the fields that are ``known`` or by default."""
    if value.__class__ in NOTATIONS:
        return NOTATIONS[value.__class__].write(value)
    match value:
        case Enum():
            return value.name
        case str():
            text = value.replace("\x1f", "|")
            return text if text and text.isprintable() and " " not in text else repr(text)
        case bytes():
            return repr(value).removeprefix("b") if value.isascii() else repr(value)
        case Contender():
            owner = {"session": value.session, "owner": value.owner, "since_ms": 0}
            shown = " ".join(_fields(value, {"node": client_of(value.session), **owner}))
            return f"{value.session}/{value.owner}" + (f"({shown})" if shown else "")
        case Event():
            return " ".join((type(value).__name__, *_fields(value, known)))
        case _ if hasattr(value, "_fields"):
            return f"({' '.join(_fields(value, known))})"
        case _ if value.__class__ is tuple:
            return f"[{' '.join(map(written, value))}]"
        case _:
            return str(value)


def _fields(value: Any, known: dict[str, Any]) -> Iterator[str]:
    """Yield the fields of a message or a named tuple that are not known.

    An empty field is left out, too, unless another value of it is known.
    """
    if isinstance(value, Event):
        names, defaults = value.__struct_fields__, value.__struct_defaults__
        usual = dict(zip(reversed(names), reversed(defaults), strict=False))
    else:
        names, usual = value._fields, value._field_defaults
    usual = usual | known
    for name in names:
        field = getattr(value, name)
        is_empty = field in (None, ()) and known.get(name) in (None, ())
        if not is_empty and not (name in usual and field == usual[name]):
            yield f"{name}={written(field)}"
