"""The comparison with the peers: its bars judge as they say, and it cleans up behind itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest
from peers.etcd import decode, encode
from support.paths import PROGRAMS
from support.programs import run_to_end

pytestmark = pytest.mark.long

LONG_S = 120.0


def run(*options: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    return run_to_end(
        [sys.executable, str(PROGRAMS / "compare.py"), *options],
        env={**os.environ, **({} if path is None else {"PATH": path})},
    )


def figures(pair_us: float, pairs: float, handovers: float, gap_s: float) -> dict[str, Any]:
    """Figures of two rounds, the second a tenth faster in everything that is counted."""
    return {
        "pair": [{"p50_us": pair_us, "p99_us": 2 * pair_us}] * 2,
        "distinct": [{"pairs_per_s": pairs}, {"pairs_per_s": 1.1 * pairs}],
        "handover": [{"handovers_per_s": handovers, "overlaps": 0}] * 2,
        "failover": [{"gap_s": gap_s, "errors": 0}],
    }


def saved(folder: Path, **peers: dict[str, Any]) -> Path:
    machine = {
        "processor": "a",
        "cores": 2,
        "system": "b",
        "python": "3",
        "file_system": "c",
        "load": 0,
    }
    results: dict[str, Any] = {
        "machine": machine,
        "seconds": 1,
        "peers": list(peers),
        "versions": {},
        "skipped": {"zookeeper": "apt-get install zookeeper"},
        "failed": [],
        "wire": [{}, {}],
        "figures": peers,
    }
    path = folder / "saved.json"
    path.write_text(json.dumps(results), encoding="utf-8")
    return path


def verdicts(path: Path) -> dict[str, tuple[str, Any]]:
    judged = json.loads(path.read_text(encoding="utf-8"))["bars"]
    return {bar["bar"]: (bar["verdict"], bar["median"]) for bar in judged}


def test_a_bar_is_the_median_of_each_rounds_ratio(tmp_path: Path) -> None:
    ours = figures(600, 6000, 800, 0.5)
    ours["distinct"][1] = {"pairs_per_s": 9900.0}
    path = saved(
        tmp_path,
        fencelock=ours,
        redlock=figures(500, 2000, 300, 0),
        etcd=figures(2500, 2000, 80, 1.5),
    )
    ended = run("--again", str(path), "--json", str(path))
    found = verdicts(path)
    assert found["pair p50, beside redlock"] == ("pass", pytest.approx(1.2))
    assert found["pair p50, beside etcd"] == ("pass", pytest.approx(0.24))
    assert found["2x64 distinct locks, pairs/s, beside etcd"] == ("pass", pytest.approx(3.75))
    assert found["2x4 on one lock, hand-overs/s, beside etcd"] == ("pass", pytest.approx(10))
    assert found["leader killed, s without grants"] == ("pass", 0.5)
    assert found["asyncio, 256 tasks, pairs/s"] == ("not measured", None)
    assert "zookeeper: skipped: apt-get install zookeeper" in ended.stdout
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_missed_bar_fails_the_run_and_is_named(tmp_path: Path) -> None:
    path = saved(
        tmp_path, fencelock=figures(700, 6000, 800, 0.7), redlock=figures(500, 2000, 300, 0)
    )
    ended = run("--again", str(path), "--json", str(path))
    found = verdicts(path)
    assert found["pair p50, beside redlock"][0] == "FAIL"
    assert found["leader killed, s without grants"][0] == "FAIL"
    assert found["2x64 distinct locks, pairs/s, beside redlock"][0] == "pass"
    assert found["2x64 distinct locks, pairs/s, beside etcd"] == ("not measured", None)
    assert ended.returncode == 1


def test_a_chart_of_each_measured_workload_is_written_beside_the_tables(tmp_path: Path) -> None:
    path = saved(tmp_path, fencelock=figures(9, 6000, 800, 0.7), redlock=figures(500, 20, 300, 0))
    run("--again", str(path), "--plot", str(tmp_path / "charts"))
    names = {file.name for file in (tmp_path / "charts").iterdir()}
    assert names == {"figures.md", "pair.svg", "distinct.svg", "handover.svg", "failover.svg"}
    drawn = ElementTree.fromstring((tmp_path / "charts" / "pair.svg").read_text("utf-8"))
    texts = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in ("fencelock", "redlock")] == ["fencelock", "redlock"]
    assert "p50, us (less is better), on a logarithmic axis" in texts


def test_two_holders_at_once_fail_the_run(tmp_path: Path) -> None:
    ours = figures(100, 6000, 800, 0.1)
    ours["handover"] = [{"handovers_per_s": 800, "overlaps": 1}]
    ended = run("--again", str(saved(tmp_path, fencelock=ours)))
    assert "fencelock: 1 times a holder of the one lock met another" in ended.stdout
    assert ended.returncode == 1


def test_a_package_that_is_not_installed_is_skipped_with_a_line(tmp_path: Path) -> None:
    ended = run("--rounds", "0", "--peers", "redis,etcd", path=str(tmp_path))
    assert "redis: skipped: apt-get install redis-server" in ended.stdout
    assert "etcd: skipped: apt-get install etcd-server" in ended.stdout
    assert ended.returncode == 0, ended.stderr


def test_an_unknown_peer_is_refused_with_those_there_are() -> None:
    ended = run("--peers", "memcached")
    assert "no such peer: memcached; there are fencelock, fencelock-retained, " in ended.stderr
    assert ", redlock, " in ended.stderr
    assert ended.returncode == 2


def test_fencelock_itself_is_measured_by_client_processes(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    ended = run("--peers", "", "--rounds", "1", "--seconds", "0.5", "--json", str(path))
    results = json.loads(path.read_text(encoding="utf-8"))
    assert results["peers"] == ["fencelock"], ended.stderr
    (pair,), (distinct,), (handover,) = (
        results["figures"]["fencelock"][workload] for workload in ("pair", "distinct", "handover")
    )
    assert 0 < pair["p50_us"] <= pair["p99_us"]
    assert distinct["pairs_per_s"] > 0
    assert handover["handovers_per_s"] > 0
    assert handover["overlaps"] == 0
    (wire,) = results["wire"]
    assert min(wire["per_s"], wire["p50_us"], wire["sync_us"]) > 0


def test_an_interrupted_run_shows_what_it_has_and_leaves_no_process() -> None:
    command = [sys.executable, str(PROGRAMS / "compare.py"), "--peers", "", "--seconds", "5"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as comparison:
        assert comparison.stderr is not None
        while "round 1" not in comparison.stderr.readline():
            assert comparison.poll() is None
        children: list[psutil.Process] = []
        while len(children) < 3:  # Its nodes, that are being started.
            assert comparison.poll() is None
            children = psutil.Process(comparison.pid).children(recursive=True)
        comparison.send_signal(signal.SIGINT)
        output, _ = comparison.communicate(timeout=LONG_S)
        assert comparison.returncode == 130
    assert "2x64 distinct" in output
    assert psutil.wait_procs(children, timeout=LONG_S)[1] == []


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({1: 150}, b"\x08\x96\x01"),
        ({2: b"testing"}, b"\x12\x07testing"),
        ({3: b"\x08\x96\x01", 1: 0}, b"\x1a\x03\x08\x96\x01\x08\x00"),
        ({1: 2**63 - 1}, b"\x08" + b"\xff" * 8 + b"\x7f"),
    ],
)
def test_protobuf_is_written_as_its_documentation_states(
    fields: dict[int, int | bytes], written: bytes
) -> None:
    assert encode(fields) == written
    assert decode(written) == fields


@pytest.mark.parametrize("cut", [b"\x08", b"\x08\x96", b"\x12\x07test", b"\x0b"])
def test_protobuf_that_ends_early_is_refused(cut: bytes) -> None:
    with pytest.raises(ValueError, match="no protobuf"):
        decode(cut)
