"""`fencelock bench locks --profile`: the steps of a pair, which add up to its time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.expect import present
from support.hub_station import Make, alive, until
from support.programs import run_to_end

from fencelock.cluster.testing.ports import free_ports
from fencelock.verification.bench.machine import this_machine
from fencelock.verification.bench.members import BenchFailedError
from fencelock.verification.bench.profile import (
    CLIENT,
    NodeMarks,
    PairStep,
    Profile,
    Span,
    profile_table,
    steps_of,
    steps_table,
    way_of,
)
from fencelock.verification.bench.profile_marks import Mark, ProfileMarks, read_marks

LONG_S = 180.0

CLIENT_MARKS = [
    Mark("poll", 0, 1_020),
    Mark("ring", 1_010, 1_011),
    Mark("session", 1_022, 1_030),
    Mark("send", 1_032, 1_050, "endpoint-0"),
    Mark("poll", 1_052, 1_400),
    Mark("receive", 1_405, 1_420, "endpoint-0"),
    Mark("session", 1_421, 1_430),
    Mark("poll", 1_440, 5_000),
]
LEADER_MARKS = [
    Mark("poll", 0, 1_080),
    Mark("receive", 1_082, 1_090, "client-1"),
    Mark("proxy", 1_091, 1_100),
    Mark("send", 1_101, 1_120, "n2"),
    Mark("append", 1_121, 1_130),
    Mark("sync", 1_130, 1_260),
    Mark("poll", 1_261, 1_290),
    Mark("receive", 1_291, 1_300, "n2"),
    Mark("commander-3", 1_300, 1_310),
    Mark("replica", 1_310, 1_330),
    Mark("proxy", 1_331, 1_340),
    Mark("send", 1_341, 1_370, "client-1"),
    Mark("poll", 1_375, 5_000),
]
ACCEPTOR_MARKS = [
    Mark("poll", 0, 1_140),
    Mark("receive", 1_142, 1_150, "n1"),
    Mark("acceptor", 1_150, 1_160),
    Mark("append", 1_161, 1_165),
    Mark("sync", 1_165, 1_220),
    Mark("send", 1_221, 1_240, "n1"),
    Mark("poll", 1_250, 5_000),
]
CALL, BACK = 1_000, 1_450


def shifted(marks: list[Mark], times: int) -> list[Mark]:
    """Return the events of ``times`` pairs, one after the other."""
    return [
        mark._replace(begin_ns=mark.begin_ns + at, end_ns=mark.end_ns + at)
        for at in range(0, times * 5_000, 5_000)
        for mark in marks
    ]


def logs(times: int = 1) -> dict[str, NodeMarks]:
    return {
        CLIENT: NodeMarks(CLIENT, shifted(CLIENT_MARKS, times), {"endpoint-0": "n1"}),
        "n1": NodeMarks("n1", shifted(LEADER_MARKS, times), {"client-1": CLIENT}),
        "n2": NodeMarks("n2", shifted(ACCEPTOR_MARKS, times), {"client-1": CLIENT}),
    }


def test_the_way_of_a_request_is_followed_back_from_its_answer() -> None:
    way = present(way_of(logs(), CALL, BACK))
    assert sum(span.ns for span in way) == BACK - CALL
    assert way[:6] == [
        Span(CLIENT, "call", 10),
        Span(CLIENT, "wake", 10),
        Span(CLIENT, "dispatch", 2),
        Span(CLIENT, "session", 8),
        Span(CLIENT, "dispatch", 2),
        Span(CLIENT, "send", 18),
    ]
    places = [span.place for span in way]
    assert list(dict.fromkeys(places)) == [CLIENT, "n1", "n2"]
    assert [span for span in way if span.what == "wire"] == [
        Span("n1", "wire", 30),
        Span("n2", "wire", 20),
        Span("n1", "wire", 29),
        Span(CLIENT, "wire", 30),
    ]
    assert [span for span in way if span.early] == [  # The leader's disk was slower.
        Span("n1", "sync", 20, early=True),
        Span("n1", "dispatch", 1, early=True),
    ]
    assert way[-1] == Span(CLIENT, "wake", 10)


def test_a_reply_that_was_never_sent_has_no_way() -> None:
    known = logs()
    assert way_of(known, BACK, BACK + 10) is None
    assert way_of({CLIENT: known[CLIENT]}, CALL, BACK) is None
    assert way_of({**known, "n1": NodeMarks("n1", [], {})}, CALL, BACK) is None
    assert way_of({**known, "n2": NodeMarks("n2", [], {})}, CALL, BACK) is None


def test_a_frame_that_comes_while_its_node_works_was_not_on_the_wire_for_long() -> None:
    marks = [Mark("poll", 0, 1_040), *LEADER_MARKS[1:]]
    known = {**logs(), "n1": NodeMarks("n1", marks, {"client-1": CLIENT})}
    way = present(way_of(known, CALL, BACK))
    assert sum(span.ns for span in way) == BACK - CALL
    at_leader = [span for span in way if span.place == "n1"]
    assert at_leader[0] == Span("n1", "dispatch", 32)


def test_steps_are_means_of_the_middle_half_and_add_up() -> None:
    pairs = [(at + CALL, at + BACK, at + 5_000 + BACK) for at in range(0, 400_000, 10_000)]
    steps, followed, total_us = steps_of(logs(80), pairs, "n1")
    assert followed == 40
    assert total_us == pytest.approx(5.45)
    assert sum(step.pair_us for step in steps) == pytest.approx(total_us)
    named = {(step.visit, step.place, step.step): step.acquire_us for step in steps}
    assert named[2, "leader", "propose"] == pytest.approx(0.009)
    assert named[3, "acceptor", "vote"] == pytest.approx(0.010)
    assert named[3, "acceptor", "sync"] == pytest.approx(0.059)
    assert named[4, "leader", "own sync"] == pytest.approx(0.020)
    assert named[4, "leader", "quorum"] == pytest.approx(0.010)
    assert named[4, "leader", "apply"] == pytest.approx(0.020)
    assert named[4, "leader", "reply"] == pytest.approx(0.009)
    assert [step.step for step in steps if step.visit == 3][:2] == ["wire", "dispatch"]
    assert named[5, CLIENT, "client wake-up"] == pytest.approx(0.010)


def test_places_and_roles_have_their_own_names_where_there_is_no_leader() -> None:
    pairs = [(at + CALL, at + BACK, at + 5_000 + BACK) for at in range(0, 400_000, 10_000)]
    steps, _, _ = steps_of(logs(80), pairs, "")
    assert list(dict.fromkeys(step.place for step in steps)) == [CLIENT, "n1", "n2"]
    assert {"proxy", "replica", "commander"} <= {step.step for step in steps}


def test_a_few_pairs_prove_nothing() -> None:
    with pytest.raises(BenchFailedError, match="1 of 1 pairs"):
        steps_of(logs(2), [(CALL, BACK, 5_000 + BACK)], "n1")


def test_the_table_shows_every_step_and_the_sum(tmp_path: Path) -> None:
    steps = (PairStep(1, CLIENT, "send", 10, 20), PairStep(2, "leader", "wire", 30, 40))
    found = Profile("title", this_machine(tmp_path), steps, 9, 8, 100, 80, 70)
    columns = [list(column.cells) for column in profile_table(found).columns]
    assert columns[0] == [CLIENT, "leader", "all"]
    assert columns[4] == ["30.0", "70.0", "100.0"]
    assert list(steps_table(found).columns[0].cells) == ["wire", "send"]
    assert "(+25.0 %)" in found.in_words()
    assert json.loads(json.dumps(found.as_plain()))["by_step"] == {"wire": 70, "send": 30}


def test_marks_are_read_as_they_were_written(tmp_path: Path) -> None:
    marks = ProfileMarks()
    marks.marks += LEADER_MARKS
    marks.write(tmp_path / "n1.marks")
    assert read_marks(tmp_path / "n1.marks") == LEADER_MARKS


def test_frames_are_marked_with_the_link_that_they_took(station: Make) -> None:
    marks = ProfileMarks()
    ends = [f"tcp://127.0.0.1:{port}" for port in free_ports(2)]
    a = station("a", listen=ends[0], peers={"b": ends[1]})
    b = station("b", listen=ends[1], peers={"a": ends[0]})
    marks.links(a.hub)
    until(lambda: a.up() and b.up(), a, b)

    a.send("b", alive(1))
    b.send("a", alive(2))
    until(lambda: a.arrivals and b.arrivals, a, b)

    marked = {(what, detail) for what, _, _, detail in marks.marks if detail}
    assert marked == {("send", "b"), ("receive", "b")}


@pytest.mark.long
def test_a_real_pair_is_taken_apart_and_adds_up() -> None:
    command = [sys.executable, "-m", "fencelock", "bench", "locks", "--profile"]
    ended = run_to_end([*command, "--seconds", "1", "--json"], timeout=LONG_S)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["followed"] > found["pairs"] / 2
    assert sum(step["pair_us"] for step in found["steps"]) == pytest.approx(found["sum_us"])
    # Half of the pairs lie on either side of the median, and the mean is that of the middle half,
    # which is wide on a busy machine.
    assert found["sum_us"] == pytest.approx(found["measured_us"], rel=0.25)
    assert found["by_step"].keys() >= {
        "client call",
        "client wake-up",
        "client session",
        "wire",
        "dispatch",
        "decode",
        "send",
        "propose",
        "vote",
        "sync",
        "quorum",
        "apply",
        "reply",
    }
    assert all(us > 0 for us in found["by_step"].values())
    assert {step["place"] for step in found["steps"]} == {"client", "leader", "acceptor"}
    assert "The steps add up to" in ended.stderr
