"""The prompt of ``fencelock dev``, with nodes in a process of their own."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

import pytest
from support.expect import PATIENCE_S, present
from support.programs import Child

from fencelock.cluster.testing.ports import free_ports


class Prompt:
    """``fencelock dev`` with a prompt: sends lines, and waits for lines that it prints."""

    def __init__(self, protocol: str) -> None:
        command = ["dev", "--protocol", protocol, "--nodes", "3", "--port", str(free_ports(3)[0])]
        self.process = Child("-m", "fencelock", *command, "--prompt", stderr=subprocess.STDOUT)
        self._lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.lines:
            self._lines.put(line)

    def until(self, is_it: Callable[[str], bool]) -> str:
        seen: list[str] = []
        try:
            while not seen or not is_it(seen[-1]):
                seen.append(self._lines.get(timeout=PATIENCE_S))
        except Empty:
            pytest.fail("".join(seen))
        return seen[-1]

    def says(self, text: str) -> str:
        return self.until(lambda line: text in line)


@pytest.fixture(params=["lamport", "paxos"])
def prompt(request: pytest.FixtureRequest) -> Iterator[Prompt]:
    prompt = Prompt(str(request.param))
    with prompt.process:
        yield prompt
        prompt.process.kill()


def test_locks_are_held_by_hand_while_nodes_are_cut_off_and_killed(prompt: Prompt) -> None:
    prompt.says("Ctrl-C stops it")
    prompt.process.send("lock a n1")
    prompt.says("a is held under fence")
    prompt.process.send("lock a n2")
    prompt.process.send("release a")
    prompt.says("through n2")
    prompt.process.send("cut n1 n2", "trace clock proxy")
    prompt.says("no message passes between n1 and n2")
    prompt.process.send("heal", "trace off")
    prompt.says("all messages pass")
    prompt.process.send("kill n3")
    prompt.says("n3 is dead")
    prompt.process.send("start n3", "release a")
    prompt.says("n3 runs")
    prompt.says("a is released")
    prompt.process.send("quit")
    assert prompt.process.wait(PATIENCE_S) == 0


def test_wrong_lines_are_refused_with_a_reason(prompt: Prompt) -> None:
    for line, words in {
        "unlock a": "there is no 'unlock'",
        "lock": "usage: lock NAME",
        "start": "usage: start NODE",
        "help me": "usage: help",
        "release a b": "usage: release NAME",
        "kill n1 n2": "usage: kill NODE",
        "cut n1": "usage: cut NODE NODE",
        "heal n1": "usage: heal",
        "trace " + 21 * "clock ": "usage: trace ROLE ...",
        "release b": "b is not held here",
        "kill n9": "no node 'n9' runs; there are n1, n2, n3",
        "cut n1 n1": "name two nodes",
        "start n1": "n1 is not dead; dead: none",
        "lock 'a": "No closing quotation",
    }.items():
        prompt.process.send(line)
        prompt.says(words)
    present(prompt.process.stdin).close()  # As Ctrl-D.
    assert prompt.process.wait(PATIENCE_S) == 0
