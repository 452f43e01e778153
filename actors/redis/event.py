"""Events between the role `RedisDoor` and the sockets of its node."""

from fencelock.actors.message import Local


class Opened(Local):
    """A client has connected."""

    connection: int
    """Its number, which is never used again."""
    peer: str
    """The address of the client, as ``host:port``."""


class Received(Local):
    """Bytes of a client. No more are read from it until a `Transmit` asks for them."""

    connection: int
    data: bytes
    date_ms: int
    """The time of the wall clock (ms since 1970): clients may name dates."""
    turn: int = 0
    """The turn of the node in which they were read."""


class HalfClosed(Local):
    """A client that waits for a reply will send nothing more, and is perhaps gone."""

    connection: int


class Disconnected(Local):
    """A connection was closed by its client, or since that does not read."""

    connection: int


class Transmit(Local):
    """To the sockets: send ``data``, read on, close the connection when it is sent."""

    connection: int
    data: bytes = b""
    reads: bool = False
    closes: bool = False
