from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import psutil
import pytest
import zmq

from fencelock.actors.error import ConfigError
from fencelock.transport.hub import SocketHub
from fencelock.transport.polling import Doorbell

PATIENCE_S = 20
"""Time that a test waits for an event before it fails (s); no event takes nearly as long."""


def hub(
    node: str = "a",
    *,
    cluster: str = "test",
    listen: str = "tcp://127.0.0.1:0",
    peers: Mapping[str, str] | None = None,
) -> SocketHub:
    return SocketHub(
        node=node,
        boot=1,
        cluster=cluster,
        listen=listen,
        peers=peers or {},
        count=lambda name, times: pytest.fail(name),
    )


@contextmanager
def closed_after(*bridges: SocketHub) -> Generator[None]:
    try:
        yield
    finally:
        for one in bridges:
            one.close()


def test_a_ring_ends_a_poll_and_is_not_lost_to_receive() -> None:
    one = hub()
    with closed_after(one):
        one.ring()
        one.ring()
        one.receive(1)  # Looks at sockets, not at the bell.
        one.poll(None)
        begun = time.monotonic()
        one.poll(50)
        assert time.monotonic() - begun > 0.04


def test_rings_from_another_thread_wake_a_sleeper_each_time() -> None:
    one = hub()
    woken: list[int] = []

    def sleeper() -> None:
        for number in range(200):
            one.poll(None)
            woken.append(number)

    with closed_after(one):
        thread = threading.Thread(target=sleeper)
        thread.start()
        limit = time.monotonic() + PATIENCE_S
        while thread.is_alive() and time.monotonic() < limit:
            one.ring()
            thread.join(0.0001)
        thread.join(PATIENCE_S)
        assert len(woken) == 200


def test_a_doorbell_whose_ring_was_interrupted_rings_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(fd: int, data: bytes) -> int:
        raise KeyboardInterrupt(fd, data)

    bell = Doorbell()
    with monkeypatch.context() as patch:
        patch.setattr("os.write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bell.ring()
    bell.ring()
    assert os.eventfd_read(bell.fd) == 1
    bell.answer()  # It was read already, which does not block.
    bell.close()


def test_a_doorbell_that_is_closed_rings_for_nobody() -> None:
    bell = Doorbell()
    bell.close()
    bell.close()
    bell.ring()


@contextmanager
def nothing_left_over() -> Generator[None]:
    process = psutil.Process()
    fds, threads = process.num_fds(), process.num_threads()
    yield
    limit = time.monotonic() + PATIENCE_S
    while process.num_threads() > threads and time.monotonic() < limit:
        threading.Event().wait(0.001)  # The kernel takes a moment to bury a joined thread.
    assert process.num_threads() <= threads  # Threads of an earlier test may have ended.
    assert process.num_fds() == fds


def test_a_closed_bridge_leaves_no_thread_and_no_descriptor() -> None:
    with nothing_left_over():
        a, b = hub("a"), hub("b")
        c = hub("c", peers={"a": a.endpoint, "b": b.endpoint, "d": "tcp://127.0.0.1:1"})
        with closed_after(a, b, c):
            news = 0
            limit = time.monotonic() + PATIENCE_S
            while news < 3:
                assert time.monotonic() < limit
                c.poll(100)
                news += len(c.events())
        c.close()
        c.ring()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: hub(listen="tcp://nowhere"), "tcp://nowhere"),
        (lambda: hub(peers={"b": "carrier pigeon"}), "carrier pigeon"),
        (lambda: hub("a/b"), "a/b"),
        (lambda: hub(""), "1 to 128"),
        (lambda: hub("n" * 129), "129 bytes"),
        (lambda: hub(peers={"*": "tcp://127.0.0.1:1"}), "may not be"),
        (lambda: hub(cluster="x" * 200), "200 bytes"),
        (lambda: hub(cluster="line\nbreak"), "has U.000A"),
    ],
)
def test_a_bridge_that_cannot_be_built_says_why_and_leaves_nothing(
    build: Callable[[], SocketHub], words: str
) -> None:
    with nothing_left_over(), pytest.raises((ConfigError, ValueError), match=words):
        build()


def test_an_interrupt_amid_the_making_of_a_bridge_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that was just made, and that nothing knows yet, must not keep it from ending."""
    made: list[object] = []

    def interrupted(socket: object, *_: object) -> None:
        made.append(socket)  # As the frames do that the interrupt leaves.
        raise KeyboardInterrupt

    monkeypatch.setattr(zmq.Socket, "get_monitor_socket", interrupted)
    with nothing_left_over(), pytest.raises(KeyboardInterrupt):
        hub(peers={"b": "tcp://127.0.0.1:1"})
    assert len(made) == 1


def test_an_endpoint_in_use_is_named() -> None:
    one = hub()
    with closed_after(one), pytest.raises(ConfigError, match=f"{one.endpoint}.*in use"):
        hub("b", listen=one.endpoint)
