"""The player of transcripts of one role (`transcript.py`).

``new`` and ``new NAME=VALUE ...``
    Return the first effects of a new role, which is made with these arguments.
``restart`` and ``restart NAME=VALUE ...``
    Return the first effects of the role that takes over what the last one wrote to its journal.
``limit NAME NUMBER``
    Set a limit, in all modules of `actors` that have it.
``wait MS``
    Let time pass. No timer fires by itself: ``timer NAME`` fires one.
``run MS``
    Let time pass; the timers that are due fire.
``timers``
    Return the timers that are set.
``summary``
    Return what the role says of itself.

Other lines are messages to the role, each after its sender. The fields that the scene gives are
left out. So are those fields of an outcome that are equal in the message, or else in the scene. A
message in another one follows it after a colon. A role that only counts an event as ``malformed``
has not changed (`DROPPED`).
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import getmembers, isclass
from random import Random
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from fencelock.actors.effect import Checkpoint, Effect, Observe, Persist, Retire, Send, Spawn, Wake
from fencelock.actors.message import Address, Event, Message
from fencelock.actors.paxos.config import LogConfig
from fencelock.actors.role import Role
from support.role_harness import RoleHarness
from support.transcript import message_of, written


class Scene(NamedTuple):
    """What is around the role of a transcript."""

    make: Callable[..., Role[Any]]
    """Makes the role, given a host and perhaps more."""
    kinds: Mapping[str, Any]
    """The messages to the role, by the names of their classes."""
    names: Mapping[str, Address] = {}
    """Short names of addresses."""
    given: Mapping[str, Any] = {}
    """Values of fields that are left out."""
    shown: Sequence[str] = ()
    """Fields that an outcome shows though they are equal in the message."""


def events_of(*modules: ModuleType) -> dict[str, Any]:
    """Return the messages of ``modules`` by name; of two under one name, the last."""
    return dict(pair for module in modules for pair in getmembers(module, isclass))


class RolePlayer(RoleHarness[Role[Any]]):
    """A role, what it writes, and the effects of one line."""

    def __init__(self, scene: Scene, patch: pytest.MonkeyPatch) -> None:
        self.scene, self.patch = scene, patch
        self.names = {address: name for name, address in scene.names.items()}
        self.start()

    def start(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.effects: list[Effect] = []
        self.records: list[Message] = []
        super().__init__(lambda host: self.scene.make(host, **arguments))

    def __call__(self, line: str) -> Iterable[str]:
        self.effects.clear()
        event: Any = None
        match line.split():
            case ["new", *words]:
                self.start(**{name: _argument(text) for name, text in map(_pair, words)})
            case ["restart", *words]:
                written_before = self.records
                given = {name: _argument(text) for name, text in map(_pair, words)}
                self.start(**self.arguments | given | {"records": tuple(written_before)})
                self.records = written_before + self.records
            case ["limit", name, number]:
                limit(self.patch, name, int(number))
            case ["wait", ms]:
                self.now_ms += int(ms)
            case ["run", ms]:
                self.run(int(ms))
            case ["timers"]:
                timers = [f"{written(one)} in {at - self.now_ms} ms" for at, one in self.alarms]
                return timers or ["none"]
            case ["summary"]:
                return [" ".join(f"{name}={written(value)}" for name, value in self.role.summary())]
            case _:
                event = self.played(line)
        known = self.known(event)
        return filter(None, [self.written(one, known) for one in self.effects])

    def known(self, event: Any) -> dict[str, Any]:
        """Return the fields of ``event`` and of the message in it, and what the scene gives."""
        same = fields_of(event) | fields_of(inner_of(event)[1])
        shown = self.scene.shown
        return {**self.scene.given, **{name: same[name] for name in same if name not in shown}}

    def played(self, line: str) -> Any:
        """Send the message of a line to the role; return it."""
        name, words = line.split(maxsplit=1)
        names = {**self.scene.names, "timer": self.role.address}
        sender = names.get(name, Address(name))
        event = self.message(words, {"client": sender, **self.scene.given})
        before = self.state()
        self.receive(sender, event)
        if [*map(is_count_of_malformed, self.effects)] == [True]:
            assert self.state() == before
        return event

    def state(self) -> bytes:
        """Return the state of the role; its facts, if it has functions in its state."""
        try:
            return pickle.dumps(dict(self.role.state()))
        except (AttributeError, TypeError, pickle.PicklingError):
            return repr([*self.role.facts(self._now())]).encode()

    def message(self, words: str, given: dict[str, Any]) -> Any:
        words, _, inner = words.partition(": ")
        if inner:
            given = given | dict.fromkeys(INNER, message_of(inner, self.scene.kinds, **given))
        return message_of(words, self.scene.kinds, **given)

    def written(self, effect: Effect, known: Mapping[str, Any]) -> str:
        """Return an effect without the fields that are ``known``, empty if it is not shown."""
        match effect:
            case Send(to, message):
                name, inner = inner_of(message)
                text = written(message, **{**known, name: inner})
                behind = f": {written(inner, **known)}" if inner is not None else ""
                return f"{self.names.get(to, to)} {text}{behind}"
            case Wake(after_ms, timer):
                return f"after {after_ms} ms {written(timer, **known)}"
            case Observe(name, number):
                return f"count {name}" + f" {number}" * (number > 1)
            case Persist(record):
                return f"persist {written(record, **known)}"
            case Spawn(address, role, arguments):
                shown = {name: one for name, one in arguments.items() if one != ()}
                texts = [f"{name}={written(one)}" for name, one in shown.items() if is_shown(one)]
                return " ".join(("spawn", address, role.__name__, *texts))
            case Checkpoint(records):
                return f"checkpoint {'; '.join(written(one, **known) for one in records)}"
            case Retire(address):
                return f"retire {address}"
            case _:
                raise NotImplementedError(effect)

    def _perform(self, effect: Effect, sends: list[Send]) -> None:
        self.effects.append(effect)
        match effect:
            case Persist(record):
                self.records.append(record)
            case Checkpoint(records):
                self.records = [*records]
            case Spawn() | Retire():
                pass
            case _:
                super()._perform(effect, sends)


def is_shown(argument: Any) -> bool:
    """Return whether an argument of a role is shown: not if it is shared by roles of a node."""
    return not isinstance(argument, LogConfig | Random)


def _pair(word: str) -> tuple[str, str]:
    name, _, text = word.partition("=")
    return name, text


def _argument(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def fields_of(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for name in getattr(event, "__struct_fields__", ())}


INNER = ("message", "content", "query", "reply", "release")
"""Fields with a message. It stands behind the one that has it, after a colon."""


def inner_of(event: Any) -> tuple[str, Any]:
    """Return the name of a field of ``event`` with a message, and the message, if there is one."""
    found = ((name, getattr(event, name, None)) for name in INNER)
    return next((pair for pair in found if isinstance(pair[1], Event)), ("", None))


DROPPED = ("_malformed", "stranger_dropped", "impossible_stamp", "late_introduce_dropped")
"""A role that only counts an event under a name with one of these ends has not changed."""


def is_count_of_malformed(effect: Effect) -> bool:
    return isinstance(effect, Observe) and effect.name.endswith(DROPPED)


def limit(patch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Set a limit in all modules of `actors` that have it."""
    modules = [one for module, one in sys.modules.items() if module.startswith("fencelock.actors.")]
    found = [module for module in modules if hasattr(module, name)]
    assert found, f"{name} is no limit"
    for module in found:
        patch.setattr(module, name, number)
