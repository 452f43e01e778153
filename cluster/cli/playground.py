"""The prompt of ``fencelock dev``: locks by hand, and nodes that are killed and cut off."""

from __future__ import annotations

import shlex
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from itertools import count
from typing import TYPE_CHECKING

from fencelock.actors.api.role_request import SetLog
from fencelock.actors.error import ConfigError, FencelockError
from fencelock.cluster.cli.exit_status import at_terminal
from fencelock.cluster.testing.faults import LinkFaults

if TYPE_CHECKING:
    from fencelock.cluster.client.client import Client
    from fencelock.cluster.client.lock import Lock
    from fencelock.cluster.node.node import Node

PROMPT = "fencelock> "
KILL_S = 5.0
"""Timeout for a node to end (s)."""
PLAYGROUND_REPLY_S = 5.0
"""Timeout for replies of nodes, and for clients to connect (s)."""

HELP = """\
lock NAME [NODE]   acquire a lock, through any node or through NODE; the prompt does not wait
release NAME       release it
kill NODE          stop a node as if it had crashed
start NODE         start it again
cut NODE NODE      let no message pass between two nodes, in either direction
heal               let all messages pass again
trace ROLE ...     write each message of these roles, as in trace process; trace off ends it
help               print this
quit               stop all nodes"""


class Playground:
    """Several nodes in one process, and what is done with them at the prompt.

    It adds to the running ``nodes``, and removes some. A client of ``connect`` stays with its nodes
    if asked to. The log has ``level`` while nothing is traced.
    """

    def __init__(
        self,
        nodes: dict[str, Node],
        start: Callable[[str], Node],
        connect: Callable[[Iterable[str], bool], Client],
        say: Callable[[str], None],
        level: str,
    ) -> None:
        self.nodes = nodes
        self._all = tuple(nodes)
        self._start = start
        self._connect = connect
        self._say = say
        self._level = level
        self._traced: tuple[str, ...] | None = None
        self._clients: dict[str, Client] = {}
        self._guard = threading.Lock()
        self._numbers = count(1)
        self._held = defaultdict[str, deque["Lock"]](deque)
        self._cuts: dict[str, LinkFaults] = {}
        for node in nodes.values():
            self._watch(node)
        self._commands: Mapping[str, tuple[Callable[..., None], int, int]] = {
            "lock": (self.lock, 1, 2),
            "release": (self.release, 1, 1),
            "kill": (self.kill, 1, 1),
            "start": (self.start, 1, 1),
            "cut": (self.cut, 2, 2),
            "heal": (self.heal, 0, 0),
            "trace": (self.trace, 0, 20),
            "help": (lambda: say(HELP), 0, 0),
        }

    def completions(self, word: str) -> list[str]:
        """Return the words that begin with ``word``: commands, nodes and locks that are held."""
        words = sorted({*self._commands, "quit", *self._all, *self._held})
        return [one for one in words if one.startswith(word)]

    def run(self, line: str) -> None:
        try:
            words = shlex.split(line)
            if words:
                self._do(*words)
        except (ValueError, FencelockError) as error:
            self._say(str(error))

    def _do(self, verb: str, *arguments: str) -> None:
        if verb not in self._commands:
            raise ConfigError(f"there is no {verb!a}; help shows the commands")
        act, least, most = self._commands[verb]
        if not least <= len(arguments) <= most:
            usage = next(one for one in HELP.splitlines() if one.startswith(verb))
            raise ConfigError(f"usage: {usage}")
        act(*arguments)

    def lock(self, name: str, node: str = "") -> None:
        client = self._client(node)
        lock = client.lock(name, owner=f"prompt-{next(self._numbers)}", label="the prompt")
        where = f" through {node}" if node else ""

        def acquire() -> None:
            try:
                hold = lock.acquire()
            except FencelockError as error:
                self._say(f"{name} was not acquired: {error}")
                return
            with self._guard:
                self._held[name].append(lock)
            self._say(f"{name} is held under fence {hold.fence}{where}")

        threading.Thread(target=acquire, name="prompt-lock", daemon=True).start()

    def release(self, name: str) -> None:
        with self._guard:
            if not self._held[name]:
                raise ConfigError(f"{name} is not held here")
            lock = self._held[name].popleft()
        lock.release()
        self._say(f"{name} is released")

    def kill(self, name: str) -> None:
        node = self._running(name)
        del self.nodes[name]
        node.stop(KILL_S, at_once=True)
        self._say(f"{name} is dead")

    def start(self, name: str) -> None:
        if name in self.nodes or name not in self._all:
            dead = ", ".join(one for one in self._all if one not in self.nodes) or "none"
            raise ConfigError(f"{name} is not dead; dead: {dead}")
        node = self._start(name)
        self._watch(node)
        self.nodes[name] = node
        if self._traced is not None:
            self._set_log([node])
        self._say(f"{name} runs")

    def cut(self, one: str, other: str) -> None:
        if one == other:
            raise ConfigError("name two nodes")
        for node, peer in ((one, other), (other, one)):
            self._running(node)
            self._cuts[node].cut_off.add(peer)
        self._say(f"no message passes between {one} and {other}")

    def heal(self) -> None:
        for cuts in self._cuts.values():
            cuts.cut_off.clear()
        self._say("all messages pass")

    def trace(self, *roles: str) -> None:
        self._traced = None if roles == ("off",) else roles
        self._set_log(self.nodes.values())

    def close(self) -> None:
        for client in self._clients.values():
            with suppress(FencelockError):
                client.close()

    def _set_log(self, nodes: Iterable[Node]) -> None:
        traced = self._traced
        level = self._level if traced is None else "TRACE"
        for node in nodes:
            node.ref("log").ask(SetLog(level=level, roles=traced or ()), timeout=PLAYGROUND_REPLY_S)

    def _watch(self, node: Node) -> None:
        former = self._cuts.get(node.id)
        self._cuts[node.id] = LinkFaults(node.links)
        if former is not None:
            self._cuts[node.id].cut_off |= former.cut_off

    def _running(self, name: str) -> Node:
        if name not in self.nodes:
            raise ConfigError(f"no node {name!a} runs; there are {', '.join(self.nodes)}")
        return self.nodes[name]

    def _client(self, node: str) -> Client:
        if node:
            self._running(node)
        if node not in self._clients:
            self._clients[node] = self._connect([node] if node else self._all, bool(node))
        return self._clients[node]


def read_lines(playground: Playground, stop: Callable[[], None]) -> None:
    """Read lines from standard input until its end or ``quit``, then call ``stop``."""
    typed = at_terminal()
    if typed:
        import readline  # noqa: PLC0415 (it changes how `input` reads)

        def complete(word: str, number: int) -> str | None:
            return dict(enumerate(playground.completions(word))).get(number)

        readline.set_completer(complete)
        readline.parse_and_bind("tab: complete")
    with suppress(EOFError), ExitStack() as stack:
        stack.callback(stop)
        while (line := input(PROMPT if typed else "").strip()) != "quit":
            playground.run(line)
