"""`examples/raw_zmq_client.py`, run as a program against a bridge that plays the node."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.hub_station import AnsweringHub
from support.paths import ROOT
from support.programs import run_to_end
from support.real_nodes import running_nodes

from fencelock.actors.api import lock_message as api
from fencelock.actors.api.lock_message import HoldLost
from fencelock.actors.api.session_message import Alive, End, Ended, KeepAlive, Open, Opened
from fencelock.actors.message import Address, Message
from fencelock.transport.frame import Envelope, Frame, Mismatch, Rejected, encode_frame

CLIENT = ROOT / "examples" / "raw_zmq_client.py"


class AnsweringNode(AnsweringHub):
    """A bridge on a thread that answers as a proxy would.

    But for the first ``deaf`` requests, and those after ``deaf_after``.
    """

    def __init__(self, deaf: int = 0, ttl_ms: int = 15_000, deaf_after: int = 10_000) -> None:
        self.deaf = deaf
        self.deaf_after = deaf_after
        self.ttl_ms = ttl_ms
        self.lost: Message | None = None
        """The unsolicited message to every client that sends keep-alives."""
        self.received: list[Message] = []
        super().__init__()

    def answers(self, to: Address, message: Message) -> list[Message]:
        assert to == "n1/proxy"
        self.received.append(message)
        if not self.deaf < len(self.received) <= self.deaf_after:
            return []
        lost = self.lost if isinstance(message, KeepAlive) else None
        return [self._answer(message), *([] if lost is None else [lost])]

    def _answer(self, message: Message) -> Message:
        match message:
            case Open():
                assigned = f"{message.session}.7"
                return Opened(
                    session=message.session,
                    assigned=assigned,
                    ttl_ms=self.ttl_ms,
                    node="n1",
                    request=message.request,
                )
            case KeepAlive():
                return Alive(session=message.session, node="n1", request=message.request)
            case End():
                return Ended(session=message.session, detail="", request=message.request)
            case _:
                return self._about_a_lock(message)

    def _about_a_lock(self, message: Message) -> Message:
        assert isinstance(message, api.Acquire | api.Release)
        assert message.session.endswith(".7")
        if message.lock == "busy":
            return api.Refused(
                lock="busy",
                reason=api.Reason.TIMED_OUT,
                detail="n2 holds it",
                session=message.session,
                owner=message.owner,
                request=message.request,
            )
        if isinstance(message, api.Acquire):
            return api.Granted(
                lock=message.lock,
                fence=77,
                session=message.session,
                owner=message.owner,
                request=message.request,
            )
        assert message.fence == 77
        return api.Released(
            lock=message.lock, session=message.session, owner=message.owner, request=message.request
        )


def run(node: AnsweringNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CLIENT), "--node", node.hub.endpoint, *arguments]
    return run_to_end(command, cwd="/")


@pytest.fixture
def node() -> Iterator[AnsweringNode]:
    with closing(AnsweringNode()) as node:
        yield node


def test_the_client_locks_and_unlocks(node: AnsweringNode) -> None:
    done = run(node, "--cluster", "test", "--lock", "orders/7")
    assert (done.stdout, done.stderr) == (
        "granted orders/7 under fence 77\nreleased orders/7\n",
        "",
    )
    assert done.returncode == 0
    assert [type(message) for message in dict.fromkeys(node.received)] == [
        Open,
        api.Acquire,
        api.Release,
        End,
    ]


def test_a_request_that_is_not_answered_is_sent_again_under_its_number() -> None:
    with closing(AnsweringNode(deaf=2)) as node:
        done = run(node, "--cluster", "test")
    assert done.returncode == 0, done.stderr
    opens = [message for message in node.received if isinstance(message, Open)]
    assert len(opens) > 2
    assert len(set(opens)) == 1


def test_the_session_is_kept_while_the_lock_is_held() -> None:
    with closing(AnsweringNode(ttl_ms=1_000)) as node:
        done = run(node, "--cluster", "test", "--hold-s", "1.5")
    assert done.returncode == 0, done.stderr
    keeps = [message.request for message in node.received if isinstance(message, KeepAlive)]
    assert len(keeps) > 2
    assert keeps == sorted(set(keeps))


@pytest.mark.parametrize(
    "lost",
    [
        HoldLost(lock="a", fence=77, session="s", owner="main", detail="eve took it"),
        Ended(session="s", detail="eve took it"),
        api.Refused(lock="", reason=api.Reason.SESSION_EXPIRED, detail="eve took it"),
    ],
    ids=lambda lost: type(lost).__name__,
)
def test_a_loss_is_noticed_while_the_lock_is_held(lost: Message) -> None:
    with closing(AnsweringNode(ttl_ms=1_000)) as node:
        node.lost = lost
        done = run(node, "--cluster", "test", "--hold-s", "30")
    assert (done.returncode, done.stderr) == (1, "lost: eve took it\n")


def test_an_unconfirmed_session_is_given_up_in_time() -> None:
    with closing(AnsweringNode(ttl_ms=700, deaf_after=3)) as silent:
        done = run(silent, "--cluster", "test", "--hold-s", "30")
    assert done.returncode == 1
    assert "not confirmed in time" in done.stderr


def test_a_refusal_has_the_nodes_text(node: AnsweringNode) -> None:
    done = run(node, "--cluster", "test", "--lock", "busy")
    assert done.returncode == 1
    assert done.stderr == "refused for reason 1: n2 holds it\n"


def test_a_client_of_another_cluster_is_refused_with_the_reason(node: AnsweringNode) -> None:
    done = run(node, "--cluster", "prod")
    assert done.returncode == 1
    assert done.stderr == (
        "the node does not take our frames: frames for cluster 'prod' are refused by a "
        "node of cluster 'test'\n"
    )
    assert node.received == []


def test_the_client_needs_nothing_of_fencelock_and_explains_itself() -> None:
    text = CLIENT.read_text(encoding="utf-8")
    assert not re.search(r"^\s*(import|from) fencelock", text, re.MULTILINE)
    done = run_to_end([sys.executable, str(CLIENT), "--help"], check=True)
    for word in ("--node", "--cluster", "--lock", "fence"):
        assert word in done.stdout


@pytest.mark.parametrize(("protocol", "names"), [("paxos", 3), ("central", 1), ("lamport", 2)])
def test_the_client_works_with_every_protocol(tmp_path: Path, protocol: str, names: int) -> None:
    with running_nodes(tmp_path, protocol, names) as nodes:
        at = nodes["n1"].address
        done = run_to_end([sys.executable, str(CLIENT), "--node", at, "--cluster", "fencelock"])
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"granted orders/42 under fence \d+\nreleased orders/42\n", done.stdout)


@pytest.mark.parametrize(
    ("to", "sender", "stamp", "message"),
    [
        (
            "*/proxy",
            "s-1/session",
            0,
            api.Acquire(lock="orders/42", session="s-1.17", owner="main", request=2, wait_ms=5000),
        ),
        (
            "s-1/session",
            "n1/proxy",
            9,
            api.Granted(lock="orders/42", fence=77, session="s-1.17", owner="main", request=2),
        ),
        (
            "s-1/link",
            "n1/link",
            0,
            Rejected(
                code=Mismatch.CLUSTER,
                detail="frames for cluster 'prod' are refused by a node of cluster 'demo'",
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
