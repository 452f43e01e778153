"""The ZeroMQ sockets of a hub: their options, and the reasons for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, TypeAlias, cast

import zmq
from zmq.backend import Socket as BareSocket
from zmq.backend import zmq_poll

from fencelock.actors.error import ConfigError
from fencelock.transport.cbor import FRAME_BYTES_MAX

Socket: TypeAlias = "zmq.Socket[bytes]"
Secure: TypeAlias = Callable[[Socket], None]
"""Sets the keys of a socket that is neither bound nor connected yet."""

NOBLOCK = int(zmq.NOBLOCK)
NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
POLLIN = int(zmq.POLLIN)
"""Plain numbers: combining two of pyzmq's enums takes longer than sending a frame."""

poll_sockets: Callable[[Sequence[tuple[Socket, int]], int], Sequence[tuple[Socket, int]]] = cast(
    "Any", zmq_poll
)
"""Takes pairs of a socket and `POLLIN`, and a time (ms). Returns the pairs whose socket can be
read, as soon as there are any. With the time 0 it is quicker than reading ZMQ_EVENTS, since pyzmq
makes an enum of each option that it reads."""

send_part = BareSocket.send
"""Sends one part, as a `Socket`'s own ``send`` does, without options that we do not use."""

receive_part = BareSocket.recv
"""Receives one part; as above."""

QUEUE_FRAMES_MAX = 1000
"""Limit of waiting frames in one direction of one link: a second or so of traffic, then loss."""

ZMQ_PART_BYTES_MAX = 2 * FRAME_BYTES_MAX
"""Above this size libzmq closes the connection unread; below it we count frames that are too
large."""

HEARTBEAT_MS = 1000
"""Interval of a DEALER's heartbeats (ms). A ROUTER sends none, see `bound_router`."""

LINK_SILENCE_MS = 2000
"""A link without an answer for this long is closed: with `HEARTBEAT_MS`, within 3 s."""

KEEPALIVE_S = 1
KEEPALIVES = 2
"""So many unanswered probes of the kernel, a second apart, end a connection without heartbeats."""

HANDSHAKE_MS = 3000
"""A TCP connection without a handshake within this time is closed; the same for connecting."""

LISTEN_BACKLOG = 1_024
"""Connections that the kernel keeps until they are accepted: thousands of clients may connect at
once, when a node starts. One that finds no room waits a second or more."""

RECONNECT_MS = 100
"""The first pause before connecting again; doubled each time up to `RECONNECT_MS_MAX`."""

RECONNECT_MS_MAX = 1000
"""The longest pause: a peer that comes back is found within a second or two."""

LOOKUP_THREADS = 8
"""I/O threads of libzmq beside the first, for links to host names. A name is looked up at each
attempt to connect, by the thread of the link, and a resolver that is down takes seconds to fail:
meanwhile no other link of that thread sends or receives. So each of the first eight has its own.
An idle one costs under 0.1 ms and 20 KB."""

NUMERIC = re.compile(r"\w+://(\[.*\]|[\d.]+):\d+")
"""An endpoint whose address need not be looked up."""

HANDSHAKE_FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)

MECHANISM_MISMATCH = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
"""Value of a failure: one side has a key, and the other does not."""

LINK_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | HANDSHAKE_FAILURES
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
)
"""Events of a DEALER's monitor: the first carries a descriptor, the second means up, every other
means down."""

ROUTER_EVENTS = (
    zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_ACCEPT_FAILED | zmq.EVENT_DISCONNECTED
)
"""Events of a ROUTER's monitor, which carry the descriptor of the connection."""

MONITORED = Struct("=hi")

_MONITOR = "inproc://connections"
"""The endpoint of the ROUTER's monitor, within the context of one hub."""


def io_context() -> zmq.Context[Socket]:
    """Return a context with an I/O thread for most sockets, and `LOOKUP_THREADS`."""
    return zmq.Context(1 + LOOKUP_THREADS)


def _common(socket: Socket, endpoint: str, thread: int = 0) -> None:
    """Set the options of every socket; ``thread`` is the place of its I/O thread."""
    socket.setsockopt(zmq.AFFINITY, 1 << thread)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, QUEUE_FRAMES_MAX)
    socket.setsockopt(zmq.MAXMSGSIZE, ZMQ_PART_BYTES_MAX)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.IPV6, "[" in endpoint)


def connection_monitor(context: zmq.Context[Socket]) -> Socket:
    """Return a socket for the events of a ROUTER's connections, see `bound_router`.

    Its queue has no limit: a full one would stop the thread of libzmq that sends the events.
    """
    socket: Socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)
    return socket


def monitored(socket: Socket) -> tuple[int, int]:
    """Return the next event of a monitor, and its value; `zmq.Again` if there is none.

    `zmq.utils.monitor` does this too, but imports asyncio, which clients have no time for.

    Source: zmq_socket_monitor(3).
    """
    event, value = MONITORED.unpack_from(socket.recv_multipart(zmq.NOBLOCK)[0])
    return event, value


def bound_router(
    context: zmq.Context[Socket],
    endpoint: str,
    monitor: Socket | None = None,
    secure: Secure | None = None,
) -> Socket:
    """Return a ROUTER bound to ``endpoint``; ``monitor``, if given, receives its `ROUTER_EVENTS`.

    ROUTER_MANDATORY turns a lost client into an error that can be counted instead of
    silence. ROUTER_HANDOVER lets a connection take over the routing id of an older one. When
    a link breaks unnoticed by this side and the other side connects again, libzmq would
    otherwise leave the new connection without a name, and unread, until it finds the old one
    dead. Routing ids contain a boot id, so only the same life of the same process can take
    over.

    It sends no heartbeats: libzmq 4.3.5 aborts the process ("Assertion failed: !_io_error") when
    one is due on a connection that broke while its queue of received frames was full, which any
    peer can bring about. A DEALER's heartbeats state how long to wait for the next (HEARTBEAT_TTL);
    peers without heartbeats are left to TCP.

    ``secure``, if given, lets it require keys; then ``monitor`` also receives failed handshakes.

    Raises:
        ConfigError: it cannot be bound; the text names the endpoint and the reason.

    """
    socket: Socket = context.socket(zmq.ROUTER)
    try:
        _common(socket, endpoint)
        socket.setsockopt(zmq.RCVHWM, QUEUE_FRAMES_MAX)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, KEEPALIVES)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.BACKLOG, LISTEN_BACKLOG)
        events = ROUTER_EVENTS
        if secure is not None:
            secure(socket)
            events |= HANDSHAKE_FAILURES
        if monitor is not None:
            socket.monitor(_MONITOR, events)
            monitor.connect(_MONITOR)
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        if monitor is not None:
            socket.disable_monitor()
        socket.close()
        reason = zmq.strerror(error.errno or 0)  # Without the endpoint, which its text repeats.
        raise ConfigError(f"cannot listen on {endpoint!r}: {reason}") from error
    return socket


def connected_dealer(
    context: zmq.Context[Socket],
    endpoint: str,
    identity: bytes,
    secure: Secure | None = None,
    lookup_thread: int = 0,
) -> Socket:
    """Return a monitored DEALER that connects to ``endpoint``, and connects again by itself.

    IMMEDIATE queues only for an established connection. A frame to a peer that is down is
    dropped at once: every protocol here repeats what matters, and a queue for an absent peer
    would flood it with outdated frames on its return.

    Its receive queue has no limit, because a full queue and heartbeats do not go together
    (see `bound_router`). Its peer is an address of the configuration. ``secure``, if given, sets
    its key. ``lookup_thread``, below `LOOKUP_THREADS`, serves it if ``endpoint`` has a host name;
    then the context is one of `io_context`.

    Raises:
        ConfigError: the endpoint cannot be parsed.

    """
    socket: Socket = context.socket(zmq.DEALER)
    try:
        _common(socket, endpoint, 0 if NUMERIC.fullmatch(endpoint) else 1 + lookup_thread)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, LINK_SILENCE_MS)
        socket.setsockopt(zmq.HEARTBEAT_TTL, HEARTBEAT_MS + LINK_SILENCE_MS)
        socket.setsockopt(zmq.ROUTING_ID, identity)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, HANDSHAKE_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        if secure is not None:
            secure(socket)
        socket.get_monitor_socket(LINK_EVENTS)
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        close_socket(socket)
        raise ConfigError(f"cannot connect to {endpoint!r}: {error.strerror}") from error
    return socket


def discard_parts(socket: Socket, most: int) -> bool:
    """Read up to ``most`` more parts of a message; return whether it has ended."""
    receive = receive_part
    for _ in range(most):
        part: Any = receive(socket, NOBLOCK, False)
        if not part.more:
            return True
    return False


def close_socket(socket: Socket) -> None:
    """Close ``socket`` and, if it has one, its monitor."""
    if socket.closed:
        return
    if socket.type == zmq.DEALER:
        monitor: Socket = socket.get_monitor_socket(LINK_EVENTS)
        socket.disable_monitor()
        monitor.close(linger=0)
    socket.close(linger=0)
