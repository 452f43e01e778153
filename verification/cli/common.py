"""What the commands of `fencelock bench` share."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Generator
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

from fencelock.cluster.guarantee import PROMISES

PROTOCOLS = ", ".join(PROMISES)


class Durability(StrEnum):
    """The places where nodes keep their journals."""

    FSYNC = "fsync"
    MEMORY = "memory"


DurabilityOption = Annotated[
    Durability, typer.Option(help="Sync every write to disk, or keep everything in memory.")
]


@contextlib.contextmanager
def progress(console: Console) -> Generator[Callable[[str], None]]:
    """Show the current measurement: on a terminal in place, in a log as lines."""
    if not console.is_terminal:
        yield lambda what: console.print(what, soft_wrap=True)
        return
    with console.status("measuring") as status:
        yield status.update


@contextlib.contextmanager
def ends_on_sigterm() -> Generator[None]:
    """Stop in order on SIGTERM as on Ctrl-C, so that no process is left behind."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
