"""Environment variables that override keys of the configuration file.

``FENCELOCK_PAXOS__HEARTBEAT_MS=100`` overrides ``heartbeat_ms`` of the table ``[paxos]``: the key
in upper case, with two underscores for each dot. In the id of a node, an underscore stands for
``-``: ``FENCELOCK_NODES__ORDERS_0__LISTEN`` is ``nodes.orders-0.listen``. An empty variable counts
as missing.

A name with two underscores whose key does not exist is refused. Other names are left alone:
Kubernetes sets ``FENCELOCK_PORT`` and the like for a service of that name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from pydantic import BaseModel

from fencelock.actors.error import ConfigError

PREFIX = "FENCELOCK_"
BETWEEN = "__"
"""Separates the steps of a key."""


class Overrides(NamedTuple):
    """The keys that the environment sets."""

    document: Mapping[str, Any] = {}
    """Their values, nested like the file."""
    names: Mapping[str, str] = {}
    """Key to variable: ``paxos.heartbeat_ms`` to ``FENCELOCK_PAXOS__HEARTBEAT_MS``."""

    def name_of(self, key: str) -> str | None:
        """Return the variable that set ``key``, or something in it; None if the file did."""
        for known, name in self.names.items():
            if known == key or known.startswith(f"{key}."):
                return name
        return None


NO_OVERRIDES = Overrides()


def read_overrides(model: type[BaseModel]) -> Overrides:
    """Return the keys of ``model`` that the environment of this process sets."""
    names: dict[str, str] = {}
    for name, value in sorted(os.environ.items()):
        path = name.lower().removeprefix(PREFIX.lower()).split(BETWEEN)
        if (
            value
            and name.upper().startswith(PREFIX)
            and (path[0] in model.model_fields or path[1:])
        ):
            if path[0] == "nodes" and path[1:]:
                path[1] = path[1].replace("_", "-")
            names[".".join(path)] = name
    if not names:
        return NO_OVERRIDES
    for key, name in names.items():
        if key in model.model_fields and _is_table(model, key):
            raise ConfigError(f"{name}: {key} is a table: set its keys, like {name}__KEY")
    # Imported late, as it takes longer than the rest of the client.
    from pydantic_settings import EnvSettingsSource  # noqa: PLC0415

    source = EnvSettingsSource(
        cast(Any, model), env_prefix=PREFIX, env_nested_delimiter=BETWEEN, env_ignore_empty=True
    )
    try:
        document = source()
    except ValueError as error:
        raise ConfigError(
            f"one of {', '.join(names.values())} is no list as in JSON, like "
            """FENCELOCK_LOG__TRACE='["process", "clock"]'"""
        ) from error
    if "nodes" in document:
        nodes = document["nodes"].items()
        document["nodes"] = {node.replace("_", "-"): table for node, table in nodes}
    for key, name in names.items():
        document.setdefault(key.partition(".")[0], os.environ[name])  # An unknown table: refused.
    return Overrides(document, names)


def _is_table(model: type[BaseModel], key: str) -> bool:
    field = model.model_fields[key]
    kind = field.annotation
    return key == "nodes" or (isinstance(kind, type) and issubclass(kind, BaseModel))


def merged(document: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``document`` with the values of ``over`` in place of its own."""
    result = dict(document)
    for key, value in over.items():
        own = result.get(key)
        result[key] = (
            merged(cast("dict[str, Any]", own), cast("dict[str, Any]", value))
            if isinstance(own, dict) and isinstance(value, dict)
            else value
        )
    return result
