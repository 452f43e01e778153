"""The arguments of `connect`, of locks and of reads, checked and in the units of the wire.

A `TypeError`, or a `ValueError` of the kind that fits, names the argument, the value and the limit.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec import Struct

from fencelock.actors.api.lock_message import Acquire
from fencelock.actors.api.membership_message import PORT_MAX
from fencelock.actors.api.name import LABEL_BYTES_MAX, WAIT_MS_MAX, forbidden_in, is_allowed, shown
from fencelock.actors.api.request import Request
from fencelock.actors.error import ConfigError, InvalidRequestError
from fencelock.actors.session.endpoints import ENDPOINTS_MAX
from fencelock.actors.session.retained import RetainTerms
from fencelock.transport.codec import check_types
from fencelock.transport.frame import check_cluster

R = TypeVar("R", bound=Request)

RETAIN_S_MAX = 3_600
"""Longest time for which a client keeps an idle lock (s)."""

COHORT_MAX = 1_000
"""Most owners of a client that may have a retained lock before others who wait."""

TTL_S_MIN, TTL_S_MAX = 1.0, 3_600.0
"""Bounds of the TTL that a client of ours asks for (s): from an interpreter's pause to an hour. The
cluster accepts `SESSION_TTL_MS_MIN` to `SESSION_TTL_MS_MAX`, also from clients in other
languages."""

TTL_S = 15.0
"""The TTL of a session, unless its client asks for another (s)."""

AGE_S_MAX = 3_600.0
"""The greatest age of a local read (s): an older answer would be of no use."""

CONFIG_FILE = "cluster.toml"
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
        `CONFIG_FILE` in the working folder; without any it is `DEFAULT_ADDRESS`. The cluster's id
        is ``cluster``, ``FENCELOCK_CLUSTER``, the file's if that named the addresses, or
        `DEFAULT_CLUSTER`. The file of the client's key is ``key``, or ``FENCELOCK_KEY``.
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
        if not os.path.exists(CONFIG_FILE):
            source = f"the default: neither FENCELOCK_CONNECT nor ./{CONFIG_FILE} names any"
            return cls(DEFAULT_ADDRESS, cluster or DEFAULT_CLUSTER, source, own)
        from fencelock.cluster.node.config import load  # noqa: PLC0415 (pydantic)

        known = load(CONFIG_FILE)
        endpoints = tuple(known.nodes.values())[:ENDPOINTS_MAX]
        return cls(",".join(endpoints), cluster or known.cluster, f"from ./{CONFIG_FILE}", own)


class Settings(Struct, frozen=True):
    """The checked arguments of `connect`."""

    target: Target
    timeout: float = CONNECT_S
    ttl: float = TTL_S
    label: str | None = None
    retain: float = 0.0
    stay: bool = False

    def __post_init__(self) -> None:
        parse_addresses(self.target.addresses)
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
            check_text("label", text_of("label", self.label), ConfigError)
        retain_ms_of(self.retain, ConfigError)


def age_ms_of(read: Read, max_age: float) -> int | None:
    """Return the greatest age of an answer (ms), None for a linearizable read."""
    if read == "linearizable":
        return None
    if read != "local":
        raise ValueError(f"read is {read!r}, and must be 'linearizable' or 'local'")
    allowed = f"a number of seconds from 0 to {AGE_S_MAX:g}"
    check_number("max_age", max_age, allowed, lambda s: 0 <= s <= AGE_S_MAX)
    return math.ceil(max_age * 1000)


def parse_addresses(addresses: str) -> tuple[str, ...]:
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
    """Refuse a text for people that is too long or has a forbidden character."""
    size = len(text.encode(errors="replace"))
    if size > LABEL_BYTES_MAX or not is_allowed(text):
        found = f" has {forbidden_in(text)}" if not is_allowed(text) else ""
        raise kind(
            f"{field} {shown(text)} of {size} bytes{found}: at most {LABEL_BYTES_MAX} bytes are "
            "allowed, without control characters"
        )


class LockOptions(Struct, frozen=True):
    """The options given to a client's `lock` or `rlock`."""

    name: str
    timeout: float | None = None
    """Timeout of an acquire without its own (s); None for the cluster's limit."""
    owner: str | None = None
    """The owner; None for each acquire, or for the running thread or task if ``reentrant``."""
    reentrant: bool = False
    limit: int = 1
    """Limit of holds that an owner may have at once, or 0 for no limit."""
    label: str = ""
    hold_ms: int = 0
    """Duration of a hold (ms); 0 for the cluster's own, or for none."""
    grace_ms: int = 0
    """Time after the duration until the lock is taken away (ms); 0 for the cluster's own."""
    confirm_release: bool = True
    """Whether a release waits until the cluster has confirmed it, unless it says otherwise."""
    retain_ms: int = 0
    """Time for which the client keeps the lock idle for its next owner (ms); 0 for not at all."""
    cohort: int = 0
    """Number of owners of this client that may have it before others who wait."""

    @property
    def terms(self) -> RetainTerms | None:
        """The options for retaining the lock, None if it is not retained."""
        return _terms(self.retain_ms, self.cohort, self.label) if self.retain_ms else None

    def acquire(self) -> Acquire:
        """Return an acquire with the fields that all acquires with these options share."""
        return Acquire(
            lock=self.name,
            limit=self.limit,
            label=self.label,
            hold_ms=self.hold_ms,
            grace_ms=self.grace_ms,
        )


def checked(request: R) -> R:
    """Return ``request``, which has arguments of a user, if their types and limits are right."""
    check_types(request)
    request.check()
    return request


def text_of(field: str, value: Any) -> str:
    """Return ``value``, which must be a text, as an instance of `str` itself.

    A subclass may be formatted as another text than it is: a member of ``class Name(str, Enum)`` as
    ``Name.MEMBER``.
    """
    if not isinstance(value, str):
        raise TypeError(f"{field} is {value!r}, and must be str")
    return str.__str__(value)


def name_text_of(name: Any, kind: str = "lock") -> str:
    """Return the text of a name, as `text_of` does."""
    if isinstance(name, bytes | bytearray):
        raise TypeError(f"{kind} name is {name!r}, and must be str, not bytes: decode it")
    return text_of(f"{kind} name", name)


def check_number(
    field: str,
    value: Any,
    allowed: str,
    is_allowed: Callable[[Any], bool],
    error: type[ValueError] = ValueError,
) -> None:
    """Return if ``value``, which may have any type, is an allowed number.

    ``allowed`` has the allowed values in words that follow "must be". ``error`` is for a number
    that is not allowed; anything else is a `TypeError`.
    """
    is_bool = type(value) is bool  # Python counts with it, but nobody means that.
    wrong: type[Exception] = TypeError if is_bool else error
    try:
        if not is_bool and is_allowed(value):
            return
    except TypeError:  # The value cannot be compared with numbers.
        wrong = TypeError
    raise wrong(f"{field} is {value!r}, and must be {allowed}")


def check_int(
    field: str,
    value: Any,
    allowed: str,
    is_allowed: Callable[[int], bool],
    error: type[ValueError] = InvalidRequestError,
) -> None:
    if type(value) is not int:  # A bool has no encoding as an int.
        raise TypeError(f"{field} is {value!r}, and must be {allowed}")
    check_number(field, value, allowed, is_allowed, error)


def check_range(
    field: str, value: Any, least: int, most: int, error: type[ValueError] = InvalidRequestError
) -> None:
    allowed = f"an int from {least} to {most}"
    check_int(field, value, allowed, lambda n: least <= n <= most, error)


def term_ms_of(name: str, term: float | None) -> int:
    """Return a duration, or a grace, ``term`` (s) in milliseconds, rounded up; 0 for None.

    The cluster itself refuses terms below its minimum.
    """
    if term is None:
        return 0
    most_s = WAIT_MS_MAX // 1000
    allowed = f"a number of seconds above 0 and at most {most_s}, or None for the default"
    check_number(name, term, allowed, lambda s: 0 < s <= most_s, InvalidRequestError)
    return math.ceil(float(term) * 1000)


def retain_ms_of(retain: float, error: type[ValueError] = InvalidRequestError) -> int:
    """Return ``retain`` (s) in milliseconds, rounded up; 0 for 0."""
    allowed = f"a number of seconds from 0 to {RETAIN_S_MAX}"
    check_number("retain", retain, allowed, lambda s: 0 <= s <= RETAIN_S_MAX, error)
    return math.ceil(float(retain) * 1000)


def wait_ms_of(timeout: float | None) -> int | None:
    """Return ``timeout`` (s) as a wait in milliseconds, rounded up; None stays None.

    ``-1`` and ``math.inf`` are without limit, which is a week: the longest wait on the wire.
    """
    if timeout is None:
        return None
    if timeout in (-1, math.inf):
        return WAIT_MS_MAX
    most_s = WAIT_MS_MAX // 1000
    allowed = f"a number of seconds from 0 to {most_s}, -1 for no limit, or None for the default"
    check_number("timeout", timeout, allowed, lambda s: 0 <= s <= most_s)
    return math.ceil(float(timeout) * 1000)


@lru_cache(maxsize=256)
def _terms(retain_ms: int, cohort: int, label: str) -> RetainTerms:
    """Return the same object for equal arguments: each lock that is retained refers to one."""
    return RetainTerms(retain_ms, cohort, label)
