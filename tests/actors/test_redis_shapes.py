"""Scripts that the Redis door knows by their text, however it is written, and those it does not."""

from __future__ import annotations

import pytest

from fencelock.actors.redis.shapes import KNOWN, Operation, operation_of

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
