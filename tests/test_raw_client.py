"""`examples/raw_zmq_client.py`, run as a program against a bridge that plays the node."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.actors.lock.message import Acquire, Granted, Reason, Refused, Release, Released
from holdfast.actors.message import Address, Message
from holdfast.transport.bridge import Bridge
from holdfast.transport.frame import Envelope, Frame, encode_frame
from holdfast.transport.refusal import Mismatch, Rejected

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "examples" / "raw_zmq_client.py"
PATIENCE_S = 60
"""How long a test waits for the program; far beyond what it takes."""


class Node:
    """A bridge on a thread that answers as a proxy would, but for the first ``deaf`` requests."""

    def __init__(self, deaf: int = 0) -> None:
        self.deaf = deaf
        self.heard: list[Message] = []
        self.counters: Counter[str] = Counter()
        self.bridge = Bridge(
            node="n1",
            boot=1,
            cluster="test",
            listen="tcp://127.0.0.1:0",
            peers={},
            count=lambda name, times: self.counters.update({name: times}),
        )
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            self.bridge.poll(None)
            for arrival in self.bridge.receive(10):
                for to, sender, message in arrival.frame.envelopes:
                    assert to == "n1/proxy"
                    self.heard.append(message)
                    if len(self.heard) > self.deaf:
                        envelope = Envelope(sender, to, self._answer(message))
                        self.bridge.send(arrival.link, Frame("test", 0, 1, (envelope,)))
        self.bridge.close()

    def _answer(self, message: Message) -> Message:
        assert isinstance(message, Acquire | Release)
        who = {"session": message.session, "owner": message.owner}
        if message.lock == "busy":
            return Refused(
                lock="busy", reason=Reason.TIMED_OUT, detail="n2 holds it", request=1, **who
            )
        if isinstance(message, Acquire):
            return Granted(lock=message.lock, fence=77, request=message.request, **who)
        assert message.fence == 77
        return Released(lock=message.lock, request=message.request, **who)

    def close(self) -> None:
        self._ends.set()
        self.bridge.ring()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def run(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CLIENT), "--node", node.bridge.endpoint, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd="/"
    )


@pytest.fixture
def node() -> Iterator[Node]:
    one = Node()
    yield one
    one.close()


def test_the_client_locks_and_unlocks(node: Node) -> None:
    done = run(node, "--cluster", "test", "--lock", "orders/7")
    assert (done.stdout, done.stderr) == (
        "granted orders/7 under fence 77\nreleased orders/7\n",
        "",
    )
    assert done.returncode == 0
    assert {type(message) for message in node.heard} == {Acquire, Release}


def test_a_request_that_is_not_answered_is_sent_again_under_its_number() -> None:
    node = Node(deaf=2)
    try:
        done = run(node, "--cluster", "test")
    finally:
        node.close()
    assert done.returncode == 0, done.stderr
    acquires = [message for message in node.heard if isinstance(message, Acquire)]
    assert len(acquires) > 2
    assert len(set(acquires)) == 1


def test_a_refusal_is_told_in_the_nodes_words(node: Node) -> None:
    done = run(node, "--cluster", "test", "--lock", "busy")
    assert done.returncode == 1
    assert done.stderr == "refused for reason 1: n2 holds it\n"


def test_a_client_of_another_cluster_is_told_so(node: Node) -> None:
    done = run(node, "--cluster", "prod")
    assert done.returncode == 1
    assert done.stderr == (
        "the node does not take our frames: frame for cluster 'prod', this is cluster 'test'\n"
    )
    assert node.heard == []


def test_the_client_needs_nothing_of_holdfast_and_explains_itself() -> None:
    text = CLIENT.read_text(encoding="utf-8")
    assert not re.search(r"^\s*(import|from) holdfast", text, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, str(CLIENT), "--help"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    for word in ("--node", "--cluster", "--lock", "fence"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("to", "sender", "stamp", "message"),
    [
        (
            "*/proxy",
            "s-1/session",
            0,
            Acquire(lock="orders/42", session="s-1", owner="main", request=1, wait_ms=5000),
        ),
        (
            "s-1/session",
            "n1/proxy",
            9,
            Granted(lock="orders/42", fence=77, session="s-1", owner="main", request=1),
        ),
        (
            "s-1/link",
            "n1/link",
            0,
            Rejected(
                code=Mismatch.CLUSTER, detail="frame for cluster 'prod', this is cluster 'demo'"
            ),
        ),
    ],
)
def test_the_bytes_in_the_description_are_what_the_code_makes(
    to: str, sender: str, stamp: int, message: Message
) -> None:
    """From the hex blocks of transport/README.md, less comments and spaces."""
    page = (ROOT / "transport" / "README.md").read_text(encoding="utf-8")
    blocks = {
        re.sub(r"#.*|\s", "", block) for block in re.findall(r"```hex\n(.*?)```", page, re.DOTALL)
    }
    frame = Frame("demo", 0, stamp, (Envelope(Address(to), Address(sender), message),))
    assert encode_frame(frame).hex() in blocks
