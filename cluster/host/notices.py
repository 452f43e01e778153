"""The node's log, as a listener of the host: writes each `Notice` of a role as one line."""

from __future__ import annotations

from collections.abc import Callable

from loguru import logger

from holdfast.actors.message import Event
from holdfast.actors.notice import Notice


def log_notices(node: str) -> Callable[[Event], None]:
    """Return what writes notices of the roles of ``node``."""
    log = logger.bind(node=node)

    def write(event: Event) -> None:
        assert isinstance(event, Notice)
        log.log(event.level.value, "{}: {}", node, event.text)

    return write
