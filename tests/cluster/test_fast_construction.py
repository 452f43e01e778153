"""Copies of messages: as `dataclasses.replace` makes them, and nothing of the original's bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencelock.actors.api.message import Acquire, Granted, Released
from fencelock.actors.message import copier
from fencelock.transport.codec import decode, encode

ACQUIRE = Acquire(lock="x", session="s", owner="o", request=3, wait_ms=5, limit=2, label="l")
GRANTED = Granted(lock="x", fence=7, session="s", owner="o", request=3, count=2, hold_ms=9)


def test_a_copy_has_the_fields_that_were_given_and_else_those_of_the_original() -> None:
    said = copier(Acquire, "session", "request", "wait_ms")(ACQUIRE, "t", 4, None)
    assert said == replace(ACQUIRE, session="t", request=4, wait_ms=None)
    assert ACQUIRE.session == "s"
    answered = copier(Granted, "request")(GRANTED, 1)
    assert (type(answered), answered) == (Granted, replace(GRANTED, request=1))


def test_a_copy_does_not_take_over_the_encoding_of_the_original() -> None:
    before = encode(ACQUIRE)
    copy = copier(Acquire, "request")(ACQUIRE, 99)
    assert decode(encode(copy)) == copy
    assert encode(copy) != before == encode(ACQUIRE)


def test_only_fields_of_the_class_can_be_changed() -> None:
    with pytest.raises(AssertionError):
        copier(Released, "fence")
