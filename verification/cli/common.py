"""What the commands of `fencelock bench` share."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Generator, Sequence
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fencelock.cluster.cli.exit_status import ExitStatus
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
def measuring(as_json: bool = False) -> Generator[Callable[[str], None]]:
    """Yield what shows the current measurement: on a terminal in place, in a log as lines.

    SIGTERM ends it in order, as Ctrl-C does, so that no process is left behind.
    """

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    console = Console(stderr=as_json)
    before = signal.signal(signal.SIGTERM, leave)
    try:
        if console.is_terminal:
            with console.status("measuring") as status:
                yield status.update
        else:
            yield lambda what: console.print(what, soft_wrap=True)
    finally:
        signal.signal(signal.SIGTERM, before)


def show(
    texts: Sequence[Table | str],
    plain: object = None,
    as_json: bool = False,
    *,
    met: bool = True,
) -> None:
    """Print results, on standard error if ``plain`` follows as JSON; exit 1 if a bar is missed."""
    console = Console(stderr=as_json)
    for text in texts:
        console.print(text, soft_wrap=isinstance(text, str))
    if as_json:
        typer.echo(json.dumps(plain))
    if not met:
        raise typer.Exit(ExitStatus.FAILED)
