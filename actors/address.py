"""The form of addresses inside messages: replies are sent there, so a frame must carry them."""

from __future__ import annotations

from fencelock.actors.api.name import is_allowed

PART_BYTES_MAX = 128
"""Maximum length of the node and of the role in an address (bytes)."""

ANY_NODE = "*"
"""Stands for the node that reads the frame; no node has this id."""


def is_address(address: str) -> bool:
    """Return whether ``address`` is ``node/role``, and can be sent in a frame."""
    node, slash, role = address.partition("/")
    return bool(slash) and is_node(node) and is_part(role)


def is_node(node: str) -> bool:
    """Return whether ``node`` can be the id of a node or of a client."""
    return is_part(node) and node != ANY_NODE and "#" not in node


def is_part(part: str) -> bool:
    """Return whether ``part`` can be the node or the role of an address."""
    size = len(part.encode(errors="replace"))
    return 1 <= size <= PART_BYTES_MAX and "/" not in part and is_allowed(part)
