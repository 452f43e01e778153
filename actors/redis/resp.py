"""RESP, the protocol of Redis: requests are read within limits, replies are written.

A request is an array of bulk strings, or a line of words ("inline"). Both versions of the protocol
have the same requests; replies differ: version 3 has maps, pushes and a null of its own. No request
nests, so there is no depth to bound: an array within an array is an error, as in Redis. hiredis is
not used: it reads replies, has no inline requests, and makes a list of any announced length.

Source: https://redis.io/docs/latest/develop/reference/protocol-spec/; ``networking.c`` and
``sds.c`` of Redis 7 for the texts of errors and the words of a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, TypeAlias

BULK_BYTES_MAX = 64 << 10
"""Limit of one argument (bytes): scripts are the longest, and have a few KiB."""

RESP_REQUEST_BYTES_MAX = 128 << 10
"""Limit of one request (bytes)."""

ARGUMENTS_MAX = 1_024
"""Limit of the arguments of one request."""

LINE_BYTES_MAX = 64 << 10
"""Limit of an inline request (bytes), as in Redis."""

COUNT_BYTES_MAX = 32
"""Limit of a line that announces a length (bytes)."""

STRANGER_ARGUMENTS_MAX, STRANGER_BULK_BYTES_MAX = 10, 16 << 10
"""The limits before `AUTH`, as in Redis."""


class ProtocolError(Exception):
    """The bytes are no request: this text, in the words of Redis, is the last reply."""


class RequestParser:
    """Splits the bytes of one connection into requests.

    Attributes:
        trusted: whether the limits are those of an authenticated client.

    """

    __slots__ = (
        *("_arguments", "_at", "_buffer", "_bytes", "_length", "_missing", "_scanned"),
        "trusted",
    )

    def __init__(self, *, trusted: bool = True) -> None:
        self.trusted = trusted
        self._buffer = bytearray()
        self._at = 0
        """The first byte that is not read yet."""
        self._scanned = 0
        """No line ends before this byte."""
        self._arguments: list[bytes] = []
        self._bytes = 0
        """The bytes of these arguments together."""
        self._missing = 0
        """Arguments of the current request that are still missing; 0 between requests."""
        self._length = -1
        """The announced length of the next argument, or -1."""

    @property
    def held(self) -> int:
        """The bytes that are held, about: of an incomplete request, or of requests to be read."""
        return len(self._buffer) - self._at + self._bytes

    def feed(self, data: bytes) -> None:
        if self._at:
            del self._buffer[: self._at]
            self._scanned -= self._at
            self._at = 0
        self._buffer += data

    def next(self) -> list[bytes] | None:
        """Return the arguments of the next request; None if it is incomplete.

        An empty line or array has none. It is no request, but reading it costs time.

        Raises:
            ProtocolError: the bytes are no request, or a limit is exceeded.

        """
        if not self._missing:
            inline = self._at >= len(self._buffer) or self._buffer[self._at] != ord("*")
            if inline:
                line = self._line(LINE_BYTES_MAX, "too big inline request")
            else:
                line = self._line(COUNT_BYTES_MAX, "too big mbulk count string")
            if line is None:
                return None
            if inline:
                return words_of(line)
            self._missing = max(0, self._announced(line))
        return self._read_arguments()

    def _announced(self, line: bytes) -> int:
        count = _number(line)
        if count is None or count > ARGUMENTS_MAX:
            raise ProtocolError("invalid multibulk length")
        if count > STRANGER_ARGUMENTS_MAX and not self.trusted:
            raise ProtocolError("unauthenticated multibulk length")
        return count

    def _read_arguments(self) -> list[bytes] | None:
        arguments, buffer = self._arguments, self._buffer
        while self._missing:
            if self._length < 0:
                line = self._line(COUNT_BYTES_MAX, "too big bulk count string")
                if line is None:
                    return None
                self._length = self._announced_bytes(line)
            end = self._at + self._length
            if len(buffer) < end + 2:  # Redis does not look at what ends an argument, either.
                return None
            arguments.append(bytes(buffer[self._at : end]))
            self._bytes += self._length
            self._at = self._scanned = end + 2
            self._length = -1
            self._missing -= 1
        self._arguments, self._bytes = [], 0
        return arguments

    def _announced_bytes(self, line: bytes) -> int:
        if not line.startswith(b"$"):
            found = chr(line[0]) if line else "\r"
            raise ProtocolError(f"expected '$', got '{found}'")
        length = _number(line)
        if length is None or not 0 <= length <= BULK_BYTES_MAX:
            raise ProtocolError("invalid bulk length")
        if length > STRANGER_BULK_BYTES_MAX and not self.trusted:
            raise ProtocolError("unauthenticated bulk length")
        if length + self._bytes > RESP_REQUEST_BYTES_MAX:
            raise ProtocolError(f"the request is above the limit of {RESP_REQUEST_BYTES_MAX} bytes")
        return length

    def _line(self, most: int, text: str) -> bytes | None:
        buffer, at = self._buffer, self._at
        end = buffer.find(b"\n", max(at, self._scanned))
        if end < 0:
            self._scanned = len(buffer)
            if len(buffer) - at > most:
                raise ProtocolError(text)
            return None
        if end - at > most:
            raise ProtocolError(text)
        self._at = self._scanned = end + 1
        return bytes(buffer[at : end - 1 if end > at and buffer[end - 1] == ord("\r") else end])


def _number(line: bytes) -> int | None:
    digits = line[1:]
    if digits.removeprefix(b"-").isdigit():
        return int(digits)
    return None


_SPACES = b" \t\n\r\v\f\0"
_WORD = re.compile(
    rb"""[ \t\n\r\v\f\0]*+(?P<plain>[^ \t\n\r\v\f\0"']*+)"""
    rb"""(?:"(?P<double>(?:\\.|[^"\\])*+)"|'(?P<single>(?:\\'|[^'])*+)')?+(?=[ \t\n\r\v\f\0]|\Z)""",
    re.DOTALL,
)
"""A word of an inline request. It may end with a part in quotes, behind which comes a space."""

_ESCAPE = re.compile(rb"\\(?:x(?P<digits>[0-9a-fA-F]{2})|(?P<sign>.))", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def words_of(line: bytes) -> list[bytes]:
    """Return the words of an inline request, which quotes may hold together.

    Raises:
        ProtocolError: a quote is not closed, or something follows one.

    """
    plain = b'"' not in line and b"'" not in line
    words = line.replace(b"\0", b" ").split() if plain else _quoted_words(line.rstrip(_SPACES))
    if len(words) > ARGUMENTS_MAX:
        raise ProtocolError("invalid multibulk length")
    return words


def _quoted_words(line: bytes) -> list[bytes]:
    words, at = list[bytes](), 0
    while at < len(line):
        match = _WORD.match(line, at)
        if match is None:
            raise ProtocolError("unbalanced quotes in request")
        double, single = match["double"] or b"", match["single"] or b""
        quoted = _ESCAPE.sub(_unescaped, double) or single.replace(b"\\'", b"'")
        words.append(match["plain"] + quoted)
        at = match.end()
    return words


def _unescaped(match: re.Match[bytes]) -> bytes:
    if match["digits"]:
        return bytes.fromhex(match["digits"].decode())
    return _ESCAPED.get(match["sign"], match["sign"])


class Failure(NamedTuple):
    """An error as a reply. Its first word is a code such as ``ERR``."""

    text: str


class Push(NamedTuple):
    """Messages that a client receives without a request, or several replies to one request."""

    messages: list[list[Reply]]


class Nothing(Enum):
    """The null that Redis sends in place of an array."""

    ARRAY = b"*-1\r\n"


Reply: TypeAlias = (
    "int | str | bytes | Failure | Nothing | Push | list[Reply] | dict[str, Reply] | None"
)
"""A reply. A `str` is a status such as ``OK``, without a line end; `bytes` are a bulk string."""

VERSION_2 = 2
"""The version of a connection that does not say ``HELLO 3``."""


def encode_reply(reply: Reply, version: int) -> bytes:
    if type(reply) is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if reply is None:
        return b"$-1\r\n" if version == VERSION_2 else b"_\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, str):
        return f"+{reply}\r\n".encode()
    if isinstance(reply, Failure):
        text = reply.text.replace("\r", " ").replace("\n", " ")
        return f"-{text}\r\n".encode(errors="backslashreplace")
    if isinstance(reply, Nothing):
        return reply.value if version == VERSION_2 else b"_\r\n"
    if isinstance(reply, Push):
        messages = (encode_reply(one, version) for one in reply.messages)
        return b"".join(one if version == VERSION_2 else b">" + one[1:] for one in messages)
    items: Iterable[Reply]
    if isinstance(reply, dict):
        mark = b"*%d\r\n" % (2 * len(reply)) if version == VERSION_2 else b"%%%d\r\n" % len(reply)
        items = [part for key, value in reply.items() for part in (key.encode(), value)]
    else:
        mark, items = b"*%d\r\n" % len(reply), reply
    return mark + b"".join(encode_reply(item, version) for item in items)
