"""``fencelock lock``: runs a command while a lock, or another object, is held."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn, Protocol

from fencelock.actors.api.map import ENTRY_TTL_MS_MAX, ONCE, PERIOD_PERCENT
from fencelock.actors.api.name import WAIT_MS_MAX
from fencelock.actors.error import (
    FencelockError,
    LockOwnershipLostError,
    LockTimeoutError,
    NotHeldError,
    UnavailableError,
    WrongClusterError,
)
from fencelock.cluster.cli.completion import complete_lock
from fencelock.cluster.cli.exit_status import SIGNALLED, ExitStatus, at_terminal, say
from fencelock.cluster.cli.formatting import duration, in_full
from fencelock.cluster.cli.options import WrongUsageError, argument, option
from fencelock.cluster.cli.target import NONE_GIVEN, TargetOptions

if TYPE_CHECKING:
    from fencelock.cluster.client.callback_executor import Notice
    from fencelock.cluster.client.client import Client
    from fencelock.cluster.client.lock import Hold

WAIT_S_MAX = WAIT_MS_MAX / 1000

RENEWALS = 3
"""Number of renewals within the duration of a hold, where holds have deadlines."""

LEFT_LOOK_S = 0.05
"""Interval between looks whether all that the command started has ended (s)."""

MESSAGES = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that need not ask the command to end."""

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, *MESSAGES)
"""Signals that are passed on to the command: all that would end this process, and leave the command
without the lock, but those that cannot be handled. From a terminal, Ctrl-C and Ctrl-\\ go to both;
without one, SIGINT is passed on too."""


class Holdable(Protocol):
    """A lock, or another object that is held for a command."""

    def acquire(self, *, blocking: bool, timeout: float | None) -> Hold | None:
        """Return the hold, or None if it could not be had in time."""
        ...


WaitOption = Annotated[
    float | None,
    option(
        "--timeout",
        "-w",
        min=0,
        max=WAIT_S_MAX,
        help="How long to wait for it (s). Default: forever.",
    ),
]
CommandArgument = Annotated[
    list[str], argument(help="The command and its arguments.", show_default=False)
]


class HoldOptions(NamedTuple):
    """The options of every command that holds an object while another command runs."""

    timeout: WaitOption = None
    nonblock: Annotated[bool, option("--nonblock", "-n", help="Do not wait if it is held.")] = False
    grace: Annotated[
        float,
        option(
            "--grace", min=0, max=WAIT_S_MAX, help="Time from SIGTERM to SIGKILL if it is lost (s)."
        ),
    ] = 5.0
    conflict: Annotated[
        int,
        option(
            "--conflict-exit-code",
            "-E",
            min=0,
            max=255,
            help="Exit with this if another holds it, or --once forbids to run.",
        ),
    ] = ExitStatus.NOT_ACQUIRED
    quiet: Annotated[
        bool, option("--quiet", "-q", help="Say nothing if another holds it, or --once forbids.")
    ] = False
    label: Annotated[
        str | None,
        option("--label", help="What others see as the holder. Default: HOST:PROCESS COMMAND."),
    ] = None
    least: Annotated[
        str | None,
        option(
            "--hold-at-least",
            metavar="TIME",
            help="Hold it so long, though the command ends sooner: 30s, 10m, 2h.",
        ),
    ] = None
    named: TargetOptions = NONE_GIVEN


AS_USUAL = HoldOptions()

UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def seconds_of(name: str, text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match is None or not float(match[1]):
        raise WrongUsageError(f"{text!r} must be a number and a unit: 30s, 10m, 2h, 1d", name)
    seconds = float(match[1]) * UNIT_S[match[2]]
    if seconds > ENTRY_TTL_MS_MAX / 1000:
        most = f"{ENTRY_TTL_MS_MAX // 86_400_000}d"
        raise WrongUsageError(f"{text[:40]} is longer than {most}", name)
    return seconds


class Once(NamedTuple):
    """A key under which one command runs in a period, by the time of the cluster."""

    key: str
    period_s: float

    def begin(self, client: Client, hold: Hold, label: str) -> int | None:
        """Return the version of the key's new entry, or None if a command has run."""
        entries, ttl = client.map(ONCE), self.period_s * PERIOD_PERCENT / 100
        return entries.put_if_absent(self.key, label.encode(), ttl=ttl, fence=hold)

    def why_not(self, client: Client) -> str:
        entry = client.map(ONCE).get(self.key)
        if entry is None or entry.expires is None:
            return "it has run already"
        ago_ms = round((self.period_s * PERIOD_PERCENT / 100 - entry.expires) * 1000)
        who, period = entry.value.decode(errors="replace"), duration(round(self.period_s * 1000))
        return f"it runs once in {period}, and ran {duration(max(0, ago_ms))} ago, as {who!r}"

    def forget(self, client: Client, version: int) -> None:
        """Let another try, since the command has failed."""
        with suppress(FencelockError):
            client.map(ONCE).delete(self.key, version=version)


def lock(
    name: Annotated[
        str, argument(help="The lock.", show_default=False, autocompletion=complete_lock)
    ],
    command: CommandArgument,
    shared: Annotated[
        int | None, option("--shared", min=1, help="Hold one of N permits of a semaphore instead.")
    ] = None,
    once: Annotated[
        str | None,
        option(
            "--once",
            metavar="KEY",
            help="Run only if no command ran under KEY within --for, on any machine.",
        ),
    ] = None,
    period: Annotated[
        str | None, option("--for", metavar="TIME", help="The period of --once: 1h, 1d, 7d.")
    ] = None,
    how: HoldOptions = AS_USUAL,
) -> None:
    """Hold a lock [bold]while a command runs[/bold], and release it when the command ends.

    It waits until it holds the lock, also for the nodes if they do not answer, and
    says after 2 s whom it waits for. FENCELOCK_NAME names the lock to the command, and
    FENCELOCK_FENCE has the fence. Let it send the fence with each write, so that
    storage can refuse a late one.

    Exits with the status of the command. If it did not run: with 75, or the status of -E,
    since another holds the lock; with 69 since no node answered in time; with 78 since
    the nodes belong to another cluster; with 127 since there is no such command, or
    with 126 since it cannot be executed. Exits with 74 if the lock was lost; the command
    and all that it started (on a terminal: the command alone) were then sent SIGTERM,
    and SIGKILL after --grace.

    For cron, on each machine. One runs the job, the others say nothing:

      [cyan]fencelock lock report -n -q --once report --for 1d -- ./report.sh[/cyan]

    Other examples:

      [cyan]fencelock lock deploy --timeout 60 -- make deploy[/cyan]

      [cyan]fencelock lock encoder --shared 4 -- ffmpeg -i in.mov out.mp4[/cyan]

    """
    if (once is None) != (period is None):
        raise WrongUsageError("--once KEY and --for TIME belong together")
    only = None if once is None else Once(once, seconds_of("--for", period or ""))

    def wanted(client: Client) -> Holdable:
        return client.lock(name) if shared is None else client.semaphore(name, permits=shared)

    taken = "" if shared is None else f"all {shared} permits are taken"
    hold_while(command, name, wanted, name, how, only, taken=taken)


def hold_while(
    command: list[str],
    name: str,
    wanted: Callable[[Client], Holdable],
    object_name: str,
    how: HoldOptions,
    once: Once | None = None,
    *,
    taken: str = "",
) -> NoReturn:
    """Run ``command`` while an object is held, and exit with its status, as `lock` describes.

    If it cannot be held, the text says ``taken``, or who holds ``object_name``.
    """
    if how.nonblock and how.timeout is not None:
        raise WrongUsageError("--nonblock does not wait, so it has no --timeout")
    least_s = 0.0 if how.least is None else seconds_of("--hold-at-least", how.least)
    _check_command(command[0], name)
    where = how.named.target()
    from fencelock.cluster.client.client import lazy_to  # noqa: PLC0415 (sockets: not for --help)
    from fencelock.cluster.client.owner import job_label  # noqa: PLC0415 (as above)

    for one in FORWARDED:
        if signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, _exit)
    label = job_label(os.path.basename(command[0])) if how.label is None else how.label
    timeout = 0 if how.nonblock else how.timeout
    version = None
    with ExitStack() as stack:
        client = stack.enter_context(lazy_to(where, label))
        with _answered(name):
            hold = _acquired(wanted(client), timeout, quiet=how.quiet)
            if hold is None:
                why = taken or ("" if how.quiet else holder_of(client, object_name))
                _exit_without_running(how, f"{name} was not acquired: {why}")
        received: list[int] = []
        failed = True
        try:
            if once is not None:
                with _answered(name), _deferred():
                    version = once.begin(client, hold, label)
                if version is None:
                    _exit_without_running(how, f"{name}: {once.why_not(client)}")
            began, renews = time.monotonic(), hold.deadline is not None
            status, lost = _run(command, hold, how.grace, received, renews=renews)
            failed = bool(status) and not lost
        except OSError as error:  # Such as a script without its interpreter.
            print(f"{command[0]}: cannot be executed: {error.strerror}", file=sys.stderr)
            sys.exit(ExitStatus.NOT_EXECUTABLE)
        finally:
            if once is not None and version is not None and failed:
                once.forget(client, version)
        ending = any(number not in MESSAGES for number in received)
        if not lost and not ending and (left_s := began + least_s - time.monotonic()) > 0:
            _keep(hold, left_s)
        else:
            lost = lost or _release(hold)
    if lost:
        say(
            f"{name} was lost while the command ran: {lost}. Another client may have held it "
            f"meanwhile. Later writes under fence {hold.fence} were refused only where fences are "
            "checked",
            err=True,
        )
        sys.exit(ExitStatus.LOST)
    sys.exit(SIGNALLED - status if status < 0 else status)


def _exit_without_running(how: HoldOptions, why: str) -> NoReturn:
    if not how.quiet:
        say(why, err=True)
    sys.exit(how.conflict)


def _check_command(program: str, name: str) -> None:
    """Exit as a shell does if there is no such program."""
    if shutil.which(program) is not None:
        return
    found = os.sep in program and os.path.exists(program)
    problem = "cannot be executed" if found else "command not found"
    print(f"{program}: {problem}; {name} was not acquired", file=sys.stderr)
    sys.exit(ExitStatus.NOT_EXECUTABLE if found else ExitStatus.NO_COMMAND)


@contextmanager
def _answered(name: str) -> Generator[None]:
    """Exit with the status for it if no node answers, or those of another cluster do."""
    try:
        yield
    except WrongClusterError as error:
        say(f"{name} was not acquired: {error}", err=True)
        sys.exit(ExitStatus.WRONG_CLUSTER)
    except UnavailableError as error:
        say(f"{name} was not acquired: {error}", err=True)
        sys.exit(ExitStatus.NO_ANSWER)
    except KeyboardInterrupt:
        print(f"{name} was not acquired: interrupted", file=sys.stderr)
        raise


def _acquired(wanted: Holdable, timeout: float | None, *, quiet: bool) -> Hold | None:
    """Return the hold, or None for "not now". Say whom it waits for meanwhile."""
    teller = _Teller(logging.WARNING if quiet else logging.INFO)
    log, waits = logging.getLogger("fencelock"), timeout != 0
    log.setLevel(logging.INFO)
    log.addHandler(teller)
    try:
        return wanted.acquire(blocking=waits, timeout=timeout if waits else None)
    except LockTimeoutError:  # The cluster's own limit, without a timeout.
        return None
    finally:
        log.removeHandler(teller)


class _Teller(logging.Handler):
    """Prints the lines of the client about what it waits for."""

    def emit(self, record: logging.LogRecord) -> None:
        if ": waiting for " in (text := record.getMessage()):
            say(text, err=True)


def _keep(hold: Hold, left_s: float) -> None:
    lost = threading.Event()
    hold.on_lost(lambda _: lost.set())
    keeper = threading.Thread(target=_renew, args=(hold, lost), daemon=True)
    if hold.deadline is not None:
        keeper.start()
    lost.wait(left_s)
    _release(hold)


def _exit(number: int, _: object) -> None:
    """Exit cleanly while no command runs, so that a waiting client leaves the queue."""
    sys.exit(SIGNALLED + number)


def holder_of(client: Client, lock: str) -> str:
    """Return a text that names the present holder of an object, by its name in the table."""
    try:
        holder = client.status(lock).holder
    except FencelockError:
        return "it is held"
    return "it was held" if holder is None else f"{in_full(holder)} holds it"


def _run(
    command: list[str], hold: Hold, grace: float, received: list[int], *, renews: bool
) -> tuple[int, str]:
    """Run ``command`` under ``hold``; return its status, and the reason if the hold was lost.

    ``received`` gets the signals that came meanwhile.
    """
    environment = {"FENCELOCK_NAME": hold.name, "FENCELOCK_FENCE": str(hold.fence)}
    lost, ended = threading.Event(), threading.Event()
    reasons: list[str] = []

    def on_lost(notice: Notice) -> None:
        reasons.append(notice.detail or "its session ended")
        lost.set()

    hold.on_lost(on_lost)
    with _started(command, environment, received) as process:
        keepers = [threading.Thread(target=_stop_if_lost, args=(process, lost, ended, grace))]
        if renews:
            keepers.append(threading.Thread(target=_renew, args=(hold, ended), daemon=True))
        for keeper in keepers:
            keeper.start()
        status = process.wait()
        reason = reasons[0] if reasons else ""
        # While signals are still passed on: if one ended this process first, the thread would never
        # be woken, and the process would wait for it forever.
        ended.set()
        lost.set()  # Wakes the thread that waits for it.
        keepers[0].join()
    return status, reason


def _stop_if_lost(
    process: subprocess.Popen[bytes], lost: threading.Event, ended: threading.Event, grace: float
) -> None:
    """Send SIGTERM once the hold is lost, and SIGKILL ``grace`` s later; see `_signal_group`."""
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
    return not at_terminal() and process.pid != os.getpgrp()


def _renew(hold: Hold, ended: threading.Event) -> None:
    while not ended.wait(hold.remaining / RENEWALS):
        try:
            hold.renew()
        except (NotHeldError, LockOwnershipLostError):
            return
        except FencelockError:
            continue  # Try again. If the hold ends, `on_lost` reports it.


@contextmanager
def _started(
    command: list[str], environment: dict[str, str], received: list[int]
) -> Generator[subprocess.Popen[bytes]]:
    """Start ``command``, and pass signals on to it until it ends; ``received`` has their numbers.

    The handlers are there before the command is: a signal that came in between would end this
    process, and release the lock while the command runs. Without a terminal the command gets a
    process group of its own. A terminal sends Ctrl-C and Ctrl-Z to one group only.

    A command inherits which signals are ignored, and no handlers. So it ignores what we do, as
    after ``nohup``, and nothing else.
    """
    started: list[subprocess.Popen[bytes]] = []
    grouped = not at_terminal()

    def pass_on(number: int) -> None:
        if not grouped and number in (signal.SIGINT, signal.SIGQUIT):
            return  # The terminal sends it to the command, too.
        received.append(number)
        if started:
            started[0].send_signal(number)

    with _handled(pass_on):
        process = subprocess.Popen(
            command, env=os.environ | environment, process_group=0 if grouped else None
        )
        started.append(process)
        for number in tuple(received):
            process.send_signal(number)
        yield process


@contextmanager
def _handled(note: Callable[[int], None]) -> Generator[None]:
    """Call ``note`` with the signals that would end this process; ignored ones stay ignored."""
    former = {
        one: handler
        for one in (*FORWARDED, signal.SIGINT)
        if (handler := signal.getsignal(one)) is not signal.SIG_IGN
    }
    for one in former:
        signal.signal(one, lambda number, _: note(number))
    try:
        yield
    finally:
        for one, handler in former.items():
            signal.signal(one, handler)


@contextmanager
def _deferred() -> Generator[None]:
    """Let a signal wait for the end of the body, which would leave something undone or unknown."""
    numbers: list[int] = []
    with _handled(numbers.append):
        yield
    for number in numbers:
        signal.raise_signal(number)


def _release(hold: Hold) -> str:
    """Release the hold; return the reason if it was not held until now."""
    try:
        hold.release()
    except (NotHeldError, LockOwnershipLostError) as error:
        return str(error)
    except UnavailableError as error:
        say(f"{hold.name}: {error}", err=True)
    return ""
