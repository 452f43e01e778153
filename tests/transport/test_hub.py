"""A hub of real sockets: restarts, late starts, and its end."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psutil
import pytest
import zmq
from support.collected import Lines
from support.expect import PATIENCE_S, checked
from support.hub_station import Make, Station, alive, raw_frame, until

from fencelock.actors.api.session_message import Alive, KeepAlive
from fencelock.actors.bootstrap_message import Found
from fencelock.actors.error import ConfigError
from fencelock.actors.message import Address
from fencelock.actors.role_message import LinkDown, LinkRefused, LinkUp
from fencelock.transport.admission import Dropped, FrameValidator
from fencelock.transport.frame import Envelope, Frame, Mismatch, encode_frame
from fencelock.transport.polling import Doorbell


def free_endpoint() -> str:
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
    return f"tcp://127.0.0.1:{port}"


def test_two_nodes_receive_each_others_messages(station: Make) -> None:
    a_end, b_end = free_endpoint(), free_endpoint()
    a = station("a", listen=a_end, peers={"b": b_end})
    b = station("b", listen=b_end, peers={"a": a_end})
    until(lambda: a.up() and b.up(), a, b)
    assert b.news == [LinkUp(node="a")]

    a.send("b", alive(1))
    b.send("a", alive(2))
    until(lambda: a.arrivals and b.arrivals, a, b)

    envelope = Envelope(Address("b/proxy"), Address("a/session"), alive(1))
    assert b.arrivals == [("a", Frame("test", 0, 7, (envelope,)))]
    assert a.received() == [alive(2)]


def test_messages_sent_right_after_a_link_came_up_arrive(station: Make) -> None:
    for number in range(20):
        b = station("b")
        a = station("a", boot=number, listen=None, peers={"b": b.hub.endpoint})
        until(lambda a=a: a.news, a)  # type: ignore[misc]
        a.send("b", alive(number))
        until(lambda b=b: b.arrivals, b)  # type: ignore[misc]
        assert a.counters == Counter()
        a.hub.close()
        b.hub.close()


def test_a_peer_that_starts_late_receives_what_is_sent_after_it_is_up(station: Make) -> None:
    end = free_endpoint()
    a = station("a", peers={"b": end})
    a.send("b", alive(1))
    until(lambda: a.news, a)
    assert a.news == [LinkDown(node="b")]
    assert a.counters["wire.unroutable"] == 1
    for _ in range(30):  # Retries that fail are no news.
        a.turn()

    b = station("b", listen=end)
    until(lambda: len(a.news) > 1, a, b)
    assert a.news == [LinkDown(node="b"), LinkUp(node="b")]
    a.send("b", alive(2))
    until(lambda: b.arrivals, a, b)
    assert b.received() == [alive(2)]


def test_messages_pass_both_ways_after_a_peer_restarts(station: Make) -> None:
    a_end, b_end = free_endpoint(), free_endpoint()
    a = station("a", listen=a_end, peers={"b": b_end})
    b = station("b", boot=1, listen=b_end, peers={"a": a_end})
    until(lambda: a.up() and b.up(), a, b)
    b.send("a", alive(1))
    until(lambda: a.arrivals, a, b)
    b.hub.close()
    a.news.clear()
    until(lambda: a.news, a)
    a.send("b", alive(2))  # Lost: b does not run.

    b = station("b", boot=2, listen=b_end, peers={"a": a_end})
    until(lambda: a.up() and b.up(), a, b)
    assert a.news == [LinkDown(node="b"), LinkUp(node="b")]
    a.send("b", alive(3))
    b.send("a", alive(4))
    until(lambda: len(a.arrivals) > 1 and b.arrivals, a, b)

    assert a.received() == [alive(1), alive(4)]
    assert b.received() == [alive(3)]


def client_of(station: Make, node: Station, session: str, boot: int = 1, **more: object) -> Station:
    peers = {"endpoint-0": node.hub.endpoint}
    return station(session, boot=boot, listen=None, peers=peers, client=True, **more)


def test_a_client_uses_whichever_node_answers_at_its_endpoint(station: Make) -> None:
    node = station("n1")
    client = client_of(station, node, "s-1")
    until(lambda: client.news, client)
    client.send("endpoint-0", KeepAlive(session="s-1", request=5))
    until(lambda: node.arrivals, node)

    assert node.arrivals[0][0] == "s-1"
    (envelope,) = node.arrivals[0][1].envelopes
    assert envelope == Envelope(
        Address("n1/proxy"), Address("s-1/session"), KeepAlive(session="s-1", request=5)
    )
    node.send("s-1", alive(5), role="session")
    until(lambda: client.arrivals, client)
    assert client.arrivals[0][0] == "endpoint-0"
    (envelope,) = client.arrivals[0][1].envelopes
    assert envelope == Envelope(Address("s-1/session"), Address("endpoint-0/session"), alive(5))


def test_a_client_that_lists_one_node_twice_can_use_both_ways(station: Make) -> None:
    node = station("n1")
    end = node.hub.endpoint
    client = station("s-1", listen=None, peers={"endpoint-0": end, "endpoint-1": end}, client=True)
    until(lambda: len(client.news) > 1, client, node)
    for link in ("endpoint-0", "endpoint-1"):
        client.send(link, KeepAlive(session="s-1"))
        until(lambda: node.arrivals, client, node)
        node.arrivals.clear()
        node.send("s-1", alive(1), role="session")
        until(lambda: client.arrivals, client, node)
        assert [name for name, _ in client.arrivals] == [link]
        client.arrivals.clear()
    assert all(isinstance(event, LinkUp) for event in client.news)


def alive_of(boot: int) -> KeepAlive:
    return KeepAlive(session="s-1", request=boot)


def test_an_answer_follows_a_client_to_its_new_connection(station: Make) -> None:
    node = station("n1")
    for boot in (1, 2):
        client = client_of(station, node, "s-1", boot)
        until(lambda c=client: c.news, client)  # type: ignore[misc]
        send = partial(client.send, "endpoint-0", alive_of(boot))
        send()
        until(lambda b=boot: alive_of(b) in node.received(), node, again=send)  # type: ignore[misc]
        if boot == 1:
            client.hub.close()  # While it is open, no other process can use its id.
    node.send("s-1", alive(9), role="session")
    until(client.received, client, node)
    assert client.received() == [alive(9)]


def test_an_answer_to_a_client_that_left_is_dropped_and_counted(station: Make) -> None:
    node = station("n1")
    node.send("nobody", alive(1))
    assert node.counters["wire.unroutable"] == 1
    client = client_of(station, node, "s-1")
    until(lambda: client.news, client)
    client.send("endpoint-0", KeepAlive(session="s-1"))
    until(lambda: node.arrivals, node)
    client.hub.close()
    until(
        lambda: node.counters["wire.unroutable"] > 1,
        node,
        again=lambda: node.send("s-1", alive(1), role="session"),
    )


def test_a_queue_that_is_full_drops_and_counts_and_does_not_block(station: Make) -> None:
    b = station("b")
    a = station("a", listen=None, peers={"b": b.hub.endpoint})
    until(lambda: a.news, a)
    big = Alive(session="x" * 4000, node="n")

    until(lambda: a.counters["wire.queue_full"], again=lambda: a.send("b", big))
    a.hub.close()
    until(lambda: b.arrivals, b)


def test_a_frame_may_be_sent_by_hand_with_the_documented_identity(station: Make) -> None:
    node = station("n1")
    node.dealer(f"me#{os.urandom(4).hex()}").send(raw_frame(KeepAlive(session="me")))
    until(lambda: node.arrivals, node)
    assert node.arrivals[0][0] == "me"


def test_a_second_process_with_the_id_of_a_client_is_refused_with_a_reason_and_logged_once(
    station: Make, lines: Lines
) -> None:
    node = station("n1")
    first, second = client_of(station, node, "s-1", 1), client_of(station, node, "s-1", 2)
    until(lambda: first.news and second.news, first, second)
    first.send("endpoint-0", KeepAlive(session="s-1", request=1))
    until(lambda: node.arrivals, node)
    for _ in range(3):
        second.send("endpoint-0", KeepAlive(session="s-1", request=2))
    until(lambda: node.counters["wire.client_id_taken"] == 3, node)
    until(lambda: second.counters["wire.rejected"] > 0, second, node)
    until(lambda: isinstance(second.news[-1], LinkRefused), second)
    refused = checked(LinkRefused, second.news[-1])
    assert "another process uses the client id 's-1'" in refused.detail
    (line,) = [text for _, _, text in lines.values if "client id 's-1'" in text]
    assert "n1 refused" in line


# Frames of another group are refused, and a node without one receives only what finds it one


OURS, THEIRS = 7, 8


def frame(group: int, *roles: str) -> bytes:
    envelopes = [Envelope(Address(f"n1/{role}"), Address("n2/role"), Found()) for role in roles]
    return encode_frame(Frame("c", group, 0, envelopes))


def validator(group: int) -> FrameValidator:
    made = FrameValidator("n1", "c", client=False, members={"n2"})
    made.group = group
    return made


def admitted(checks: FrameValidator, raw: bytes) -> list[str]:
    """Return the receivers of a frame; the second look takes the path of known addresses."""
    frames = [checks.admit("n2", raw) for _ in range(2)]
    assert all(isinstance(one, Frame) for one in frames)
    first, second = ([to for to, _, _ in one.envelopes] for one in frames if type(one) is Frame)
    assert first == second
    return list(first)


def test_frames_of_the_same_group_reach_every_role() -> None:
    for group in (0, OURS):  # Without groups, as on `lamport` and `central`, too.
        raw = frame(group, "acceptor", "proxy")
        assert admitted(validator(group), raw) == ["n1/acceptor", "n1/proxy"]


@pytest.mark.parametrize(("here", "there"), [(OURS, 0), (0, THEIRS)])
def test_only_requests_and_bootstrap_pass_where_one_end_has_no_group(here: int, there: int) -> None:
    checks = validator(here)
    if here == there or not there:
        admitted(checks, frame(OURS, "acceptor"))  # Known addresses do not help.
    assert admitted(checks, frame(there, "acceptor", "proxy", "bootstrap")) == [
        "n1/proxy",
        "n1/bootstrap",
    ]


def test_a_frame_of_another_group_is_refused_as_a_whole_even_from_known_addresses() -> None:
    checks = validator(OURS)
    admitted(checks, frame(OURS, "acceptor", "bootstrap"))
    dropped = checked(Dropped, checks.admit("n2", frame(THEIRS, "acceptor", "bootstrap")))
    assert (dropped.counter, dropped.mismatch) == ("wire.other_group", Mismatch.GROUP)
    assert "group 8 of cluster 'c'" in dropped.detail


def test_a_client_takes_replies_of_nodes_of_any_group() -> None:
    checks = FrameValidator("n1", "c", client=True)
    assert admitted(checks, frame(OURS, "session")) == ["n1/session"]
    assert admitted(checks, frame(THEIRS, "session")) == ["n1/session"]


def test_a_ring_ends_a_poll_and_is_not_lost_to_receive(station: Make) -> None:
    hub = station("a").hub
    hub.ring()
    hub.ring()
    hub.receive_members(1)  # Looks at sockets, not at the bell.
    hub.poll(None)
    begun = time.monotonic()
    hub.poll(50)
    assert time.monotonic() - begun > 0.04


def test_rings_from_another_thread_wake_a_sleeper_each_time(station: Make) -> None:
    hub = station("a").hub
    woken: list[int] = []

    def sleeper() -> None:
        for number in range(200):
            hub.poll(None)
            woken.append(number)

    thread = threading.Thread(target=sleeper)
    thread.start()
    limit = time.monotonic() + PATIENCE_S
    while thread.is_alive() and time.monotonic() < limit:
        hub.ring()
        thread.join(0.0001)
    thread.join(PATIENCE_S)
    assert len(woken) == 200


def test_a_doorbell_whose_ring_was_interrupted_rings_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(fd: int, data: bytes) -> int:
        raise KeyboardInterrupt(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr("os.write", interrupted)
        bell = Doorbell()
        with pytest.raises(KeyboardInterrupt):
            bell.ring()
    with monkeypatch.context() as patch:
        patch.setattr(bell, "_write", partial(os.write, bell.fd))
        bell.ring()
    assert os.eventfd_read(bell.fd) == 1
    bell.answer()  # It was read already, which does not block.
    bell.close()


def test_a_closed_doorbell_does_not_ring() -> None:
    bell = Doorbell()
    bell.close()
    bell.close()
    bell.ring()


@contextmanager
def nothing_left() -> Generator[None]:
    process = psutil.Process()
    fds, threads = process.num_fds(), process.num_threads()
    yield
    limit = time.monotonic() + PATIENCE_S
    while process.num_threads() > threads and time.monotonic() < limit:
        threading.Event().wait(0.001)  # The kernel takes a moment to bury a joined thread.
    assert process.num_threads() <= threads  # Threads of an earlier test may have ended.
    assert process.num_fds() == fds


def test_a_closed_bridge_leaves_no_thread_and_no_descriptor(station: Make) -> None:
    with nothing_left():
        a, b = station("a"), station("b")
        c = station("c", {"a": a.hub.endpoint, "b": b.hub.endpoint, "d": "tcp://127.0.0.1:1"})
        until(lambda: len(c.news) >= 3, c)
        for one in (a, b, c, c):
            one.close()
            assert not one.counters
        c.hub.ring()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"listen": "tcp://nowhere"}, "tcp://nowhere"),
        ({"peers": {"b": "carrier pigeon"}}, "carrier pigeon"),
        ({"node": "a/b"}, "a/b"),
        ({"node": ""}, "1 to 128"),
        ({"node": "n" * 129}, "129 bytes"),
        ({"peers": {"*": "tcp://127.0.0.1:1"}}, "may not be"),
        ({"cluster": "x" * 200}, "200 bytes"),
        ({"cluster": "line\nbreak"}, "has U.000A"),
    ],
)
def test_a_bridge_that_cannot_be_built_raises_why_and_leaves_nothing(
    station: Make, options: dict[str, Any], words: str
) -> None:
    with nothing_left(), pytest.raises((ConfigError, ValueError), match=words):
        station(**{"node": "a", **options})


def test_an_interrupt_amid_the_making_of_a_bridge_ends_it(
    station: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that was just made, and that nothing knows yet, must not keep it from ending."""
    made: list[object] = []

    def interrupted(socket: object, *_: object) -> None:
        made.append(socket)  # As the frames do that the interrupt leaves.
        raise KeyboardInterrupt

    monkeypatch.setattr(zmq.Socket, "get_monitor_socket", interrupted)
    with nothing_left(), pytest.raises(KeyboardInterrupt):
        station("a", {"b": "tcp://127.0.0.1:1"})
    assert len(made) == 1


def test_an_endpoint_in_use_is_named(station: Make) -> None:
    taken = station("a").hub.endpoint
    with pytest.raises(ConfigError, match=f"{taken}.*in use"):
        station("b", listen=taken)
