"""Frames of another group are refused, and a node without one receives only what finds it one."""

from __future__ import annotations

import pytest

from fencelock.actors.bootstrap_message import Found
from fencelock.actors.message import Address
from fencelock.transport.admission import Dropped, FrameValidator
from fencelock.transport.frame import Envelope, Frame, Mismatch, encode_frame

OURS, THEIRS = 7, 8


def frame(group: int, *roles: str) -> bytes:
    envelopes = [Envelope(Address(f"n1/{role}"), Address("n2/role"), Found()) for role in roles]
    return encode_frame(Frame("c", group, 0, envelopes))


def validator(group: int) -> FrameValidator:
    made = FrameValidator("n1", "c", client=False, members={"n2"})
    made.group = group
    return made


def admitted(checks: FrameValidator, raw: bytes) -> list[str]:
    """Return the receivers of a frame; the second look takes the path of known addresses."""
    frames = [checks.admit("n2", raw) for _ in range(2)]
    assert all(isinstance(one, Frame) for one in frames)
    first, second = ([to for to, _, _ in one.envelopes] for one in frames if type(one) is Frame)
    assert first == second
    return list(first)


def test_frames_of_the_same_group_reach_every_role() -> None:
    for group in (0, OURS):  # Without groups, as on `lamport` and `central`, too.
        raw = frame(group, "acceptor", "proxy")
        assert admitted(validator(group), raw) == ["n1/acceptor", "n1/proxy"]


@pytest.mark.parametrize(("here", "there"), [(OURS, 0), (0, THEIRS)])
def test_where_one_end_has_no_group_only_requests_and_bootstrap_pass(here: int, there: int) -> None:
    checks = validator(here)
    if here == there or not there:
        admitted(checks, frame(OURS, "acceptor"))  # Known addresses do not help.
    assert admitted(checks, frame(there, "acceptor", "proxy", "bootstrap")) == [
        "n1/proxy",
        "n1/bootstrap",
    ]


def test_a_frame_of_another_group_is_refused_as_a_whole_even_from_known_addresses() -> None:
    checks = validator(OURS)
    admitted(checks, frame(OURS, "acceptor", "bootstrap"))
    dropped = checks.admit("n2", frame(THEIRS, "acceptor", "bootstrap"))
    assert isinstance(dropped, Dropped)
    assert (dropped.counter, dropped.mismatch) == ("wire.other_group", Mismatch.GROUP)
    assert "group 8 of cluster 'c'" in dropped.detail


def test_a_client_takes_replies_of_nodes_of_any_group() -> None:
    checks = FrameValidator("n1", "c", client=True)
    assert admitted(checks, frame(OURS, "session")) == ["n1/session"]
    assert admitted(checks, frame(THEIRS, "session")) == ["n1/session"]
