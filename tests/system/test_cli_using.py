"""Commands that hold a lock or another object while a command runs, at real nodes."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.expect import PATIENCE_S, present
from support.faces import FACES
from support.programs import Child, run_to_end
from support.real_nodes import running_nodes, until
from support.retained_world import RawRetainer, retaining
from typer.testing import CliRunner, Result

import fencelock
from fencelock.actors.api.name import object_name
from fencelock.actors.api.rwlock import RWLOCK, RWLOCK_PERMITS
from fencelock.actors.api.semaphore import SEMAPHORE
from fencelock.actors.error import LockTimeoutError
from fencelock.cluster.cli import locks
from fencelock.cluster.cli.exit_status import ExitStatus
from fencelock.cluster.cli.main import app
from fencelock.cluster.node.node import Node

WAITS = "import sys; print('ready', flush=True); sys.stdin.readline()"
LOCK = (sys.executable, "-m", "fencelock", "lock")
SHOWS = "import os; print(os.environ['FENCELOCK_NAME'], os.environ['FENCELOCK_FENCE'])"


@pytest.fixture
def client(paxos_addresses: str) -> Iterator[fencelock.Client]:
    with fencelock.connect(paxos_addresses, cluster=FACES, label="the tests") as client:
        yield client


class Shell:
    """Runs `fencelock` with the addresses of the shared nodes in its environment."""

    def __init__(self, addresses: str, folder: Path) -> None:
        self._folder = folder
        nodes = {"FENCELOCK_CONNECT": addresses, "FENCELOCK_CLUSTER": FACES}
        self._environment = {**os.environ, **nodes, "COLUMNS": "200"}

    def start(self, *arguments: str, program: tuple[str, ...] = ("-m", "fencelock")) -> Child:
        return Child(
            *program,
            *arguments,
            cwd=self._folder,
            env=self._environment,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str, says: str = "") -> tuple[int, str, str]:
        """Return the status and texts of a command: in this process, unless it runs a program."""
        if "--" not in arguments:
            done = CliRunner().invoke(app, arguments, input=says, env=self._environment)
            if isinstance(done.exception, fencelock.FencelockError):  # `main` prints it.
                return ExitStatus.REFUSED, done.stdout.rstrip("\n"), str(done.exception)
            return done.exit_code, done.stdout.rstrip("\n"), done.stderr.rstrip("\n")
        process = self.start(*arguments)
        out, err = process.communicate(says, timeout=PATIENCE_S)
        return process.returncode, out.rstrip("\n"), err.rstrip("\n")

    def plain(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json")[1])

    def ready(self, *arguments: str) -> Child:
        """Return a command once its program is ready, and so the command holds something."""
        process = self.start(*arguments)
        assert process.line() == "ready", process.communicate()
        return process

    @contextmanager
    def holding(self, *arguments: str) -> Generator[None]:
        """Run a command that holds something until the end of the block."""
        process = self.ready(*arguments, *python(WAITS))
        yield
        process.communicate("\n", timeout=PATIENCE_S)
        assert process.returncode == 0


@pytest.fixture
def shell(paxos_addresses: str, tmp_path: Path) -> Shell:
    return Shell(paxos_addresses, tmp_path)


def python(code: str) -> tuple[str, ...]:
    return "--", sys.executable, "-c", code


def test_commands_run_under_permits_or_wait(shell: Shell, client: fencelock.Client) -> None:
    with shell.holding("semaphore", "run", "encoder", "--permits", "1"):
        assert client.semaphore("encoder", 1).status().holder is not None
        code, out, err = shell.run(
            "semaphore", "run", "encoder", "--permits", "1", "-n", *python(SHOWS)
        )
        assert (code, out) == (ExitStatus.NOT_ACQUIRED, "")
        assert err == "encoder was not acquired: all 1 permits are taken"
    assert client.semaphore("encoder", 1).status().holder is None


def test_readers_run_together_and_a_writer_alone(shell: Shell, client: fencelock.Client) -> None:
    with shell.holding("rw", "read", "catalogue"):
        code, out, _ = shell.run("rw", "read", "catalogue", "-n", *python(SHOWS))
        assert (code, out.split()[0]) == (0, "catalogue")
        code, _, err = shell.run("rw", "write", "catalogue", "-n", *python(SHOWS))
        assert code == ExitStatus.NOT_ACQUIRED
        assert err.startswith("catalogue was not acquired: ")
        assert err.endswith(" holds it")
    code, out, _ = shell.run("rw", "write", "catalogue", *python(SHOWS))
    assert code == 0
    assert client.rwlock("catalogue").status().holder is None


def test_an_election_has_a_leader_while_its_command_runs(shell: Shell) -> None:
    assert shell.run("election", "leader", "boss") == (ExitStatus.FAILED, "", "nobody leads boss")
    watching = shell.start("election", "watch", "boss", "--json")
    try:
        assert json.loads(watching.line())["value"] is None
        with shell.holding("election", "lead", "boss", "--value", "10.0.0.7:80"):
            term = json.loads(watching.line())
            assert term["value"] == "10.0.0.7:80"
            assert shell.run("election", "leader", "boss") == (0, "10.0.0.7:80", "")
            assert shell.plain("election", "leader", "boss") == term
            code, _, err = shell.run("election", "lead", "boss", "-n", *python(SHOWS))
            assert code == ExitStatus.NOT_ACQUIRED
            assert err.endswith(" holds it")
        assert json.loads(watching.line())["value"] is None
    finally:
        watching.terminate()
        watching.communicate(timeout=PATIENCE_S)


def test_a_latch_opens_when_its_count_is_0(shell: Shell) -> None:
    down = ("latch", "down", "migrated/7", "--count", "3")
    assert shell.run(*down) == (0, "2 of 3 left", "")
    code, _, err = shell.run("latch", "wait", "migrated/7", "--count", "3", "--timeout", "0.1")
    assert code == ExitStatus.FAILED
    assert err == "migrated/7 is not open after 0.1 s: 2 of 3 left"
    waiting = shell.start("latch", "wait", "migrated/7", "--count", "3")
    assert shell.plain(*down, "--by", "2") == {"latch": "migrated/7", "left": 0, "of": 3}
    assert waiting.wait(PATIENCE_S) == 0
    waiting.communicate()
    code, _, err = shell.run("latch", "down", "migrated/7", "--count", "4")
    assert code == ExitStatus.REFUSED
    assert "count 3" in err


def test_a_counter_is_read_and_changed(shell: Shell) -> None:
    assert shell.run("counter", "get", "invoices") == (0, "0", "")
    assert shell.run("counter", "add", "invoices") == (0, "1", "")
    assert shell.run("counter", "add", "invoices", "--by", "-3") == (0, "-2", "")
    assert shell.run("counter", "set", "invoices", "-5") == (0, "-5", "")
    assert shell.run("counter", "set", "invoices", "7", "--if", "0") == (
        ExitStatus.FAILED,
        "",
        "invoices is not 0: nothing was changed",
    )
    assert shell.run("counter", "set", "invoices", "7", "--if", "-5") == (0, "7", "")
    assert shell.plain("counter", "get", "invoices") == {"counter": "invoices", "value": 7}
    code, _, err = shell.run("counter", "add", "invoices", "--by", str(1 << 63))
    assert code == ExitStatus.REFUSED
    assert str(1 << 63) in err


def test_entries_are_put_under_conditions(shell: Shell, client: fencelock.Client) -> None:
    put = ("map", "put", "config", "colour")
    code, version, _ = shell.run(*put, "blue")
    assert code == 0
    entry = present(client.map("config").get("colour"))
    assert (entry.value, entry.version) == (b"blue", int(version))

    assert shell.run(*put, "red", "--if-absent") == (
        ExitStatus.FAILED,
        "",
        "map config has an entry 'colour': nothing was changed",
    )
    code, _, err = shell.run(*put, "red", "--version", str(int(version) + 99))
    assert code == ExitStatus.REFUSED
    assert f"has version {version}" in err
    code, _, err = shell.run(*put, "red", "--version", version, "--if-absent")
    assert (code, err) == (
        ExitStatus.REFUSED,
        "--if-absent and --version exclude each other: leave one out",
    )
    done = shell.run(*put, "-", "--version", version, "--ttl", "60", "--json", says="from a pipe")
    entry = present(client.map("config").get("colour"))
    assert json.loads(done[1]) == {"map": "config", "key": "colour", "version": entry.version}
    assert entry.value == b"from a pipe"
    assert entry.expires is not None
    assert shell.run("map", "put", "config", "bytes", os.fsdecode(b"\xff"))[0] == 0
    assert present(client.map("config").get("bytes")).value == b"\xff"
    code, _, err = shell.run(*put, "blue", "--ttl", "0")
    assert (code, "Invalid value for '--ttl'" in err) == (ExitStatus.REFUSED, True)


def test_a_watch_prints_entries_then_changes(shell: Shell, client: fencelock.Client) -> None:
    seen = client.map("seen")
    first = seen.put("a", b"1")
    watching = shell.start("map", "watch", "seen")
    plain = shell.start("map", "watch", "seen", "--json")
    try:
        assert watching.line() == f"a: 1 bytes, version {first}"
        plain.line()
        second = seen.put("a", bytes(1000))
        seen.delete("a")
        assert watching.line() == f"a: 1,000 bytes, version {second}"
        assert watching.line().startswith("a: ended, version ")
        value = base64.b64encode(bytes(1000)).decode()
        assert json.loads(plain.line()) == {
            "map": "seen",
            "key": "a",
            "value": value,
            "version": second,
        }
        assert json.loads(plain.line())["value"] is None
    finally:
        for process in (watching, plain):
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"


def ended(process: Child) -> str:
    """Return what the command wrote to standard error, once it has ended.

    Its standard input stays open meanwhile: `WAITS` ends when that is closed.
    """
    process.wait(timeout=PATIENCE_S)
    return process.communicate()[1]


def evict(client: fencelock.Client, name: str) -> int:
    """Take a lock from its holder; return the fence under which it was held."""
    fence = present(present(client.status(name).holder).fence)
    client.evict(name, fence)
    return fence


def test_a_command_learns_its_lock_and_its_fence_and_its_status_is_returned(
    shell: Shell, client: fencelock.Client
) -> None:
    before = client.lock("report")
    with before as hold:
        fence = hold.fence
    code, out, err = shell.run("lock", "report", *python(f"{SHOWS}; raise SystemExit(3)"))
    name, later = out.split()
    assert (code, name, err) == (3, "report", "")
    assert int(later) > fence
    assert client.status("report").holder is None


@pytest.mark.parametrize("how", [("--nonblock",), ("--timeout", "0.2")])
def test_a_lock_that_is_held_is_not_had_and_its_holder_is_named(
    shell: Shell, client: fencelock.Client, how: tuple[str, ...]
) -> None:
    with client.lock("busy"):
        code, out, err = shell.run("lock", "busy", *how, *python(SHOWS))
    assert (code, out) == (75, "")
    assert err.startswith("busy was not acquired: the tests (")


@pytest.mark.parametrize(
    ("code", "grace"), [(WAITS, "30"), (STUBBORN, "0.1")], ids=["goes", "is killed"]
)
def test_a_command_whose_lock_is_lost_is_stopped(
    shell: Shell, client: fencelock.Client, code: str, grace: str
) -> None:
    process = shell.ready("lock", "taken", "--grace", grace, *python(code))
    fence = evict(client, "taken")
    err = ended(process)
    assert process.returncode == 74
    assert re.search(rf"the hold under fence {fence} was taken by '.*'\. Another client may", err)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_a_signal_goes_to_the_command_and_the_lock_is_free_after_it(
    shell: Shell, client: fencelock.Client, name: str
) -> None:
    number = signal.Signals[name]
    former = signal.signal(number, signal.SIG_DFL)  # A job of a shell may ignore SIGQUIT.
    try:
        process = shell.ready("lock", "signalled", *python(WAITS))
    finally:
        signal.signal(number, former)
    process.send_signal(number)
    ended(process)
    assert process.returncode == 128 + number
    assert client.status("signalled").holder is None


def test_ctrl_c_at_a_terminal_ends_it(paxos_addresses: str, client: fencelock.Client) -> None:
    spawns = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    line = (*LOCK, "--connect", paxos_addresses, "--cluster", FACES, "typed")
    # Python's own handler misses a signal that comes just before the process blocks in a read.
    code = f"import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); {WAITS}"
    process = Child("-c", spawns, *line, *python(code))
    try:
        assert any("ready" in line for line in process.lines)  # The log may write into that line.
        typed = present(process.stdin)
        typed.write("\x03")
        typed.flush()
        assert process.wait(PATIENCE_S) == 128 + signal.SIGINT
    finally:
        process.kill()
        process.communicate()
    assert client.status("typed").holder is None


@pytest.mark.parametrize("before", ["trap '' HUP INT", ":"], ids=["ignored", "not ignored"])
def test_a_command_ignores_signals_ignored_before(paxos_addresses: str, before: str) -> None:
    code = "import signal as s; print(*(s.getsignal(n) is s.SIG_IGN for n in (s.SIGHUP, s.SIGINT)))"
    line = (*LOCK, "--connect", paxos_addresses, "--cluster", FACES, "ignores")
    shell = ["sh", "-c", f'{before}; exec "$@"', "sh", *line, *python(code)]
    done = run_to_end(shell, timeout=PATIENCE_S)
    ignored = before != ":"
    assert (done.stdout, done.stderr) == (f"{ignored} {ignored}\n", "")


def test_a_command_runs_without_a_standard_input(paxos_addresses: str) -> None:
    line = (*LOCK, "--connect", paxos_addresses, "--cluster", FACES, "closed", "--", "true")
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", *line]
    done = run_to_end(shell, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("content", "why"),
    [("#!/nowhere/sh\n", "No such file or directory"), ("true\n", "Exec format error")],
    ids=["no interpreter", "no first line"],
)
def test_a_command_that_cannot_begin_has_not_run(
    shell: Shell, client: fencelock.Client, tmp_path: Path, content: str, why: str
) -> None:
    script = tmp_path / "job"
    script.write_text(content)
    script.chmod(0o700)
    once = ("unstarted", "--once", "unstarted", "--for", "1d")
    code, out, err = shell.run("lock", *once, "--", str(script))
    assert (code, out, err) == (126, "", f"{script}: cannot be executed: {why}")
    assert client.map("once").get("unstarted") is None


def test_nodes_silent_before_the_period_begins_have_their_status(paxos_addresses: str) -> None:
    code = (
        "import sys\n"
        "from fencelock.actors.error import UnavailableError\n"
        "from fencelock.cluster.cli import lock, start\n"
        "def begin(*_): raise UnavailableError('no node answers')\n"
        "lock.Once.begin = begin\n"
        "start.main('lock', *sys.argv[1:])\n"
    )
    line = ("--connect", paxos_addresses, "--cluster", FACES, "silent")
    once = ("--once", "silent", "--for", "1d", "--", "true")
    command = [sys.executable, "-c", code, *line, *once]
    done = run_to_end(command, timeout=PATIENCE_S)
    assert done.returncode == ExitStatus.NO_ANSWER
    assert done.stderr == "silent was not acquired: no node answers\n"


def test_a_signal_right_after_the_command_began_goes_to_the_command(
    shell: Shell, client: fencelock.Client
) -> None:
    code = "trap 'exit 3' TERM; kill -TERM $PPID; while read x; do :; done; exit 4"
    process = shell.start("lock", "early", "--", "sh", "-c", code)
    ended(process)
    assert process.returncode == 3
    assert client.status("early").holder is None


def test_processes_that_a_command_started_end_too_if_the_lock_is_lost(
    shell: Shell, client: fencelock.Client
) -> None:
    """The child ignores SIGTERM and keeps the pipe open that `ended` reads to its end."""
    child = "import signal; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = shell.ready("lock", "family", "--grace", "0.2", *python(code))
    evict(client, "family")
    ended(process)
    assert process.returncode == 74


def test_a_signal_while_it_waits_ends_the_wait(shell: Shell, client: fencelock.Client) -> None:
    with client.lock("awaited"):
        process = shell.start("lock", "awaited", *python(SHOWS))
        until(lambda: client.status("awaited").waiters)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (128 + signal.SIGTERM, "")
        assert client.status("awaited").waiters == ()


def test_commands_run_up_to_the_number_of_permits(shell: Shell) -> None:
    held = [shell.ready("lock", "encoder", "--shared", "2", *python(WAITS)) for _ in range(2)]
    code, _, err = shell.run("lock", "encoder", "--shared", "2", "--nonblock", *python(SHOWS))
    assert (code, err) == (75, "encoder was not acquired: all 2 permits are taken")
    for process in held:
        process.communicate("go\n", timeout=PATIENCE_S)
        assert process.returncode == 0
    code, _, _ = shell.run("lock", "encoder", "--shared", "2", "--nonblock", *python(SHOWS))
    assert code == 0


def test_the_help_names_the_exit_statuses_of_the_command_itself() -> None:
    shown = run_to_end([*LOCK, "--help"], check=True).stdout
    own = (
        ExitStatus.LOST,
        ExitStatus.NOT_ACQUIRED,
        ExitStatus.NO_ANSWER,
        ExitStatus.WRONG_CLUSTER,
        ExitStatus.NO_COMMAND,
        ExitStatus.NOT_EXECUTABLE,
    )
    assert {str(status.value) for status in own} == set(re.findall(r"with\s+(\d+)", shown))


def test_nothing_is_locked_without_a_command(shell: Shell) -> None:
    for missing in ("no-such-command", "./no-such-command"):
        code, _, err = shell.run("lock", "x", "--", missing)
        assert (code, err) == (127, f"{missing}: command not found; x was not acquired")
    code, _, err = shell.run("lock", "x", "--", __file__)
    assert (code, err) == (126, f"{__file__}: cannot be executed; x was not acquired")


def test_a_command_without_a_node_waits_as_long_as_requested_and_prints_why() -> None:
    process = run_to_end(
        [*LOCK, "x", "--connect", "tcp://127.0.0.1:1", "--timeout", "3", *python(SHOWS)],
        env=os.environ,
        timeout=PATIENCE_S,
    )
    assert process.returncode == ExitStatus.NO_ANSWER
    waits, ends = process.stderr.splitlines()
    assert waits.startswith("lock 'x': waiting for 2 s: no node answers. Tried tcp://127.0.0.1:1: ")
    assert ends.startswith("x was not acquired: lock 'x': no node could be asked for it within 3.")


def test_nodes_of_another_cluster_have_a_status_of_their_own(shell: Shell) -> None:
    code, _, err = shell.run("lock", "x", "--cluster", "other", *python(SHOWS))
    assert code == ExitStatus.WRONG_CLUSTER
    assert "of cluster" in err


def test_a_command_that_waits_prints_who_holds_unless_it_is_quiet(
    shell: Shell, client: fencelock.Client
) -> None:
    with client.lock("long"):
        code, _, err = shell.run("lock", "long", "--timeout", "4", *python(SHOWS))
        assert (code, len(err.splitlines())) == (75, 2)
        assert err.startswith("lock 'long': waiting for 2 s: held by the tests (owner ")
        how = ("--nonblock", "--quiet", "-E", "9")
        assert shell.run("lock", "long", *how, *python(SHOWS)) == (9, "", "")


def test_a_command_runs_once_a_period_unless_it_fails(
    shell: Shell, client: fencelock.Client
) -> None:
    once = ("job", "--once", "nightly", "--for", "1d", "--label", "machine 1")
    code, out, _ = shell.run("lock", *once, *python("raise SystemExit(3)"))
    assert code == 3
    code, out, _ = shell.run("lock", *once, *python(SHOWS))
    assert (code, out.split()[0]) == (0, "job")
    code, out, err = shell.run("lock", *once, *python(SHOWS))
    assert (code, out) == (75, "")
    assert re.fullmatch(r"job: it runs once in 1d, and ran \S+( \S+)? ago, as 'machine 1'", err)
    assert shell.run("lock", *once, "-q", "-E", "0", *python(SHOWS)) == (0, "", "")
    entry = present(client.map("once").get("nightly"))
    assert entry.expires is not None
    assert 0.9 < entry.expires / 86_400 < 0.951  # The next night may begin a little early.


KILLED = """
import signal
from fencelock.cluster.cli import lock, start
begin = lock.Once.begin
def begin_and_be_killed(*arguments):
    version = begin(*arguments)
    signal.raise_signal(signal.SIGTERM)
    return version
lock.Once.begin = begin_and_be_killed
start.main()
"""


def test_a_signal_before_the_command_leaves_the_period_free(
    shell: Shell, client: fencelock.Client
) -> None:
    once = ("killed", "--once", "killed", "--for", "1d")
    killed = shell.start("lock", *once, *python(SHOWS), program=("-c", KILLED))
    assert killed.communicate(timeout=PATIENCE_S)[0] == ""
    assert killed.returncode == 128 + signal.SIGTERM
    assert client.map("once").get("killed") is None
    assert shell.run("lock", *once, *python(SHOWS))[0] == 0


LATE = """
import os, signal, sys
from fencelock.cluster.cli import lock, start
set_handler = signal.signal
def signal_at_once(number, handler):
    former = set_handler(number, handler)
    if number == signal.SIGTERM and handler is lock._exit and former is not signal.SIG_DFL:
        os.kill(os.getpid(), number)
    return former
signal.signal = signal_at_once
start.main("lock", *sys.argv[1:])
"""
"""Runs ``fencelock lock``, and sends it SIGTERM just when signals are not passed on any more."""


def test_a_signal_just_as_the_command_has_ended_ends_the_process(
    paxos_addresses: str, client: fencelock.Client
) -> None:
    line = ("late", "--connect", paxos_addresses, "--cluster", FACES, "--", "true")
    done = run_to_end([sys.executable, "-c", LATE, *line], timeout=PATIENCE_S)
    assert done.returncode == 128 + signal.SIGTERM
    assert client.status("late").holder is None


def test_a_lock_is_held_at_least_so_long(shell: Shell, client: fencelock.Client) -> None:
    process = shell.start("lock", "least", "--hold-at-least", "1h", *python("print('ended')"))
    assert process.line() == "ended"
    assert present(client.status("least").holder).label.endswith(Path(sys.executable).name)
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE_S)
    process.communicate()
    assert client.status("least").holder is None


UNIT = "must be a number and a unit: 30s, 10m, 2h, 1d"
TOGETHER = ": --once KEY and --for TIME belong together"


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (("--hold-at-least", "10"), f" for --hold-at-least: '10' {UNIT}"),
        (("--hold-at-least", "367d"), " for --hold-at-least: 367d is longer than 366d"),
        (("--timeout", "1e9"), " for '--timeout' / '-w': Input should be less than or equal to"),
        (("--grace", "inf"), " for '--grace': Input should be less than or equal to 604800"),
        (("--once", "key"), TOGETHER),
        (("--for", "1d"), TOGETHER),
        (("--once", "key", "--for", "day"), f" for --for: 'day' {UNIT}"),
        (("--nonblock", "--timeout", "3"), ": --nonblock does not wait, so it has no --timeout"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: tuple[str, ...], text: str) -> None:
    wide = {"COLUMNS": "120", "NO_COLOR": "1"}
    done = CliRunner().invoke(app, ["lock", "x", *wrong, "--", "true"], env=wide)
    assert done.exit_code == ExitStatus.REFUSED
    assert f"Invalid value{text}" in done.stderr


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Node]]:
    with running_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes


@pytest.fixture
def retaining_address(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> str:
    addresses = [node.address for node in nodes.values()]
    monkeypatch.setenv("FENCELOCK_CONNECT", ",".join(addresses))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    return addresses[0]


@pytest.fixture
def retainer(retaining_address: str) -> Iterator[RawRetainer]:
    with retaining(retaining_address, "fencelock") as client:
        yield client


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def row_of(command: str, name: str) -> str:
    (row,) = (row for row in invoke(command).output.splitlines() if name in row)
    return " ".join(row.split())


def release(name: str, fence: int, *more: str) -> Result:
    return invoke("release", name, "--fence", str(fence), "--yes", *more)


def test_lists_show_what_is_retained_with_its_fences(retainer: RawRetainer) -> None:
    fence = retainer.retain("a", span=50)
    fences = f"{fence}-{fence + 49}"
    for command in ("locks", "status"):
        assert f"ann (retained) {fences}" in row_of(command, "(retained)")
    lines = invoke("who", "a").output.splitlines()
    assert lines[0] == f"a is held by ann ({retainer.session}/*)"
    assert lines[1].endswith(f", under fences {fences}.")
    assert lines[2].startswith("Its session retains it for its own owners")
    assert json.loads(invoke("who", "a", "--json").stdout)["holder"]["span"] == 50
    (one,) = json.loads(invoke("sessions", "--json").stdout)
    assert (one["claims"], one["retained"]) == (1, 1)
    assert "retained" in invoke("sessions").output


OBJECTS: dict[str, dict[str, Any]] = {
    "a": {"lock": "a"},
    "rwlock:a": {"lock": object_name(RWLOCK, "a"), "permits": RWLOCK_PERMITS},
    "semaphore:a": {"lock": object_name(SEMAPHORE, "a"), "permits": 3, "amount": 2},
}


@pytest.mark.parametrize("name", OBJECTS)
def test_release_asks_the_client_for_what_it_retains(retainer: RawRetainer, name: str) -> None:
    fence = retainer.retain(**OBJECTS[name])
    done = release(name, fence)
    assert done.exit_code == 0, done.output
    assert done.stdout == (
        f"{name} was given back by ann ({retainer.session}/*), who held it under fence {fence}.\n"
    )
    assert {one.fence for one in retainer.recalls} == {fence}
    assert f"{name} is free." in invoke("who", name).output
    assert name not in [row["lock"] for row in json.loads(invoke("audit", "--json").stdout)]


def test_release_takes_what_its_client_uses_by_force_only(
    retainer: RawRetainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "RECALL_S", 0.2)
    retainer.in_use = True
    fence = retainer.retain("busy")
    refused = release("busy", fence)
    assert isinstance(refused.exception, LockTimeoutError)
    assert "--force takes it at once" in str(refused.exception)
    assert retainer.recalled.wait(PATIENCE_S)
    taken = release("busy", fence, "--force")
    assert taken.stdout.startswith("busy was taken from ann")
    assert "busy" in [row["lock"] for row in json.loads(invoke("audit", "--json").stdout)]


def test_a_recall_is_repeated_and_the_next_owner_gets_a_fence_above_the_span(
    retaining_address: str, retainer: RawRetainer
) -> None:
    """The first recalls are ignored, as if they had been lost."""
    retainer.in_use = True
    fence = retainer.retain("b", span=50)
    with fencelock.connect(retaining_address) as client:
        lock = client.lock("b")
        assert lock.acquire(timeout=0.5) is None
        assert retainer.recalled.wait(PATIENCE_S)
        retainer.in_use = False
        hold = present(lock.acquire(timeout=PATIENCE_S))
        assert hold.fence >= fence + 50
        hold.release()
    assert len(retainer.recalls) > 1
