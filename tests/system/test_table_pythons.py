"""One log, applied by Pythons whose Unicode differs, gives one table and the same outcomes."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.paths import SUPPORT
from support.programs import run_to_end

from fencelock.actors.api.lock_message import Acquire, Cancel, Release
from fencelock.actors.api.name import SESSION_TTL_MS_MAX
from fencelock.actors.api.operator_message import Evict
from fencelock.actors.api.session_message import End, KeepAlive, Open
from fencelock.actors.table.wire import ExtendSessions, LogCommand

REPLAY = SUPPORT / "replay_log.py"

VERSION = (
    "import sys, unicodedata;"
    "print(sys.version_info >= (3, 11), '.'.join(map(str, sys.version_info[:2])),"
    "unicodedata.unidata_version)"
)

EDGES = (
    "\U0001fae8",  # Assigned in Unicode 15.0, not in 14.0.
    "\u2ffc",  # Assigned in 15.1.
    "\u1c89",  # The same, in 16.0.
    "\U00010d40",
    "\U0001fae9",
    "\u0378",  # Never assigned so far.
    "\ue000",
    "\u00a0",
    "\u00ad",
    "\u200b",
    "\u2028",
    "\u202e",
    "\u2066",
    "\u061c",
    "\x7f",
    "\x85",
    "\x1b",
    "'",
    '"',
    "\\",
    "\u00e9",
    "e\u0301",
    "\u3164",
    " ",
    "",
    "\U000e0041",
    "\U0010ffff",
)
"""Characters about which Pythons disagree, or an earlier version of the rules did."""


def log_of(seed: int, length: int = 600) -> list[tuple[int, LogCommand]]:
    """Return a log that is full of unusual names, as owners, sessions, labels and locks."""
    chance = random.Random(seed)

    def name() -> str:
        if chance.random() < 0.3:
            return chance.choice(("orders/1", "orders/2", "x"))
        signs = [chance.choice(EDGES), chr(chance.randrange(0x20, 0xD800))]
        if chance.random() < 0.5:
            signs.append(chr(chance.randrange(0xE000, 0x110000)))
        chance.shuffle(signs)
        return "".join(signs[: chance.randrange(1, 4)])

    known = [name() for _ in range(40)]
    sessions: list[str] = ["s.1"]
    log: list[tuple[int, LogCommand]] = [(0, Open(session="s", ttl_ms=SESSION_TTL_MS_MAX))]
    time_ms = 0
    for request in range(1, length):
        time_ms += chance.choice((0, 0, 1, 40, 400))
        who: dict[str, Any] = {
            "session": chance.choice(("s.1", "s.1", *sessions)),
            "owner": chance.choice(known[:8]),
        }
        about: dict[str, Any] = {**who, "request": request, "lock": chance.choice(known)}
        label, fence = chance.choice(known), chance.randrange(1, request + 1)
        kind = chance.randrange(20)
        command: LogCommand
        if kind == 0:
            opened = chance.choice(known) or "t"
            command = Open(session=opened, ttl_ms=chance.choice((300, 9_000)), label=label)
            sessions += [f"{opened}.{number}" for number in (2, 3, 4, 5)]
        elif kind == 1:
            command = KeepAlive(session=who["session"])
        elif kind == 2:
            command = End(session=chance.choice(sessions[1:] or ["t.9"]))
        elif kind == 3:
            command = ExtendSessions(leader=label)
        elif kind == 4:
            command = Evict(operator=label, request=request, lock=about["lock"], fence=fence // 2)
        elif kind == 5:
            command = Cancel(**who, request=max(1, request - 3), lock=about["lock"])
        elif kind < 9:
            command = Release(**about, fence=fence)
        else:
            wait_ms = chance.choice((None, 0, 500))
            command = Acquire(**about, wait_ms=wait_ms, label=label)
        log.append((time_ms, command))
    return log


def replay(python: str, log: list[tuple[int, LogCommand]], *packages: str) -> dict[str, Any]:
    """Return the result of applying ``log`` with the interpreter ``python``.

    Args:
        python: the interpreter.
        log: times and commands.
        packages: a folder with msgspec, unless the interpreter has it.

    """
    rows = [
        [
            time_ms,
            command.TAG,
            {name: getattr(command, name) for name in type(command).__struct_fields__},
        ]
        for time_ms, command in log
    ]
    environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": "random", "LC_ALL": "C"}
    done = subprocess.run(
        [python, "-I", str(REPLAY), *packages],
        input=json.dumps(rows),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def interpreters() -> Iterator[str]:
    """Yield the Pythons of this machine: those of pyenv, and those on the path."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from (str(found) for found in sorted(root.glob("versions/*/bin/python")))
    for name in ("python3.11", "python3.12", "python3.13", "python3.14", "python3.15", "python3"):
        for folder in os.environ.get("PATH", "").split(os.pathsep):
            found = shutil.which(name, path=folder)
            if found is not None:
                yield found


def others() -> dict[str, tuple[str, str]]:
    """Return an interpreter and its version for each Unicode version that is not this Python's."""
    found: dict[str, tuple[str, str]] = {}
    for python in interpreters():
        done = run_to_end([python, "-I", "-c", VERSION])
        recent, version, unicode = (done.stdout.split() or ["", "", ""])[:3]
        if done.returncode == 0 and recent == "True" and unicode != unicodedata.unidata_version:
            found.setdefault(unicode, (python, version))
    return found


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Return an interpreter and a folder with its msgspec, by Unicode version."""
    found = others()
    if not found:
        text = f"no other Python 3.11+ here has another Unicode than {unicodedata.unidata_version}"
        assert os.environ.get("CI") != "true", f"{text}; .ci/run has to provide one"
        pytest.skip(text)
    made: dict[str, tuple[str, str]] = {}
    for unicode, (python, version) in found.items():
        folder = str(tmp_path_factory.mktemp("packages"))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        chosen = ["--target", folder, "--python-version", version, "--only-binary", ":all:"]
        subprocess.run([*pip, *chosen, "msgspec"], check=True, timeout=120)
        made[unicode] = python, folder
    return made


def demand_alike(
    log: list[tuple[int, LogCommand]], pythons: dict[str, tuple[str, str]]
) -> dict[str, Any]:
    """Fail unless ``log`` has the same result everywhere; return it."""
    mine = replay(sys.executable, log)
    for unicode, (python, packages) in pythons.items():
        theirs = replay(python, log, packages)
        assert theirs["unicode"] == unicode
        assert theirs["outcomes"] == mine["outcomes"]
        assert theirs["digests"] == mine["digests"]
    return mine


def test_a_name_only_newer_pythons_know_is_alike(pythons: dict[str, tuple[str, str]]) -> None:
    """Found on real nodes: one granted what two refused, and then gave out fences twice."""
    about: dict[str, Any] = {"session": "s.1", "owner": "o"}
    log: list[tuple[int, LogCommand]] = [
        (0, Open(session="s", ttl_ms=60_000)),
        (1, Acquire(**about, request=1, lock="x\U0001fae8")),
        (2, Acquire(**about, request=2, lock="plain1")),
        (3, Release(**about, request=3, lock="plain1", fence=2)),
    ]
    demand_alike(log, pythons)


@pytest.mark.parametrize("seed", range(6))
def test_random_logs_end_alike_everywhere(pythons: dict[str, tuple[str, str]], seed: int) -> None:
    result = demand_alike(log_of(seed), pythons)
    assert result["grants"] >= 10
    assert result["invalid"] > 5
