"""Frames of clients wait for their turn: within bounds, and nobody's before everybody else's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.hub_station import Make, stations

from fencelock.actors.api.message import Describe
from fencelock.actors.message import Address
from fencelock.cluster.host.gateway import CLIENTS_MAX, CLIENTS_MIN, Pace
from fencelock.transport import clients as remembered
from fencelock.transport.admission import CLIENT_BYTES_MAX
from fencelock.transport.frame import Envelope, Frame, encode_frame
from fencelock.transport.listener import (
    CLIENT_FRAMES_MAX,
    CLIENT_WAITING_MAX,
    WAITING_MAX,
    ClientQueue,
    QueuedFrame,
)


@pytest.fixture
def station() -> Iterator[Make]:
    yield from stations()


def frame(raw: bytes, client: str = "") -> QueuedFrame:
    return QueuedFrame(b"id#1", -1, raw, client=client)


def taken(clients: ClientQueue, count: int) -> list[tuple[str, bytes]]:
    return [(name, waiting.raw) for name, waiting in (clients.take() for _ in range(count))]


def test_clients_take_turns_and_each_ones_frames_stay_in_order() -> None:
    clients = ClientQueue()
    for raw in (b"1", b"2", b"3"):
        assert clients.put("greedy", frame(raw))
    assert clients.put("modest", frame(b"a"))
    order = [("greedy", b"1"), ("modest", b"a"), ("greedy", b"2"), ("greedy", b"3")]
    assert taken(clients, 4) == order
    assert not clients.frames


def test_the_rest_of_a_frame_comes_before_later_frames_of_its_client_and_after_others() -> None:
    clients = ClientQueue()
    clients.put("greedy", frame(b"1"))
    clients.put("greedy", frame(b"2"))
    clients.put("modest", frame(b"a"))
    name, first = clients.take()
    envelope = Envelope(Address("n1/proxy"), Address("g/s"), Describe(session="g", request=1))
    clients.put_back(name, first._replace(raw=b"", rest=Frame("c", 0, 0, (envelope,))))
    assert clients.take()[0] == "modest"
    assert clients.take()[1].rest is not None
    assert taken(clients, 1) == [("greedy", b"2")]


def test_the_first_frame_of_a_new_client_waits_apart_and_before_its_later_ones() -> None:
    clients = ClientQueue({"known"})
    for raw in (b"1", b"2"):
        clients.put("new", frame(raw))
    clients.put("known", frame(b"a", "known"))
    assert list(clients.frames) == ["known"]
    assert clients.sizes.keys() == {"new", "known"}
    name, first = clients.take("new")
    assert (name, first.raw) == ("new", b"1")
    clients.put("new", frame(b"3"))
    assert taken(clients, 3) == [("known", b"a"), ("new", b"2"), ("new", b"3")]
    assert not clients.sizes


def test_one_client_cannot_fill_the_queue() -> None:
    clients, large = ClientQueue(), bytes(CLIENT_BYTES_MAX)
    assert sum(clients.put("greedy", frame(b"x")) for _ in range(1000)) == CLIENT_FRAMES_MAX
    fits = CLIENT_WAITING_MAX // CLIENT_BYTES_MAX
    assert fits >= 28
    assert sum(clients.put("large", frame(large)) for _ in range(100)) == fits
    assert clients.put("modest", frame(b"a"))


def test_all_clients_together_have_a_bound_too_and_what_is_taken_makes_room() -> None:
    most = 512
    clients, large = ClientQueue(), bytes(WAITING_MAX // most)
    assert sum(clients.put(f"c{number}", frame(large)) for number in range(most + 10)) == most
    assert not clients.put("late", frame(b"x"))
    clients.take()
    assert clients.put("late", frame(b"x"))


def burn(pace: Pace, busy_ns: int, clock: list[int], taken: int) -> None:
    began_ns = pace.clock()
    clock[0] += busy_ns
    pace.end(began_ns, taken)


def test_long_turns_take_fewer_requests_and_short_ones_more_again() -> None:
    clock = [0]
    pace = Pace(clock=lambda: clock[0])
    assert pace.most == CLIENTS_MAX
    seen: list[int] = []
    for _ in range(10):
        burn(pace, 50_000_000, clock, pace.most)
        seen.append(pace.most)
    assert seen[:3] == [128, 64, 32]
    assert seen[-1] == CLIENTS_MIN
    for _ in range(10):
        burn(pace, 1_000_000, clock, pace.most)
    assert pace.most == CLIENTS_MAX


def test_one_request_that_takes_long_makes_the_next_turn_take_few() -> None:
    clock = [0]
    pace = Pace(clock=lambda: clock[0])
    burn(pace, 50_000_000, clock, 1)
    assert pace.most == CLIENTS_MIN


def test_a_queue_has_a_limit_of_owners_even_if_their_frames_are_empty() -> None:
    clients = ClientQueue()
    most = remembered.CLIENTS_MAX
    assert sum(clients.put(f"c{number}", frame(b"")) for number in range(2 * most)) == most


def test_a_known_client_is_served_beside_new_ones_however_short_the_turns_are(
    station: Make,
) -> None:
    node = station("n1")
    listener = node.hub._listener  # pyright: ignore[reportPrivateUsage]
    assert listener is not None
    queue = listener._queue  # pyright: ignore[reportPrivateUsage]
    listener._clients.heard("known", b"known#1", -1)  # pyright: ignore[reportPrivateUsage]
    for name in [f"new{number}" for number in range(10)] + ["known"]:
        assert queue.put(name, requests_of(name))
    served: list[str] = []
    for _ in range(10):
        served += [arrival.link for arrival in listener.receive_clients(4, 10**10)[0]]
    assert "known" in served


def requests_of(name: str) -> QueuedFrame:
    """Return a frame with more requests than a short turn takes."""
    describe = Describe(session=name, request=1)
    envelope = Envelope(Address("*/proxy"), Address(f"{name}/session"), describe)
    raw = encode_frame(Frame("test", 0, 0, (envelope,) * 20))
    return QueuedFrame(f"{name}#1".encode(), -1, raw, client=name)
