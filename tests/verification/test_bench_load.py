"""`fencelock bench load`: its options, its figures, its files, and runs over real processes."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.expect import present
from support.programs import redis_server, run_to_end
from support.real_nodes import running_nodes

import fencelock
from fencelock.actors.error import ConfigError
from fencelock.cluster.testing.local import local
from fencelock.verification.bench.job import Operation, mix_of
from fencelock.verification.bench.load_result import (
    ALL,
    BATCHES,
    LoadOptions,
    LoadResult,
    as_csv,
    as_svg,
    quantile_us,
    read_result,
    trend_of,
)
from fencelock.verification.bench.machine import ROOT, CoreShares, listener_at, processor_s
from fencelock.verification.bench.members import NodeProcesses
from fencelock.verification.bench.mixed import bucket_of, us_of
from fencelock.verification.bench.report import bar_chart, line_chart
from fencelock.verification.bench.thesis import EXPERIMENTS, Measured, charts, report

pytestmark = pytest.mark.long

LONG_S = 120.0
SVG = "{http://www.w3.org/2000/svg}"


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    return run_to_end(
        [sys.executable, "-m", "fencelock", "bench", *options], env={**os.environ, "COLUMNS": "120"}
    )


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("thesis", {Operation.GET: 4, Operation.PUT: 1, Operation.DELETE: 1}),
        ("put", {Operation.PUT: 1}),
        ("get=9, put=1,delete=0", {Operation.GET: 9, Operation.PUT: 1}),
    ],
)
def test_a_mix_has_a_name_or_shares(text: str, shares: dict[Operation, int]) -> None:
    assert mix_of(text) == shares


@pytest.mark.parametrize("text", ["", "gets", "get", "get=-1", "get=0", "scan=1", "get=99999999"])
def test_another_mix_is_refused_with_a_reason(text: str) -> None:
    if text == "get":
        assert mix_of(text) == {Operation.GET: 1}
        return
    with pytest.raises(ConfigError, match="--mix is"):
        mix_of(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"connections": 0},
        {"connections": 1_025},
        {"payload": 65_537},
        {"seconds": 0.5},
        {"rate": 0.5},
    ],
)
def test_a_load_beyond_its_limits_is_refused_with_a_reason(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"--\w+ is .*, and must be from"):
        LoadOptions(**wrong)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("seconds", "points"), [(1, 20), (10, 20), (60, 60), (3600, 600)])
def test_a_series_has_at_least_20_points_and_at_most_600(seconds: float, points: int) -> None:
    assert LoadOptions(seconds=seconds).points == points


def test_latencies_are_known_within_two_percent() -> None:
    for us in (3, 150, 2_700, 1_000_000):
        assert us_of(bucket_of(us / 1e6)) == pytest.approx(us, rel=0.02)


def test_a_quantile_is_the_latency_that_its_share_did_not_exceed() -> None:
    latencies = Counter({bucket_of(0.001): 98, bucket_of(0.1): 1, bucket_of(1.0): 1})
    assert quantile_us(latencies, 0.5) == pytest.approx(1_000, rel=0.02)
    assert quantile_us(latencies, 0.99) == pytest.approx(100_000, rel=0.02)
    assert quantile_us(latencies, 1.0) == pytest.approx(1_000_000, rel=0.02)
    assert quantile_us(Counter(), 0.5) == 0


def test_a_flat_run_has_a_bound_around_no_change() -> None:
    rates = [1_000.0 + (7 * n) % 13 - 6 for n in range(3 * BATCHES)]
    found = present(trend_of(rates))
    assert found.low < 0 < found.high
    assert found.within(2)


def test_a_run_that_slows_down_is_not_flat() -> None:
    rates = [1_000.0 - n + (7 * n) % 13 for n in range(5 * BATCHES)]  # It loses a tenth.
    found = present(trend_of(rates))
    assert found.percent == pytest.approx(-10, abs=1)
    assert not found.within(5)


def test_a_noisy_run_is_not_called_flat_and_a_short_one_has_no_trend() -> None:
    assert not present(trend_of([200.0, 1_800.0] * BATCHES * 5 + [0.0] * BATCHES)).within(5)
    assert trend_of([1.0] * (BATCHES - 1)) is None


def test_charts_stand_alone_and_are_labelled() -> None:
    lines = line_chart("A <title>", {"put": [(1, 5), (64, 9)], "get": [(1, 50)]}, "x", "y")
    root = ElementTree.fromstring(lines)
    texts = [one.text for one in root.iter(f"{SVG}text")]
    assert {"A <title>", "put", "get", "x", "y"} <= set(texts)
    assert len(list(root.iter(f"{SVG}polyline"))) >= 2
    bars = ElementTree.fromstring(bar_chart("bars", [("one", 12_345), ("none", 0)], "1/s"))
    assert "12,345" in [one.text for one in bars.iter(f"{SVG}text")]
    for text in (lines, line_chart("", {}, "", ""), bar_chart("", [], "")):
        assert "href" not in text
        assert "<script" not in text


def test_the_process_behind_an_address_is_found_if_it_is_ours() -> None:
    with local() as cluster:
        assert listener_at(cluster.addresses) == os.getpid()
    assert listener_at("tcp://192.0.2.1:4040") is None
    assert listener_at("tcp://no.such.host.invalid:4040") is None


@pytest.mark.parametrize(
    ("layout", "limits"),
    [
        ("cpu", {"cpu.cfs_period_us": "10000", "cpu.cfs_quota_us": "1500"}),
        ("", {"cpu.max": "1500 10000"}),
    ],
)
def test_a_share_of_a_core_is_read_from_both_versions_of_control_groups(
    tmp_path: Path, layout: str, limits: dict[str, str]
) -> None:
    (tmp_path / layout).mkdir(exist_ok=True)
    CoreShares(0.15, tmp_path).limit(4711)
    (group,) = (tmp_path / layout).iterdir()
    written = {file.name: file.read_text(encoding="ascii") for file in group.iterdir()}
    assert written == {**limits, "cgroup.procs": "4711"}


def test_a_limited_process_gets_its_share_of_a_core_and_leaves_no_group() -> None:
    before = set(ROOT.rglob("fencelock-*"))
    with CoreShares(0.1) as shares:
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            shares.limit(busy.pid)
            used, began = processor_s(busy.pid), time.monotonic()
            with pytest.raises(subprocess.TimeoutExpired):
                busy.wait(1)
            share = (processor_s(busy.pid) - used) / (time.monotonic() - began)
        except ConfigError as error:
            pytest.skip(str(error))
        finally:
            busy.kill()
            busy.wait()
    assert share < 0.2
    assert set(ROOT.rglob("fencelock-*")) == before


def test_the_thesis_mix_is_measured_by_operation_role_and_node(tmp_path: Path) -> None:
    files = [tmp_path / f"load.{kind}" for kind in ("json", "csv", "svg")]
    written = [option for file in files for option in ("--write", str(file))]
    done = bench(
        *("load", "--nodes", "3", "--mix", "thesis", "--at", "spread", "--seconds", "2"),
        *("--connections", "6", "--durability", "memory", *written),
    )
    assert done.returncode == 0, done.stderr
    result = read_result(files[0])
    assert {(one.operation, one.at) for one in result.latencies} == {
        *((kind, at) for kind in ("get", "put", "delete") for at in ("leader", "follower")),
        (ALL, ""),
    }
    times = {kind: sum(one.times for one in result.latencies if one.operation == kind)
             for kind in ("get", "put", "delete", ALL)}  # fmt: skip
    assert times[ALL] == times["get"] + times["put"] + times["delete"]
    assert times["get"] / times[ALL] == pytest.approx(2 / 3, abs=0.1)
    assert {one.process for one in result.processes} == {"clients", "n1", "n2", "n3"}
    assert sum(one.at == "leader" for one in result.processes) == 1
    assert all(one.memory_mb > 10 for one in result.processes)
    assert result.errors == {}
    assert result.trend is not None
    rows = list(csv.DictReader(StringIO(files[1].read_text())))
    assert len(rows) == len(result.at_s) == 20
    ends = [0.0, *result.at_s]
    counted = [
        float(row["all 1/s"]) * (end - begin)
        for row, begin, end in zip(rows, ends, ends[1:], strict=False)
    ]
    assert sum(counted) == pytest.approx(times[ALL], rel=0.01)
    assert as_csv(result) == files[1].read_text()
    assert as_svg(result) == files[2].read_text()

    whole = [Measured(one, (result,) * len(one.runs)) for one in EXPERIMENTS]
    text = report(whole)
    for one in EXPERIMENTS:
        assert f"## {one.title}" in text
        for name, chart in charts(Measured(one, (result,) * len(one.runs))):
            assert f"]({name})" in text
            ElementTree.fromstring(chart)
    assert "times as many reads as writes" in text

    beside = bench("compare", str(files[0]), str(files[0]))
    assert beside.returncode == 0
    assert "1.00x" in beside.stdout


def test_a_running_cluster_is_measured_at_its_followers_and_keeps_nothing_of_it(
    tmp_path: Path,
) -> None:
    with running_nodes(tmp_path) as nodes:
        addresses = ",".join(node.address for node in nodes.values())
        options = ("--mix", "lock=1,put=1", "--at", "follower", "--seconds", "1")
        done = bench("load", "--connect", addresses, *options)
        assert done.returncode == 0, done.stderr
        assert "follower" in done.stdout
        assert "leader" not in done.stdout.partition("processor time")[0]
        with fencelock.connect(addresses) as client:
            assert client.maps() == ()
            assert client.locks() == ()


def test_an_early_end_shows_what_was_measured() -> None:
    command = ["bench", "load", "--nodes", "1", "--seconds", "600", "--durability", "memory"]
    with subprocess.Popen(
        [sys.executable, "-m", "fencelock", *command],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("measuring, 2"):
                break
        os.killpg(running.pid, signal.SIGINT)
        output, _ = running.communicate(timeout=LONG_S)
    assert running.returncode == 0
    assert "p99 us" in output


def test_operations_of_a_rate_begin_while_the_node_stands_still(tmp_path: Path) -> None:
    """It stands still for a third of the run: without a rate, that would be four operations."""
    with NodeProcesses(tmp_path, "paxos", 1, durable=False) as members:
        members.ready_client().close()
        file, node = tmp_path / "result.json", members.processes["n1"]
        where = ("--connect", members.connect, "--cluster", members.cluster)
        load = ("--rate", "100", "--connections", "4", "--seconds", "6", "--write", str(file))
        with subprocess.Popen(
            [sys.executable, "-m", "fencelock", "bench", "load", *where, *load],
            stdout=subprocess.PIPE,
            text=True,
        ) as running:
            for line in present(running.stdout):
                if line.startswith("measuring, 2 "):
                    node.send_signal(signal.SIGSTOP)
                elif line.startswith("measuring, 4 "):
                    node.send_signal(signal.SIGCONT)
        assert running.returncode == 0
    result = read_result(file)
    whole = next(one for one in result.latencies if one.operation == ALL)
    assert whole.times == pytest.approx(600, rel=0.1)
    assert whole.p95_us > 500_000
    assert result.plan.in_words().endswith(", free, 100/s")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--redis", "redis://127.0.0.1:1", "--nodes", "3"), "exclude each other"),
        (("--redis", "redis://127.0.0.1:1", "--node-cores", "0.5"), "leave out --redis"),
        (("--write", "result.txt"), ".json, .csv or .svg"),
        (("--mix", "everything"), "--mix is 'everything'"),
        (("--payload", "70000"), "--payload is 70000"),
        (("--at", "leader", "--nodes", "2", "--protocol", "lamport"), "no such node is among"),
        (("--connect", "tcp://127.0.0.1:1", "--seconds", "1"), "no node answered"),
    ],
)
def test_a_run_that_cannot_be_measured_is_refused_with_a_reason(
    options: tuple[str, ...], error: str
) -> None:
    done = bench("load", *options)
    assert done.returncode == 2
    assert error in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_file_that_is_no_result_is_refused_with_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"plan": 1}))
    with pytest.raises(ConfigError, match=r"other\.json is no result of"):
        read_result(file)
    with pytest.raises(ConfigError, match="No such file"):
        read_result(tmp_path / "none.json")
    assert LoadResult.__struct_fields__


def test_a_redis_server_is_measured_with_the_same_load() -> None:
    with redis_server() as server:
        url = f"unix://{server.connection_pool.connection_kwargs['path']}"
        done = bench("load", "--redis", url, "--seconds", "1", "--connections", "4")
        assert done.returncode == 0, done.stderr
        assert "errors: none" in done.stdout
        refused = bench("load", "--redis", url, "--mix", "thesis")
        assert refused.returncode == 2
        assert "--mix lock only" in refused.stderr
