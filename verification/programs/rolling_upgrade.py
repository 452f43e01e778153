"""Two releases in one cluster: a rolling upgrade under load, and back.

Three members of `paxos` with journals run the release of one commit. Clients of both releases take
locks, some of them in common, and write under them into files that show two holders, a lost update
and a fence that did not grow. One member after the other restarts with the other release: first all
followers, then the leader; in a second cluster always the leader first. One of the members stays
away until the others have dropped the slots that it lacks, so that it needs a snapshot of the other
release. Then all go back, killed with SIGKILL.

Run it as ``python verification/programs/rolling_upgrade.py``; it needs the history of the
repository and an index of packages, and exits with 1 if anything was wrong.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from beside import parser_of
from catch_up import applied

import fencelock
from fencelock.actors.paxos.config import LOG_MAX
from fencelock.verification.bench.members import BenchFailedError, described, leader_among

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples")]

from support.storm import LOCKS, LONG_S, Crowd, GrowingProcesses, Storm  # noqa: E402

BEFORE = "HEAD"
"""The same commit as the other release: the commits before the first release have formats of their
own, and no two of them promise to work together."""

GRANTS = 30
"""Grants that each process of clients must have after each step."""

GAP_S = 5.0
"""The bar: the longest time without a grant. A leader that is killed costs a second, and this
machine may have much else to do."""


class Release(NamedTuple):
    """A commit, and the Python in whose environment it is installed."""

    commit: str
    python: str
    client: Path
    """The program of its clients."""


class MixedProcesses(GrowingProcesses):
    """Nodes of which each has a release of its own."""

    releases: dict[str, Release]

    def python_of(self, node: str) -> str:
        return self.releases[node].python

    def stop(self, node: str) -> None:
        self.processes[node].terminate()
        self.processes[node].wait(LONG_S)


class Rolling:
    """One cluster. Its members change their releases one at a time."""

    def __init__(
        self, storm: Storm, watcher: fencelock.Client, old: Release, new: Release, say: Say
    ) -> None:
        self.storm, self.watcher, self.old, self.new, self.say = storm, watcher, old, new, say
        assert isinstance(storm.members, MixedProcesses)
        self.members = storm.members
        self.longest_gap_s = 0.0

    def all_to(self, release: Release, *, leader_first: bool, kill: bool) -> None:
        """Restart each member with ``release``; the second one stays away for long."""
        for number in range(len(self.members.names)):
            left = [one for one in self.members.names if self.members.releases[one] != release]
            leader = leader_among(described(self.watcher))
            first = [node for node in left if (node == leader) == leader_first]
            self.restart(min(first or left), release, kill=kill, away=number == 1)

    def restart(self, node: str, release: Release, *, kill: bool, away: bool) -> None:
        storm, members = self.storm, self.members
        part = "leader" if node == leader_among(described(self.watcher)) else "follower"
        storm.longest_gap_s = 0.0
        (members.kill if kill else members.stop)(node)
        if away:
            self.write_slots(LOG_MAX + LOG_MAX // 20)
        storm.wait_for(GRANTS)
        members.releases[node] = release
        members.start(node)
        members.wait_until_ready(self.watcher)
        self.wait_until_caught_up()
        storm.wait_for(GRANTS)
        gap = storm.longest_gap_s
        self.longest_gap_s = max(gap, self.longest_gap_s)
        how = "killed" if kill else "stopped"
        how += ", away until its slots were dropped," if away else ""
        self.say(
            f"{node} ({part}) {how} and started with {release.commit}: "
            f"longest gap {gap:.3f} s, {storm.granted.total()} grants so far"
        )

    def write_slots(self, slots: int) -> None:
        """Take and release a lock until so many more slots were decided."""
        lock = self.watcher.lock("slots")
        last = lock.status().slot + slots
        while lock.status().slot < last:
            for _ in range(200):
                with lock:
                    pass

    def wait_until_caught_up(self) -> None:
        """Wait until each member has applied the slots that were decided at the beginning."""
        last = self.watcher.lock("slots").status().slot
        ends = time.monotonic() + LONG_S
        while True:
            known = {one.node: applied(one) for one in self.watcher.describe(roles=True)}
            if len(known) == len(self.members.names) and min(known.values()) >= last:
                return
            if time.monotonic() > ends:
                raise BenchFailedError(f"slot {last} was not applied by all members: {known}")
            time.sleep(0.05)

    def counters(self) -> dict[str, dict[str, int]]:
        """Return each node's counters of frames and messages that it dropped."""
        kinds = ("wire.", "paxos.divergence", "paxos.quarantine", "paxos.differs")
        return {
            status.node: {
                one.name: one.times for one in status.counters if one.name.startswith(kinds)
            }
            for status in described(self.watcher)
        }


Say = Callable[[str], None]


def build(folder: Path, name: str, commit: str) -> Release:
    """Install ``commit`` of this repository into an environment of its own, unless it is there."""
    short = subprocess.check_output(
        ["git", "-C", str(ROOT), "rev-parse", "--short", commit], text=True
    ).strip()
    home = folder / f"{name}-{short}"
    python = home / "environment" / "bin" / "python"
    if not (home / "built").exists():
        shutil.rmtree(home, ignore_errors=True)
        (home / "source").mkdir(parents=True)
        archive = subprocess.check_output(["git", "-C", str(ROOT), "archive", short])
        subprocess.run(["tar", "-x", "-C", str(home / "source")], input=archive, check=True)
        subprocess.run([sys.executable, "-m", "venv", str(home / "environment")], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", str(home / "source")]
        subprocess.run(install, check=True)
        (home / "built").touch()
    return Release(short, str(python), home / "source" / "tests" / "support" / "storm_client.py")


@contextmanager
def upgrading(folder: Path, old: Release, new: Release, say: Say) -> Generator[Rolling]:
    """Run three members of ``old``, and clients of both releases."""
    with ExitStack() as stack:
        storm = Storm(folder, secrets.randbits(32))
        members = storm.members = MixedProcesses(folder, "paxos", 3, durable=True)
        members.releases = dict.fromkeys(members.names, old)
        stack.callback(storm.close)
        stack.enter_context(members)
        watcher = stack.enter_context(members.ready_client())
        storm.start_clients(
            [
                Crowd(kind, (*LOCKS, f"own-{number}"), release.python, release.client)
                for number, (kind, release) in enumerate(
                    (kind, release) for kind in ("threads", "tasks") for release in (old, new)
                )
            ]
        )
        storm.wait_for(GRANTS)
        try:
            yield Rolling(storm, watcher, old, new, say)
            storm.judge(watcher)
        except BaseException:
            storm.tell_logs()
            raise


def run(folder: Path, old: Release, new: Release, order: str, say: Say) -> dict[str, Any]:
    """Upgrade a cluster in ``order`` and go back; return the measurements."""
    leader_first = order == "leader first"
    say(f"{order}: three members of {old.commit}")
    with upgrading(folder, old, new, say) as rolling:
        rolling.all_to(new, leader_first=leader_first, kill=False)
        forward = rolling.longest_gap_s
        rolling.longest_gap_s = 0.0
        say(f"  all run {new.commit}: {json.dumps(rolling.counters())}")
        rolling.all_to(old, leader_first=leader_first, kill=True)
        say(f"  all run {old.commit}: {json.dumps(rolling.counters())}")
    grants = rolling.storm.granted.total()
    return {
        "order": order,
        "grants": grants,
        "longest_gap_s": round(forward, 3),
        "longest_gap_back_s": round(rolling.longest_gap_s, 3),
        "failures": sum(sum(said["wrong"].values()) for said in rolling.storm.said.values()),
    }


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--before", default=BEFORE, help="the commit of the old release")
    parser.add_argument("--after", default="HEAD", help="the commit of the new release")
    parser.add_argument("--folder", type=Path, help="keep the two environments here, for next time")
    options = parser.parse_args()
    began = time.monotonic()
    writing = threading.Lock()

    def say(text: str) -> None:
        with writing:
            stream = sys.stderr if options.json else sys.stdout
            print(f"{time.monotonic() - began:7.1f} s  {text}", file=stream, flush=True)

    runs: list[dict[str, Any]] = []
    wrong = ""
    with tempfile.TemporaryDirectory(prefix="fencelock-upgrade-") as temporary:
        home = (options.folder or Path(temporary)).absolute()
        old, new = build(home, "before", options.before), build(home, "after", options.after)
        say(f"built {old.commit} and {new.commit}")
        try:
            for order in ("followers first", "leader first"):
                folder = Path(temporary) / order.replace(" ", "-")
                folder.mkdir()
                runs.append(run(folder, old, new, order, say))
        except (AssertionError, fencelock.FencelockError, subprocess.SubprocessError) as error:
            wrong = f"{type(error).__name__}: {error}"
    slow = [one for one in runs if max(one["longest_gap_s"], one["longest_gap_back_s"]) > GAP_S]
    report = {
        "ok": not wrong and not slow,
        "before": old.commit,
        "after": new.commit,
        "wrong": wrong,
        "runs": runs,
    }
    if options.json:
        print(json.dumps(report))
    else:
        for one in runs:
            say(", ".join(f"{key} {value}" for key, value in one.items()))
        say("ok" if report["ok"] else f"NOT OK: {wrong or f'a gap of more than {GAP_S:g} s'}")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
