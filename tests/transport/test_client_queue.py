"""Frames of clients in turn: the queue, floods, and clients that do not read."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from support.collected import Lines
from support.expect import PATIENCE_S, present
from support.hub_station import Make, Station, alive, describe, until

from fencelock.actors.api.cluster_message import Describe
from fencelock.actors.api.session_message import KeepAlive
from fencelock.actors.message import Address
from fencelock.cluster.host.gateway import CLIENT_ENVELOPES_MAX, CLIENT_ENVELOPES_MIN, Pace
from fencelock.transport import client_queue, listener
from fencelock.transport.admission import CLIENT_FRAME_BYTES_MAX
from fencelock.transport.client_queue import (
    BACKLOG_BYTES,
    BEHIND_NS,
    BEHIND_SHARE,
    CLIENT_FRAMES_MAX,
    CLIENT_WAITING_MAX,
    EARNING,
    NEW_SHARE,
    OWNER_SHARE,
    PAUSE_NS,
    SHARED_NS,
    SILENT_PART,
    WAITING_MAX,
    ClientQueue,
    Floods,
)
from fencelock.transport.connections import Connection
from fencelock.transport.descriptors import (
    CONNECTIONS_MAX,
    acked_bytes,
    borrow,
    connection_of,
    peer_of,
)
from fencelock.transport.frame import Envelope, Frame
from fencelock.transport.held_bytes import LARGE_BYTES, UnreadReplies
from fencelock.transport.listener import Clients

MS = 1_000_000
BACKLOG = CLIENT_FRAMES_MAX // 2
"""Frames of which an owner is behind."""


Pair = tuple[socket.socket, socket.socket]
"""The sides of a node and of a client."""


@pytest.fixture
def connection() -> Iterator[Pair]:
    """The node's and the client's side of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        node = server.accept()[0]
        with client, node:
            yield node, client


def opened(node: socket.socket) -> Connection:
    return Connection(node.fileno(), borrow(node.fileno(), peer_of))


def sender(identity: str) -> Connection:
    """Return a connection that is closed, and had this routing id."""
    name = identity.partition("#")[0]
    return Connection(-1, None, identity=identity.encode(), name=name, owner=name)


class Queue(ClientQueue):
    """A queue whose time, ``now``, is set by hand."""

    def __init__(self, known: Collection[str] | None = None) -> None:
        super().__init__(known, clock=lambda: self.now)
        self.now = 0

    def add(self, owner: str, raw: bytes, client: str = "", *, silent: bool = False) -> bool:
        """Put a frame of ``client`` into the queue."""
        return self.put(Connection(-1, None, owner=owner, name=client, silent=silent), raw)

    def pause_at(self, now: int) -> int:
        self.now = now
        return self.pause_ns()


def fill(queue: Queue, owner: str, count: int, raw: bytes = b"x", client: str = "") -> None:
    for _ in range(count):
        queue.add(owner, raw, client)


def turn(queue: Queue, now: int, most: int = 256) -> list[tuple[str, bytes]]:
    """Return what a turn takes, each frame as one envelope."""
    taken: list[tuple[str, bytes]] = []

    def opened(one: Connection, raw: bytes) -> Frame:
        taken.append((one.owner, raw))
        return requests(1)

    queue.now = now
    queue.serve(most, MS, opened)
    return taken


def requests(count: int) -> Frame:
    envelope = Envelope(Address("n1/proxy"), Address("g/s"), Describe(session="g", request=1))
    return Frame("c", 0, 0, (envelope,) * count)


def served(queue: Queue, now: int, most: int = 256) -> Counter[str]:
    """Return how many frames of each owner a turn takes."""
    return Counter(name for name, _ in turn(queue, now, most))


def test_clients_take_turns_and_each_ones_frames_stay_in_order() -> None:
    queue = Queue()
    for raw in (b"1", b"2", b"3"):
        assert queue.add("greedy", raw)
    assert queue.add("modest", b"a")
    order = [("greedy", b"1"), ("modest", b"a"), ("greedy", b"2"), ("greedy", b"3")]
    assert turn(queue, 0) == order
    assert not queue.owners
    assert queue.size == 0


def test_a_client_of_which_nothing_waited_comes_before_those_that_had_more_to_send() -> None:
    queue = Queue()
    for name in ("a", "b", "c"):
        fill(queue, name, 9)
    assert served(queue, 0, 4) == {"a": 2, "b": 1, "c": 1}
    queue.add("modest", b"1")
    assert turn(queue, 0, 2) == [("modest", b"1"), ("b", b"x")]


def test_a_client_whose_frames_come_one_by_one_has_one_turn_in_each_round() -> None:
    queue = Queue()
    for name in ("a", "b", "c"):
        fill(queue, name, 90)
    order: list[str] = []
    for _ in range(40):
        queue.add("quick", b"q")
        order += [name for name, _ in turn(queue, 0, 1)]
    rounds = [Counter(order[n : n + 4]) for n in range(0, 40, 4)]
    assert rounds == [Counter(a=1, b=1, c=1, quick=1)] * 10


def test_the_turns_of_clients_that_come_once_take_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_queue, "CONNECTIONS_MAX", 50)
    queue = Queue()
    queue.add("waits", b"w")
    for number in range(500):
        queue.add(f"once{number}", b"o")
        turn(queue, 0, 1)
    had_turn: Any = vars(queue)["_had_turn"]
    assert len(had_turn) <= 51


@pytest.mark.parametrize("known", [True, False])
def test_those_that_wait_are_served_though_strangers_come_under_ever_new_names(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    monkeypatch.setattr(client_queue, "CONNECTIONS_MAX", 50)
    queue = Queue(None if known else {"waits"})
    order: list[str] = []
    for number in range(200):
        if "waits" not in queue.owners:
            queue.add("waits", b"w", "waits")
        for each in range(3):
            queue.add(f"{number}-{each}", b"o", f"{number}-{each}")
        order += [name for name, _ in turn(queue, 0, 3)]
    assert order[300:].count("waits") > 5


def test_those_behind_and_new_ones_are_served_in_the_order_in_which_they_came() -> None:
    queue = Queue({"modest"})
    for number in range(40):
        queue.add(f"new{number}", b"n", f"new{number}")
    names = [name for now in range(3) for name, _ in turn(queue, now)]
    assert names == [f"new{number}" for number in range(40)]
    for name in ("early", "late"):
        queue.add(name, bytes(BACKLOG_BYTES), name)
    assert [name for name, _ in turn(queue, SHARED_NS + 3)] == ["early", "late"]


def test_with_keys_a_process_that_does_not_read_leaves_the_others_of_its_key_in_peace() -> None:
    queue = Queue()
    queue.add("key", b"x", "key.silent", silent=True)
    queue.add("other", b"a", "other.1")
    assert turn(queue, 0, 1) == [("key", b"x")]


def test_a_client_that_does_not_read_falls_behind_and_few_of_its_frames_wait() -> None:
    queue = Queue()
    taken = [queue.add("silent", b"x", "silent", silent=True) for _ in range(100)]
    assert sum(taken) == CLIENT_FRAMES_MAX // SILENT_PART
    queue.add("modest", b"a")
    assert turn(queue, 0)[0] == ("modest", b"a")
    assert served(queue, 1) == {}  # Its bucket is in debt.
    assert queue.add("silent", b"x")


@pytest.mark.parametrize("frames", [1, 2])
def test_the_rest_of_a_frame_comes_before_later_frames_of_its_client_and_after_others(
    frames: int,
) -> None:
    queue = Queue()
    fill(queue, "greedy", frames)
    queue.add("modest", b"a")
    taken, _ = queue.serve(256, MS, lambda one, _: requests(OWNER_SHARE + (one.owner == "greedy")))
    parts = [(one.owner, len(frame.envelopes)) for one, frame in taken]
    order = [
        ("greedy", OWNER_SHARE),
        ("modest", OWNER_SHARE),
        ("greedy", 1),
        ("greedy", OWNER_SHARE + 1),
    ]
    assert parts == order[: frames + 2]


def test_a_new_client_is_served_first_and_its_later_frames_in_turn() -> None:
    queue = Queue({"known"})
    for client in ("known", "new"):
        for raw in (b"1", b"2", b"3"):
            queue.add(client, raw, client)
    order = [name for name, _ in turn(queue, 0)]
    assert order == ["new", "known", "new", "known", "new", "known"]


def test_a_turn_takes_one_of_many_new_clients_before_and_some_after_the_known_ones() -> None:
    queue = Queue({"known"})
    for number in range(2 * NEW_SHARE):
        queue.add(f"new{number}", b"x", f"new{number}")
    queue.add("known", b"x", "known")
    first, second = turn(queue, 0), turn(queue, 0)
    assert [name for name, _ in first].index("known") == 1
    assert (len(first), len(second)) == (NEW_SHARE + 1, NEW_SHARE)


def test_one_client_cannot_fill_the_queue() -> None:
    queue, large = Queue(), bytes(CLIENT_FRAME_BYTES_MAX)
    assert sum(queue.add("greedy", b"x") for _ in range(1000)) == CLIENT_FRAMES_MAX
    fits = CLIENT_WAITING_MAX // CLIENT_FRAME_BYTES_MAX
    assert fits >= 28
    assert sum(queue.add("large", large) for _ in range(100)) == fits
    assert queue.add("modest", b"a")


def test_all_clients_together_have_a_bound_too_and_what_is_taken_makes_room() -> None:
    most = 512
    queue, large = Queue(), bytes(WAITING_MAX // most)
    assert sum(queue.add(f"c{number}", large) for number in range(most + 10)) == most
    assert not queue.add("late", b"x")
    turn(queue, SHARED_NS, 1)
    assert queue.add("late", b"x")


def test_a_queue_has_a_limit_of_owners_even_if_their_frames_are_empty() -> None:
    queue, most = Queue(), CONNECTIONS_MAX
    assert sum(queue.add(f"c{number}", b"") for number in range(2 * most)) == most


BACKLOGS = [(BACKLOG, b"x"), (1, bytes(BACKLOG_BYTES))]


@pytest.mark.parametrize(("frames", "raw"), BACKLOGS)
def test_a_client_that_sends_more_than_is_served_pauses_while_another_is_served(
    frames: int, raw: bytes
) -> None:
    queue = Queue()
    fill(queue, "greedy", frames, raw)
    fill(queue, "greedy", BACKLOG, b"")
    queue.add("modest", b"a")
    assert served(queue, 0) == {"modest": 1, "greedy": BEHIND_SHARE}
    # That turn took 2 ms: the next one is due in 8.
    assert queue.pause_at(2 * MS) == 8 * MS
    queue.add("modest", b"a")
    assert queue.pause_at(3 * MS) == 0
    assert served(queue, 3 * MS) == {"modest": 1}
    assert queue.pause_at(4 * MS) == 6 * MS  # Others' turns need not be paid.
    assert served(queue, 10 * MS) == {"greedy": BEHIND_SHARE}


@pytest.mark.parametrize(
    ("took", "pause"), [(MS, 4 * MS), (PAUSE_NS // EARNING, PAUSE_NS), (SHARED_NS // 2, PAUSE_NS)]
)
def test_the_pause_is_in_proportion_to_the_turn_but_for_a_long_one(took: int, pause: int) -> None:
    queue = Queue()
    fill(queue, "greedy", BACKLOG)
    queue.add("modest", b"a")
    turn(queue, 0)
    assert queue.pause_at(took) == pause


def test_a_client_that_sends_more_than_is_served_has_whole_turns_while_it_is_alone() -> None:
    queue = Queue()
    fill(queue, "greedy", CLIENT_FRAMES_MAX)
    queue.add("modest", b"a")
    assert served(queue, 0, 64) == {"modest": 1, "greedy": BEHIND_SHARE}
    assert queue.pause_at(SHARED_NS) == 0
    for number in range(3):
        assert served(queue, SHARED_NS + number, 64) == {"greedy": 64}


def test_clients_that_all_send_as_much_as_they_can_take_turns_as_equals() -> None:
    queue = Queue()
    for name in ("a", "b", "c"):
        fill(queue, name, CLIENT_FRAMES_MAX)
    for number in range(4):
        assert served(queue, SHARED_NS + number, 99) == {"a": 33, "b": 33, "c": 33}


def test_many_clients_behind_have_no_more_of_a_turn_than_one() -> None:
    queue = Queue()
    for number in range(50):
        fill(queue, f"greedy{number}", BACKLOG)
    queue.add("modest", b"a")
    taken = served(queue, 0)
    assert taken.pop("modest") == 1
    assert taken.total() == BEHIND_SHARE


def test_new_clients_do_not_wait_for_those_behind() -> None:
    queue = Queue({"greedy", "modest"})
    fill(queue, "greedy", BACKLOG, client="greedy")
    queue.add("modest", b"a", "modest")
    turn(queue, 0)
    queue.add("new", b"n", "new")
    assert served(queue, 2 * MS) == {"new": 1}


def test_a_client_stays_behind_for_a_while_and_also_if_it_connects_anew() -> None:
    queue = Queue({"modest"})
    queue.now = SHARED_NS
    fill(queue, "greedy", BACKLOG, client="greedy")
    while queue.owners:
        turn(queue, SHARED_NS)
    for now, count in ((SHARED_NS + BEHIND_NS - 1, BEHIND_SHARE), (SHARED_NS + BEHIND_NS, 50)):
        fill(queue, "greedy", 50, client="greedy")
        queue.add("modest", b"a", "modest")
        assert served(queue, now) == {"modest": 1, "greedy": count}
        while queue.owners:
            turn(queue, now + 2 * SHARED_NS)


def test_a_client_whose_threads_wait_for_their_replies_is_not_behind() -> None:
    queue = Queue()
    for now in range(0, 10 * MS, MS):
        fill(queue, "threads", BACKLOG - 1, bytes(BACKLOG_BYTES // BACKLOG))
        queue.add("modest", b"a")
        assert served(queue, now) == {"threads": BACKLOG - 1, "modest": 1}


def burn(pace: Pace, busy_ns: int, clock: list[int], taken: int) -> None:
    began_ns = pace.clock()
    clock[0] += busy_ns
    pace.end(began_ns, taken)


def test_long_turns_take_fewer_requests_and_short_ones_more_again() -> None:
    clock = [0]
    pace = Pace(clock=lambda: clock[0])
    assert pace.most == CLIENT_ENVELOPES_MAX
    seen: list[int] = []
    for _ in range(10):
        burn(pace, 50_000_000, clock, pace.most)
        seen.append(pace.most)
    assert seen[:3] == [128, 64, 32]
    assert seen[-1] == CLIENT_ENVELOPES_MIN
    for _ in range(10):
        burn(pace, 1_000_000, clock, pace.most)
    assert pace.most == CLIENT_ENVELOPES_MAX


def test_one_request_that_takes_long_makes_the_next_turn_take_few() -> None:
    clock = [0]
    pace = Pace(clock=lambda: clock[0])
    burn(pace, 50_000_000, clock, 1)
    assert pace.most == CLIENT_ENVELOPES_MIN


def test_a_known_client_is_served_beside_new_ones_however_short_turns_are(station: Make) -> None:
    node = station("n1")
    listener = node.hub._listener
    assert listener is not None
    known = sender("known#1")
    listener._clients.note(known)
    for one in [sender(f"new{number}#1") for number in range(10)] + [known]:
        more_than_a_turn_takes = describe(one.name, 20)
        assert listener.queue.put(one, more_than_a_turn_takes)
    links: list[str] = []
    for _ in range(10):
        links += [link for link, _ in listener.receive_clients(4, 10**10)[0]]
    assert "known" in links


def test_a_connection_of_which_too_many_frames_are_dropped_is_closed(
    connection: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_queue, "FLOOD_FRAMES", 3)
    node, client = connection
    floods, one = Floods(), opened(node)
    assert [floods.note(one) for _ in range(4)] == [1, 2, 3, 0]
    assert client.recv(1) == b""
    assert floods.note(sender("b#1")) == 1


def test_a_frame_that_arrived_before_its_connection_was_closed_does_not_close_another(
    connection: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have given the descriptor to the connection of another client."""
    monkeypatch.setattr(client_queue, "FLOOD_FRAMES", 3)
    node, client = connection
    floods, one = Floods(), opened(node)
    while floods.note(Connection(-1, None)):
        pass
    assert all(floods.note(one) for _ in range(10))
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)


def test_a_sender_whose_connection_was_closed_is_muted_for_longer_than_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_queue, "FLOOD_FRAMES", 3)
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    floods, a, b, c = Floods(), sender("a#1"), sender("b#1"), sender("c#1")
    while floods.note(a):
        assert not floods.is_muted(a)
    floods.mute(b)
    for now[0], muted in ((0.9, [a, b]), (1.1, [a]), (4.9, [a]), (5.1, list[Connection]())):
        assert [one for one in (a, b, c) if floods.is_muted(one)] == muted


MEMBERS = ("n2", "n3", "n4")
OTHERS = ("t", "u", "v")


def test_an_id_is_taken_while_its_connection_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "OPEN_S", 0.0)
    connected = {b"s#1"}
    clients = Clients(lambda known: known.identity in connected)
    assert not clients.is_taken(sender("s#2"))
    clients.note(sender("s#1"))
    assert clients.is_taken(sender("s#2"))
    assert not clients.is_taken(sender("s#1"))
    assert not clients.is_taken(sender("s#1.7"))
    connected.clear()
    assert not clients.is_taken(sender("s#2"))
    assert clients.connection("s") is None


def test_a_process_that_uses_the_id_of_another_causes_one_check_a_second() -> None:
    checked: list[Connection] = []

    def is_open(known: Connection) -> bool:
        checked.append(known)
        return True

    clients, one = Clients(is_open), sender("s#1")
    clients.note(one)
    assert all(clients.is_taken(sender("s#2")) for _ in range(100))
    assert checked == [one]


class Scene:
    """A node and its clients, in one process, so that they share the numbers of descriptors."""

    def __init__(self, station: Make) -> None:
        self._station = station
        self.node = station("n1", peers=dict.fromkeys(MEMBERS, "tcp://127.0.0.1:9"))

    def connect(self, name: str, boot: int = 1) -> Station:
        """Return a client or a member that has connected, and has sent nothing."""
        peers, client = {"n1": self.node.hub.endpoint}, name not in MEMBERS
        made = self._station(name, boot=boot, listen=None, peers=peers, client=client)
        until(lambda: made.news, made)
        return made

    def leave_a_late_frame(self, name: str) -> None:
        """Let a client come and go. The node has read the first of its frames, not the second."""
        before = len(os.listdir("/dev/fd"))
        first = self.connect(name)
        self.until_received(1, first)
        send(2, first)
        self.node.hub.poll(1000 * PATIENCE_S)  # The frame has arrived.
        first.hub.close()
        until(lambda: len(os.listdir("/dev/fd")) <= before)  # The descriptor is free.

    def until_received(self, number: int, *senders: Station) -> None:
        """Let all of them send, again and again, until a message of the first arrives."""
        until(
            lambda: self.has_received(senders[0].node, number),
            self.node,
            again=partial(send, number, *senders),
        )

    def has_received(self, sender: str, number: int) -> bool:
        message = KeepAlive(session="s", request=number)
        return any(
            message in [each for _, _, each in frame.envelopes]
            for link, frame in self.node.arrivals
            if link == sender
        )


def send(number: int, *senders: Station) -> None:
    for one in senders:
        one.send("n1", KeepAlive(session="s", request=number))


@pytest.fixture
def scene(station: Make) -> Scene:
    return Scene(station)


@pytest.mark.parametrize("talk", [True, False], ids=["they talk", "they are silent"])
@pytest.mark.parametrize("between", [(), OTHERS, MEMBERS], ids=["none", "clients", "members"])
def test_a_client_that_restarts_is_served_though_a_frame_of_its_former_process_comes_late(
    scene: Scene, between: tuple[str, ...], *, talk: bool
) -> None:
    scene.leave_a_late_frame("s")
    others = [scene.connect(name) for name in between]
    scene.node.turn()  # It reads the late frame.
    second = scene.connect("s", boot=2)
    scene.until_received(3, second, *(others if talk else ()))
    for other in others:
        scene.until_received(4, other, second)


def test_a_late_frame_of_one_client_does_not_disturb_the_replies_to_another(scene: Scene) -> None:
    scene.leave_a_late_frame("s")
    others = [scene.connect(name) for name in OTHERS]
    for other in others:
        scene.until_received(3, other)
    scene.node.turn()
    for other in others:
        scene.node.send(other.node, alive(5), role="session")
        until(lambda other=other: other.received() == [alive(5)], other, scene.node)  # type: ignore[misc]


def test_the_frames_of_a_connection_name_it_after_a_late_frame_that_named_another(
    scene: Scene,
) -> None:
    scene.leave_a_late_frame("s")
    others = [scene.connect(name) for name in OTHERS]
    scene.node.turn()  # It reads the late frame.
    for number in (3, 4):
        for other in others:
            scene.until_received(number, other)
    connections = present(scene.node.hub._listener).connections.open
    named = {one.name: one for one in connections.values()}
    assert named.keys() == set(OTHERS)
    taken = {name: one.taken for name, one in named.items()}
    for other in others:
        scene.until_received(5, other)
    assert all(one.taken > taken[name] for name, one in named.items())
    assert {*named.values()} == {*connections.values()}


def test_a_large_reply_to_a_client_that_is_gone_leaves_nothing_behind(station: Make) -> None:
    node = station("n1")
    leaver = node.dealer("s#1")
    leaver.send(describe("s"))
    until(lambda: node.came["s"] == 1, node)
    leaver.close(linger=0)
    listener = present(node.hub._listener)
    until(lambda: not listener.connections.open, node)
    large = tuple(
        Envelope(Address("s/session"), Address("n1/proxy"), Describe(session="x" * 100, request=n))
        for n in range(1 + LARGE_BYTES // 100)
    )
    node.hub.send("s", Frame("test", 0, 0, large))
    assert listener._unread._quotas == {}
    assert len(listener._clients) == 0
    assert node.counters["wire.unroutable"] == 1


def test_a_frame_from_another_host_does_not_name_a_connection(station: Make) -> None:
    node = station("n1")
    node.dealer("t#1").send(describe("t"))
    until(lambda: node.came["t"] == 1, node)
    connections = present(node.hub._listener).connections
    (one,) = connections.open.values()
    late = connections.over(one.descriptor, b"s#1", "127.0.0.3")
    assert late.gone
    assert connections.over(one.descriptor, one.identity, "127.0.0.1") is one


def test_the_id_of_a_client_that_is_connected_stays_its_own(scene: Scene) -> None:
    owner, other = scene.connect("s"), scene.connect("s", boot=2)
    scene.until_received(1, owner)
    node = scene.node
    until(lambda: node.counters["wire.client_id_taken"] > 5, node, again=partial(send, 2, other))
    assert not scene.has_received("s", 2)
    assert owner.received() == []  # The frames by which the node checks it have no messages.
    node.send("s", alive(3), role="session")
    until(lambda: owner.received() == [alive(3)], owner, node)
    assert other.received() == []


# A client that does not read its replies is cut off at its quota until it reads


def sends(unread: UnreadReplies, owner: str, one: Connection, size: int) -> bool:
    """Count a reply of ``size`` bytes as sent if it is admitted; return whether it is."""
    one.owner = owner
    admitted = unread.admits(one, size)
    one.sent += size * admitted
    return admitted


def test_a_client_that_does_not_read_is_cut_off_at_its_quota(connection: Pair) -> None:
    node, client = connection
    unread, one = UnreadReplies(10_000), opened(node)
    assert sends(unread, "slow", one, 6_000)
    assert sends(unread, "slow", one, 4_000)
    assert not sends(unread, "slow", one, 6_000)
    assert one.blocked
    assert unread.is_blocked(one)
    before = present(acked_bytes(node))
    node.sendall(bytes(10_000))
    while len(client.recv(65_536, socket.MSG_PEEK)) < 10_000 or acked_bytes(node) == before:
        pass
    assert not unread.is_blocked(one)
    assert not one.blocked
    assert sends(unread, "slow", one, 6_000)


def test_an_operator_reads_that_a_client_does_not_read(connection: Pair, lines: Lines) -> None:
    unread, one = UnreadReplies(10 << 10), opened(connection[0])
    for _ in range(3):
        sends(unread, "slow", one, 10 << 10)
    (line,) = lines.values
    assert line[2].startswith("'slow' does not read its replies: 10 KiB wait, the quota is 10 KiB")


def test_a_client_that_connects_anew_is_not_taken_for_one_that_does_not_read() -> None:
    """The kernel gives the new connection the descriptor of the former one."""
    unread, descriptors = UnreadReplies(10_000), set[int]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(2):
            with (
                socket.create_connection(server.getsockname()) as client,
                server.accept()[0] as node,
            ):
                descriptors.add(node.fileno())
                one = opened(node)
                for _ in range(20):
                    assert sends(unread, "watcher", one, 5_000)
                    node.sendall(bytes(5_000))
                    left = 5_000
                    while left:
                        left -= len(client.recv(left))
                    while one.blocked:
                        unread.is_blocked(one)
                unread.closed(one)
    assert len(descriptors) == 1


def test_clients_with_one_key_share_its_quota_of_unread_replies() -> None:
    unread = UnreadReplies(10_000)
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def connected() -> Pair:
            client = stack.enter_context(socket.create_connection(server.getsockname()))
            return stack.enter_context(server.accept()[0]), client

        pairs = [connected() for _ in range(3)]
        slow, reads, other = (opened(node) for node, _ in pairs)
        assert sends(unread, "shop", slow, 6_000)
        assert not sends(unread, "shop", reads, 6_000)
        assert not unread.is_blocked(reads), "it reads"
        assert sends(unread, "bob", other, 6_000)
        for one in pairs[0]:
            one.close()
        while not sends(unread, "shop", reads, 6_000):
            pass  # The other clients with the key are looked at once an interval.
        assert not sends(unread, "shop", reads, 6_000)


def test_one_reply_above_the_quota_is_sent_to_a_client_that_reads(connection: Pair) -> None:
    assert sends(UnreadReplies(10_000), "reader", opened(connection[0]), 50_000)


def test_nothing_is_unread_of_a_descriptor_that_is_no_connection() -> None:
    here, there = socket.socketpair()
    with here, there:
        one = connection_of(here.fileno())
        one.sent += 1
        assert not one.look()
        assert one.received == one.sent
