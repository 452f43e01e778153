"""``fencelock lock``: runs a command while a lock, or another object, is held."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn, Protocol

import typer

from fencelock.actors.error import (
    FencelockError,
    LockOwnershipLostError,
    NotHeldError,
    UnavailableError,
)
from fencelock.cluster.cli.completion import complete_lock
from fencelock.cluster.cli.exit_status import SIGNALLED, ExitStatus
from fencelock.cluster.cli.formatting import in_full
from fencelock.cluster.cli.screen import say
from fencelock.cluster.cli.target import NONE_GIVEN, TargetOptions, asks_cluster

if TYPE_CHECKING:
    from fencelock.cluster.client.callback_executor import Notice
    from fencelock.cluster.client.client import Client
    from fencelock.cluster.client.lock import Hold

RENEWALS = 3
"""Number of renewals within the duration of a hold, where holds have deadlines."""

LEFT_LOOK_S = 0.05
"""Interval between looks whether all that the command started has ended (s)."""

FORWARDED = (signal.SIGTERM, signal.SIGHUP)
"""Signals that are passed on to the command. From a terminal Ctrl-C goes to both; without one,
SIGINT is passed on too."""


class Holdable(Protocol):
    """A lock, or another object that is held for a command."""

    def acquire(self, *, blocking: bool, timeout: float | None) -> Hold | None:
        """Return the hold, or None if it could not be had in time."""
        ...


WaitOption = Annotated[
    float | None,
    typer.Option("--timeout", "-w", min=0, help="How long to wait for it (s). Default: forever."),
]
CommandArgument = Annotated[
    list[str], typer.Argument(help="The command and its arguments.", show_default=False)
]
NameArgument = Annotated[
    str, typer.Argument(help="The lock.", show_default=False, autocompletion=complete_lock)
]
NonblockOption = Annotated[
    bool, typer.Option("--nonblock", "-n", help="Do not wait if it is held.")
]
SharedOption = Annotated[
    int | None,
    typer.Option("--shared", min=1, help="Hold one of N permits of a semaphore instead."),
]
GraceOption = Annotated[
    float,
    typer.Option("--grace", min=0, help="Time from SIGTERM to SIGKILL if it is lost (s)."),
]
FirstReplyOption = Annotated[
    float, typer.Option("--connect-timeout", help="How long to wait for the first reply (s).")
]


class HoldOptions(NamedTuple):
    """The options of every command that holds an object while another command runs."""

    timeout: WaitOption = None
    nonblock: NonblockOption = False
    grace: GraceOption = 5.0
    connect_timeout: FirstReplyOption = 5.0


AS_USUAL = HoldOptions()


@asks_cluster
def lock(
    name: NameArgument,
    command: CommandArgument,
    shared: SharedOption = None,
    how: HoldOptions = AS_USUAL,
    given: TargetOptions = NONE_GIVEN,
) -> None:
    """Hold a lock [bold]while a command runs[/bold], and release it when the command ends.

    FENCELOCK_NAME names the lock to the command, and FENCELOCK_FENCE has the fence.
    Let it send the fence with each write, so that storage can refuse a late one.

    Exits with the status of the command. Exits with 75 if the lock was not
    acquired and the command did not run, and with 127 if there is no such command.
    Exits with 74 if the lock was lost; the command and all that it started were then
    sent SIGTERM, and SIGKILL after --grace.

    For example:

      [cyan]fencelock lock nightly-report --nonblock -- ./report.sh[/cyan]

      [cyan]fencelock lock deploy --timeout 60 -- make deploy[/cyan]

      [cyan]fencelock lock encoder --shared 4 -- ffmpeg -i in.mov out.mp4[/cyan]

    """

    def wanted(client: Client) -> Holdable:
        return client.lock(name) if shared is None else client.semaphore(name, permits=shared)

    def whose(client: Client) -> str:
        return holder_of(client, name) if shared is None else f"all {shared} permits are taken"

    hold_while(command, name, wanted, whose, how, given)


def hold_while(
    command: list[str],
    name: str,
    wanted: Callable[[Client], Holdable],
    whose: Callable[[Client], str],
    how: HoldOptions,
    given: TargetOptions,
) -> NoReturn:
    """Run ``command`` while an object is held, and exit with its status, as `lock` describes.

    Args:
        command: the command and its arguments.
        name: the name of the object, for texts.
        wanted: returns the object.
        whose: returns a text that says who has it.
        how: how long to wait for it, and for the command's end if it is lost.
        given: names the cluster.

    """
    if shutil.which(command[0]) is None:
        typer.echo(f"{command[0]}: command not found; {name} was not acquired", err=True)
        raise typer.Exit(ExitStatus.NO_COMMAND)
    where = given.target()
    from fencelock.cluster.client.client import connect_to  # noqa: PLC0415 (sockets: not for --help)

    signal.signal(signal.SIGTERM, _exit)
    timeout = 0 if how.nonblock else how.timeout
    with ExitStack() as stack:
        try:
            client = stack.enter_context(connect_to(where, timeout=how.connect_timeout))
            waits = timeout != 0
            hold = wanted(client).acquire(blocking=waits, timeout=timeout if waits else None)
        except UnavailableError as error:
            say(f"{name} was not acquired: {error}", err=True)
            raise typer.Exit(ExitStatus.NOT_ACQUIRED) from error
        except KeyboardInterrupt:
            typer.echo(f"{name} was not acquired: interrupted", err=True)
            raise
        if hold is None:
            say(f"{name} was not acquired: {whose(client)}", err=True)
            raise typer.Exit(ExitStatus.NOT_ACQUIRED)
        status, lost = _run(command, hold, how.grace, renews=hold.deadline is not None)
        lost = lost or _release(hold)
    if lost:
        say(f"{name} was lost while the command ran: {lost}. {lost_advice(hold)}", err=True)
        raise typer.Exit(ExitStatus.LOST)
    raise typer.Exit(SIGNALLED - status if status < 0 else status)


def _exit(number: int, _: object) -> None:
    """Exit cleanly while no command runs, so that a waiting client leaves the queue."""
    sys.exit(SIGNALLED + number)


def lost_advice(hold: Hold) -> str:
    """Return a text that says what to check after a loss."""
    return (
        "Another client may have held it meanwhile. Later writes under fence "
        f"{hold.fence} were refused only where fences are checked"
    )


def holder_of(client: Client, lock: str) -> str:
    """Return a text that names the present holder of an object, by its name in the table."""
    try:
        holder = client.status(lock).holder
    except FencelockError:
        return "it is held"
    return "it was held" if holder is None else f"{in_full(holder)} holds it"


def _run(command: list[str], hold: Hold, grace: float, *, renews: bool) -> tuple[int, str]:
    """Run ``command`` under ``hold``; return its status, and the reason if the hold was lost."""
    environment = {"FENCELOCK_NAME": hold.name, "FENCELOCK_FENCE": str(hold.fence)}
    lost, ended = threading.Event(), threading.Event()
    reasons: list[str] = []

    def on_lost(notice: Notice) -> None:
        reasons.append(notice.detail or "its session ended")
        lost.set()

    hold.on_lost(on_lost)
    with _started(command, environment) as process:
        keepers = [threading.Thread(target=_stop_if_lost, args=(process, lost, ended, grace))]
        if renews:
            keepers.append(threading.Thread(target=_renew, args=(hold, ended), daemon=True))
        for keeper in keepers:
            keeper.start()
        status = process.wait()
    reason = reasons[0] if reasons else ""
    ended.set()
    lost.set()  # Wakes the thread that waits for it.
    keepers[0].join()
    return status, reason


def _stop_if_lost(
    process: subprocess.Popen[bytes],
    lost: threading.Event,
    ended: threading.Event,
    grace: float,
) -> None:
    """Send SIGTERM to the group once the hold is lost, and SIGKILL ``grace`` seconds later."""
    lost.wait()
    if ended.is_set():
        return
    _signal_group(process, signal.SIGTERM)
    ends = time.monotonic() + grace
    ended.wait(grace)
    while _is_left(process) and time.monotonic() < ends:  # What the command started ends later.
        time.sleep(LEFT_LOOK_S)
    _signal_group(process, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to the command and, if it has a group of its own, to all that it started."""
    with suppress(ProcessLookupError):
        if _leads_group(process):
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


def _is_left(process: subprocess.Popen[bytes]) -> bool:
    """Return whether anything of the group of the command, which has ended, still runs."""
    if not _leads_group(process):
        return False
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _leads_group(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the command was given a process group, see `_started`."""
    return not sys.stdin.isatty() and process.pid != os.getpgrp()


def _renew(hold: Hold, ended: threading.Event) -> None:
    """Renew the hold several times within each of its durations."""
    while not ended.wait(hold.remaining / RENEWALS):
        try:
            hold.renew()
        except (NotHeldError, LockOwnershipLostError):
            return
        except FencelockError:
            continue  # Try again. If the hold ends, `on_lost` reports it.


@contextmanager
def _started(command: list[str], environment: dict[str, str]) -> Generator[subprocess.Popen[bytes]]:
    """Start ``command``, and pass signals on to it until it ends.

    The handlers are there before the command is: a signal that came in between would end this
    process, and release the lock while the command runs. Without a terminal the command gets a
    process group of its own. A terminal sends Ctrl-C and Ctrl-Z to one group only.
    """
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, _: object) -> None:
        if started:
            started[0].send_signal(number)
        else:
            early.append(number)

    former = {one: signal.getsignal(one) for one in (*FORWARDED, signal.SIGINT)}
    grouped = not sys.stdin.isatty()
    for one in former:
        signal.signal(one, pass_on if grouped or one in FORWARDED else signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            command, env=os.environ | environment, process_group=0 if grouped else None
        )
        started.append(process)
        for number in early:
            process.send_signal(number)
        yield process
    finally:
        for one, handler in former.items():
            signal.signal(one, handler)


def _release(hold: Hold) -> str:
    """Release the hold; return the reason if it was not held until now."""
    try:
        hold.release()
    except (NotHeldError, LockOwnershipLostError) as error:
        return str(error)
    except UnavailableError as error:
        say(f"{hold.name}: {error}", err=True)
    return ""
