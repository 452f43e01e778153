"""Limits on the fields of requests: names, owners, waits.

Each ``check_...`` here raises an `InvalidRequestError` with the field, the value and the limit.

The replicated table applies these limits to every command, so they are part of the state machine:
members that run together must agree on them, whatever Python each of them runs. The characters
that ``str.isprintable`` accepts change with Python's Unicode tables. The characters that are
refused here are therefore written out by number and never change.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain

from fencelock.actors.error import InvalidRequestError

KIND_END = "\x1f"
"""Ends the kind in the name of an object that is no lock. No name that a user gives contains it."""

KIND_CHARS_MAX = 16
"""Maximum length of a kind: one English word."""

KINDS_CACHED = 64
"""Maximum number of kinds whose check is remembered, above the number of kinds that exist."""

KIND_LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""Characters of a kind."""

LOCK_NAME_BYTES_MAX = 256
"""Maximum length (bytes), as for a file name: a lock's name identifies a thing."""

OWNER_BYTES_MAX = 256
"""Maximum length (bytes): room for host, process, thread and a text of the application's own."""

WAIT_MS_MAX = 7 * 24 * 3_600_000
"""A week (ms). A longer wait should have no limit, which is None."""

SESSION_BYTES_MAX = 256
"""Room for host, process and boot id, and for the number the table adds."""

LABEL_BYTES_MAX = 256
"""A text for people who look at a lock or a session; it is stored with either."""

SESSION_TTL_MS_MIN = 100
"""Below this (ms) an ordinary pause of an interpreter would end the session. ``connect(ttl=...)``
has narrower bounds, 1 s to an hour."""

SESSION_TTL_MS_MAX = 24 * 3_600_000
"""A day (ms): a dead client's locks stay taken for as long."""

LIST_PAGE_MAX = 1_000
"""Maximum lines in the reply to one request for a list, such as `ListLocks`."""

INT_MAX = (1 << 63) - 1
"""The largest request, fence or limit; they cross the wire as signed 64 bits."""

PLAIN_BYTES_MAX = min(LOCK_NAME_BYTES_MAX, OWNER_BYTES_MAX, LABEL_BYTES_MAX)
"""If all texts of a request together are no longer than this, each is within its limit. If they are
also printable ASCII, as nearly all are, none has a forbidden character, and they need not be
checked one by one."""

REQUEST_MAX = (1 << 62) - 1
"""The highest number of an Acquire, and of the Cancel of one. Numbers cross the wire as signed 64
bits. The higher numbers are for requests that release the lock."""

SECRET_DIGITS = 32
"""Length of the random part of a session's name: 128 bits."""

HANDLE_BYTES_MAX = SESSION_BYTES_MAX + 20
"""A handle is at most a session's name, a dot and the number that the table adds."""

NAME_END = "@"
"""Ends the name of a client's key in the client's id. No id of a node contains it."""

_SECRET = re.compile(rf"~[0-9a-f]{{{SECRET_DIGITS}}}")

_SHOWN_CHARS = 40
"""Characters of a refused text that an error shows."""


def _chars(*ranges: tuple[int, int]) -> frozenset[str]:
    return frozenset(map(chr, chain.from_iterable(range(a, b + 1) for a, b in ranges)))


FORBIDDEN = _chars(
    (0x00, 0x1F),  # C0 controls: they break lines, logs and terminals.
    (0x7F, 0x9F),  # DEL and C1 controls.
    (0x061C, 0x061C),  # Bidi controls: they make a text look like another.
    (0x200E, 0x200F),
    (0x202A, 0x202E),
    (0x2066, 0x2069),
    (0x2028, 0x2029),  # Line and paragraph separators.
    (0xD800, 0xDFFF),  # Surrogates: they have no UTF-8.
)
"""Characters that no name, owner, session or label may have."""

UNICODE = "16.0"
"""The version of Unicode that the tables below are of. They are pinned: members of different
releases must accept the same names."""

WHITE_SPACE = _chars(
    (0x0009, 0x000D),
    (0x0020, 0x0020),
    (0x0085, 0x0085),
    (0x00A0, 0x00A0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
)
"""The property White_Space, of ``PropList.txt``."""

DEFAULT_IGNORABLE = _chars(
    (0x00AD, 0x00AD),
    (0x034F, 0x034F),
    (0x061C, 0x061C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)
"""The property Default_Ignorable_Code_Point, of ``DerivedCoreProperties.txt``."""

BLANK = _chars(
    (0x2800, 0x2800),  # The Braille cell without dots.
    (0xFFF9, 0xFFFC),  # Marks of annotations, and the place of an object.
    (0x13430, 0x1343F),  # Controls of Egyptian hieroglyphs,
    (0x13441, 0x13442),  # and their blanks.
    (0x16FE4, 0x16FE4),  # The filler of the Khitan small script.
    (0x1D159, 0x1D159),  # A note without a head.
)
"""Characters that are drawn as nothing by their names, which no property of Unicode lists."""

INVISIBLE = WHITE_SPACE | DEFAULT_IGNORABLE | BLANK
"""Characters that are invisible by themselves. A name may contain them beside others."""

_HIDDEN = (FORBIDDEN | INVISIBLE) - {" "}

_FORBIDDEN_ASCII = bytes(ord(one) for one in sorted(FORBIDDEN) if one.isascii())


def utf8_size(text: str) -> int:
    """Return the size of ``text`` in UTF-8 (bytes); quick for ASCII, which most names are."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def is_allowed(text: str) -> bool:
    if text.isascii():
        return len(text.encode().translate(None, _FORBIDDEN_ASCII)) == len(text)
    return FORBIDDEN.isdisjoint(text)


def is_invisible(text: str) -> bool:
    """Return whether no character of ``text`` is visible."""
    return text[:1] in INVISIBLE and INVISIBLE.issuperset(text)


def check_lock_name(name: str, kind: str = "lock") -> None:
    """Refuse a name that is empty, too long, or has a forbidden character.

    Args:
        name: the name of a lock, or of another object without its kind.
        kind: the kind of the object, for the text of the error.

    """
    check_lock_size(name, kind)
    _check_allowed(f"{kind} name", name)


def object_name(kind: str, name: str) -> str:
    """Return the full name of an object that is not a lock, as ``lock`` of requests has it.

    It contains the kind, so objects of different kinds do not clash. The full name of a lock is its
    plain name. `kind_of` and `plain_name` split a full name.
    """
    return f"{kind}{KIND_END}{name}"


def plain_name(lock: str) -> str:
    """Return the name of a lock or of another object without its kind, from its full name."""
    return lock.rpartition(KIND_END)[2]


def kind_of(lock: str) -> str:
    """Return the kind of an object from its full name: ``semaphore``; empty for a lock."""
    return lock.rpartition(KIND_END)[0]


def titled(lock: str) -> str:
    """Return the kind and the name of an object for texts: ``lock 'a'``."""
    kind, _, name = lock.rpartition(KIND_END)
    return f"{kind or 'lock'} {quoted(name)}"


def check_object_name(lock: str) -> None:
    """Refuse a name that is neither the name of a lock nor an `object_name`."""
    kind, end, name = lock.rpartition(KIND_END)
    if end and (not kind or kind.strip(KIND_LETTERS)):
        check_lock_name(lock)
    if len(kind) > KIND_CHARS_MAX:
        raise InvalidRequestError(
            f"kind {shown(kind)} of {len(kind)} characters, at most {KIND_CHARS_MAX} are allowed"
        )
    check_lock_name(name, kind or "lock")


def check_new_lock_name(name: str, kind: str = "lock") -> None:
    """Refuse a name as `check_lock_name` does, and one of invisible characters only.

    Clients and proxies call this before they acquire a lock. The table does not: versions before
    this rule accepted such names, and a member that replays their log must reach the same
    decisions. For the same reason such a lock can still be inspected, released and evicted.
    """
    check_lock_name(name, kind)
    if is_invisible(name):
        raise InvalidRequestError(f"{kind} name {shown(name)} has no visible character")


def check_lock_size(name: str, kind: str = "lock") -> None:
    """Refuse a name that is empty or too long; see `check_lock_name`."""
    size = utf8_size(name)
    if not 1 <= size <= LOCK_NAME_BYTES_MAX:
        raise InvalidRequestError(
            f"{kind} name of {size} bytes ({shown(name)}), 1 to {LOCK_NAME_BYTES_MAX} are allowed"
        )


def check_owner(owner: str) -> None:
    check_text("owner", owner, OWNER_BYTES_MAX)


def check_text(field: str, text: str, bytes_max: int) -> None:
    """Refuse the ``text`` of ``field`` if it is too long, or has a forbidden character."""
    check_size(field, text, bytes_max)
    _check_allowed(field, text)


def check_size(field: str, text: str, bytes_max: int) -> None:
    size = utf8_size(text)
    if size > bytes_max:
        raise InvalidRequestError(
            f"{field} of {size} bytes ({shown(text)}), at most {bytes_max} are allowed"
        )


def check_wait(wait_ms: int | None) -> None:
    """Refuse a wait that is negative or beyond `WAIT_MS_MAX`; None is no limit."""
    if wait_ms is not None and not 0 <= wait_ms <= WAIT_MS_MAX:
        raise InvalidRequestError(f"wait_ms is {wait_ms}, 0 to {WAIT_MS_MAX} are allowed")


def check_age(age_ms: int | None) -> None:
    """Refuse the allowed age of a read that is negative or too long; None is no read by age."""
    if age_ms is not None:
        check_number("age_ms", age_ms, 0, WAIT_MS_MAX)


def check_request(request: int) -> None:
    """Refuse the number of an Acquire that leaves no higher one for the Release.

    Only the proxy refuses it: the table compares numbers, whatever they are.
    """
    if request > REQUEST_MAX:
        raise InvalidRequestError(f"request is {request}, at most {REQUEST_MAX} is allowed")


def check_number(field: str, value: int, least: int, most: int) -> None:
    """Refuse the ``value`` of ``field`` if it is not ``least`` to ``most``."""
    if not least <= value <= most:
        raise InvalidRequestError(f"{field} is {value}, {least} to {most} are allowed")


def is_plain(name: str, texts: str) -> bool:
    """Return whether the texts of a request need no check one by one; see `PLAIN_BYTES_MAX`.

    Args:
        name: the name of its object, which must not be empty.
        texts: all its texts together, with the name.

    """
    return len(texts) <= PLAIN_BYTES_MAX and texts.isascii() and texts.isprintable() and name != ""


NO_CLIENT = "no-client"
"""The session of all holds that belong to no client. No client can open it, or send in it: the id
of a session that was opened ends with a number."""

REDIS_KEY = "key"
"""The kind of requests of Redis doors, whose objects are locks."""


@lru_cache(maxsize=KINDS_CACHED)
def is_kind(kind: str) -> bool:
    """Return whether the name of an object may begin with ``kind``."""
    lower = kind.isascii() and kind.isalpha() and kind.islower()
    return lower and len(kind) <= KIND_CHARS_MAX


def client_of(session: str) -> str:
    """Return the id of the client, or node, that ``session`` belongs to.

    A client is ``me``, its later sessions are ``me~2`` and on, and their assigned ids ``me~2.17``;
    a node's own sessions are ``n1/1f0e`` and on. Its id may contain any of these signs but ``/``.
    """
    node, slash, _ = session.partition("/")
    return node if slash else session.partition(".")[0].partition("~")[0]


def account_of(session: str) -> str:
    """Return the name of the key with which ``session`` was opened; empty if with none.

    A node accepts no other id from a client with a key, so the id of a session proves its key.
    """
    key, end, _ = client_of(session).partition(NAME_END)
    return key if end else ""


def without_secret(text: str) -> str:
    """Return ``text`` with the handles of sessions in place of their ids.

    The name of a client's session ends with ``~`` and `SECRET_DIGITS` random hexadecimal digits. So
    its id is known to its client alone, and nobody else can send requests in it. Others see
    ``me.17`` or ``me~2.17``.
    """
    return _SECRET.sub("", text) if "~" in text else text


def forbidden_in(text: str) -> str:
    """Return the first forbidden character of ``text`` for an error, as ``U+0085``."""
    return next((f"U+{ord(one):04X}" for one in text if one in FORBIDDEN), "")


def quoted(text: str) -> str:
    """Return ``text`` in quotes, for the text of a reply; ``repr`` would escape most languages."""
    return f"'{text}'"


def shown(text: str) -> str:
    """Return the beginning of a refused text in quotes, with escapes for what nobody can see.

    It is the same in each Python: members of a cluster must word their decisions alike.
    """
    escaped = (ascii(one)[1:-1] if one in _HIDDEN else one for one in text[:_SHOWN_CHARS])
    return quoted("".join(escaped))


def _check_allowed(field: str, text: str) -> None:
    if not is_allowed(text):
        raise InvalidRequestError(
            f"{field} {shown(text)} has {forbidden_in(text)}: control characters, line "
            "separators, direction controls and surrogates are not allowed"
        )
