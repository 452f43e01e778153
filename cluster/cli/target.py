"""The cluster that a command asks: the options that name it, and the connection to it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

from fencelock.actors.error import ConfigError, FencelockError, UnavailableError, WrongClusterError
from fencelock.cluster.cli.exit_status import ExitStatus, Unanswered, at_terminal, say
from fencelock.cluster.cli.options import option

if TYPE_CHECKING:
    import typer

    from fencelock.cluster.cli.screen import View
    from fencelock.cluster.client.client import Client
    from fencelock.cluster.client.settings import Target

SURVEY_SHARE = 0.25
"""Part of ``--timeout`` that is left to find out why a request was not answered."""


WatchOption = Annotated[bool, option("--watch", help="Show it again every second, until Ctrl-C.")]
ListJsonOption = Annotated[bool, option("--json", help="Print one JSON array.")]
OperatorOption = Annotated[
    str | None, option("--operator", help="Your name, for the record. Default: USER@HOST.")
]


def group(name: str, text: str | None = None, *, no_args_is_help: bool = True) -> typer.Typer:
    """Return a group of commands; without ``text``, its callback has the help."""
    import typer  # noqa: PLC0415 (commands without groups start without it)

    made = typer.Typer(
        name=name,
        rich_markup_mode="rich",
        no_args_is_help=no_args_is_help,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    if text is not None:
        made.info.help = text
    return made


class TargetOptions(NamedTuple):
    """The options by which every command about a running cluster finds it."""

    connect: Annotated[
        str | None,
        option(
            "--connect",
            envvar="FENCELOCK_CONNECT",
            help="Addresses of nodes, separated by commas. Default: those in ./cluster.toml, "
            "else tcp://127.0.0.1:4040.",
            metavar="ADDRESSES",
        ),
    ] = None
    cluster: Annotated[
        str | None,
        option(
            "--cluster",
            envvar="FENCELOCK_CLUSTER",
            help="The cluster's name. Default: the one in ./cluster.toml, else fencelock.",
        ),
    ] = None
    key: Annotated[
        str | None,
        option(
            "--key",
            envvar="FENCELOCK_KEY",
            help="Your key file, if the cluster uses keys (`fencelock keys add` makes one).",
            metavar="FILE",
        ),
    ] = None

    def target(self) -> Target:
        from fencelock.cluster.client.settings import Target  # noqa: PLC0415 (sockets: not for --help)

        found = Target.find(*self)
        assert found.endpoints
        return found


NONE_GIVEN = TargetOptions()


class AskOptions(NamedTuple):
    """The options of a command that asks a cluster and waits for it."""

    named: TargetOptions = NONE_GIVEN
    timeout: Annotated[
        float, option("--timeout", help="How long to wait for the first reply (s).")
    ] = 5.0

    def connected(self) -> AbstractContextManager[Client]:
        return connected_to(self.named.target(), self.timeout)


ASK = AskOptions()


class DoOptions(NamedTuple):
    """The options of a command that does one thing, and prints what came of it."""

    given: AskOptions = ASK
    as_json: Annotated[bool, option("--json", help="Print what was done as one JSON object.")] = (
        False
    )

    def connected(self) -> AbstractContextManager[Client]:
        return self.given.connected()

    def done(self, plain: object, text: str | None, *, failed: str = "") -> None:
        """Print what the command has done: one JSON object, or a line for a person.

        Without a ``text`` it has ``failed``: say why, and exit.
        """
        if self.as_json:
            print(json.dumps(plain, indent=2))
        elif text is not None:
            say(text)
        else:
            say(failed, err=True)
        if text is None:
            sys.exit(ExitStatus.FAILED)


DO = DoOptions()


class ForceOptions(NamedTuple):
    """The options of a command that takes or deletes what others have, once that is confirmed."""

    yes: Annotated[bool, option("--yes", "-y", help="Do not ask for confirmation.")] = False
    operator: OperatorOption = None
    doing: DoOptions = DO

    def check_confirmable(self, look: str) -> None:
        if not self.yes and not at_terminal():
            raise ConfigError(f"nobody is here to confirm: look with `{look}`, then add --yes")


FORCE = ForceOptions()


class LookOptions(NamedTuple):
    """The options of a command that shows what a cluster replies."""

    named: TargetOptions = NONE_GIVEN
    timeout: Annotated[float, option("--timeout", help="How long to wait in all (s).")] = 5.0

    def show(
        self, view: Callable[[Client], View], *, watch: bool = False, failed: int | None = None
    ) -> NoReturn:
        """Print the ``view`` of what the cluster replies, and exit; see `present`."""
        from fencelock.cluster.cli.screen import present  # noqa: PLC0415 (rich)

        where = self.named.target()

        def look() -> View:
            with looking(where, self.timeout) as operator:
                return view(operator)

        sys.exit(present(look, watch=watch, failed=failed))


LOOK = LookOptions()


@contextmanager
def connected_to(where: Target, timeout: float) -> Generator[Client]:
    """Connect; if no node answers, or none can, print a line and exit with the status for that."""
    try:
        with looking(where, timeout, bounded=False) as operator:
            yield operator
    except Unanswered as problem:
        say(str(problem), err=True)
        sys.exit(problem.exit_code)


@contextmanager
def looking(where: Target, timeout: float, *, bounded: bool = True) -> Generator[Client]:
    """Connect, for requests that are ``bounded``: all of them end within ``timeout`` (s).

    Raises:
        Unanswered: no node answers, or none can without a leader or a majority.
        WrongClusterError: the nodes that answer belong to another cluster or version.
        RefusedError: a request in the ``with`` is refused.

    """
    from fencelock.cluster.client import client  # noqa: PLC0415 (sockets: not for --help)

    ends = time.monotonic() + timeout
    connected = False
    try:
        with client.connect_to(where, timeout=timeout) as session:
            connected = True
            if bounded:
                session.reply_by(ends - timeout * SURVEY_SHARE)
            try:
                yield session
            except WrongClusterError:
                raise
            except UnavailableError as error:
                if bounded:
                    session.reply_by(ends)
                raise Unanswered(why_unserved(session, error), ExitStatus.UNSERVED) from error
    except WrongClusterError:
        raise
    except UnavailableError as error:
        raise Unanswered(
            str(error), ExitStatus.UNSERVED if connected else ExitStatus.FAILED
        ) from error


def why_unserved(operator: Client, error: UnavailableError) -> str:
    try:
        nodes = operator.survey().statuses
    except FencelockError:
        return str(error)
    unready = [node for node in nodes if not node.ready]
    if not unready:
        return str(error)
    what = "No node can answer now" if len(unready) == len(nodes) else str(error)
    return f"{what}. {'; '.join(f'{node.node}: {node.detail}' for node in unready)}"
