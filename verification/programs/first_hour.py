"""The first hour of a new user, as a transcript with times: from an empty environment on.

It makes an environment, installs the product, takes locks at ``fencelock dev`` from a program and
from a shell, runs three nodes, looks at them, takes a lock by force, kills a client, cuts the
leader off, kills it, and reads logs and metrics. Every command is printed with its output and its
time.

Run it as ``python verification/programs/first_hour.py``; it needs an index of packages, and exits
with 1 if a command fails or the first lock comes too late.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

FIRST_LOCK_S = 3.0
"""The bar: time from ``fencelock dev`` to the first lock in the user's own program (s)."""

PATIENCE_S = 60.0
"""Longest wait for anything but the installation (s)."""

PROGRAM = """\
import fencelock

with fencelock.connect() as client, client.lock("orders/42", timeout=5) as hold:
    print(f"orders/42 is mine under fence {hold.fence}")
"""


SHORT = """\
import time, fencelock

with fencelock.connect(ttl=1, label="batch job") as client, client.lock("batch/2026-11-22"):
    print("held", flush=True)
    time.sleep(300)
"""


class FailedError(Exception):
    """A step went wrong; the text says how."""


class Transcript:
    """Runs commands and prints them with their outputs and times."""

    def __init__(self, folder: Path, stack: ExitStack, columns: int) -> None:
        self.folder = folder
        self.began = time.monotonic()
        self._stack = stack
        path = f"{folder / 'env' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment = {"PATH": path, "HOME": str(folder), "COLUMNS": str(columns)}

    def say(self, text: str) -> None:
        print(f"\n## {text} ({time.monotonic() - self.began:.1f} s)\n", flush=True)

    def show(self, text: str) -> None:
        """Print an output, with the folder's name in short."""
        lines = text.replace(str(self.folder), "~").rstrip().splitlines()
        print("\n".join(f"  {line}".rstrip() for line in lines), flush=True)

    def run(self, command: str, timeout: float = PATIENCE_S, status: int = 0) -> float:
        """Run ``command`` in a shell; return how long it took (s)."""
        print(f"$ {command}", flush=True)
        began = time.monotonic()
        shell, stdout = ["sh", "-c", f"{{ {command}; }} 2>&1 < /dev/null"], subprocess.PIPE
        where, variables = self.folder, self.environment
        done = subprocess.run(
            shell, cwd=where, env=variables, stdout=stdout, text=True, check=False, timeout=timeout
        )
        took = time.monotonic() - began
        self.show(done.stdout)
        print(f"  [{took:.2f} s, exit status {done.returncode}]", flush=True)
        if done.returncode != status:
            raise FailedError(f"{command}: exit status {done.returncode}, not {status}")
        return took

    def start(self, command: str, log: str) -> subprocess.Popen[bytes]:
        """Run ``command`` in the background, with its output in the file ``log``."""
        print(f"$ {command} > {log} 2>&1 &", flush=True)
        with (self.folder / log).open("wb") as file:
            words = shlex.split(command)
            process = subprocess.Popen(
                words, cwd=self.folder, env=self.environment, stdout=file, stderr=file
            )
        self._stack.callback(process.wait, PATIENCE_S)
        self._stack.callback(process.kill)
        self._stack.callback(process.send_signal, signal.SIGCONT)
        return process

    def until(self, log: str, pattern: str, times: int = 1) -> float:
        """Return how long it takes until ``log`` has ``pattern`` (s)."""
        return until(
            lambda: len(re.findall(pattern, self.text(log))) >= times, f"{pattern!r} in {log}"
        )

    def text(self, log: str) -> str:
        return (self.folder / log).read_text(encoding="utf-8")


def until(found: Callable[[], bool], what: str) -> float:
    began = time.monotonic()
    while not found():
        if time.monotonic() - began > PATIENCE_S:
            raise FailedError(f"{what} did not come within {PATIENCE_S:g} s")
        time.sleep(0.01)  # What other processes print cannot be waited for in another way.
    return time.monotonic() - began


def development(shell: Transcript) -> None:
    """Take locks at a development node; check the time of the first one."""
    shell.say("A first lock")
    (shell.folder / "app.py").write_text(PROGRAM)
    shell.run("cat app.py")
    began = time.monotonic()
    dev = shell.start("fencelock dev", "dev.log")
    shell.until("dev.log", r"4040")
    shell.run("python app.py")
    first = time.monotonic() - began
    print(f"  [the first lock {first:.2f} s after `fencelock dev` began]")
    shell.run(
        "fencelock lock nightly-report -- sh -c 'echo the job runs under fence $FENCELOCK_FENCE'"
    )
    holder = shell.start("fencelock lock nightly-report -- sleep 300", "holder.log")
    until_held(shell, "nightly-report")
    shell.run("fencelock who nightly-report")
    shell.run("fencelock lock nightly-report --nonblock -- echo never", status=75)
    shell.run("fencelock status")
    for process in (holder, dev):
        process.send_signal(signal.SIGINT if process is dev else signal.SIGTERM)
        process.wait(PATIENCE_S)
    shell.show(shell.text("dev.log"))
    if first > FIRST_LOCK_S:
        raise FailedError(
            f"the first lock took {first:.2f} s, at most {FIRST_LOCK_S:g} are allowed"
        )


def until_held(shell: Transcript, name: str) -> None:
    command = ["fencelock", "who", name, "--json"]

    def is_held() -> bool:
        done = subprocess.run(
            command, cwd=shell.folder, env=shell.environment, capture_output=True, check=False
        )
        return b'"fence"' in done.stdout

    until(is_held, f"a holder of {name}")


Nodes = dict[str, subprocess.Popen[bytes]]


def cluster(shell: Transcript) -> Nodes:
    """Run three nodes; look at them, and take a lock by force."""
    shell.say("Three nodes")
    shell.run("fencelock init")
    shell.run("fencelock keys init")
    for name, role in (("batch", "client"), ("alice", "operator")):
        shell.run(f"fencelock keys add {name} --role {role}")
    shell.say("Nodes with keys; this shell has the key of an operator")
    secured = {"FENCELOCK_SECURITY__KEYS": "./keys", "FENCELOCK_KEY": "keys/alice.key"}
    for variable, value in secured.items():
        print(f"$ export {variable}={value}")
    shell.environment |= secured
    nodes = {
        name: shell.start(
            f"env FENCELOCK_METRICS=127.0.0.1:{9403 + n} fencelock serve --id {name}", f"{name}.log"
        )
        for n, name in enumerate(("n1", "n2", "n3"), 1)
    }
    until(lambda: bool(leader_of(shell)), "a leader")
    shell.run("fencelock status")
    shell.start("fencelock lock customers/eu-central/invoices/2026-11 -- sleep 300", "holder.log")
    until_held(shell, "customers/eu-central/invoices/2026-11")
    shell.start("fencelock lock customers/eu-central/invoices/2026-11 -- echo mine", "waiter.log")
    until(
        lambda: any(samples(n).get("fencelock_waits") for n in range(3)), "a waiter in the metrics"
    )
    for command in ("locks", "who customers/eu-central/invoices/2026-11", "members", "sessions"):
        shell.run(f"fencelock {command}")
    shell.say("A lock taken by force")
    shell.run(
        "fencelock release customers/eu-central/invoices/2026-11 --fence 1 --operator alice -y"
    )
    shell.until("waiter.log", "mine")
    shell.until("holder.log", "lost|taken")
    shell.show("holder.log:\n" + shell.text("holder.log"))
    shell.run("fencelock audit")
    return nodes


def failures(shell: Transcript, nodes: Nodes) -> str:
    """Kill a client, cut the leader off, and kill it; return the node that is dead."""
    shell.say("A client dies; its session has a time to live of one second")
    (shell.folder / "short.py").write_text(SHORT)
    client = shell.start("env FENCELOCK_KEY=keys/batch.key python short.py", "short.log")
    shell.until("short.log", "held")
    client.kill()
    shell.run("fencelock lock batch/2026-11-22 --timeout 10 -- echo mine now")
    shell.say("The leader is cut off: its followers are stopped for two seconds")
    first = leader_of(shell)
    followers = [process for name, process in nodes.items() if name != first]
    for process in followers:
        process.send_signal(signal.SIGSTOP)
    shell.until(f"{first}.log", "leads no more|no majority answers")
    shell.run("fencelock status", status=3)
    for process in followers:
        process.send_signal(signal.SIGCONT)
    shell.run("fencelock lock probe --timeout 20 -- echo locks are granted again")
    shell.say("The leader is killed")
    second = leader_of(shell)
    print(f"$ kill -9 {second}")
    nodes[second].kill()
    nodes[second].wait()
    took = shell.run("fencelock lock probe --timeout 20 -- echo locks are granted again")
    print(f"  [{took:.2f} s from the kill to the next lock, with the start of the command]")
    shell.run("fencelock status")
    return second


def evidence(shell: Transcript, nodes: Nodes, dead: str) -> None:
    shell.say("The logs")
    for name in nodes:
        shell.run(f"cat {name}.log")
    shell.say("The metrics of a node that is left")
    port = 9404 + next(n for n, name in enumerate(nodes) if name != dead)
    wanted = "ready|leader|members|holds|waits|applied|lag_slots|request_deads_count"
    shell.run(f"curl -s 127.0.0.1:{port}/metrics | grep -E '^fencelock_({wanted})'")
    shell.run(f"curl -s 127.0.0.1:{port}/ready")
    shell.say("The end")
    for name, process in nodes.items():
        if name != dead:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)
            shell.run(f"tail -n 2 {name}.log")


def samples(number: int) -> dict[str, float]:
    """Return the metrics without labels of a node, by name; none if it does not answer."""
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{9404 + number}/metrics", timeout=5
        ) as reply:
            lines = reply.read().decode().splitlines()
    except OSError:
        return {}
    return {
        name: float(value)
        for name, _, value in (line.partition(" ") for line in lines if line[0] != "#")
        if "{" not in name
    }


def leader_of(shell: Transcript) -> str:
    """Return the node whose metrics say that it leads; empty if none does."""
    leading = [n for n in range(3) if samples(n).get("fencelock_leader")]
    return f"n{leading[0] + 1}" if len(leading) == 1 else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    parser.add_argument("--columns", type=int, default=100, help="width of the outputs")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="first-hour-"))
        if not arguments.keep:
            stack.callback(subprocess.run, ["rm", "-rf", str(folder)], check=False)
        shell = Transcript(folder, stack, arguments.columns)
        try:
            shell.say("Installation into an empty environment")
            shell.run(f"{sys.executable} -m venv env")
            shell.run(f"pip install --quiet --disable-pip-version-check {ROOT}", timeout=600)
            development(shell)
            nodes = cluster(shell)
            evidence(shell, nodes, failures(shell, nodes))
        except FailedError as error:
            print(f"FAILED: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
