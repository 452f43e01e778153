from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from loguru import logger

from fencelock.cluster import log
from fencelock.cluster.node.storage.journal import Journal
from fencelock.cluster.node.storage.segment import segment_path


@pytest.fixture
def silenced() -> Iterator[None]:
    yield
    logger.remove()
    log.silence()


def test_a_log_line_has_the_fields_bound_to_it_and_the_level_is_heeded() -> None:
    stream = StringIO()
    try:
        log.set_up("INFO", stream=stream)
        logger.bind(node="n1", role="n1/proxy").info("hello {}", "<you>")
        logger.debug("too fine")
        line = stream.getvalue()
        assert line.count("\n") == 1
        assert line.endswith(" INFO     node=n1 role=n1/proxy hello <you>\n")
    finally:
        logger.remove()
        log.silence()


def logged(stream: StringIO, *, as_json: bool = False) -> None:
    """Write one line with a hostile message and field."""
    log.set_up("INFO", stream=stream, as_json=as_json)
    evil = "\x1b[2J{x}<red>\nn9 leads"
    log.note("n1", "WARNING", evil, event="eviction", lock=evil, fence=7)


def test_a_line_of_text_has_no_control_characters(silenced: None) -> None:
    del silenced
    logged(stream := StringIO())
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert line[:-1].isprintable()
    assert r"WARNING  node=n1 \x1b[2J{x}<red>\nn9 leads event=eviction lock=" in line
    assert line.endswith(" fence=7\n")


def test_a_line_of_json_is_compact_and_has_the_fields(silenced: None) -> None:
    del silenced
    logged(stream := StringIO(), as_json=True)
    line = stream.getvalue()
    assert line.count("\n") == 1
    found = json.loads(line)
    assert list(found) == ["time", "level", "message", "node", "event", "lock", "fence"]
    assert (found["node"], found["fence"], found["lock"]) == ("n1", 7, found["message"])


def test_an_exception_stays_within_its_line_of_json(silenced: None) -> None:
    del silenced
    log.set_up(stream=(stream := StringIO()), as_json=True)
    logger.opt(exception=ValueError("bad")).bind(node="n1").critical("stops")
    found = json.loads(stream.getvalue())
    assert found["exception"].endswith("ValueError: bad\n")


def test_what_repeats_is_written_once_an_interval_with_the_count(silenced: None) -> None:
    del silenced
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


def test_the_library_is_silent_until_a_program_enables_it(tmp_path: Path) -> None:
    segment_path(tmp_path, 1).write_bytes(b"hold")  # Cut at start, with a warning.
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message}")
    try:
        log.silence()
        Journal.open(tmp_path).close()
        assert lines == []
        segment_path(tmp_path, 1).write_bytes(b"hold")
        logger.enable(log.PACKAGE)
        Journal.open(tmp_path).close()
        assert lines == [f"{segment_path(tmp_path, 1)}: cut 4 bytes of an unfinished write\n"]
    finally:
        logger.remove(sink)
        log.silence()
