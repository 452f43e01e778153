"""`fencelock locks`, `who` and `release` for objects other than locks, with real nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from support.expect import present
from support.real_nodes import running_nodes
from typer.testing import CliRunner, Result

import fencelock
from fencelock.actors.api.name import KIND_END, NO_CLIENT, kind_of, object_name, plain_name
from fencelock.actors.table.rules import OBJECT_RECORDS
from fencelock.cluster.cli.completion import complete_object, named_argument
from fencelock.cluster.cli.formatting import object_kinds, object_named, object_shown, share_of
from fencelock.cluster.cli.locks import holder_lines
from fencelock.cluster.cli.main import app


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield ",".join(node.address for node in nodes.values())


@pytest.fixture
def client(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[fencelock.Client]:
    monkeypatch.setenv("FENCELOCK_CONNECT", address)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    with fencelock.connect(label="ann") as client:
        yield client


def run(*arguments: str, says: str = "") -> Result:
    return CliRunner().invoke(app, arguments, input=says)


def plain(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def first_words(done: Result) -> list[str]:
    return [row.split()[0] for row in done.output.splitlines() if row.strip()]


def test_names_that_locks_and_status_print_are_those_that_who_and_release_take(
    client: fencelock.Client,
) -> None:
    held = [
        client.semaphore("printers", permits=3).acquire(2),
        client.rwlock("settings").write().acquire(),
        client.lock("semaphore:printers").acquire(),
        client.lock("orders/42").acquire(),
    ]
    names = ("semaphore:printers", "rwlock:settings", "lock:semaphore:printers", "orders/42")
    for name, hold in zip(names, held, strict=True):
        assert hold is not None
        assert name in first_words(run("locks"))
        assert name in first_words(run("status"))
        assert name in [row["lock"] for row in plain("locks")]
        assert name in [row["lock"] for node in plain("status") for row in node["locks"]]
        assert plain("who", name)["lock"] == name
        assert str(hold.fence) in run("who", name).output
        done = run("release", name, "--fence", str(hold.fence), "--yes")
        assert done.stdout.startswith(f"{name} was taken from ann")
        assert f"{name} is free." in run("who", name).output
        assert name in [row["lock"] for row in plain("audit")]


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("lock:t1", "t1"),
        ("lock:map:t2", "lock:map:t2"),
        (f"semaphore{KIND_END}t3", "semaphore:t3"),
        ("semaphore:t4 \u202f", "semaphore:t4 \u202f"),
    ],
)
def test_json_has_the_names_that_who_takes_however_they_were_typed(
    client: fencelock.Client, typed: str, name: str
) -> None:
    lock = object_named(typed)
    kind, own = kind_of(lock), plain_name(lock)
    hold = present((client.semaphore(own, permits=1) if kind else client.lock(own)).acquire())
    assert plain("who", typed)["lock"] == name
    assert object_named(name) == object_named(typed)
    assert plain("release", typed, "--fence", str(hold.fence), "--yes")["lock"] == name


def test_who_of_an_object_shows_each_holder_with_its_share_and_each_wish(
    client: fencelock.Client,
) -> None:
    semaphore = client.semaphore("pens", permits=3)
    first, second = semaphore.acquire(2), semaphore.acquire(1)
    assert first
    assert second
    lines = run("who", "semaphore:pens").output.splitlines()
    assert lines[0] == "semaphore:pens is held by 2 owners."
    assert [line.strip().rpartition(",")[0] for line in lines if " of 3" in line] == [
        f"has 2 of 3, fence {first.fence}",
        f"has 1 of 3, fence {second.fence}",
    ]
    semaphore.release(3)


def test_a_free_name_that_exists_as_another_kind_is_reported(client: fencelock.Client) -> None:
    hold = present(client.rwlock("the cfg").read().acquire())
    for name in ("the cfg", "semaphore:the cfg"):
        output = " ".join(run("who", name).output.split())
        assert output.startswith(f"{name} is free.")
        assert "rwlock:the cfg is in use: did you mean `fencelock who 'rwlock:the cfg'`?" in output
        done = run("release", name, "--fence", "7", "--yes")
        assert done.exit_code != 0
        assert "did you mean" in str(done.exception or done.output)
    hold.release()


def test_a_misspelt_kind_is_reported(client: fencelock.Client) -> None:
    output = " ".join(run("who", "semafore:printers").output.split())
    assert "'semafore' is not a kind of object: did you mean 'semaphore'?" in output
    assert "kind" not in run("who", "orders:42").output


def test_a_hold_of_an_object_is_released_once_it_is_confirmed(
    client: fencelock.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencelock.cluster.cli.target.at_terminal", lambda: True)
    semaphore = client.semaphore("pencils", permits=3)
    first, second = semaphore.acquire(2), semaphore.acquire(1)
    assert first
    assert second
    wrong = run("release", "semaphore:pencils", "--fence", str(second.fence + 1), says="y\n")
    assert f"under fence {first.fence} and by ann" in str(wrong.exception or wrong.output)
    done = run("release", "semaphore:pencils", "--fence", str(second.fence), says="y\n")
    assert f"1 of 3 for 0ms, under fence {second.fence}" in re.sub(
        r"for [\d.]+m?s", "for 0ms", done.stderr
    )
    assert [one.fence for one in semaphore.status().holders] == [first.fence]
    first.release()


def test_a_prefix_with_a_kind_lists_that_kind(client: fencelock.Client) -> None:
    semaphore, lock = client.semaphore("x1", permits=1), client.lock("x2")
    with semaphore, lock:
        assert "x2" in first_words(run("locks", "--prefix", "x"))
        assert first_words(run("locks", "--prefix", "semaphore:"))[2:] == ["semaphore:x1"]
        assert first_words(run("locks", "--prefix", "semaphore:x"))[2:] == ["semaphore:x1"]


def test_the_prefix_lock_lists_locks_alone(client: fencelock.Client) -> None:
    latch = client.latch("w1", 2, keep_s=0)
    latch.count_down()
    names = ("w1", "semaphore:w1")
    with client.semaphore("w1", permits=1), client.lock(names[0]), client.lock(names[1]):
        assert first_words(run("locks", "--prefix", "lock:"))[2:] == ["lock:semaphore:w1", "w1"]
        assert first_words(run("locks", "--prefix", "lock:w"))[2:] == ["w1"]
        assert first_words(run("locks", "--prefix", "lock:semaphore:"))[2:] == ["lock:semaphore:w1"]
    assert run("locks", "--prefix", "lock:").output == "No lock under 'lock:' is held.\n"
    latch.count_down()


class MadeContext:
    """The part of typer's context that the completion uses."""

    params: dict[str, Any] = {}  # noqa: RUF012


def test_a_shell_completes_kinds_and_names(client: fencelock.Client) -> None:
    def completed(text: str) -> list[str]:
        return complete_object(cast("Any", MadeContext()), text)

    with client.semaphore("y1", permits=1), client.lock("y2"):
        assert completed("y") == ["y2"]
        assert completed("sem") == ["semaphore:y1"]
        assert completed("semaphore:y") == ["semaphore:y1"]
        assert set(completed("")) == {"semaphore:y1", "y2"}


def test_a_shell_completes_the_names_of_one_kind(client: fencelock.Client) -> None:
    def completed(kind: str, text: str) -> list[str]:
        complete: Any = named_argument(kind, "").more["autocompletion"]
        found: list[str] = complete(MadeContext(), text)
        return found

    client.map("z1").put("a", b"")
    client.counter("z2").add(1)
    with client.semaphore("z3", permits=1), client.lock("z4"):
        for kind, name in (("map", "z1"), ("counter", "z2"), ("semaphore", "z3")):
            assert completed(kind, "z") == [name]
            assert completed(kind, "zz") == []


@pytest.mark.parametrize("kind", object_kinds())
def test_a_name_with_a_kind_is_that_object_and_no_lock(kind: str) -> None:
    assert object_named(f"{kind}:a:b") == f"{kind}{KIND_END}a:b"
    assert object_shown(object_named(f"{kind}:a:b")) == f"{kind}:a:b"
    assert object_named(f"lock:{kind}:a") == f"{kind}:a"
    assert object_shown(f"{kind}:a") == f"lock:{kind}:a"


@pytest.mark.parametrize("name", ["orders/42", "orders:42", "a b", "lock", ":x", "semaphore"])
def test_any_other_name_is_that_of_a_lock(name: str) -> None:
    assert object_named(name) == object_shown(name) == name


def test_objects_without_holders_are_shown_with_their_count(client: fencelock.Client) -> None:
    latch = client.latch("release 7", 3)
    latch.count_down()
    for command in ("locks", "status"):
        (row,) = (row for row in run(command).output.splitlines() if "latch:release 7" in row)
        assert "2 of 3 left" in row
    assert "latch:release 7: 2 of 3 left." in run("who", "latch:release 7").output
    (row,) = plain("locks", "--prefix", "latch:")
    assert (row["left"], row["permits"], row["waiting"]) == (2, 3, 0)
    assert "did you mean `fencelock who 'latch:release 7'`?" in run("who", "release 7").output
    assert latch.count_down(2) == 0


def test_what_nobody_can_hold_stands_in_a_table_of_its_own(client: fencelock.Client) -> None:
    """A counter is no lock that is held: it has a count, and is held by nobody."""
    client.counter("shown/count").add(3)
    (head, row) = run("locks", "--prefix", "counter:shown/").output.split("\n ──")
    assert head.split() == ["name", "count"]
    assert "counter:shown/count" in row
    with client.lock("shown/lock"):
        output = run("locks", "--prefix", "shown/").output
    held, _, others = output.partition("counter:shown/count")
    assert held.split()[:3] == ["lock", "held", "by"]
    assert held.index("shown/lock") < held.index("name")
    assert others.split()[0] == "3"
    client.counter("shown/count").set(0)


@pytest.mark.parametrize("kind", [one.KIND for one in OBJECT_RECORDS.values()])
def test_what_outlives_its_clients_is_listed_and_deleted_by_a_command(kind: str) -> None:
    """Nobody could remove it otherwise."""
    assert run(kind, "list", "--help").exit_code == 0, "objects.py has no _staying_app of it"
    assert run(kind, "delete", "--help").exit_code == 0


def test_who_of_a_map_prints_how_to_see_its_entries(client: fencelock.Client) -> None:
    entries = client.map("the config")
    entries.put("k", b"v")
    output = " ".join(run("who", "map:the config").output.split())
    assert output == (
        "map:the config: nobody can hold a map. "
        "`fencelock map list 'the config'` lists its entries."
    )
    missing = run("map", "get", "the config", "q").exception
    assert str(missing) == (
        "map 'the config' has no entry 'q': `fencelock map list 'the config'` lists those it has"
    )
    entries.delete("k")


def test_lists_show_counters_with_their_values(client: fencelock.Client) -> None:
    counter = client.counter("orders")
    counter.set(-42)
    for command in ("locks", "status"):
        (row,) = (row for row in run(command).output.splitlines() if "counter:orders" in row)
        assert "-42" in row
    (row,) = (row for row in run("counter", "list").output.splitlines() if "orders" in row)
    assert row.split() == ["counter:orders", "-42"]
    assert "counter:orders: -42." in run("who", "counter:orders").output
    (listed,) = plain("locks", "--prefix", "counter:orders")
    assert (listed["lock"], listed["left"], listed["permits"]) == ("counter:orders", -42, 0)
    assert "Deleted 1 of counter orders." in run("counter", "delete", "orders", "--yes").output
    assert counter.get() == 0
    assert "counter:orders is not in use." in run("who", "counter:orders").output


@pytest.mark.parametrize("kind", ["latch", "barrier", "counter"])
def test_who_of_an_unused_object_that_cannot_be_held_does_not_call_it_free(
    client: fencelock.Client, kind: str
) -> None:
    output = run("who", f"{kind}:unused").output.splitlines()
    assert output == [f"{kind}:unused is not in use.", "Nobody waits for it."]


def test_the_list_shows_how_many_others_hold_an_object(
    client: fencelock.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cells(name: str) -> list[str]:
        (row,) = (row for row in run("locks").output.splitlines() if name in row)
        return re.split(r"\s\s+", row.strip())

    semaphore, rwlock = client.semaphore("v1", permits=4), client.rwlock("v2")
    semaphores = [semaphore.acquire(2), semaphore.acquire(1), semaphore.acquire(1)]
    reader = rwlock.read().acquire()
    assert semaphores[0]
    assert reader
    first = str(semaphores[0].fence)
    assert cells("semaphore:v1")[:3] == ["semaphore:v1", "ann and 2 more", first]
    assert cells("rwlock:v2")[:3] == ["rwlock:v2", "ann", str(reader.fence)]
    monkeypatch.setattr("fencelock.cluster.cli.locks.LOOKS_SHARE", 0)
    assert cells("semaphore:v1")[1] == cells("rwlock:v2")[1] == "ann and maybe more"
    semaphore.release(4)
    reader.release()


def paragraphs(command: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the lines below each name where no table fits."""
    monkeypatch.setenv("COLUMNS", "20")
    found: dict[str, str] = {}
    name = ""
    for row in run(*command.split()).output.splitlines():
        if row.startswith("    "):
            found[name] = f"{found.get(name, '')} {row.strip()}".strip()
        else:
            name = row.strip()
    return found


@pytest.mark.parametrize("command", ["status", "locks"])
def test_the_count_of_an_object_in_a_narrow_terminal_is_not_called_its_holder(
    client: fencelock.Client, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    latch = client.latch("u1", 3, keep_s=0)
    latch.count_down()
    assert paragraphs(command, monkeypatch)["latch:u1"] == "2 of 3 left"
    latch.count_down(2)


def test_holders_of_read_write_locks_and_elections_are_shown_with_a_verb(
    client: fencelock.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, term = client.rwlock("u2").read().acquire(), client.election("u3").lead().acquire()
    assert reader
    assert term
    for name, verb, hold in (("rwlock:u2", "reads", reader), ("election:u3", "leads", term)):
        text = paragraphs(f"who {name}", monkeypatch)["ann"]
        assert text.startswith(f"{verb} fence {hold.fence}")
        assert paragraphs("status", monkeypatch)[name].startswith(f"held by ann {verb}")
    reader.release()
    term.release()


@pytest.mark.parametrize(
    ("kind", "verb", "times"),
    [("rwlock", "write", 9), ("rwlock", "read", 1), ("election", "lead", 1)],
)
def test_the_share_of_a_read_write_lock_or_an_election_is_a_verb(
    kind: str, verb: str, times: int
) -> None:
    one = fencelock.Contender("", "s.1", "t", 7, 1, "ann", times)
    permits = 9 if kind == "rwlock" else 1
    lock = fencelock.LockStatus(
        lock=f"{kind}{KIND_END}a", holder=one, waiters=(one,), waits_for=(), permits=permits
    )
    assert share_of(lock, one, wants=False) == f" {verb}s"
    assert share_of(lock, one, wants=True) == f" to {verb}"


ANN = fencelock.Contender("", "s.1", "t", 7, 62_000, "ann")
LATCH, MAP, SEMAPHORE = (object_name(kind, "a") for kind in ("latch", "map", "semaphore"))
ENDS = "It is taken away in 5s unless it is"


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        ({}, ["a is free."]),
        ({"age_ms": 9}, ["a is free, or this node knows of no holder."]),
        ({"holder": ANN}, ["a is held by ann (s.1/t)", "for 1m 2s, under fence 7."]),
        (
            {"holder": ANN._replace(times=3)},
            ["a is held by ann (s.1/t)", "for 1m 2s, 3 times at once, under fence 7."],
        ),
        (
            {"holder": ANN._replace(fence=None, label="")},
            ["a is held by s.1/t", "for 1m 2s, under a fence only its holder knows."],
        ),
        (
            {"holder": ANN._replace(span=10)},
            [
                "a is held by ann (s.1/t)",
                "for 1m 2s, under fences 7-16.",
                "Its session retains it for its own owners, and gives it back when others wait.",
            ],
        ),
        (
            {"holder": ANN, "left_ms": 5_000},
            ["a is held by ann (s.1/t)", "for 1m 2s, under fence 7.", f"{ENDS} renewed."],
        ),
        (
            {"holder": ANN._replace(session=NO_CLIENT), "left_ms": 5_000},
            [f"a is held by ann ({NO_CLIENT}/t)", "for 1m 2s, under fence 7.", f"{ENDS} extended."],
        ),
        (
            {
                "holder": ANN._replace(session=NO_CLIENT, label="ann, detached"),
                "left_ms": 5_000,
            },
            [
                f"a is held by ann, detached ({NO_CLIENT}/t)",
                "for 1m 2s, under fence 7.",
                f"{ENDS} attached.",
            ],
        ),
        (
            {"lock": SEMAPHORE, "holder": ANN, "holders": (ANN,)},
            ["semaphore:a is held by 1 owner."],
        ),
        ({"lock": LATCH}, ["latch:a is not in use."]),
        ({"lock": LATCH, "left": 2, "permits": 5}, ["latch:a: 2 of 5 left."]),
        ({"lock": LATCH, "left": 2, "permits": 0}, ["latch:a: 2."]),
        (
            {"lock": MAP},
            ["map:a: nobody can hold a map.", "`fencelock map list a` lists its entries."],
        ),
    ],
)
def test_each_state_of_an_object_has_a_sentence(fields: dict[str, Any], lines: list[str]) -> None:
    free: dict[str, Any] = {"lock": "a", "holder": None, "waiters": (), "waits_for": ()}
    given: dict[str, Any] = free | {"age_ms": 0} | fields
    assert list(holder_lines(fencelock.LockStatus(**given))) == lines
