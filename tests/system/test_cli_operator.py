"""The commands of operators, and those about quotas."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.expect import checked
from support.made_client import MadeClient
from typer.testing import CliRunner, Result

from fencelock.actors.api.lock_message import Absence, Contender, LockStatus
from fencelock.actors.api.operator_message import ListedLock, ListedSession
from fencelock.actors.error import (
    ConfigError,
    NotHeldError,
    UnavailableError,
    UnsupportedError,
    WrongClusterError,
)
from fencelock.cluster.cli.exit_status import ExitStatus
from fencelock.cluster.cli.keys import limit_of
from fencelock.cluster.cli.main import app
from fencelock.cluster.node.config import loopback, starting_config

FENCE = 1_763_724_000_123_456_789
HOLDER = Contender("", "client-1f.17", "thread-7", FENCE, 125_000, "web-3:4711, nightly", 2)
WAITERS = (
    Contender("", "client-2a.18", "task-9", None, 40_000, "web-4:99"),
    Contender("", "client-2b.19", "", None, 900),
)
VICTIM = ListedSession("client-1f.17", "web-3:4711", 15_000, 14_200, 3)
HELD = LockStatus(lock="orders/42", holder=HOLDER, waiters=WAITERS, waits_for=())
FREE = LockStatus(lock="orders/42", holder=None, waiters=(), waits_for=(Absence("n2", 7_000),))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MadeClient:
    made = MadeClient(state=HELD, open=(VICTIM,))
    monkeypatch.setattr("fencelock.cluster.client.client.connect_to", made.connect_to)
    monkeypatch.setenv("FENCELOCK_CONNECT", "tcp://127.0.0.1:4041")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return made


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencelock.cluster.cli.target.at_terminal", lambda: True)


def run(*arguments: str, says: str = "") -> Result:
    return CliRunner().invoke(app, arguments, input=says)


def plain(result: Result) -> Any:
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_locks_are_listed_by_name_within_eighty_columns(client: MadeClient) -> None:
    client.listed = tuple(ListedLock(f"orders/[{i}]", HOLDER, i) for i in range(3))
    done = run("locks", "--prefix", "orders/")
    assert ("locks", "orders/") in client.asked
    assert client.asked[-1] == ("close",)
    assert max(map(len, done.output.splitlines())) <= 80
    rows = [row.split() for row in done.output.splitlines() if "orders/" in row]
    assert [row[0] for row in rows] == ["orders/[0]", "orders/[1]", "orders/[2]"]
    assert rows[2][1:] == ["web-3:4711,", "nightly", str(FENCE), "2m", "5s", "2"]


def test_a_look_that_nobody_answers_leaves_a_quarter_of_its_time_to_ask_the_nodes_why(
    client: MadeClient,
) -> None:
    client.error = UnavailableError("no node answered")
    began = time.monotonic()
    done = run("locks", "--timeout", "60")
    assert (done.exit_code, done.stderr.strip()) == (ExitStatus.UNSERVED, "no node answered")
    look, survey = client.limits
    assert began + 60 <= survey <= time.monotonic() + 60
    assert look == pytest.approx(survey - 15)


def test_locks_as_json_are_all_in_one_array(client: MadeClient) -> None:
    client.listed = (ListedLock("a", HOLDER, 0), ListedLock("b", HOLDER, 4))
    listed = plain(run("locks", "--json"))
    assert [(lock["lock"], lock["waiting"]) for lock in listed] == [("a", 0), ("b", 4)]
    assert listed[0]["holder"]["fence"] == FENCE
    client.listed = ()
    assert plain(run("locks", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((), "No lock is held."), (("--prefix", "x"), "No lock under 'x' is held.")],
)
def test_an_empty_list_is_stated_in_a_sentence(
    client: MadeClient, arguments: tuple[str, ...], text: str
) -> None:
    assert client.listed == ()
    assert run("locks", *arguments).output == f"{text}\n"


def test_who_shows_the_holder_and_the_queue_in_order(client: MadeClient) -> None:
    assert client.state is HELD
    lines = run("who", "orders/42").output.splitlines()
    assert lines[0] == "orders/42 is held by web-3:4711, nightly (client-1f.17/thread-7)"
    assert lines[1] == f"for 2m 5s, 2 times at once, under fence {FENCE}."
    queue = [line.split() for line in lines if line.split()[1:2] in (["1"], ["2"])]
    assert queue == [
        ["web-4:99", "1", "40s", "client-2a.18/task-9"],
        ["client-2b.19", "2", "900ms", "client-2b.19"],
    ]
    assert plain(run("who", "orders/42", "--json"))["waiters"][0]["since_ms"] == 40_000


def test_who_of_a_free_lock_names_the_claim_that_the_next_grant_needs(client: MadeClient) -> None:
    client.state = FREE
    output = run("who", "orders/42").output
    assert "orders/42 is free" in output
    assert "Nobody waits for it." in output
    assert "needs n2, which has been silent for 7s" in output


def test_a_release_needs_the_fence(client: MadeClient) -> None:
    done = run("release", "orders/42", "--yes")
    assert done.exit_code == 2
    assert "--fence" in done.output
    assert client.asked == []


def test_a_release_is_confirmed_after_its_consequences_were_shown(
    client: MadeClient, terminal: None
) -> None:
    done = run("release", "orders/42", "--fence", str(FENCE), says="y\n")
    assert done.exit_code == 0
    assert ("evict", "orders/42", FENCE, None) in client.asked
    for part in ("nightly (client-1f.17/thread-7)", "2 wait for it", "only storage that checks"):
        assert part in done.stderr
    assert done.stdout.endswith(
        "orders/42 was taken from web-3:4711, nightly (client-1f.17/thread-7), who held it under "
        f"fence {FENCE}.\n"
    )


@pytest.mark.parametrize("says", ["n\n", "\n", ""])
def test_nothing_is_released_without_a_yes(client: MadeClient, terminal: None, says: str) -> None:
    assert (
        run("release", "orders/42", "--fence", str(FENCE), says=says).exit_code
        == ExitStatus.DECLINED
    )
    assert [asked for asked in client.asked if asked[0] == "evict"] == []


def test_yes_does_not_ask_and_records_who_did_it(client: MadeClient) -> None:
    arguments = ("release", "orders/42", "--fence", str(FENCE), "--operator", "alice", "-y")
    done = plain(run(*arguments, "--json"))
    looked, taken = ("status", "orders/42"), ("evict", "orders/42", FENCE, "alice")
    assert client.asked[1:] == [looked, taken, ("close",)]
    client.asked.clear()
    run(*arguments, "--force")
    assert client.asked[1:] == [taken, ("close",)]
    assert (done["lock"], done["fence"], done["holder"]["owner"]) == (
        "orders/42", FENCE, "thread-7"
    )  # fmt: skip


@pytest.mark.parametrize("says", ["y\n", "n\n"])
def test_a_session_is_closed_once_that_is_confirmed(
    client: MadeClient, terminal: None, says: str
) -> None:
    done = run("sessions", "close", VICTIM.id, says=says)
    for part in ("Session client-1f.17 (web-3:4711).", "waits: 3", "only storage that checks"):
        assert part in done.stderr
    asked = [asked for asked in client.asked if asked[0] == "close_session"]
    if says == "y\n":
        assert (done.exit_code, asked) == (0, [("close_session", VICTIM.id, None)])
        assert "Session client-1f.17 (web-3:4711) was closed." in done.stdout
    else:
        assert (done.exit_code, asked) == (ExitStatus.DECLINED, [])
        assert "Nothing was closed." in done.stderr


def test_a_session_that_is_not_listed_is_not_asked_about(
    client: MadeClient, terminal: None
) -> None:
    error = checked(NotHeldError, run("sessions", "close", "client-1f.18").exception)
    assert "'client-1f.18' is not open" in str(error)
    assert [asked for asked in client.asked if asked[0] == "close_session"] == []


def test_a_closing_as_json_names_the_session_and_how_much_it_had(client: MadeClient) -> None:
    done = plain(run("sessions", "close", VICTIM.id, "--operator", "alice", "--yes", "--json"))
    assert done == {"handle": VICTIM.id, "label": VICTIM.label, "claims": 3}
    assert client.asked[1:] == [("close_session", VICTIM.id, "alice"), ("close",)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("close", VICTIM.id), "add --yes"),
        (("--cluster", "other", "close", VICTIM.id, "--yes"), "options after `sessions close`"),
    ],
)
def test_a_closing_that_is_not_meant_for_certain_is_refused(
    client: MadeClient, arguments: tuple[str, ...], words: str
) -> None:
    error = checked(ConfigError, run("sessions", *arguments).exception)
    assert words in str(error)
    assert client.asked == []


def test_sessions_are_listed_where_no_subcommand_is_given(client: MadeClient) -> None:
    assert VICTIM.id in run("sessions").stdout
    assert ("sessions",) in client.asked
    out = run("sessions", "close", "--help").output
    assert "fencelock sessions close client-1f.17 --operator alice" in out


def test_sessions_have_the_options_of_every_list(client: MadeClient) -> None:
    shown = run("sessions", "--help").output
    assert all(text in shown for text in ("--json", "--key", "FENCELOCK_CONNECT"))
    assert "--no-watch" not in shown
    assert client.asked == []


def test_yes_is_needed_where_there_is_no_terminal_to_ask(client: MadeClient) -> None:
    error = checked(ConfigError, run("release", "orders/42", "--fence", "7").exception)
    assert "--yes" in str(error)
    assert client.asked == []


@pytest.mark.parametrize(
    ("state", "advice"), [(HELD, f"use --fence {FENCE}"), (FREE, "nothing to release")]
)
def test_a_hold_that_does_not_exist_is_reported_with_the_one_that_does(
    client: MadeClient, terminal: None, state: LockStatus, advice: str
) -> None:
    client.state = state
    error = checked(NotHeldError, run("release", "orders/42", "--fence", "7", says="y\n").exception)
    assert advice in str(error)
    assert [asked for asked in client.asked if asked[0] == "evict"] == []


@pytest.mark.parametrize(
    "command", [("locks",), ("who", "a"), ("release", "a", "--fence", "1", "-y")]
)
def test_a_cluster_that_cannot_answer_is_a_line_and_status_3(
    client: MadeClient, command: tuple[str, ...]
) -> None:
    client.error = UnavailableError("no majority for 12 s")
    done = run(*command)
    assert (done.exit_code, done.stderr) == (3, "no majority for 12 s\n")
    assert client.asked[-1] == ("close",)


@pytest.mark.parametrize("error", [WrongClusterError("another"), UnsupportedError("paxos has it")])
def test_an_error_that_another_request_would_avoid_is_raised(
    client: MadeClient, error: Exception
) -> None:
    client.error = error
    assert run("locks").exception is error


def test_addresses_come_from_the_command_or_the_environment_or_the_file_here(
    client: MadeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = starting_config(loopback(2), cluster="shop", protocol="paxos")
    (tmp_path / "cluster.toml").write_text(text)
    run("locks", "--connect", "tcp://h:1", "--cluster", "c", "--timeout", "2")
    run("locks")
    monkeypatch.delenv("FENCELOCK_CONNECT")
    run("locks")
    run("locks", "--cluster", "other")
    both = "tcp://127.0.0.1:4041,tcp://127.0.0.1:4042"
    assert [asked[1:] for asked in client.asked if asked[0] == "connect"] == [
        ("tcp://h:1", "c", 2.0),
        ("tcp://127.0.0.1:4041", "fencelock", 5.0),
        (both, "shop", 5.0),
        (both, "other", 5.0),
    ]


def test_the_node_of_fencelock_dev_is_asked_without_an_address(
    client: MadeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FENCELOCK_CONNECT")
    run("locks")
    assert client.asked[0] == ("connect", "tcp://127.0.0.1:4040", "fencelock", 5.0)


# Commands about quotas, and about what outlives its client: their arguments


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("25000", 25_000), ("64MiB", 64 << 20), ("1 GiB", 1 << 30), ("default", None)],
)
def test_sizes_are_numbers_of_bytes_or_have_a_unit(text: str, value: int | None) -> None:
    assert limit_of("bytes", text, sizes=True) == value


@pytest.mark.parametrize("text", ["", "-1", "64MB", "1.5GiB", "many", "9" * 19])
def test_a_wrong_size_is_refused_with_the_value_and_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a number of bytes, a size as 64MiB, or default"):
        limit_of("bytes", text, sizes=True)


def test_only_bytes_have_a_unit() -> None:
    with pytest.raises(ConfigError, match="--entries is '1KiB', and must be a number, or default"):
        limit_of("entries", "1KiB")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["keys", "quota"], "give the name of one key, or --every, or --no-key"),
        (["keys", "quota", "shop", "--every"], "give the name of one key"),
        (["keys", "quota", "*"], "use --no-key or --every"),
        (["map", "delete", "m"], "give one KEY, or --prefix, or --all, or --maps"),
        (["map", "delete", "m", "k", "--all"], "give one KEY, or --prefix"),
        (["map", "delete", "m", "k", "--charged-to", "shop"], "leave it out with KEY"),
        (["latch", "delete"], "give one NAME, or --prefix, or --all"),
        (["holds", "delete"], "give one NAME, or --prefix, or --all"),
        (["barrier", "delete", "b", "--all"], "give one NAME, or --prefix, or --all"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(
    arguments: list[str], problem: str
) -> None:
    error = checked(ConfigError, CliRunner().invoke(app, arguments).exception)
    assert problem in str(error)
