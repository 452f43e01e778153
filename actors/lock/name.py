"""The limits of what a request may say: names, owners, waits."""

from __future__ import annotations

from holdfast.actors.error import InvalidRequestError

LOCK_NAME_BYTES_MAX = 256
"""As long as a file name: a lock is named after a thing, it does not carry one."""

OWNER_BYTES_MAX = 256
"""Room for host, process, thread and a word of the application's own."""

WAIT_MS_MAX = 7 * 24 * 3_600_000
"""A week (ms). Whoever means longer means no limit, which is None."""

REQUEST_MAX = (1 << 62) - 1
"""The highest number of an Acquire, and of the Cancel of one. Numbers cross the wire as signed 64
bits; what is left is for the requests that give back what was acquired."""


def utf8_size(text: str) -> int:
    """Return how many bytes ``text`` has in UTF-8; quick for the ASCII that names mostly are."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def check_lock_name(lock: str) -> None:
    """Refuse a name that is empty, too long, or not printable.

    Raises:
        InvalidRequestError: naming the field, the value and the limit.

    """
    check_lock_size(lock)
    if not lock.isprintable():
        raise InvalidRequestError(f"lock name {lock[:40]!r} has characters that do not print")


def check_lock_size(lock: str) -> None:
    """Refuse a name that is empty or too long.

    Raises:
        InvalidRequestError: naming the field, the value and the limit.

    """
    size = utf8_size(lock)
    if not 1 <= size <= LOCK_NAME_BYTES_MAX:
        raise InvalidRequestError(
            f"lock name of {size} bytes ({lock[:40]!r}), 1 to {LOCK_NAME_BYTES_MAX} are allowed"
        )


def check_owner(owner: str) -> None:
    """Refuse an owner that is too long, or not printable.

    Raises:
        InvalidRequestError: naming the field, the value and the limit.

    """
    check_text("owner", owner, OWNER_BYTES_MAX)


def check_text(field: str, text: str, bytes_max: int) -> None:
    """Refuse what ``field`` says if it is too long, or not printable.

    Raises:
        InvalidRequestError: naming the field, the value and the limit.

    """
    check_size(field, text, bytes_max)
    if not text.isprintable():
        raise InvalidRequestError(f"{field} {text[:40]!r} has characters that do not print")


def check_size(field: str, text: str, bytes_max: int) -> None:
    """Refuse what ``field`` says if it is too long.

    Raises:
        InvalidRequestError: naming the field, the value and the limit.

    """
    size = utf8_size(text)
    if size > bytes_max:
        raise InvalidRequestError(
            f"{field} of {size} bytes ({text[:40]!r}), at most {bytes_max} are allowed"
        )


def check_wait(wait_ms: int | None) -> None:
    """Refuse a wait that is negative or beyond `WAIT_MS_MAX`; None is no limit.

    Raises:
        InvalidRequestError: naming the field, the value and the limit.

    """
    if wait_ms is not None and not 0 <= wait_ms <= WAIT_MS_MAX:
        raise InvalidRequestError(f"wait_ms is {wait_ms}, 0 to {WAIT_MS_MAX} are allowed")


def check_request(request: int) -> None:
    """Refuse the number of an Acquire that leaves no higher one for the Release.

    The door refuses it; the table takes what an earlier version may have written.

    Raises:
        InvalidRequestError: naming the field, the value and the limit.

    """
    if request > REQUEST_MAX:
        raise InvalidRequestError(f"request is {request}, at most {REQUEST_MAX} is allowed")
