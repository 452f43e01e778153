"""The logs of nodes and clients."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from support.collected import Lines, fields_of, logged_to
from support.expect import PATIENCE_S, present
from support.real_nodes import config_in, running, running_nodes
from support.role_harness import T0

import fencelock
from fencelock.actors.api.lock_message import Contender
from fencelock.actors.api.operator_message import Evicted
from fencelock.actors.api.role_request import SetLog
from fencelock.actors.api.session_message import CloseReason, Opened, ended
from fencelock.actors.error import (
    ConfigError,
    InvalidRequestError,
    LockOwnershipLostError,
    UnsupportedError,
)
from fencelock.actors.message import Instant
from fencelock.actors.paxos.backend import notice_of
from fencelock.actors.repeated import INTERVAL_NS
from fencelock.actors.role_message import Level
from fencelock.cluster import log
from fencelock.cluster.host.scheduler import Scheduler
from fencelock.cluster.host.watchdog import DROPPED, OTHER_GROUP, Watchdog
from fencelock.cluster.node.node import records_of
from fencelock.cluster.node.storage.journal import Journal
from fencelock.cluster.node.storage.segment import segment_path
from fencelock.transport.log import note


def evictions(lines: Lines, *nodes: str) -> Iterator[str]:
    """Yield the warning of an eviction, once it is there, of each of these nodes."""
    for node in nodes:
        level, _, text = lines.until(
            lambda line, node=node: line[1] == node and "by force" in line[2]  # type: ignore[misc]
        )
        assert level == "WARNING"
        assert text.startswith("lock 'orders/42' was taken by force from ")
        yield text


def test_the_logs_of_three_nodes_show_a_start_an_eviction_and_a_leaders_end(
    lines: Lines, tmp_path: Path
) -> None:
    with running_nodes(tmp_path) as nodes:
        lines.until(lambda line: "leads now" in line[2])
        for node in nodes:
            lines.until(lambda line, node=node: line[2].startswith(f"{node} starts, fencelock"))  # type: ignore[misc]
        assert any("its journal is empty" in text for _, _, text in lines.values)
        with fencelock.connect(nodes["n1"].address) as client:
            hold = present(client.lock("orders/42", label="web-3").acquire())
            client.evict("orders/42", hold.fence, "alice")
            lines.until(lambda line: line[0] == "DEBUG" and "is open, with a TTL" in line[2])
            assert all("web-3, by 'alice" in text for text in evictions(lines, *nodes))
        lines.until(lambda line: "closed: its client ended it" in line[2])
        current = [node for _, node, text in lines.values if "leads now" in text][-1]
        seen = len(lines.values)
        nodes[current].stop()
        lines.until(lambda line: line[1] == current and "leads no more: it handed over" in line[2])
        lines.until(
            lambda line: (
                (line[1] != current and f"nothing comes from {current}" in line[2])
                or f"{current} hands over to it" in line[2]
            )
        )
        lines.until(lambda line: line in lines.values[seen:] and "leads now" in line[2])
        lines.until(lambda line: f"the link to {current} is down" in line[2])


def test_the_logs_of_the_server_and_of_the_holders_node_show_an_eviction_by_central(
    lines: Lines, tmp_path: Path
) -> None:
    with running_nodes(tmp_path, "central") as nodes:  # The server is on n1.
        lines.until(lambda line: line == ("INFO", "n2", "n2 is ready: it can grant locks"))
        with (
            fencelock.connect(nodes["n2"].address) as holder,
            fencelock.connect(nodes["n3"].address) as operator,
        ):
            hold = present(holder.lock("orders/42").acquire(timeout=PATIENCE_S))
            operator.evict("orders/42", hold.fence, "alice")
            assert all("by 'alice" in text for text in evictions(lines, "n1", "n2"))
            with pytest.raises(LockOwnershipLostError, match="took it"):
                hold.release()
            with pytest.raises(UnsupportedError, match="event=eviction"):
                operator.evictions()


def test_a_node_of_lamport_logs_which_nodes_it_waits_for_until_ready(
    lines: Lines, tmp_path: Path
) -> None:
    with running_nodes(tmp_path, "lamport") as nodes:
        for node in nodes:
            lines.until(lambda line, node=node: line[2] == f"{node} is ready: it can grant locks")  # type: ignore[misc]
    waits = "n1 is not ready yet: nothing received since the start from n2, n3"
    assert ("INFO", "n1", waits) in lines.values


@pytest.mark.parametrize(("protocol", "keeps"), [("paxos", True), ("central", False)])
def test_the_line_of_a_start_names_the_journal_of_a_node_that_keeps_one(
    protocol: str, keeps: bool, tmp_path: Path
) -> None:
    fields: list[dict[str, Any]] = []
    config = config_in(tmp_path, protocol, nodes=1)
    with logged_to(lambda record: fields.append(fields_of(record)), "INFO"), running(config):
        pass
    named = [line.get("journal") for line in fields if line.get("event") == "starts"]
    known = None
    if keeps:
        with closing(Journal.open(present(config.folder_of("n1")))) as journal:
            known = f"{records_of(journal, config, 'n1')[1].id:x}"
    assert named == [known]


@pytest.mark.parametrize(
    ("reason", "level", "words"),
    [
        (CloseReason.GRACEFUL, Level.DEBUG, "s.1 closed: its client ended it"),
        (CloseReason.EXPIRED, Level.INFO, "s.1 expired: nothing came from its client"),
        (CloseReason.FORCED, Level.WARNING, "s.1 closed: an operator ended it"),
    ],
)
def test_the_end_of_a_session_has_a_reason(reason: CloseReason, level: Level, words: str) -> None:
    notice = notice_of(ended("s.1", reason))
    assert notice.level is level
    assert notice.text.startswith(f"session {words}")
    assert ("session", "s.1") in notice.fields


def test_a_session_that_was_closed_by_force_is_logged_with_the_operator() -> None:
    notice = notice_of(ended("s.1", CloseReason.FORCED, operator="alice (c)"))
    assert notice.level is Level.WARNING
    assert notice.text.startswith(
        "session s.1 closed: it was ended by force, by 'alice (c)'. Its locks are free"
    )
    assert dict(notice.fields)["operator"] == "alice (c)"


def test_an_eviction_and_an_opened_session_have_fields_for_programs() -> None:
    holder = Contender("", "s.1", "t", 7, 0, "web-3")
    evicted = notice_of(Evicted(lock="a", fence=7, holder=holder, operator="alice"))
    assert evicted.level is Level.WARNING
    assert dict(evicted.fields)["operator"] == "alice"
    opened = notice_of(Opened(session="s", assigned="s.1", ttl_ms=9, node=""))
    assert (opened.level, dict(opened.fields)["session"]) == (Level.DEBUG, "s.1")


@pytest.fixture
def silenced() -> Iterator[None]:
    yield
    log.silence()


def test_a_log_line_has_the_fields_bound_to_it_and_the_level_is_heeded(silenced: None) -> None:
    log.set_up("INFO", stream=(stream := StringIO()))
    note("n1", "INFO", "hello {} <you>", role="n1/proxy")
    note("n1", "DEBUG", "too fine")
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert line.endswith(" INFO     node=n1 role=n1/proxy hello {} <you>\n")


def logged(stream: StringIO, *, as_json: bool = False) -> None:
    """Write one line with a hostile message and field."""
    log.set_up("INFO", stream=stream, as_json=as_json)
    evil = "\x1b[2J{x}<red>\nn9 leads"
    note("n1", "WARNING", evil, event="eviction", lock=evil, fence=7)


def test_a_line_of_text_has_no_control_characters(silenced: None) -> None:
    logged(stream := StringIO())
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert line[:-1].isprintable()
    assert r"WARNING  node=n1 \x1b[2J{x}<red>\nn9 leads event=eviction lock=" in line
    assert line.endswith(" fence=7\n")


def test_a_line_of_json_is_compact_and_has_the_fields(silenced: None) -> None:
    logged(stream := StringIO(), as_json=True)
    line = stream.getvalue()
    assert line.count("\n") == 1
    found = json.loads(line)
    assert list(found) == ["time", "level", "message", "node", "event", "lock", "fence"]
    assert (found["node"], found["fence"], found["lock"]) == ("n1", 7, found["message"])


def test_an_exception_stays_within_its_line_of_json(silenced: None) -> None:
    log.set_up(stream=(stream := StringIO()), as_json=True)
    note("n1", "CRITICAL", "stops", ValueError("bad"))
    found = json.loads(stream.getvalue())
    assert found["exception"].endswith("ValueError: bad\n")


def test_a_repeated_line_is_written_once_an_interval_with_the_count(silenced: None) -> None:
    log.set_up(stream=(stream := StringIO()), as_json=True)
    now = [0]
    repeated = log.Repeated("n1", lambda: now[0])
    for took_ms in (120, 300, 200):
        repeated.add(took_ms, "the disk took {worst} ms{times}", event="slow_sync")
    now[0] = log.Repeated.INTERVAL_NS
    repeated.add(150, "the disk took {worst} ms{times}", event="slow_sync")
    written = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
    assert written == [
        "the disk took 120 ms",
        "the disk took 300 ms (3 times since the last such line)",
    ]


def test_a_node_is_silent_until_a_program_sets_its_log_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # Those of pytest.
    segment_path(tmp_path, 1).write_bytes(b"hold")  # Cut at start, with a warning.
    Journal.open(tmp_path).close()
    assert capsys.readouterr() == ("", "")
    segment_path(tmp_path, 1).write_bytes(b"hold")
    lines: list[str] = []
    with logged_to(lambda record: lines.append(record.getMessage()), "WARNING"):
        Journal.open(tmp_path).close()
    assert lines == [f"{segment_path(tmp_path, 1)}: cut 4 bytes of an unfinished write"]


@pytest.mark.parametrize(("terminal", "seen"), [(False, ["lost"]), (True, ["waits", "lost"])])
def test_a_program_that_sets_no_log_up_sees_warnings_and_at_a_terminal_what_it_waits_for(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    seen: list[str],
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # Those of pytest.
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    log.inform("waits")
    log.warn("lost")
    assert capsys.readouterr().err.splitlines() == seen


def test_a_program_at_a_terminal_that_sets_its_log_up_sees_what_it_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    lines: list[str] = []
    with logged_to(lambda record: lines.append(record.getMessage()), "WARNING"):
        log.inform("waits")
        log.warn("lost")
    assert lines == ["lost"]


def test_a_trace_of_some_roles_has_their_messages_and_their_state_after_each(
    lines: Lines, tmp_path: Path
) -> None:
    logging.getLogger("fencelock").setLevel("TRACE")
    config = config_in(tmp_path, "lamport")
    config = replace(config, log_level="TRACE", traced_roles=("process", "clock"))
    with (
        running(config) as nodes,
        fencelock.connect(nodes["n1"].address) as client,
        client.lock("orders/42"),
    ):
        pass
    traced = [text for level, _, text in lines.values if level == "TRACE"]
    assert {text.split()[0].partition("/")[2] for text in traced} == {"process", "clock"}
    asked = re.compile(
        r"n2/process at .* receives Delivered\(origin='n1', message=Request\(.*lock='orders/42'"
    )
    taken = [text for text in traced if asked.match(text)]
    after = traced[traced.index(taken[0]) + 1 :]
    assert next(text for text in after if text.startswith("n2/process has ")).startswith(
        "n2/process has queue of orders/42: n1 at "
    )
    assert any(text.startswith("n1/clock has time ") for text in traced)


def test_an_operator_changes_the_level_and_traced_roles_of_a_running_node(
    tmp_path: Path, silenced: None
) -> None:
    file = log.LogFile(tmp_path / "logs" / "n1.log", bytes_max=10**6, kept=3)
    log.set_up("INFO", stream=StringIO(), file=file)
    with (
        running_nodes(tmp_path, "lamport") as nodes,
        fencelock.connect(nodes["n1"].address) as client,
    ):
        book = client.ref("n1/log")

        def traced(lock: str, setting: SetLog) -> list[str]:
            assert book.ask(setting, timeout=PATIENCE_S).level == setting.level
            before = len(file.path.read_text().splitlines())
            with client.lock(lock):
                pass
            later = file.path.read_text().splitlines()[before:]
            return [line for line in later if " TRACE " in line]

        found = traced("a", SetLog(level="TRACE", roles=("process",)))
        assert any("n1/process" in line and "lock='a'" in line for line in found)
        assert not any(" n1/clock at " in line for line in found)
        found = traced("b", SetLog(level="TRACE", roles=()))
        assert any(" n1/clock at " in line for line in found)
        assert traced("c", SetLog(level="INFO")) == []
        with pytest.raises(InvalidRequestError, match="level is 'LOUD', and must be one of"):
            book.ask(SetLog(level="LOUD"), timeout=PATIENCE_S)


def test_a_log_file_is_renamed_when_it_is_full_and_old_ones_are_deleted(
    tmp_path: Path, silenced: None
) -> None:
    file = log.LogFile(tmp_path / "n1.log", bytes_max=2_000, kept=2)
    log.set_up("INFO", stream=StringIO(), file=file)
    for number in range(100):
        note("n1", "INFO", f"line {number:03d} {'x' * 80}", event="test")
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 + file.kept
    assert all(one.stat().st_size < 2_300 for one in files)
    assert "line 099" in file.path.read_text()


def test_a_log_file_that_cannot_be_written_is_refused_with_a_reason(
    tmp_path: Path, silenced: None
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"log\.folder: .*file"):
        log.set_up(file=log.LogFile(tmp_path / "file" / "n1.log", 1_000, 1), stream=StringIO())


@pytest.mark.parametrize(
    ("counter", "level"), [("wire.malformed", "WARNING"), (OTHER_GROUP, "ERROR")]
)
def test_new_dropped_frames_are_reported_once_an_interval(
    lines: Lines, counter: str, level: str
) -> None:
    counters = Counter[str]()
    watchdog = Watchdog("n1", Scheduler("n1", lambda _: None, counters, lambda: T0), list)
    for dropped, passed_ns in (
        (2, 0),
        (3, INTERVAL_NS - 1),
        (0, INTERVAL_NS),
        (0, 9 * INTERVAL_NS),
    ):
        counters[counter] += dropped
        watchdog.look(Instant(T0 + passed_ns), 0)
    shown = [(line[0], line[2].rpartition(" s: ")[2]) for line in lines.values]
    assert shown == [(level, f"{dropped} {DROPPED[counter]}") for dropped in (2, 3)]
