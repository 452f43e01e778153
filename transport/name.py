"""The names on the wire, of clusters, nodes, clients and roles, and their limits."""

from __future__ import annotations

from fencelock.actors.api.name import forbidden_in, is_allowed
from fencelock.transport.cbor import shown

CLUSTER_BYTES_MAX = 128
"""Limit of a cluster's id, which is a name that an operator types."""

NODE_BYTES_MAX = 128
"""Limit of a node's id: with ``#`` and a boot id it must fit a ZeroMQ routing id of 255 bytes."""

ROLE_BYTES_MAX = 128
"""Limit of a role's name, with the counter and boot id that make it unique."""

ANY_NODE = "*"
"""As the node of ``to``: any node that reads it. For clients, which know only a TCP address."""


NAMES_KEPT = 16_384
"""Limit of remembered addresses, which are not checked again: for more clients than a node
remembers."""


def check_name(what: str, name: str, limit: int) -> None:
    """Refuse a name that is empty, longer than ``limit`` bytes or has a forbidden character.

    Raises:
        ValueError: naming ``what``, the value and the limit.

    """
    size = len(name.encode(errors="replace"))
    if not 1 <= size <= limit:
        raise ValueError(f"{what} {shown(name)} has {size} bytes, 1 to {limit} are allowed")
    if not is_allowed(name):
        raise ValueError(f"{what} {shown(name)} has {forbidden_in(name)}, which is not allowed")


def check_cluster(cluster: str) -> None:
    """Refuse a cluster id that is empty, above `CLUSTER_BYTES_MAX` or has a forbidden character.

    Raises:
        ValueError: naming the value and the limit.

    """
    check_name("cluster id", cluster, CLUSTER_BYTES_MAX)


def check_node(node: str) -> None:
    """Refuse a node id that cannot be part of an address and of a routing id.

    Raises:
        ValueError: empty, above `NODE_BYTES_MAX`, ``*``, or with a character that
            is not allowed, ``/`` or ``#``.

    """
    check_name("node id", node, NODE_BYTES_MAX)
    if node == ANY_NODE or "/" in node or "#" in node:
        raise ValueError(f"node id {shown(node)} may not be '*', nor have '/' or '#'")


def check_address(address: str) -> None:
    """Refuse an address that is not ``node/role``.

    Raises:
        ValueError: not exactly one ``/``, or a part that is empty, above `NODE_BYTES_MAX`
            or `ROLE_BYTES_MAX`, or has a forbidden character.

    """
    node, slash, role = address.partition("/")
    if not slash or "/" in role:
        raise ValueError(f"address {shown(address)} is not of the form node/role")
    check_name("node id", node, NODE_BYTES_MAX)
    check_name("role", role, ROLE_BYTES_MAX)
