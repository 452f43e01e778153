from __future__ import annotations

from io import StringIO
from pathlib import Path

from loguru import logger

from fencelock.cluster import log
from fencelock.cluster.storage.journal import Journal
from fencelock.cluster.storage.segment import segment_path


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
