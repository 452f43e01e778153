"""RESP as the Redis door reads and writes it, and the scripts that it knows by their shape."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelock.actors.redis.resp import (
    BULK_BYTES_MAX,
    Failure,
    Nothing,
    ProtocolError,
    Reply,
    RequestParser,
    encode_reply,
)
from fencelock.actors.redis.shapes import KNOWN, Operation, operation_of

Requests = list[list[bytes]]


def array(*arguments: bytes) -> bytes:
    return b"*%d\r\n" % len(arguments) + b"".join(
        b"$%d\r\n%b\r\n" % (len(one), one) for one in arguments
    )


def parsed(*pieces: bytes, trusted: bool = True) -> Requests:
    parser, found = RequestParser(trusted=trusted), list[list[bytes]]()
    for piece in pieces:
        parser.feed(piece)
        while (request := parser.next()) is not None:
            found += [request] if request else []
    return found


requests = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), max_size=5)


@given(requests, st.lists(st.integers(0, 400)))
def test_bytes_that_are_cut_anywhere_are_the_same_requests(sent: Requests, cuts: list[int]) -> None:
    data = b"".join(array(*request) for request in sent)
    places = sorted({cut for cut in cuts if cut < len(data)} | {0, len(data)})
    pieces = [data[a:b] for a, b in pairwise(places)]
    assert parsed(*pieces) == sent


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_requests_or_an_error_with_a_text(data: bytes, trusted: bool) -> None:
    parser = RequestParser(trusted=trusted)
    parser.feed(data)
    with suppress(ProtocolError):
        while parser.next() is not None:
            pass
    assert parser.held <= len(data)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"PING\r\n", [b"PING"]),
        (b"  SET  a\tb \n", [b"SET", b"a", b"b"]),
        (b"SET \"a b\" 'c d'\r\n", [b"SET", b"a b", b"c d"]),
        (b'ECHO "\\x41\\n\\"\\\\\\q"\r\n', [b"ECHO", b'A\n"\\q']),
        (b"ECHO 'it\\'s \\n'\r\n", [b"ECHO", b"it's \\n"]),
        (b'ECHO ""\r\n', [b"ECHO", b""]),
    ],
)
def test_a_line_is_a_request_too(line: bytes, words: list[bytes]) -> None:
    assert parsed(line) == [words]


def test_empty_lines_and_empty_arrays_are_no_requests() -> None:
    assert parsed(b"\r\n*0\r\n*-1\r\n\r\nPING\r\n") == [[b"PING"]]


ERRORS = [
    (b"*x\r\n", "invalid multibulk length"),
    (b"*1025\r\n", "invalid multibulk length"),
    (b"*99999999999999999999\r\n", "invalid multibulk length"),
    (b"*" + b"1" * 100, "too big mbulk count string"),
    (b"*1\r\n$-1\r\n", "invalid bulk length"),
    (b"*1\r\n$%d\r\n" % (BULK_BYTES_MAX + 1), "invalid bulk length"),
    (b"*1\r\n$" + b"1" * 100, "too big bulk count string"),
    (b"*1\r\n*1\r\n", "expected '$', got '*'"),
    (b"*2\r\n$4\r\nPING\r\n:1\r\n", "expected '$', got ':'"),
    (b"a" * (65 << 10), "too big inline request"),
    (b'"abc\r\n', "unbalanced quotes in request"),
    (b'"abc"d\r\n', "unbalanced quotes in request"),
    (
        b"*3\r\n" + (b"$%d\r\n%b\r\n" % (50 << 10, b"a" * (50 << 10))) * 3,
        "the request is above the limit of 131072 bytes",
    ),
]


@pytest.mark.parametrize(("data", "text"), ERRORS)
def test_bytes_that_are_no_request_are_refused_in_words_of_redis(data: bytes, text: str) -> None:
    with pytest.raises(ProtocolError) as refusal:
        parsed(data)
    assert str(refusal.value) == text


def test_a_length_is_refused_before_its_bytes_arrive() -> None:
    parser = RequestParser()
    parser.feed(b"*1000\r\n$65536\r\n")
    assert parser.next() is None
    assert parser.held < 100


def test_a_stranger_may_send_little() -> None:
    with pytest.raises(ProtocolError, match="unauthenticated multibulk length"):
        parsed(b"*11\r\n", trusted=False)
    with pytest.raises(ProtocolError, match="unauthenticated bulk length"):
        parsed(b"*1\r\n$20000\r\n", trusted=False)


REPLIES: list[tuple[Reply, bytes, bytes]] = [
    ("OK", b"+OK\r\n", b"+OK\r\n"),
    (-2, b":-2\r\n", b":-2\r\n"),
    (b"a\r\n", b"$3\r\na\r\n\r\n", b"$3\r\na\r\n\r\n"),
    (None, b"$-1\r\n", b"_\r\n"),
    (Nothing.ARRAY, b"*-1\r\n", b"_\r\n"),
    (Failure("ERR a\r\nb"), b"-ERR a  b\r\n", b"-ERR a  b\r\n"),
    (
        [1, [b"a", None]],
        b"*2\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n",
        b"*2\r\n:1\r\n*2\r\n$1\r\na\r\n_\r\n",
    ),
    ({"a": 1}, b"*2\r\n$1\r\na\r\n:1\r\n", b"%1\r\n$1\r\na\r\n:1\r\n"),
]


@pytest.mark.parametrize(("reply", "second", "third"), REPLIES)
def test_replies_in_both_versions(reply: Reply, second: bytes, third: bytes) -> None:
    assert (encode_reply(reply, 2), encode_reply(reply, 3)) == (second, third)


# Scripts of clients, by their shape


RELEASE = (
    'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) '
    "else return 0 end"
)

SAME = [
    RELEASE,
    RELEASE.replace('"', "'"),
    RELEASE.replace(" ", "\n\t "),
    RELEASE.replace('"get"', '"GET"').replace('"del"', '"DEL"'),
    "-- ours\n" + RELEASE.replace("then", "then --[[ mine\n]]") + ";",
    RELEASE.replace("redis.call", "redis.pcall"),
    """local token = redis.call('get', KEYS[1]) if not token or token ~= ARGV[1] then return 0 end
       redis.call('del', KEYS[1]) return 1""",
    """local mine = redis.call('get', KEYS[1]) if not mine or mine ~= ARGV[1] then return 0 end
       redis.call('del', KEYS[1]) return 1""",
]


@pytest.mark.parametrize("text", SAME)
def test_white_space_quotes_comments_case_and_names_do_not_count(text: str) -> None:
    assert operation_of(text.encode())[1] is Operation.COMPARE_DELETE


OTHERS = [
    "",
    "return 1",
    RELEASE.replace("==", "~="),
    RELEASE.replace("KEYS[1])\n", "KEYS[2])\n").replace('"del", KEYS[1]', '"del", KEYS[2]'),
    RELEASE.replace("return 0", "return 1"),
    RELEASE.replace("get", "hget"),
    RELEASE.replace("KEYS", "keys"),
    RELEASE + " redis.call('flushall')",
    RELEASE.replace(" else", " -- else"),
    """local a = redis.call('get', KEYS[1]) if not b or a ~= ARGV[1] then return 0 end
       redis.call('del', KEYS[1]) return 1""",
    RELEASE + " " * (9 << 10),
]


@pytest.mark.parametrize("text", OTHERS)
def test_a_script_that_does_something_else_is_unknown(text: str) -> None:
    assert operation_of(text.encode())[1] is None


def test_each_sha1_of_a_release_belongs_to_one_operation() -> None:
    assert len(KNOWN) == 81
    assert all(len(digest) == 40 and set(digest) <= set("0123456789abcdef") for digest in KNOWN)
