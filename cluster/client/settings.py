"""The arguments of `connect` and of reads, checked before anything starts."""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from fencelock.actors.api.membership_message import PORT_MAX
from fencelock.actors.api.name import LABEL_BYTES_MAX, forbidden_in, is_allowed, shown
from fencelock.actors.error import ConfigError, InvalidRequestError
from fencelock.actors.session.endpoints import ENDPOINTS_MAX
from fencelock.cluster.client.lock_options import RETAIN_S_MAX, check_number, check_text_type
from fencelock.transport.frame import check_cluster

TTL_S_MIN, TTL_S_MAX = 1.0, 3_600.0
"""Bounds of a session's TTL (s): from an interpreter's pause to an hour."""

TTL_S = 15.0
"""The TTL of a session, unless its client asks for another (s)."""

AGE_S_MAX = 3_600.0
"""The greatest age of a local read (s): an older answer would be of no use."""

CONFIG = "cluster.toml"
"""The file in the working folder that names a cluster and its nodes."""

DEFAULT_ADDRESS = "tcp://127.0.0.1:4040"
"""The address of a node if nothing else names one: that of ``fencelock dev``."""

DEFAULT_CLUSTER = "fencelock"

CONNECT_S = 5.0
"""Timeout for the first answer of a node (s): a node of a busy machine takes a second."""

Read = Literal["linearizable", "local"]
"""The kinds of reads: agreed by the whole cluster, or from one node that is fresh enough."""


class Target(NamedTuple):
    """The nodes to connect to, the id of their cluster, and what named them."""

    addresses: str
    cluster: str
    source: str
    key: str | None = None
    """The file of the client's key, if it has one."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The addresses one by one; `ConfigError` if one is not usable."""
        return parse_addresses(self.addresses)

    @classmethod
    def find(
        cls,
        addresses: str | Sequence[str] | None,
        cluster: str | None,
        key: str | os.PathLike[str] | None = None,
    ) -> Target:
        """Return the target that the arguments name, or the environment, or the file here.

        The first of these that names addresses decides: ``addresses``, ``FENCELOCK_CONNECT``,
        `CONFIG` in the working folder; without any it is `DEFAULT_ADDRESS`. The cluster's id is
        ``cluster``, ``FENCELOCK_CLUSTER``, the file's if that named the addresses, or
        `DEFAULT_CLUSTER`. The file of the client's key is ``key``, or ``FENCELOCK_KEY``.

        Raises:
            ConfigError: the file is not usable.

        """
        if key is None:
            key = os.environ.get("FENCELOCK_KEY") or None
        own = None if key is None else os.fspath(key)
        if cluster is None:
            cluster = os.environ.get("FENCELOCK_CLUSTER") or None
        if addresses is not None:
            listed = addresses if isinstance(addresses, str) else ",".join(_each(addresses))
            return cls(listed, DEFAULT_CLUSTER if cluster is None else cluster, "", own)
        named = os.environ.get("FENCELOCK_CONNECT")
        if named:
            return cls(named, cluster or DEFAULT_CLUSTER, "from FENCELOCK_CONNECT", own)
        if not os.path.exists(CONFIG):
            source = f"the default: neither FENCELOCK_CONNECT nor ./{CONFIG} names any"
            return cls(DEFAULT_ADDRESS, cluster or DEFAULT_CLUSTER, source, own)
        from fencelock.cluster.node.config import load  # noqa: PLC0415 (pydantic)

        known = load(CONFIG)
        endpoints = tuple(known.nodes.values())[:ENDPOINTS_MAX]
        return cls(",".join(endpoints), cluster or known.cluster, f"from ./{CONFIG}", own)


class Settings(Struct, frozen=True):
    """The checked arguments of `connect`.

    Raises:
        ConfigError: something is out of its limits; the text names it.

    """

    target: Target
    timeout: float = CONNECT_S
    ttl: float = TTL_S
    label: str | None = None
    retain: float = 0.0
    stay: bool = False

    def __post_init__(self) -> None:
        assert self.target.endpoints
        try:
            check_cluster(self.target.cluster)
        except ValueError as error:
            raise ConfigError(f"cluster: {error}") from None
        most_s = threading.TIMEOUT_MAX
        check_number(
            "connect_timeout", self.timeout, "above 0 (s)", lambda s: 0 < s <= most_s, ConfigError
        )
        allowed = "from 1 to 3600 (s)"
        check_number("ttl", self.ttl, allowed, lambda s: TTL_S_MIN <= s <= TTL_S_MAX, ConfigError)
        if self.label is not None:
            check_text_type("label", self.label)
            check_text("label", self.label, ConfigError)
        allowed = f"a number of seconds from 0 to {RETAIN_S_MAX}"
        check_number("retain", self.retain, allowed, lambda s: 0 <= s <= RETAIN_S_MAX, ConfigError)


def age_ms_of(read: Read, max_age: float) -> int | None:
    """Return the greatest age of an answer (ms), None for a linearizable read.

    Raises:
        ValueError: ``read`` is neither, or ``max_age`` (s) is out of its range.

    """
    if read == "linearizable":
        return None
    if read != "local":
        raise ValueError(f"read is {read!r}, and must be 'linearizable' or 'local'")
    allowed = f"a number of seconds from 0 to {AGE_S_MAX:g}"
    check_number("max_age", max_age, allowed, lambda s: 0 <= s <= AGE_S_MAX)
    return math.ceil(max_age * 1000)


def parse_addresses(addresses: str) -> tuple[str, ...]:
    """Return the nodes' addresses in ``addresses``, in order.

    Raises:
        ConfigError: one is not ``tcp://host:port``, one appears twice, or there are too many.

    """
    endpoints = tuple(part.strip() for part in addresses.split(","))
    for endpoint in endpoints:
        match = re.fullmatch(r"tcp://([^\s:/\[\]]+|\[[0-9a-fA-F:.%\w]+\]):(\d{1,5})", endpoint)
        if match is None or not 1 <= int(match[2]) <= PORT_MAX:
            raise ConfigError(
                f"addresses: {endpoint!r} in {addresses!r} must be like tcp://host:4040, "
                f"with a port from 1 to {PORT_MAX}; several are separated by commas"
            )
        if endpoints.count(endpoint) > 1:
            raise ConfigError(f"addresses: {endpoint!r} is twice in {addresses!r}")
    if len(endpoints) > ENDPOINTS_MAX:
        raise ConfigError(f"addresses: {len(endpoints)} given, at most {ENDPOINTS_MAX} are allowed")
    return endpoints


def _each(addresses: Sequence[object]) -> Iterator[str]:
    """Return the addresses of a list one by one.

    Raises:
        ConfigError: it is no list, it is empty, or one is not text.

    """
    given: object = addresses
    if not isinstance(given, list | tuple) or not addresses:
        raise ConfigError(
            f"addresses: {addresses!r} must be a text, or a list of texts: "
            '"tcp://host-1:4040,tcp://host-2:4040" or ["tcp://host-1:4040", "tcp://host-2:4040"]'
        )
    for address in addresses:
        if not isinstance(address, str):
            raise ConfigError(f"addresses: {address!r} in {addresses!r} must be a text")
        yield address


def check_text(field: str, text: str, kind: type[ConfigError | InvalidRequestError]) -> None:
    """Refuse a text for people that is too long or has a forbidden character.

    Raises:
        ConfigError: if ``kind`` is this; names the field, the value and the limit.
        InvalidRequestError: if ``kind`` is this; with the same text.

    """
    size = len(text.encode(errors="replace"))
    if size > LABEL_BYTES_MAX or not is_allowed(text):
        found = f" has {forbidden_in(text)}" if not is_allowed(text) else ""
        raise kind(
            f"{field} {shown(text)} of {size} bytes{found}: at most {LABEL_BYTES_MAX} bytes are "
            "allowed, without control characters"
        )
