"""The output and the exit status of ``fencelock simulate``."""

from __future__ import annotations

import re

import pytest
import typer
from support.expect import present
from typer.testing import CliRunner

from fencelock.actors.bakery.state_transfer import Import
from fencelock.actors.error import ConfigError
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node import topology
from fencelock.cluster.node.topology import NodeContext
from fencelock.verification.cli.simulate import seed_range, simulate

runner = CliRunner()
app = typer.Typer()
app.command()(simulate)


def nobody(context: NodeContext) -> RoleSet:
    """A node without roles serves no client."""
    return RoleSet(())


def test_a_clean_sweep_ends_with_a_summary_and_exits_with_0() -> None:
    result = runner.invoke(app, ["--protocol", "central", "--seeds", "0..3"])

    assert result.exit_code == 0
    assert "central: 4 seeds without a violation" in result.output
    for row in ("deliveries a second", "grants", "mark: proxy.granted"):
        assert row in result.output


def test_a_transcript_is_printed_and_only_that_of_a_scene() -> None:
    result = runner.invoke(app, ["--transcript", "acquire"])
    assert result.exit_code == 0
    assert result.output.startswith("One acquire and one release of a free lock")

    other = runner.invoke(app, ["--transcript", "release"])
    assert str(other.exception) == "--transcript is 'release', there are acquire, leader-death"


def test_the_log_alone_can_be_swept_and_only_paxos_has_one() -> None:
    result = runner.invoke(app, ["--log", "--seeds", "5..6"])
    assert result.exit_code == 0
    assert "the log of paxos: 2 seeds without a violation" in " ".join(result.output.split())

    one = runner.invoke(app, ["--log", "--seed", "5"])
    assert re.search(r"seed 5 is clean: \d+ deliveries, \d+ answers", one.output)

    other = runner.invoke(app, ["--log", "--protocol", "central"])
    assert isinstance(other.exception, ConfigError)


@pytest.mark.long
def test_bakery_can_be_swept_before_its_own_judges_and_no_other_protocol() -> None:
    judged = ["--protocol", "bakery", "--judged"]
    result = runner.invoke(app, [*judged, "--seeds", "6..7"])
    assert result.exit_code == 0
    assert "bakery, judged: 2 seeds without a violation" in " ".join(result.output.split())

    one = runner.invoke(app, [*judged, "--seed", "5"])
    assert re.search(r"seed 5 is clean: \d+ deliveries, \d+ grants", one.output)

    other = runner.invoke(app, ["--judged", "--protocol", "central"])
    assert isinstance(other.exception, ConfigError)


@pytest.mark.parametrize(
    "options",
    [
        "--members --objects all",
        "--members --log",
        "--members --judged --protocol bakery",
        "--log --objects maps",
        "--transcript acquire --members",
    ],
)
def test_two_kinds_of_simulation_at_once_are_refused(options: str) -> None:
    result = runner.invoke(app, [*options.split(), "--seed", "1"])

    assert isinstance(result.exception, ConfigError)
    one, other = re.findall(r"--(?!protocol)[a-z]+", options)
    assert {one, other} <= set(str(result.exception).split())
    assert "give one of them" in str(result.exception)


@pytest.mark.parametrize("options", ["--protocol bakery", "--log", "--transcript acquire"])
def test_a_journal_of_the_server_is_refused_where_there_is_no_server(options: str) -> None:
    result = runner.invoke(app, [*options.split(), "--central-journal", "--seed", "1"])

    assert isinstance(result.exception, ConfigError)
    assert "--central-journal is for protocol central" in str(result.exception)


def test_objects_of_bakery_can_be_judged() -> None:
    options = ["--protocol", "bakery", "--judged", "--objects", "rwlocks", "--seed", "5"]
    assert runner.invoke(app, options).exit_code == 0


@pytest.mark.long
def test_a_judged_seed_that_fails_prints_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Import, "complete", True)

    result = runner.invoke(app, ["--protocol", "bakery", "--judged", "--seeds", "0..99"])

    assert result.exit_code == 1
    found = present(re.search(r"seed (\d+) fails at \d+\.\d{3} ms: ", result.output))
    command = f"fencelock simulate --protocol bakery --judged --seed {found[1]} --trace"
    assert f"repeat it: {command}" in " ".join(result.output.split())


def test_the_first_seed_that_fails_prints_how_to_repeat_it_with_its_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(topology.PROTOCOLS, "lamport", nobody)

    result = runner.invoke(app, ["--protocol", "lamport", "--seeds", "5..9"])

    assert result.exit_code == 1
    assert re.search(r"seed 5 fails at \d+\.\d{3} ms: progress: ", result.output)
    again = ["--protocol", "lamport", "--seed", "5", "--trace"]
    assert f"repeat it: fencelock simulate {' '.join(again)}" in result.output

    repeated = runner.invoke(app, again)

    assert repeated.exit_code == 1
    assert "begins life 1" in repeated.output
    assert "all faults end" in repeated.output


@pytest.mark.parametrize("text", ["", "a..b", "3..", "-1..4", "9..3", "0..1000000"])
def test_a_range_that_is_none_is_refused_with_its_value(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(text))):
        seed_range(text)


def test_a_range_may_be_a_single_seed() -> None:
    assert seed_range("7") == (7, 7)
    assert seed_range("0..1999") == (0, 1999)


def test_an_unknown_protocol_and_a_trace_without_a_seed_are_refused() -> None:
    unknown = runner.invoke(app, ["--protocol", "raft"])
    assert isinstance(unknown.exception, ConfigError)

    traced = runner.invoke(app, ["--protocol", "central", "--trace"])
    assert isinstance(traced.exception, ConfigError)
